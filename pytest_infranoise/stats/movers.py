"""Which tasks moved? Per-task tests with the false discoveries counted, and a shrunken watch list.

Two configs at five samples find almost nothing (0/5 -> 5/5 is p = .004 among 89 tasks): `trend_flips`
over all ceilings is the better detector, `flips` supplies counts and shrunken sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import IntArray
from pytest_infranoise.stats.counts import check_counts
from pytest_infranoise.stats.counts import pair
from pytest_infranoise.stats.counts import table
from pytest_infranoise.stats.counts import vector
from pytest_infranoise.stats.counts import whole
from pytest_infranoise.stats.exact import TIE
from pytest_infranoise.stats.exact import hypergeometric
from pytest_infranoise.stats.exact import score_law
from pytest_infranoise.stats.multiplicity import bh
from pytest_infranoise.stats.slots import dersimonian_laird

# Shrinking towards a common law needs a few tasks to see that law.
FEWEST_TO_SHRINK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One task's change between two configs (rates are proportions).

    `task`: its index in the input. `p`: Fisher mid-p. `p_adj`: after Benjamini-Hochberg among the
    tasks that could reject at all; nan for the others. `moved`: p_adj at most the false discovery
    rate. `shrunk`, `lfsr`: shrunken delta and the probability that its sign is wrong (a watch list
    with 10-19 % false members, not a finding); nan with fewer than three tasks.
    """

    task: int
    x1: int
    n1: int
    x0: int
    n0: int
    delta: float
    p: float
    p_adj: float
    moved: bool
    shrunk: float
    lfsr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendFlip:
    """One task's trend over the ordered configs; `rising` is the sign, the rest as in `Flip`."""

    task: int
    p: float
    p_adj: float
    moved: bool
    rising: bool


def flip_p(x1: int, n1: int, x0: int, n0: int) -> float:
    """Two-sided Fisher mid-p of one task under two configs.

    Whole counts. Outcomes less likely than the observed count in full, equally likely ones half. 1.0
    is not reached: .5 when nothing can vary. Raises ValueError for bad counts. Source: Lancaster 1961;
    statistics.md 2g.
    """
    one, zero = whole(vector([x1, x0], "events"), "events"), whole(vector([n1, n0], "trials"), "trials")
    check_counts(one.astype(float), zero.astype(float))
    low, law = hypergeometric(int(one.sum()), int(zero[0]), int(zero[1]))
    return float(_mid_p(law, law)[int(one[0]) - low])


def flips(
    x1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    n0: npt.ArrayLike,
    fdr: float = 0.10,
) -> tuple[Flip, ...]:
    """Test every task for a change between config one and the baseline, in input order.

    Inputs: whole events and trials per task, shape (tasks,). Target: each of these tasks. Tasks
    missing in one config are left out. Tasks that could never reject given their totals (Tarone 1990,
    Gilbert 2005) leave the family before Benjamini-Hochberg. Raises ValueError for bad counts or fdr
    outside (0, 1). Source: statistics.md 2g.
    """
    _check_fdr(fdr)
    both = pair(x1, n1, x0, n0)
    a, m1 = whole(both.one.x, "x1"), whole(both.one.n, "n1")
    b, m0 = whole(both.zero.x, "x0"), whole(both.zero.n, "n0")
    index = np.flatnonzero((vector(n1, "n1") > 0) & (vector(n0, "n0") > 0))
    p, least = _fisher_family(a, m1, b, m0)
    adjusted = bh(np.where(can_reject(least, fdr), p, math.nan))
    shrunk, lfsr = _shrink(both.differences, _smoothed(a, m1) + _smoothed(b, m0))
    return tuple(
        Flip(
            task=int(index[t]),
            x1=int(a[t]),
            n1=int(m1[t]),
            x0=int(b[t]),
            n0=int(m0[t]),
            delta=float(both.differences[t]),
            p=float(p[t]),
            p_adj=float(adjusted[t]),
            moved=bool(adjusted[t] <= fdr),
            shrunk=float(shrunk[t]),
            lfsr=float(lfsr[t]),
        )
        for t in range(both.tasks)
    )


