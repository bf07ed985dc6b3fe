"""What all configs of an agent, or all agents, show together, as pure data.

Like ``results``, which holds these values, this can be imported without numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Literal

if TYPE_CHECKING:
    from pytest_infranoise.results import Cell
    from pytest_infranoise.results import Delta
    from pytest_infranoise.stats.calibration import Status
    from pytest_infranoise.stats.slots import SlotComponents


@dataclass(frozen=True, slots=True)
class Trend:
    """Whether a rate rises (z > 0) or falls over the configs, which form a chain of rising ceilings.

    ``tasks`` are those whose trials do not all agree: only they can tell. ``p`` is two-sided, exact with fewer than
    ten such tasks; for the population ``z`` is None, and p where all tasks have the same slope.
    """

    p: float | None
    z: float | None
    rising: bool
    tasks: int


@dataclass(frozen=True, slots=True)
class Trends:
    """Trends over ``configs``, by rising ceiling; ``infra_fit`` is the closest falling sequence, for plots only."""

    configs: tuple[str, ...]
    score: Trend
    infra_rate: Trend
    infra_fit: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """One ceiling above the baseline's, and whether it cuts infra-errors enough.

    ``cut`` is the share of the baseline's infra-errors that is gone, None when it has none. ``p_infra`` is
    one-sided, ``p_infra_holm`` allows for all rows. ``gate``: cut and p_infra_holm both say that they fell enough.
    """

    config: str
    p_infra: float
    p_infra_holm: float
    cut: float | None
    gate: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """Which ceiling to use: the smallest that cuts infra-errors and provably leaves the score in place.

    ``candidate`` is the config that passed the gate on infra-errors, ``pick`` the same if its score was then shown
    to be equal within the margin. ``rows`` go by rising ceiling; a config without a ceiling has a row and is never
    the candidate.
    """

    status: Status
    pick: str | None
    candidate: str | None
    rows: tuple[CalibrationRow, ...]


@dataclass(frozen=True, slots=True)
class Planner:
    """What more data would show, at 80 % power; None where no number does, or none can be told.

    ``counts`` says what the numbers count: ``samples`` per task and config, or, where intervals are about tasks
    like these, ``tasks`` with as many samples as now, because more samples of the same tasks hardly help there.

    Args:
        counts: ``samples`` or ``tasks``.
        few: the delta is under the small-data guard, so that no standard error is to be planned from: no number of
            samples or tasks is told.
        variance: mean p(1-p) of one trial given its task, that everything here is computed from; None where numbers
            count tasks.
        tasks: tasks in the comparison.
        samples: recorded samples per task now, the harmonic mean over tasks of baseline and other configs.
        detectable: the smallest score difference that would be detected with these samples.
        delta: the score difference assumed to be true, that of ``config``: the candidate or the largest ceiling.
        for_margin: samples to show the score equal within the margin if ``delta`` is true.
        for_five: the same for a margin of 5 points.
        for_margin_if_zero: samples to show it if the score does not move at all.
        near_spec: tasks that came near their spec in some trial or whose records cannot tell: the only ones that a
            ceiling can have reached. None where those are all, and where numbers count tasks.
        for_margin_near: samples when only those are run again, the others standing as they are.
        for_five_near: the same for a margin of 5 points.
    """

    counts: Literal["samples", "tasks"]
    few: bool
    variance: float | None
    tasks: int
    samples: float
    detectable: float | None
    config: str
    delta: float
    for_margin: int | None
    for_five: int | None
    for_margin_if_zero: int | None
    near_spec: tuple[str, ...] | None
    for_margin_near: int | None
    for_five_near: int | None


@dataclass(frozen=True, slots=True)
class Mover:
    """A task whose pass rate was looked at from one config to another.

    ``before`` and ``after`` are these two, and ``cells`` all configs from one to the other, by rising ceiling where
    a trend is the detector. ``rising`` is the direction that was tested; over many configs it need not be that of
    ``delta``, which is after minus before.

    ``p_adjusted`` allows for all tasks by their false discovery rate, None when this task could not have been
    found (it cannot with fewer than five samples). ``found``: it is at most 10 %. ``shrunk`` and ``wrong_sign`` are
    the delta pulled towards the others' and the chance that its sign is wrong: for a watch list, no finding; None
    with fewer than three tasks.
    """

    task: str
    before: Cell
    after: Cell
    cells: tuple[Cell, ...]
    rising: bool
    delta: float
    p_adjusted: float | None
    found: bool
    shrunk: float | None
    wrong_sign: float | None


@dataclass(frozen=True, slots=True)
class Movers:
    """Tasks that move between ``baseline`` and ``top``, found by a trend over all configs where they are a chain.

    For a trend these two are the ends of the chain, wherever the baseline of the deltas stands in it.

    ``tasks`` were looked at and ``testable`` of them could have been found at all; none means too few samples.
    ``found`` goes by size of the change, ``watch`` has those with ``wrong_sign`` below .05 that were not found.
    """

    baseline: str
    top: str
    by_trend: bool
    tasks: int
    testable: int
    found: tuple[Mover, ...]
    watch: tuple[Mover, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """How scores vary over rounds and slots, on the tasks that have a record in every round of every config.

    Args:
        tasks: how many those are.
        rounds: rounds that all of them have.
        slots: the scores of all configs together by hour of wall clock (by day for a run of several days), None
            when start times were not recorded.
        slot: ``hour`` or ``day``.
        overdispersion: variance of the rounds' deltas (top config minus baseline) over that of independent trials;
            None with fewer than two rounds or without variation.
        overdispersion_p: how often independent trials would vary as much or more.
    """

    tasks: int
    rounds: int
    slots: SlotComponents | None
    slot: str
    overdispersion: float | None
    overdispersion_p: float | None


@dataclass(frozen=True, slots=True)
class Interaction:
    """Whether the difference between two agents depends on the config: the difference of their deltas.

    ``one`` and ``zero`` are the agents' labels; ``before`` is the score of ``one`` minus that of ``zero`` under the
    baseline, ``after`` under ``config``, ``delta`` after minus before, all on the tasks that both agents ran under
    both configs. ``delta.p_holm`` allows for all pairs of agents and all configs.
    """

    one: str
    zero: str
    config: str
    baseline: str
    before: float | None
    after: float | None
    delta: Delta

    @property
    def reverses(self) -> bool:
        """Whether the two agents change places."""
        return self.before is not None and self.after is not None and self.before * self.after < 0
