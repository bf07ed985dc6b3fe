"""How many samples per task and config does a question need?

Most of it for the benchmark target, where only trial sampling counts: the variance of a delta is
2 E[p(1-p)] / (tasks x samples). Take E[p(1-p)] from `rates.within_task_variance` of a first run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy import special

MAX_VARIANCE = 0.25
MOST_TRIED = 1000
# A mean of exact differences that cancel is nearer to 0 than this.
ROUNDING = 1e-12


def plan_k(
    delta: float,
    tasks: int,
    sw2: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    run_tasks: int | None = None,
) -> int | None:
    """Samples per task, per config, to detect a true `delta` with a two-sided test.

    `delta` is a proportion, `tasks` the benchmark's size, `sw2` the mean p(1-p). `run_tasks`: rerun
    only so many tasks, those that can respond at all, with `sw2` theirs; the others count as
    unchanged. None when no number suffices or none can be told: delta 0, no tasks, or `sw2` not
    positive (data without any variation cannot be planned from); above 1/4, which an estimate from two
    samples can reach, it counts as 1/4. Raises ValueError for alpha or power outside (0, 1), or for
    run_tasks outside 1 to `tasks`. Source: Miller, arXiv 2411.00640, section 5; statistics.md 2j.
    """
    _check(tasks, alpha, power, run_tasks)
    z = _quantile(1.0 - alpha / 2.0) + _quantile(power)
    return _samples(z, abs(delta), tasks, sw2, run_tasks)


def plan_k_tost(
    margin: float,
    tasks: int,
    sw2: float,
    *,
    true_delta: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
    run_tasks: int | None = None,
) -> int | None:
    """Samples per task, per config, to show equivalence within `margin` when `true_delta` holds.

    Arguments, result and errors as in `plan_k`; None also when |true_delta| >= margin. Source:
    statistics.md 2j.
    """
    _check(tasks, alpha, power, run_tasks)
    z = _tost_z(true_delta, alpha, power)
    return _samples(z, margin - abs(true_delta), tasks, sw2, run_tasks)


def mde(
    tasks: int,
    k: float,
    sw2: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """Smallest delta (a proportion) that `k` samples per task and config detect.

    nan where it cannot be told: no tasks, no samples, or `sw2` not positive. Errors and source as in
    `plan_k`.
    """
    _check(tasks, alpha, power, None)
    if tasks <= 0 or not k > 0 or not sw2 > 0:
        return math.nan
    return max(0.0, _quantile(1.0 - alpha / 2.0) + _quantile(power)) * math.sqrt(
        2.0 * min(sw2, MAX_VARIANCE) / (tasks * k)
    )


def margin_shown(
    tasks: int,
    k: float,
    sw2: float,
    *,
    true_delta: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """Smallest margin (a proportion) that `k` samples per task and config show when `true_delta` holds.

    The inverse of `plan_k_tost`. nan where it cannot be told, as in `mde`. Errors and source as in
    `plan_k_tost`.
    """
    _check(tasks, alpha, power, None)
    if tasks <= 0 or not k > 0 or not sw2 > 0:
        return math.nan
    se = math.sqrt(2.0 * min(sw2, MAX_VARIANCE) / (tasks * k))
    return abs(true_delta) + max(0.0, _tost_z(true_delta, alpha, power)) * se


def plan_tasks_tost(
    margin: float, sd: float, *, true_delta: float = 0.0, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Tasks needed to show equivalence on tasks like these (target: population) when `true_delta` holds.

    `sd`: standard deviation of the tasks' deltas, a proportion, with the samples per task that it was estimated
    from. None when |true_delta| >= margin, or `sd` is not positive. Raises ValueError for alpha or power outside
    (0, 1). Source: Miller, arXiv 2411.00640, section 5; statistics.md 1 and 2j.
    """
    _check(1, alpha, power, None)
    distance = margin - abs(true_delta)
    if not distance > 0 or not sd > 0:
        return None
    z = max(0.0, _tost_z(true_delta, alpha, power))
    return max(2, math.ceil((z * sd / distance) ** 2 - 1e-9))


def mde_of_tasks(tasks: int, sd: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest delta (a proportion) over tasks like these that so many tasks detect.

    `sd` as in `plan_tasks_tost`; nan without tasks, or where it is not positive. Errors and source as there.
    """
    _check(tasks, alpha, power, None)
    if tasks <= 0 or not sd > 0:
        return math.nan
    return max(0.0, _quantile(1.0 - alpha / 2.0) + _quantile(power)) * sd / math.sqrt(tasks)


class Split(NamedTuple):
    """Samples per task of the baseline and of each other config."""

    baseline: int
    others: int

    def total(self, configs: int) -> int:
        """Samples per task over all configs."""
        return self.baseline + (configs - 1) * self.others


def cheapest_split(k: int, configs: int) -> Split:
    """Fewest samples in all whose deltas are as precise as with `k` in each of `configs` configs.

    1/baseline + 1/others is the variance of a delta, here at most 2/k. The optimum is near
    sqrt(configs - 1) times as many for the baseline, in whole samples. Raises ValueError for k below 1
    or configs below 2. Source: Dunnett 1955; statistics.md 2j.
    """
    if k < 1 or configs < 2:
        raise ValueError(f"need k >= 1 and configs >= 2, got {k} and {configs}")
    best = math.ceil(k * (1.0 + 1.0 / math.sqrt(configs - 1.0)) / 2.0)
    # Whole samples move the optimum by a few; with many of them that no longer matters.
    tried = range(k // 2 + 1, k + 1) if k <= MOST_TRIED else [min(best, k)]
    splits = (Split(-(-k * others // (2 * others - k)), others) for others in tried)
    return min(splits, key=lambda split: (split.total(configs), split.baseline))


def baseline_samples(k: int, configs: int) -> int:
    """Samples for the baseline when each of the other configs gets `k`: sqrt(configs - 1) times.

    Every delta shares the baseline's noise. At least `k`. Raises ValueError for negative numbers.
    Source: Dunnett 1955; statistics.md 2j.
    """
    if k < 0 or configs < 0:
        raise ValueError("samples and configs must not be negative")
    return max(k, round(k * math.sqrt(max(configs - 1, 1))))


def _samples(z: float, distance: float, tasks: int, sw2: float, run_tasks: int | None) -> int | None:
    if tasks <= 0 or not distance > 0 or not sw2 > 0:
        return None
    share = 1.0 if run_tasks is None else run_tasks / tasks
    # The tiny step down keeps an exact solution from being rounded up a whole sample.
    return max(1, math.ceil(max(z, 0.0) ** 2 * 2.0 * min(sw2, MAX_VARIANCE) * share / (tasks * distance**2) - 1e-9))


def _tost_z(true_delta: float, alpha: float, power: float) -> float:
    # At a true delta of 0 both one-sided tests can fail; elsewhere only the nearer one matters.
    beta = 1.0 - power
    both = abs(true_delta) < ROUNDING
    return _quantile(1.0 - alpha) + _quantile(1.0 - (beta / 2.0 if both else beta))


def _quantile(probability: float) -> float:
    return float(special.ndtri(probability))


def _check(tasks: int, alpha: float, power: float, run_tasks: int | None) -> None:
    if not (0 < alpha < 1 and 0 < power < 1):
        raise ValueError(f"alpha and power must lie between 0 and 1, got {alpha} and {power}")
    if tasks < 0 or (run_tasks is not None and not 0 < run_tasks <= tasks):
        raise ValueError(f"need 0 < run_tasks <= tasks, got {run_tasks} of {tasks}")
