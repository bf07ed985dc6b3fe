"""What an analysis found, as pure data: the values that every report and every gate reads.

Rates are macro averages (the mean over tasks of each task's rate) over trials that have a record, deltas are
paired by task, both as proportions with 95 % intervals that describe these tasks. Apart from ``analysis``, which
fills them, so that gates and command line can talk about results without loading numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag

if TYPE_CHECKING:
    from pytest_infranoise.stats.rates import Interval


@dataclass(frozen=True, slots=True)
class Cell:
    """One task under one config: how its recorded trials ended, and how many have no record."""

    passes: int = 0
    fails: int = 0
    infra: int = 0
    missing: int = 0

    @property
    def recorded(self) -> int:
        """Trials with a record."""
        return self.passes + self.fails + self.infra


@dataclass(frozen=True, slots=True)
class Rate:
    """A macro average as a proportion, with its 95 % interval for these tasks.

    ``events`` of ``trials`` are the plain counts behind it and ``tasks`` the tasks that have trials. Without
    any trial ``value`` is None and the interval is all of [0, 1].
    """

    events: int
    trials: int
    tasks: int
    value: float | None
    interval: Interval
    method: str


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Trials whose agent ran into its deadline, by how they ended.

    A fail counts by its reason or its flag, a pass and an infra-error by the flag alone.
    """

    fails: int = 0
    passes: int = 0
    infra: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.fails + self.passes + self.infra


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """What one agent did under one resource config.

    ``cells`` has an entry for every task that was planned. ``score`` counts infra-errors as not passed;
    ``excluded`` leaves them out, and with them the ``only_infra`` tasks that had nothing else.
    """

    config: str
    cells: Mapping[str, Cell]
    score: Rate
    excluded: Rate
    infra_rate: Rate
    only_infra: tuple[str, ...]
    causes: Mapping[Cause, int]
    timeouts: Timeouts
    flags: Mapping[Flag, int]
    survived_kills: int  # passes in which the kernel killed some process for memory

    @property
    def passes(self) -> int:
        """Trials that passed."""
        return sum(cell.passes for cell in self.cells.values())

    @property
    def fails(self) -> int:
        """Trials that failed."""
        return sum(cell.fails for cell in self.cells.values())

    @property
    def infra(self) -> int:
        """Trials that ended in an infra-error."""
        return sum(cell.infra for cell in self.cells.values())

    @property
    def recorded(self) -> int:
        """Trials with a record."""
        return sum(cell.recorded for cell in self.cells.values())

    @property
    def missing(self) -> int:
        """Planned trials without a record."""
        return sum(cell.missing for cell in self.cells.values())

    @property
    def planned(self) -> int:
        """Trials that were to run."""
        return self.recorded + self.missing

    @property
    def starved(self) -> int:
        """Trials that were short of CPU."""
        return self.flags.get(Flag.STARVED, 0)

    @property
    def samples(self) -> tuple[int, int]:
        """The smallest and largest number of recorded trials of a task that has any; (0, 0) without one."""
        sizes = [cell.recorded for cell in self.cells.values() if cell.recorded]
        return (min(sizes), max(sizes)) if sizes else (0, 0)


@dataclass(frozen=True, slots=True)
class Delta:
    """A difference of two rates, paired by task: config minus baseline, as a proportion.

    ``tasks`` have trials in both configs; the ``dropped`` ones lack them in either. Without a common task
    there is no value. ``p_holm`` is p adjusted for all the configs that are compared with the baseline.
    """

    value: float | None
    interval: Interval
    p: float | None
    p_holm: float | None
    tasks: int
    dropped: int
    method: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """One config against the baseline.

    The p of ``score`` is two-sided; that of ``infra_rate`` is exact and one-sided: how probable such a fall (a
    rise where ceilings are lowered) or a larger one is if the config made no difference to any task.
    """

    config: str
    baseline: str
    score: Delta
    infra_rate: Delta


@dataclass(frozen=True, slots=True)
class Flip:
    """A task whose share of passes is not the same as under the baseline in every config."""

    task: str
    cells: Mapping[str, Cell]  # by config, only where there are recorded trials
    largest: Fraction  # the largest change of the task's pass rate, with its sign


@dataclass(frozen=True, slots=True)
class AgentResult:
    """Everything about one agent (and model)."""

    agent: str
    model: str
    configs: tuple[ConfigResult, ...]
    comparisons: tuple[Comparison, ...]
    flips: tuple[Flip, ...]

    @property
    def label(self) -> str:
        """The agent's name with its model."""
        return f"{self.agent} ({self.model})" if self.model else self.agent


@dataclass(frozen=True, slots=True)
class TaskCoverage:
    """Which tasks the numbers are about.

    ``measured`` have a record; ``skipped`` were collected and left out for a reason; ``not_run`` were collected
    and have neither; ``broken`` counts those that could not be collected.
    """

    measured: tuple[str, ...]
    skipped: Mapping[str, str]
    not_run: tuple[str, ...]
    broken: int

    @property
    def collected(self) -> int:
        """All tasks that were found."""
        return len(self.measured) + len(self.skipped) + len(self.not_run) + self.broken


@dataclass(frozen=True, slots=True)
class Analysis:
    """A run, judged.

    ``unplanned`` counts records of trials that the plan does not have: they enter nothing.
    """

    run: str
    path: Path
    meta: Mapping[str, Any]
    configs: tuple[str, ...]
    baseline: str | None
    agents: tuple[AgentResult, ...]
    tasks: TaskCoverage
    planned: int
    recorded: int
    unfinished: int
    damaged: int
    retries: int
    unplanned: int
    cut_short: str | None
    pass_threshold: float

    @property
    def missing(self) -> int:
        """Planned trials without a record."""
        return self.planned - self.recorded
