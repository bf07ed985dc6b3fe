"""What an analysis found, as pure data: the values that every report and every gate reads.

Rates are macro averages (the mean over tasks of each task's rate) over trials that have a record, deltas are
paired by task, both as proportions. Every interval is at the level and for the target that ``Design`` states. Apart
from ``analysis``, which fills them, so that gates and command line can talk about results without loading numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.design import Design
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag

if TYPE_CHECKING:
    from fractions import Fraction

    from pytest_infranoise.findings import Calibration
    from pytest_infranoise.findings import Drift
    from pytest_infranoise.findings import Interaction
    from pytest_infranoise.findings import Movers
    from pytest_infranoise.findings import Planner
    from pytest_infranoise.findings import Trends
    from pytest_infranoise.stats.decomposition import Accounting
    from pytest_infranoise.stats.decomposition import Decomposition
    from pytest_infranoise.stats.equivalence import Equivalence
    from pytest_infranoise.stats.rates import Interval
    from pytest_infranoise.stats.variants import ScoreVariants


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
    """A macro average as a proportion, with its interval.

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

    A fail counts by its reason or its flag, a pass and an infra-error by the flag alone. ``starved`` are those of
    the fails in which the trial was short of CPU too.
    """

    fails: int = 0
    passes: int = 0
    infra: int = 0
    starved: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.fails + self.passes + self.infra


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, middle and largest of some measurements, and how many there are."""

    number: int
    smallest: float
    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """What the trials of one task under one config used; None where nothing was measured.

    Args:
        trials: those with any measurement of memory.
        peak: the highest peak in bytes, page cache included.
        anonymous: the highest sample of anonymous plus shared memory in bytes, the lower bound of what it needs.
        kills: trials in which the kernel killed a process for memory.
        seconds: the longest trial.
    """

    trials: int
    peak: int | None
    anonymous: int | None
    kills: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What the trials of a config used: per task, and over all trials.

    Args:
        tasks: by name, only tasks that have records.
        peak: bytes per trial, page cache included.
        anonymous: bytes per trial, the highest sample of anonymous plus shared memory.
        seconds: of whole trials.
        agent_seconds: of the agent's phase.
        throttled: share of CPU periods in which the agent was throttled, per trial that could tell.
    """

    tasks: Mapping[str, TaskUsage]
    peak: Spread | None
    anonymous: Spread | None
    seconds: Spread | None
    agent_seconds: Spread | None
    throttled: Spread | None


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """What one agent did under one resource config.

    ``cells`` has an entry for every task that was planned. ``score`` counts infra-errors as not passed;
    ``excluded`` leaves them out, and with them the ``only_infra`` tasks that had nothing else. ``naive_score`` is
    the interval of ``score`` as if all trials were alike, for comparison. ``within_task_variance`` is the mean
    p(1-p) of one trial given its task, ``icc`` the share of a trial's variance that lies between tasks; both None
    where no task has two samples, ``icc`` also where all trials agree.
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
    naive_score: Interval
    variants: ScoreVariants  # nan where no trial supports one
    within_task_variance: float | None
    icc: float | None
    usage: Usage

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
    ``guarded``: so few data that the interval was widened and p is exact. ``p_exact`` is the two-sided exact p
    whatever the method (target population: sign-flip). ``se`` and ``df`` are None where there are none.
    """

    value: float | None
    interval: Interval
    p: float | None
    p_holm: float | None
    tasks: int
    dropped: int
    method: str
    guarded: bool = False
    discordant: int = 0
    se: float | None = None
    df: float | None = None
    p_exact: float | None = None

    def size_unknown(self, alpha: float) -> bool:
        """Whether p shows a change and the interval, widened for few data, does not show how large it is."""
        return self.p is not None and self.p <= alpha and self.interval.lo <= 0 <= self.interval.hi


@dataclass(frozen=True, slots=True)
class Comparison:
    """One config against the baseline.

    The p of ``score`` and ``fail_rate`` is two-sided; that of ``infra_rate`` is exact and one-sided: how probable
    such a fall (a rise where ceilings are lowered) or a larger one is if the config made no difference to any task.
    ``fail_rate`` is about genuine failures: trials that neither passed nor were infra-errors.

    ``equivalence`` is the test whether the score is the same within the margin, with the smallest margin that
    would have been shown; ``accounting`` and ``decomposition`` say where the score's change comes from. All three
    are None without a common task.
    """

    config: str
    baseline: str
    score: Delta
    infra_rate: Delta
    fail_rate: Delta
    equivalence: Equivalence | None
    accounting: Accounting | None
    decomposition: Decomposition | None


@dataclass(frozen=True, slots=True)
class Flip:
    """A task whose share of passes is not the same as under the baseline in every config."""

    task: str
    cells: Mapping[str, Cell]  # by config, only where there are recorded trials
    largest: Fraction  # the largest change of the task's pass rate, with its sign


@dataclass(frozen=True, slots=True)
class AgentResult:
    """Everything about one agent (and model).

    ``chain`` are the configs that have records by rising ceilings, None when they are no chain; then there is no
    trend and no calibration, and ``no_chain`` says why. ``trends`` also need three configs, ``calibration`` a
    baseline with a config above it. ``planner``, ``movers`` and ``drift`` are None where nothing can be told.
    ``top`` is the highest ceiling above the baseline, else the last config, with records.
    """

    agent: str
    model: str
    configs: tuple[ConfigResult, ...]
    comparisons: tuple[Comparison, ...]
    flips: tuple[Flip, ...]
    chain: tuple[str, ...] | None
    no_chain: str
    trends: Trends | None
    calibration: Calibration | None
    planner: Planner | None
    movers: Movers | None
    drift: Drift | None
    top: str | None = None

    @property
    def label(self) -> str:
        """The agent's name with its model."""
        return f"{self.agent} ({self.model})" if self.model else self.agent

    def comparison(self, config: str | None) -> Comparison | None:
        """Return the comparison of a config with the baseline, if there is one."""
        return next((entry for entry in self.comparisons if entry.config == config), None)

    def result(self, config: str | None) -> ConfigResult | None:
        """Return what happened under a config, if it was planned."""
        return next((entry for entry in self.configs if entry.config == config), None)


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

    ``retries`` counts later attempts at trials that have a first one, ``retries_passed`` those that passed; neither
    enters a rate. ``unplanned`` counts records of trials that the plan does not have: they enter nothing. ``specs``
    are the tasks' recommended memory in bytes, where records tell. ``interactions`` has each pair of agents with
    each config.
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
    design: Design
    specs: Mapping[str, int]
    interactions: tuple[Interaction, ...]
    retries_passed: int = 0

    @property
    def missing(self) -> int:
        """Planned trials without a record."""
        return self.planned - self.recorded
