"""One rate: pass rate or infra error rate of one config, with an interval for a stated target.

Binomial intervals for a plain count (`wilson`, `clopper_pearson`, `jeffreys`), and `rate_ci`, which
respects that trials come in tasks. Naive binomial intervals are right for neither target once a
task has several samples: too wide for these tasks, too narrow for tasks like these.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from pytest_infranoise.stats.counts import Counts
from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.counts import check_conf
from pytest_infranoise.stats.counts import check_target
from pytest_infranoise.stats.counts import counts

# Below this many tasks, t with tasks - 1 df is useless (12.7 at two tasks), while the benchmark
# target needs no variation between tasks: each task's own samples carry the df.
FEW_TASKS = 4


class Interval(NamedTuple):
    """A closed interval of proportions."""

    lo: float
    hi: float

    def hull(self, other: Interval) -> Interval:
        """Return the smallest interval that holds both."""
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def clip(self, lo: float, hi: float) -> Interval:
        """Return the part of the interval inside [lo, hi]."""
        return Interval(min(max(self.lo, lo), hi), max(min(self.hi, hi), lo))


class RateInterval(NamedTuple):
    """An interval and the method that gave it."""

    interval: Interval
    method: str


UNKNOWN_RATE = Interval(0.0, 1.0)


def z_quantile(conf: float) -> float:
    """Return the two-sided normal critical value of a confidence level; ValueError off (0, 1)."""
    return float(-special.ndtri((1.0 - check_conf(conf)) / 2.0))


def t_quantile(conf: float, df: float) -> float:
    """Return the two-sided Student critical value; infinite when df <= 0 or not a number."""
    return t_at(z_quantile(conf), df)


def t_at(z: float, df: float) -> float:
    """Return the Student value with the tail probability that `z` has under the normal law.

    Takes `z` rather than a level, so that levels too close to 1 for a float keep their meaning.
    """
    if not df > 0:
        return math.inf
    # stdtrit gives nan for an infinite df.
    return z if df > 1e10 else -float(special.stdtrit(df, float(special.ndtr(-z))))


def _check_scalar(x: float, n: float) -> None:
    if not (math.isfinite(x) and math.isfinite(n) and 0.0 <= x <= n):
        raise ValueError(f"counts must satisfy 0 <= events <= trials, got {x} of {n}")


def wilson_at(rate: float, n: float, z: float) -> Interval:
    """Wilson's interval for an observed `rate` of `n` trials at normal quantile `z`."""
    # A sliver of a trial says nothing, and its square would underflow below.
    if n < 1e-9:
        return UNKNOWN_RATE
    centre = rate + z * z / (2.0 * n)
    spread = z * math.sqrt(rate * (1.0 - rate) / n + z * z / (4.0 * n * n))
    scale = 1.0 + z * z / n
    lo = 0.0 if rate <= 0.0 else max(0.0, (centre - spread) / scale)
    hi = 1.0 if rate >= 1.0 else min(1.0, (centre + spread) / scale)
    return Interval(min(lo, rate), max(hi, rate))


def wilson(x: float, n: float, conf: float = 0.95) -> Interval:
    """Wilson score interval for one binomial proportion, `x` events in `n` trials.

    Target: the common probability of `n` independent trials. `x` and `n` may be fractional (an
    effective sample size). No trials give [0, 1]; 0 of n and n of n have an exact 0 or 1 end.
    Raises ValueError unless 0 <= x <= n and 0 < conf < 1. Source: Wilson 1927.
    """
    _check_scalar(x, n)
    z = z_quantile(conf)
    return wilson_at(x / n, n, z) if n > 0 else UNKNOWN_RATE


def clopper_pearson(x: float, n: float, conf: float = 0.95) -> Interval:
    """Exact ("Clopper-Pearson") interval for one binomial proportion; never under-covers.

    Arguments, target and errors as in `wilson`; fractional counts go through the beta quantiles.
    Source: Clopper and Pearson 1934.
    """
    _check_scalar(x, n)
    tail = (1.0 - check_conf(conf)) / 2.0
    lo = 0.0 if x <= 0 else float(special.betaincinv(x, n - x + 1.0, tail))
    hi = 1.0 if x >= n else float(special.betaincinv(x + 1.0, n - x, 1.0 - tail))
    return Interval(lo, hi)


