"""The difference between two configs on the same tasks, with an interval that survives small data.

`delta_paired` is the default delta of every report. The others are its parts, or the comparisons
that a report prints beside it. A delta is config one minus config zero, in proportions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import Pair
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.counts import check_conf
from pytest_infranoise.stats.counts import check_target
from pytest_infranoise.stats.counts import pair
from pytest_infranoise.stats.exact import cmh_exact_p
from pytest_infranoise.stats.exact import cmh_z2
from pytest_infranoise.stats.exact import pair_exact_p
from pytest_infranoise.stats.exact import signflip
from pytest_infranoise.stats.exact import two_prop_z_p
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import naive_size
from pytest_infranoise.stats.rates import satterthwaite
from pytest_infranoise.stats.rates import standard_error
from pytest_infranoise.stats.rates import t_at
from pytest_infranoise.stats.rates import trial_variances
from pytest_infranoise.stats.rates import wilson_at
from pytest_infranoise.stats.rates import z_quantile

__all__ = [
    "UNKNOWN_DELTA",
    "Delta",
    "Votes",
    "cmh_exact_p",
    "cmh_z2",
    "delta_paired",
    "delta_se",
    "delta_se_fixed",
    "delta_t",
    "newcombe",
    "newcombe_paired",
    "signflip",
    "two_prop_z_p",
]

UNKNOWN_DELTA = Interval(-1.0, 1.0)
# Below this many degrees of freedom or discordant tasks an estimated SE is not trusted alone: without
# the guard, equivalence was claimed wrongly in up to 33 % of runs (statistics.md 4.4).
GUARD_LIMIT = 10


class Votes(NamedTuple):
    """Two proportions and the trials each is worth: what the guard's Newcombe interval needs."""

    rate1: float
    size1: float
    rate0: float
    size0: float

    def interval_at(self, z: float) -> Interval:
        """Newcombe's interval of rate1 - rate0 at normal quantile `z`."""
        one, zero = wilson_at(self.rate1, self.size1, z), wilson_at(self.rate0, self.size0, z)
        est = self.rate1 - self.rate0
        return Interval(
            est - math.hypot(self.rate1 - one.lo, zero.hi - self.rate0),
            est + math.hypot(one.hi - self.rate1, self.rate0 - zero.lo),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A delta between two configs; all values are proportions.

    `lo`, `hi`: interval at level `conf`. `p`: two-sided p of "no difference"; dual to the interval
    unless guarded, then the exact permutation p. `tasks`: tasks in the pair; `dropped`: tasks that
    lacked trials in one config. `votes` is set when the small-data guard widened the interval.
    `est`, `se` and `df` are nan when undefined.
    """

    est: float
    se: float
    df: float
    lo: float
    hi: float
    p: float
    method: str
    tasks: int
    dropped: int = 0
    discordant: int = 0
    conf: float = 0.95
    p_exact: float = 1.0
    target: Target = "benchmark"
    votes: Votes | None = None

    @property
    def guarded(self) -> bool:
        """Whether the small-data guard applies."""
        return self.votes is not None

    @property
    def ci(self) -> Interval:
        """The interval at the level it was asked for."""
        return Interval(self.lo, self.hi)

    def interval(self, conf: float) -> Interval:
        """Return the interval at another confidence level; ValueError unless 0 < conf < 1."""
        return self.interval_at(z_quantile(conf))

    def interval_at(self, z: float) -> Interval:
        """Return the interval whose tails are those of the normal quantile `z` (repeated CIs)."""
        return _interval(self.est, self.se, self.df, self.votes, z)


def newcombe(x1: float, n1: float, x0: float, n0: float, conf: float = 0.95) -> Interval:
    """Newcombe's hybrid score interval of a difference between two independent proportions.

    Scalars, may be fractional. No trials on one side leave that rate anywhere in [0, 1]; none on
    both give [-1, 1]. Raises ValueError unless 0 <= x <= n. Source: Newcombe 1998, Stat Med 17:873,
    method 10.
    """
    pair([x1], [n1], [x0], [n0])
    z = z_quantile(conf)
    if n1 > 0 and n0 > 0:
        return Votes(x1 / n1, n1, x0 / n0, n0).interval_at(z)
    one = wilson_at(x1 / n1, n1, z) if n1 > 0 else Interval(0.0, 1.0)
    zero = wilson_at(x0 / n0, n0, z) if n0 > 0 else Interval(0.0, 1.0)
    return Interval(one.lo - zero.hi, one.hi - zero.lo)


def newcombe_paired(a: float, b: float, c: float, d: float, conf: float = 0.95) -> Interval:
    """Newcombe's score interval of a difference between paired proportions, (b - c) / total.

    Numbers of pairs: `a` event in both configs, `b` in config one only, `c` in config zero only,
    `d` in neither. No pairs give [-1, 1]. Raises ValueError for negative numbers. Source: Newcombe
    1998, Stat Med 17:2635, method 10 (phi with continuity correction).
    """
    if min(a, b, c, d) < 0 or not math.isfinite(a + b + c + d):
        raise ValueError("numbers of pairs must be finite and not negative")
    z, n = z_quantile(conf), a + b + c + d
    if n <= 0:
        return UNKNOWN_DELTA
    p1, p0 = (a + b) / n, (a + c) / n
    one, zero = wilson_at(p1, n, z), wilson_at(p0, n, z)
    phi = _phi(a, b, c, d)
    below = _correlated(p1 - one.lo, zero.hi - p0, phi)
    above = _correlated(one.hi - p1, p0 - zero.lo, phi)
    return Interval(p1 - p0 - below, p1 - p0 + above)


def delta_se(x1: npt.ArrayLike, n1: npt.ArrayLike, x0: npt.ArrayLike, n0: npt.ArrayLike) -> tuple[float, float]:
    """Mean difference and its standard error over tasks like these (target: population).

    Inputs: events and trials per task, shape (tasks,). SE = sd(task differences) / sqrt(tasks); nan
    with fewer than two tasks. Tasks missing in one config are dropped; (nan, nan) when none is left.
    Raises ValueError for bad counts. Source: Miller, arXiv 2411.00640; statistics.md 1.
    """
    differences = pair(x1, n1, x0, n0).differences
    return _mean(differences), standard_error(differences)


def delta_se_fixed(
    x1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    n0: npt.ArrayLike,
    conf: float = 0.95,
) -> Delta:
    """Plain stratified delta over exactly these tasks (target: benchmark), without the guard.

    Inputs, dropping and errors as in `delta_se`. SE^2 = sum of each task's and config's p(1-p)/(n-1),
    over tasks^2; Student t with Satterthwaite df. With a task seen only once the SE is nan, with no
    variation inside any task it is 0: both give [-1, 1] and the exact permutation p, because no t
    interval exists. Source: statistics.md 1 and 2b.
    """
    check_conf(conf)
    both = pair(x1, n1, x0, n0)
    variances, dfs = _stratified(both)
    unseen = both.tasks == 0 or bool(np.any(dfs <= 0))
    se = math.nan if unseen else math.sqrt(float(variances.sum())) / both.tasks
    return _build(both, se, 0.0 if unseen else satterthwaite(variances, dfs), "stratified-t", conf)


def delta_t(
    x1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    n0: npt.ArrayLike,
    conf: float = 0.95,
) -> Delta:
    """Plain paired t over tasks like these (target: population), without the guard.

    Inputs, dropping and errors as in `delta_se`; df = tasks - 1. With fewer than two tasks, or all
    differences equal, no t interval exists: [-1, 1] and the exact sign-flip p. Source: statistics.md
    1 and 4.2.
    """
    check_conf(conf)
    both = pair(x1, n1, x0, n0)
    se = standard_error(both.differences)
    return _build(both, se, both.tasks - 1.0, "paired-t", conf, target="population")


def delta_paired(
    x1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    n0: npt.ArrayLike,
    conf: float = 0.95,
    target: Target = "benchmark",
) -> Delta:
    """Delta between two configs, paired by task: the default delta, its interval and its p.

    Inputs: events (passes, or infra errors) and trials per task, shape (tasks,). Tasks without trials
    in one config are dropped and counted. No task left: est nan, [-1, 1], p 1.

    `benchmark` (these tasks): stratified SE with Satterthwaite t; one sample per task: paired t, which
    can only overstate. When only some tasks were seen once, those contribute the larger of the
    spread of their differences and the average variance of the others.

    `population` (tasks like these): paired t on the task differences.

    Small-data guard: if SE is 0 or undefined, df < 10, or fewer than 10 tasks differ, the interval
    is widened to hold Newcombe's interval on the pooled rates, and p is the exact permutation p
    (population: one vote per task, sign-flip p). `method` then ends in "+guard".

    Raises ValueError for bad counts, an unknown target, or conf outside (0, 1).
    Source: statistics.md 0, 1, 2b and 4.4.
    """
    check_target(target)
    check_conf(conf)
    both = pair(x1, n1, x0, n0)
    if target == "population":
        se, df, method = standard_error(both.differences), both.tasks - 1.0, "paired-t"
    else:
        se, df, method = _benchmark_se(both)
    trusted = se > 0 and df >= GUARD_LIMIT and both.discordant >= GUARD_LIMIT
    votes = None if trusted or both.tasks == 0 else _votes(both, target)
    return _build(both, se, df, method, conf, target=target, votes=votes)


def _benchmark_se(both: Pair) -> tuple[float, float, str]:
    """Return SE, df and the method's name for the benchmark target."""
    variances, dfs = _stratified(both)
    seen = np.all(dfs > 0, axis=0)
    if not np.any(seen):
        return standard_error(both.differences), both.tasks - 1.0, "paired-t"
    total, terms, term_dfs = float(variances[:, seen].sum()), variances[:, seen].ravel(), dfs[:, seen].ravel()
    if not np.all(seen):
        once = _seen_once(both, seen)
        total += once
        terms = np.append(terms, once)
        term_dfs = np.append(term_dfs, max(np.count_nonzero(~seen) - 1.0, 1.0))
    return math.sqrt(total) / both.tasks, satterthwaite(terms, term_dfs), "stratified-t"


def _stratified(both: Pair) -> tuple[FloatArray, FloatArray]:
    """Variance of each config's and task's rate, and its df (0 where it cannot be estimated)."""
    n = np.stack([both.one.n, both.zero.n])
    rates = np.stack([both.one.rates, both.zero.rates])
    dfs = np.where(n >= 2, n - 1.0, 0.0)
    return rates * (1.0 - rates) / np.where(dfs > 0, dfs, math.inf), dfs


def _seen_once(both: Pair, seen: npt.NDArray[np.bool_]) -> float:
    """Summed variance of the differences of tasks that some config ran only once.

    Spread between such tasks includes real effects and so overstates; but a handful may agree by
    chance, so it is not allowed below what the other tasks suggest.
    """
    differences = both.differences[~seen]
    spread = float(np.var(differences, ddof=1)) if differences.size > 1 else 0.0
    within = np.concatenate([trial_variances(type(c)(c.x[seen], c.n[seen])) for c in (both.one, both.zero)])
    inverse = float(np.sum(1.0 / both.one.n[~seen] + 1.0 / both.zero.n[~seen]))
    return max(spread * differences.size, float(within.mean()) * inverse)


def _votes(both: Pair, target: Target) -> Votes:
    if target == "population":
        return Votes(_mean(both.one.rates), both.tasks, _mean(both.zero.rates), both.tasks)
    return Votes(_mean(both.one.rates), naive_size(both.one), _mean(both.zero.rates), naive_size(both.zero))


def _build(
    both: Pair,
    se: float,
    df: float,
    method: str,
    conf: float,
    *,
    target: Target = "benchmark",
    votes: Votes | None = None,
) -> Delta:
    est = _mean(both.differences)
    p_exact = signflip(both.differences) if target == "population" else _whole_exact_p(both)
    defined = se > 0 and df > 0 and votes is None
    lo, hi = _interval(est, se, df, votes, z_quantile(conf))
    return Delta(
        est=est,
        se=se,
        df=max(df, 0.0),
        lo=lo,
        hi=hi,
        p=float(2.0 * special.stdtr(df, -abs(est) / se)) if defined else p_exact,
        method=method if votes is None else f"{method}+guard",
        tasks=both.tasks,
        dropped=both.dropped,
        discordant=both.discordant,
        conf=conf,
        p_exact=p_exact,
        target=target,
        votes=votes,
    )


def _whole_exact_p(both: Pair) -> float:
    """Exact permutation p, or nothing claimed (1.0) when counts are fractional."""
    values = np.concatenate([*both.one, *both.zero])
    return pair_exact_p(both) if np.all(np.rint(values) == values) else 1.0


def _interval(est: float, se: float, df: float, votes: Votes | None, z: float) -> Interval:
    if math.isnan(est):
        return UNKNOWN_DELTA
    guard = votes.interval_at(z).hull(Interval(est, est)) if votes is not None else None
    if not se > 0 or not df > 0:
        return guard.clip(-1.0, 1.0) if guard is not None else UNKNOWN_DELTA
    half = t_at(z, df) * se
    plain = Interval(est - half, est + half)
    return (plain if guard is None else plain.hull(guard)).clip(-1.0, 1.0)


def _phi(a: float, b: float, c: float, d: float) -> float:
    """Correlation of a 2x2 table; a positive one is pulled towards 0 by half a pair count."""
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    if margins <= 0:
        return 0.0
    cross = a * d - b * c
    return (max(cross - (a + b + c + d) / 2.0, 0.0) if cross > 0 else cross) / math.sqrt(margins)


def _correlated(first: float, second: float, phi: float) -> float:
    return math.sqrt(max(0.0, first**2 - 2.0 * phi * first * second + second**2))


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else math.nan