def trend_flips(
    x: npt.ArrayLike,
    n: npt.ArrayLike,
    scores: npt.ArrayLike | None = None,
    fdr: float = 0.10,
) -> tuple[TrendFlip, ...]:
    """Test every task for a trend over the ordered configs: the detector of movers.

    `x`, `n`: whole events and trials, tasks x configs (scalar `n`: in every cell). `scores`: whole
    numbers, default 0, 1, 2, ... Exact conditional law of the score total, two-sided mid-p by distance
    from its mean. Tasks whose trials all agree, or that ran in one config only, have p 1. Raises
    ValueError for bad counts or scores. Source: Mantel 1963; statistics.md 2g.
    """
    _check_fdr(fdr)
    xs, ns = table(x, n)
    counts, trials = whole(xs.ravel(), "x").reshape(xs.shape), whole(ns.ravel(), "n").reshape(xs.shape)
    raw = np.arange(xs.shape[1]) if scores is None else np.asarray(scores)
    steps = whole(vector(raw, "scores"), "scores")
    if steps.size != xs.shape[1]:
        raise ValueError(f"need one score per config ({xs.shape[1]}), got {steps.size}")
    steps = steps - (steps.min() if steps.size else 0)
    rows = [_trend_row(c, m, steps) for c, m in zip(counts, trials, strict=True)]
    p = np.array([row[0] for row in rows])
    least = np.array([row[1] for row in rows])
    adjusted = bh(np.where(can_reject(least, fdr), p, math.nan))
    return tuple(
        TrendFlip(
            task=t,
            p=float(p[t]),
            p_adj=float(adjusted[t]),
            moved=bool(adjusted[t] <= fdr),
            rising=rows[t][2] > 0,
        )
        for t in range(len(rows))
    )


def enough_samples(n1: int, n0: int, tasks: int, fdr: float = 0.10) -> bool:
    """Whether one task that flips from all fail to all pass can be found when `tasks` tasks can vary.

    False means: say "not enough samples per task" rather than "no movers". Raises ValueError for
    negative counts. Source: statistics.md 2g.
    """
    _check_fdr(fdr)
    return tasks > 0 and n1 > 0 and n0 > 0 and flip_p(n1, n1, 0, n0) * tasks <= fdr


def can_reject(least: FloatArray, alpha: float) -> npt.NDArray[np.bool_]:
    """Which tests can reject at all, given the smallest p-value that each one's totals allow.

    The smallest K such that at most K tests can reach alpha / K. Source: Tarone 1990, Gilbert 2005.
    """
    for k in range(1, least.size + 1):
        reachable = least <= alpha / k
        if np.count_nonzero(reachable) <= k:
            return reachable
    return np.zeros(least.shape, dtype=np.bool_)


def _mid_p(order: FloatArray, law: FloatArray) -> FloatArray:
    """Mid-p of every outcome when a smaller `order` is more extreme."""
    rank = np.argsort(order, kind="stable")
    below = np.concatenate(([0.0], np.cumsum(law[rank])))
    ranked = order[rank]
    first = below[np.searchsorted(ranked, order / TIE, side="left")]
    last = below[np.searchsorted(ranked, order * TIE, side="right")]
    return np.asarray((first + last) / 2.0, dtype=np.float64)


def _fisher_family(a: IntArray, m1: IntArray, b: IntArray, m0: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mid-p of every task and the smallest one its totals allow."""
    p, least = np.ones(a.size), np.ones(a.size)
    for t, (e1, t1, e0, t0) in enumerate(zip(a.tolist(), m1.tolist(), b.tolist(), m0.tolist(), strict=True)):
        low, law = hypergeometric(e1 + e0, t1, t0)
        all_p = _mid_p(law, law)
        p[t], least[t] = all_p[e1 - low], all_p.min()
    return p, least


def _trend_row(x: IntArray, n: IntArray, steps: IntArray) -> tuple[float, float, float]:
    """Return mid-p, the smallest attainable mid-p, and the signed distance from the mean."""
    law = score_law(int(x.sum()), n, steps)
    support = np.flatnonzero(law)
    if support.size < 2:
        return 1.0, 1.0, 0.0
    mean = float(np.arange(law.size) @ law)
    # Rounded, because scores at equal distance on both sides must tie.
    distance = np.round(np.abs(support - mean), 9)
    all_p = _mid_p(float(distance.max()) + 1.0 - distance, law[support])
    total = int(x @ steps)
    return float(all_p[np.searchsorted(support, total)]), float(all_p.min()), total - mean


def _smoothed(x: IntArray, n: IntArray) -> FloatArray:
    """Sampling variance of a rate that stays above 0 for all-or-none tasks (Jeffreys' mean)."""
    rate = (x + 0.5) / (n + 1.0)
    return np.asarray(rate * (1.0 - rate) / n, dtype=np.float64)


def _shrink(differences: FloatArray, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Normal-normal empirical Bayes: posterior means and local false sign rates."""
    if differences.size < FEWEST_TO_SHRINK:
        return np.full(differences.shape, math.nan), np.full(differences.shape, math.nan)
    fit = dersimonian_laird(differences, variances)
    keep = fit.sigma2 / (fit.sigma2 + variances)
    shrunk = keep * differences + (1.0 - keep) * fit.mean
    # The uncertainty of the common mean counts for the part that is borrowed from it.
    spread = np.sqrt(keep * variances + (1.0 - keep) ** 2 / np.sum(1.0 / (variances + fit.sigma2)))
    return shrunk, np.asarray(special.ndtr(-np.abs(shrunk) / spread), dtype=np.float64)


def _check_fdr(fdr: float) -> None:
    if not 0 < fdr < 1:
        raise ValueError(f"false discovery rate must lie between 0 and 1, got {fdr}")