def jeffreys(x: float, n: float, conf: float = 0.95) -> Interval:
    """Equal-tailed posterior interval under the Beta(1/2, 1/2) prior.

    Arguments, target and errors as in `wilson`. The quantiles are not moved at the edges: at 0 of n
    the lower end is slightly above 0. No trials give [0, 1]. Source: Brown, Cai, DasGupta 2001.
    """
    _check_scalar(x, n)
    tail = (1.0 - check_conf(conf)) / 2.0
    if n <= 0:
        return UNKNOWN_RATE
    lo, hi = special.betaincinv(x + 0.5, n - x + 0.5, np.array([tail, 1.0 - tail]))
    return Interval(float(lo), float(hi))


def mean_rate(x: npt.ArrayLike, n: npt.ArrayLike) -> float:
    """Macro average: the mean over tasks of each task's rate; never pooled counts.

    `x`, `n`: shape (tasks,). A task without trials is dropped; nan when none is left. Raises
    ValueError for counts that are not 0 <= x <= n. Source: statistics.md 0 and 8.12.
    """
    data = counts(x, n)
    return _mean(data.rates)


def within_task_variance(x: npt.ArrayLike, n: npt.ArrayLike) -> float:
    """Unbiased mean over tasks of p(1-p), the variance of one trial given its task.

    `x`, `n`: shape (tasks,). Uses tasks with two or more samples; nan when there is none. This is
    the sigma^2 that the planner needs. Raises ValueError like `mean_rate`. Source: Miller,
    arXiv 2411.00640, section 5; statistics.md 1.
    """
    data = _replicated(counts(x, n))
    return _mean(trial_variances(data))


def icc(x: npt.ArrayLike, n: npt.ArrayLike) -> float:
    """Share of single-trial variance that lies between tasks: 1 - mean p(1-p) / [pbar(1-pbar)].

    `x`, `n`: shape (tasks,). nan when no task has two samples, or when every trial of the run has
    the same outcome. May fall slightly below 0. Raises ValueError like `mean_rate`.
    Source: statistics.md 1.
    """
    mean = mean_rate(x, n)
    total = mean * (1.0 - mean)
    return 1.0 - within_task_variance(x, n) / total if total > 0 else math.nan


def se_fixed(x: npt.ArrayLike, n: npt.ArrayLike) -> float:
    """Standard error of the mean rate over exactly these tasks (target: benchmark).

    `x`, `n`: shape (tasks,). sqrt(sum p(1-p)/(n-1)) / tasks. nan when there is no task, or when
    some task has fewer than two samples: one sample says nothing about its own variance. Raises
    ValueError like `mean_rate`. Source: Terminal-Bench's accuracy SQL; statistics.md 1.
    """
    data = counts(x, n)
    if data.tasks == 0 or np.any(data.n < 2):
        return math.nan
    return math.sqrt(float(np.sum(mean_variances(data)))) / data.tasks


def se_cluster(x: npt.ArrayLike, n: npt.ArrayLike) -> float:
    """Standard error of the mean rate over tasks like these (target: population).

    `x`, `n`: shape (tasks,). sd(task rates) / sqrt(tasks), Miller's clustered SE with tasks as
    clusters. nan with fewer than two tasks. Raises ValueError like `mean_rate`. Source: Miller,
    arXiv 2411.00640; statistics.md 1.
    """
    return standard_error(counts(x, n).rates)


def naive_wilson(x: npt.ArrayLike, n: npt.ArrayLike, conf: float = 0.95) -> Interval:
    """Wilson interval of the mean rate as if all trials were alike, ignoring tasks.

    `x`, `n`: shape (tasks,). For the benchmark target it is conservative (Hoeffding 1956: success
    probabilities that differ only lower the variance of the total); for the population target it
    is too narrow. With unequal samples the size is tasks^2 / sum(1/n), so that a task seen once
    weighs as it does in the mean. [0, 1] without trials. Raises ValueError like `wilson`.
    """
    data = counts(x, n)
    z = z_quantile(conf)
    if data.tasks == 0:
        return UNKNOWN_RATE
    return wilson_at(_mean(data.rates), naive_size(data), z)


