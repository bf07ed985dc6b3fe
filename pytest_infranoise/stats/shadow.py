"""What would a lower memory ceiling have cost? A forecast from peaks of an uncapped run.

A trial that passed and peaked above a ceiling counts as lost under that ceiling. This holds only if
behaviour before the limit does not depend on the limit; agents and allocators adapt, and page cache
inflates peaks. A planning aid to choose which ceilings to run for real, never a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import IntArray
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.counts import check_target
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import mean_rate
from pytest_infranoise.stats.rates import rate_ci


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """Forecast for one ceiling; rates are proportions, nan without measured trials.

    `loss`: score(uncapped) - score(ceiling), with interval; `exceeding`: rate of trials that peaked
    above the ceiling at all; `tasks_affected`: tasks with such a trial; `tasks`, `trials`: measured;
    `unknown`: trials without a peak, left out.
    """

    ceiling: float
    loss: float
    loss_ci: Interval
    exceeding: float
    tasks_affected: int
    tasks: int
    trials: int
    unknown: int


def shadow_ceilings(
    task: npt.ArrayLike,
    passed: npt.ArrayLike,
    peak: npt.ArrayLike,
    ceilings: npt.ArrayLike,
    target: Target = "benchmark",
    conf: float = 0.95,
) -> tuple[Shadow, ...]:
    """Forecast the loss of score under each ceiling from one uncapped run.

    One entry per trial: `task` (any label), `passed` (bool), `peak` memory in the unit of `ceilings`
    (bytes, or multiples of the spec); nan where not measured. Raises ValueError when lengths differ,
    for negative peaks or for ceilings that are not positive. Source: statistics.md 2j.
    """
    check_target(target)
    labels = np.asarray(task)
    pass_flags, peaks = np.asarray(passed, dtype=np.bool_), np.asarray(peak, dtype=np.float64)
    limits = np.atleast_1d(np.asarray(ceilings, dtype=np.float64))
    if labels.ndim != 1 or not labels.shape == pass_flags.shape == peaks.shape:
        raise ValueError("task, passed and peak need one entry per trial")
    if np.any(peaks < 0) or not np.all(limits > 0):
        raise ValueError("peaks must not be negative and ceilings must be positive")
    known = ~np.isnan(peaks)
    _, codes = np.unique(labels[known], return_inverse=True)
    trials = _count(codes, np.ones(codes.size, dtype=np.bool_))
    shadows = []
    for limit in limits.tolist():
        above = peaks[known] > limit
        lost, over = _count(codes, above & pass_flags[known]), _count(codes, above)
        shadows.append(
            Shadow(
                ceiling=limit,
                loss=mean_rate(lost, trials),
                loss_ci=rate_ci(lost, trials, target, conf),
                exceeding=mean_rate(over, trials),
                tasks_affected=int(np.count_nonzero(over)),
                tasks=trials.size,
                trials=int(np.count_nonzero(known)),
                unknown=int(np.count_nonzero(~known)),
            )
        )
    return tuple(shadows)


def _count(codes: IntArray, flags: npt.NDArray[np.bool_]) -> FloatArray:
    """Number of set flags per task."""
    return np.bincount(codes, weights=flags, minlength=int(codes.max(initial=-1)) + 1).astype(np.float64)
