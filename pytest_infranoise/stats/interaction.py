"""Does a delta between two configs depend on who runs? The difference of two deltas on the same tasks.

With it a report says whether the ranking of agents depends on the resource config.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from pytest_infranoise.stats.counts import Counts
from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.counts import check_conf
from pytest_infranoise.stats.counts import check_counts
from pytest_infranoise.stats.counts import vector
from pytest_infranoise.stats.deltas import GUARD_LIMIT
from pytest_infranoise.stats.deltas import Delta
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.equivalence import FARTHEST_Z
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import satterthwaite
from pytest_infranoise.stats.rates import standard_error
from pytest_infranoise.stats.rates import t_at
from pytest_infranoise.stats.rates import trial_variances
from pytest_infranoise.stats.rates import z_quantile
from pytest_infranoise.stats.roots import root


class Side(NamedTuple):
    """One agent's counts under config one and under the baseline, shape (tasks,) each."""

    x1: npt.ArrayLike
    n1: npt.ArrayLike
    x0: npt.ArrayLike
    n0: npt.ArrayLike


class Interaction(NamedTuple):
    """Difference of two deltas (proportions): `est` with its interval and two-sided p, dual to each other.

    `first`, `second`: each agent's delta on the common tasks. `tasks`: common to all four cells; `dropped`: the
    others. `discordant`: tasks whose two deltas differ. `guarded`: so few data that the interval was widened.
    Without a common task `est` is nan, the interval [-2, 2] and p 1.
    """

    est: float
    interval: Interval
    p: float
    first: Delta
    second: Delta
    tasks: int
    dropped: int
    discordant: int
    guarded: bool


def interaction(first: Side, second: Side, conf: float = 0.95, target: Target = "benchmark") -> Interaction:
    """Delta of `first` minus delta of `second`, paired by task.

    Only tasks with trials in all four cells count. `benchmark` (these tasks): the four sampling variances of each
    task add up, Student t with Satterthwaite df. `population` (tasks like these), or where a cell has a single
    trial: t on the tasks' differences of deltas. Small-data guard as in `delta_paired` (SE 0 or undefined, df < 10,
    or fewer than 10 tasks that differ): the interval is widened to hold the one recovered from the two deltas' own
    (guarded) intervals, and p is the level at which that one meets 0.

    Raises ValueError for bad counts, sides with different tasks, an unknown target, or conf outside (0, 1).
    Source: statistics.md 1 and 2b; Zou and Donner 2008 for the recovered interval.
    """
    check_conf(conf)
    cells = [_cell(x, n) for x, n in ((first.x1, first.n1), (first.x0, first.n0))]
    cells += [_cell(x, n) for x, n in ((second.x1, second.n1), (second.x0, second.n0))]
    if len({cell.n.size for cell in cells}) > 1:
        raise ValueError(f"sides list different tasks: {sorted({cell.n.size for cell in cells})}")
    common = np.all([cell.n > 0 for cell in cells], axis=0)
    a1, a0, b1, b0 = (Counts(cell.x[common], cell.n[common]) for cell in cells)
    one = delta_paired(a1.x, a1.n, a0.x, a0.n, conf, target)
    two = delta_paired(b1.x, b1.n, b0.x, b0.n, conf, target)
    tasks, dropped = int(np.count_nonzero(common)), int(np.count_nonzero(~common))
    if not tasks:
        return Interaction(math.nan, Interval(-2.0, 2.0), 1.0, one, two, 0, dropped, 0, True)
    differences = a1.rates - a0.rates - (b1.rates - b0.rates)
    differences[np.abs(differences) < 1e-12] = 0.0  # rates that are equal can differ in the last bit
    est = float(differences.mean())
    discordant = int(np.count_nonzero(differences))
    se, df = _spread((a1, a0, b1, b0), differences, target)
    trusted = se > 0 and df >= GUARD_LIMIT and discordant >= GUARD_LIMIT

    def at(z: float) -> Interval:
        plain = Interval(est - t_at(z, df) * se, est + t_at(z, df) * se) if se > 0 and df > 0 else None
        if trusted and plain is not None:
            return plain
        recovered = _recovered(est, one.interval_at(z), two.interval_at(z), one.est, two.est)
        return recovered if plain is None else recovered.hull(plain)

    return Interaction(
        est=est,
        interval=at(z_quantile(conf)).clip(-2.0, 2.0),
        p=float(2.0 * special.stdtr(df, -abs(est) / se)) if trusted else _dual_p(est, at),
        first=one,
        second=two,
        tasks=tasks,
        dropped=dropped,
        discordant=discordant,
        guarded=not trusted,
    )


def _cell(x: npt.ArrayLike, n: npt.ArrayLike) -> Counts:
    events, trials = vector(x, "events"), vector(n, "trials")
    check_counts(events, trials)
    return Counts(events, trials)


def _spread(cells: tuple[Counts, ...], differences: FloatArray, target: Target) -> tuple[float, float]:
    """Return SE and df."""
    if target == "population" or any(np.any(cell.n < 2) for cell in cells):
        return standard_error(differences), differences.size - 1.0
    variances = np.concatenate([trial_variances(cell) / cell.n for cell in cells])
    dfs = np.concatenate([cell.n - 1.0 for cell in cells])
    return math.sqrt(float(variances.sum())) / differences.size, satterthwaite(variances, dfs)


def _recovered(est: float, one: Interval, two: Interval, first: float, second: float) -> Interval:
    """Interval of a difference from the two parts' intervals, which need not be symmetric."""
    return Interval(
        est - math.hypot(first - one.lo, two.hi - second),
        est + math.hypot(one.hi - first, second - two.lo),
    )


def _dual_p(est: float, at: Callable[[float], Interval]) -> float:
    """Two-sided tail of the largest normal quantile whose interval stays on one side of 0."""
    if est == 0:
        return 1.0

    def reach(z: float) -> float:
        interval = at(z)
        return float(interval.lo if est > 0 else -interval.hi)

    if reach(1e-9) <= 0:
        return 1.0
    if reach(FARTHEST_Z) > 0:
        return float(2.0 * special.ndtr(-FARTHEST_Z))
    return float(2.0 * special.ndtr(-root(reach, 1e-9, FARTHEST_Z)))