def korn_graubard(x: npt.ArrayLike, n: npt.ArrayLike, conf: float = 0.95) -> Interval:
    """Clopper-Pearson interval on the effective sample size (target: population).

    `x`, `n`: shape (tasks,). Fewer than two tasks, or tasks that all agree, count as one vote per
    task. [0, 1] without trials. Raises ValueError like `wilson`. Source: Korn and Graubard 1998,
    with the degrees of freedom of R's `survey::svyciprop(method="beta")`.
    """
    data = counts(x, n)
    check_conf(conf)
    if data.tasks == 0:
        return UNKNOWN_RATE
    rate, se = _mean(data.rates), standard_error(data.rates)
    if not se > 0:
        return _one_vote_per_task(rate, data.tasks, conf)
    shrink = t_quantile(conf, data.n.sum() - 1.0) / t_quantile(conf, data.tasks - 1.0)
    size = rate * (1.0 - rate) / se**2 * shrink**2
    return clopper_pearson(rate * size, size, conf)


def rate_ci(
    x: npt.ArrayLike,
    n: npt.ArrayLike,
    target: Target = "benchmark",
    conf: float = 0.95,
) -> Interval:
    """Confidence interval of the mean rate: SE by tasks -> effective sample size -> Wilson.

    `x`, `n`: shape (tasks,); a task without trials is dropped; [0, 1] when none is left.

    `benchmark` (these tasks): stratified SE, with the smaller of tasks - 1 and Satterthwaite
    degrees of freedom. The second matters when few tasks vary, as with infra errors that sit in two
    tasks: with tasks - 1 alone the 95 % interval covered as little as 80 %. SE 0, or one sample
    everywhere, or all trials alike: naive Wilson. Under four tasks: Satterthwaite alone, widened to
    hold naive Wilson. Never wider than Clopper-Pearson on tasks x fewest samples trials, whose
    variance these tasks cannot exceed: with 4 tasks x 3 samples exact coverage stays above .955 and
    intervals are an eighth narrower.
    Tasks with one sample beside tasks with more are pooled as if alike, which overstates their
    variance (see `mean_variances`).

    `population` (tasks like these): clustered SE, effective size capped at the number of trials;
    when tasks do not differ, Clopper-Pearson with one vote per task.

    Raises ValueError for counts that are not 0 <= x <= n, an unknown target, or conf outside (0, 1).
    Source: Korn and Graubard 1998; statistics.md 0, 2a and 4.1.
    """
    return rate_interval(x, n, target, conf).interval


def rate_interval(
    x: npt.ArrayLike,
    n: npt.ArrayLike,
    target: Target = "benchmark",
    conf: float = 0.95,
) -> RateInterval:
    """Return the interval of `rate_ci` with the name of the method that gave it."""
    check_target(target)
    z_quantile(conf)
    data = counts(x, n)
    if data.tasks == 0:
        return RateInterval(UNKNOWN_RATE, "no trials")
    if target == "population":
        return RateInterval(_population_ci(data, conf), "clustered Wilson")
    return _benchmark_ci(data, conf)


def trial_variances(data: Counts) -> FloatArray:
    """Unbiased estimate of p(1-p) per task; needs two samples in every task."""
    rates = data.rates
    return rates * (1.0 - rates) * data.n / (data.n - 1.0)


def mean_variances(data: Counts) -> FloatArray:
    """Sampling variance of each task's rate.

    Tasks with fewer than two samples show no variance of their own. They are pooled as if alike:
    q(1-q) with q = (events + 1) / (tasks + 2) over that group. Pooling over unlike tasks can only
    overstate p(1-p), and the added counts keep a group that happens to agree off zero.
    """
    variances = np.empty_like(data.n)
    single = data.n < 2
    variances[~single] = trial_variances(_replicated(data)) / data.n[~single]
    if np.any(single):
        pooled = (data.rates[single].sum() + 1.0) / (np.count_nonzero(single) + 2.0)
        variances[single] = pooled * (1.0 - pooled) / data.n[single]
    return variances


def satterthwaite(variances: FloatArray, dfs: FloatArray) -> float:
    """Degrees of freedom of a sum of independent variance estimates; 0 when all are zero.

    Source: Satterthwaite 1946; statistics.md 2b.
    """
    spread = float(np.sum(variances**2 / dfs))
    return float(np.sum(variances)) ** 2 / spread if spread > 0 else 0.0


def standard_error(values: FloatArray) -> float:
    """Standard error of the mean of independent values; nan with fewer than two."""
    if values.size < 2:
        return math.nan
    spread = float(np.std(values, ddof=1))
    # Equal rates can differ in the last bit after summation; that is not variation.
    return spread / math.sqrt(values.size) if np.ptp(values) > 1e-12 else 0.0


def naive_size(data: Counts) -> float:
    """Trials of a balanced run whose mean rate is as precise as this one's: T^2 / sum(1/n)."""
    return data.tasks**2 / float(np.sum(1.0 / data.n))


def _benchmark_ci(data: Counts, conf: float) -> RateInterval:
    rate, z = _mean(data.rates), z_quantile(conf)
    if rate in (0.0, 1.0):
        # What was never seen could all be in the task that was looked at least.
        return RateInterval(wilson_at(rate, data.tasks * float(data.n.min()), z), "naive Wilson")
    naive = wilson_at(rate, naive_size(data), z)
    variances = mean_variances(data)
    variance = float(np.sum(variances)) / data.tasks**2
    if np.all(data.n < 2) or variance <= 0.0:
        return RateInterval(naive, "naive Wilson")
    df = _mean_df(data, variances)
    if data.tasks >= FEW_TASKS:
        df = min(df, data.tasks - 1.0)
    size = rate * (1.0 - rate) / variance * (z / t_quantile(conf, df)) ** 2
    stratified = wilson_at(rate, size, z)
    if data.tasks < FEW_TASKS:
        stratified = stratified.hull(naive)
    pooled = _pooled_exact(data, rate, conf)
    if pooled.hi - pooled.lo < stratified.hi - stratified.lo:
        return RateInterval(pooled, "Clopper-Pearson")
    return RateInterval(stratified, "stratified Wilson")


def _pooled_exact(data: Counts, rate: float, conf: float) -> Interval:
    """Clopper-Pearson as if all trials were of one task, each task counted with the fewest trials of any.

    The variance of a mean over fixed tasks is at most that binomial's (Hoeffding 1956), so it never covers
    too little; few varying tasks leave the stratified interval with so few degrees of freedom that it is wider.
    """
    size = data.tasks * float(data.n.min())
    return clopper_pearson(min(rate * size, size), size, conf)


def _mean_df(data: Counts, variances: FloatArray) -> float:
    """Satterthwaite df of the stratified variance, tasks with one sample left out.

    The variance of tasks seen once is a deliberate overstatement, not an estimate with df.
    """
    replicated = data.n >= 2
    df = satterthwaite(variances[replicated], data.n[replicated] - 1.0)
    return df if df > 0 else data.tasks - 1.0


def _population_ci(data: Counts, conf: float) -> Interval:
    rate, se, z = _mean(data.rates), standard_error(data.rates), z_quantile(conf)
    if not se > 0:
        return _one_vote_per_task(rate, data.tasks, conf)
    shrink = z / t_quantile(conf, data.tasks - 1.0)
    size = min(rate * (1.0 - rate) / se**2 * shrink**2, float(data.n.sum()))
    return wilson_at(rate, size, z)


def _one_vote_per_task(rate: float, tasks: int, conf: float) -> Interval:
    return clopper_pearson(min(rate * tasks, float(tasks)), float(tasks), conf)


def _replicated(data: Counts) -> Counts:
    keep = data.n >= 2
    return Counts(data.x[keep], data.n[keep])


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else math.nan
