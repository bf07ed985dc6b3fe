"""Tests of "no task changed" that need no variance estimate: exact permutation laws and their z forms.

Lives apart from `deltas` because infra errors, flips and the calibration gate use the same laws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy import special

from pytest_infranoise.stats.counts import Alternative
from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import IntArray
from pytest_infranoise.stats.counts import Pair
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.counts import check_alternative
from pytest_infranoise.stats.counts import check_target
from pytest_infranoise.stats.counts import pair
from pytest_infranoise.stats.counts import vector
from pytest_infranoise.stats.counts import whole

# Outcomes this close in probability are ties; the constant R uses in fisher.test.
TIE = 1.0 + 1e-7
# Differences that need a finer common grid than this are rounded, with ties decided conservatively.
GRID_STEPS = 100_000


def two_sided_p(z: float) -> float:
    """Return the two-sided normal p-value of `z`; nan stays nan."""
    return float(2.0 * special.ndtr(-abs(z)))


def hypergeometric(ones: int, n1: int, n0: int) -> tuple[int, FloatArray]:
    """Law of the events in group one when `ones` events fall at random among n1 + n0 trials.

    Returns the smallest possible count and the probabilities from there upward.
    """
    low, high = max(0, ones - n0), min(ones, n1)
    k = np.arange(low, high, dtype=np.float64)
    ratios = (ones - k) * (n1 - k) / ((k + 1.0) * (n0 - ones + k + 1.0))
    logs = np.concatenate(([0.0], np.cumsum(np.log(ratios))))
    weights = np.exp(logs - logs.max())
    return low, weights / weights.sum()


def score_law(events: int, n: IntArray, steps: IntArray) -> FloatArray:
    """Law of the score total when `events` events fall at random among all trials of a task.

    `n`: trials per config, `steps`: the configs' scores, whole and not negative. Indexed from 0.
    """
    top = events * int(steps.max(initial=0))
    law = np.zeros((events + 1, top + 1))
    law[0, 0] = 1.0
    for trials, step in zip(n.tolist(), steps.tolist(), strict=True):
        k = np.arange(min(trials, events) + 1)
        # Fair-coin weights: the conditional law is the same and nothing overflows.
        logs = special.gammaln(trials + 1) - special.gammaln(k + 1) - special.gammaln(trials - k + 1)
        grown = np.zeros_like(law)
        for j, weight in zip(k.tolist(), np.exp(logs - trials * math.log(2.0)).tolist(), strict=True):
            shift = j * step
            if shift <= top:
                grown[j:, shift:] += weight * law[: events + 1 - j, : top + 1 - shift]
        law = grown
    last = law[events]
    return np.asarray(last / last.sum(), dtype=np.float64)


def convolve_all(laws: Sequence[FloatArray]) -> FloatArray:
    """Law of a sum of independent counts, given each one's probabilities.

    Sums of positive products only (no FFT), so that tails keep their relative accuracy.
    """
    level = list(laws) or [np.ones(1)]
    while len(level) > 1:
        paired = [np.convolve(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = paired + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def tail_p(law: FloatArray, observed: int, alternative: Alternative) -> float:
    """p-value of `observed`, an index into `law`; two-sided sums all outcomes as unlikely or less."""
    if alternative == "greater":
        p = law[observed:].sum()
    elif alternative == "less":
        p = law[: observed + 1].sum()
    else:
        p = law[law <= law[observed] * TIE].sum()
    return min(1.0, float(p))


def cmh_exact_p(
    x1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    n0: npt.ArrayLike,
    alternative: Alternative = "two-sided",
) -> float:
    """Exact stratified permutation p-value of "no task changed between two configs".

    Inputs: events and trials per task, shape (tasks,), whole numbers. Target: these tasks (the
    sharp null). Trials are relabelled within each task; the statistic is the total of `x1`, and
    `greater` means config one has more events. One sample per task: exact McNemar. One task:
    Fisher. Tasks missing in one config are dropped; 1.0 when nothing can vary. Raises ValueError
    for bad or fractional counts and for an unknown alternative. Source: Mantel and Haenszel 1959;
    statistics.md 2b.
    """
    check_alternative(alternative)
    return pair_exact_p(pair(x1, n1, x0, n0), alternative)


def exact_p(
    x1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    n0: npt.ArrayLike,
    alternative: Alternative = "two-sided",
    target: Target = "benchmark",
) -> float:
    """Exact p-value of "the configs do not differ" for a target: `cmh_exact_p`, or `signflip` over tasks.

    Inputs and errors as in `cmh_exact_p`; for the population also ValueError for an unknown target. Source:
    statistics.md 2b and 4.2.
    """
    check_target(target)
    if target == "benchmark":
        return cmh_exact_p(x1, n1, x0, n0, alternative)
    return signflip(pair(x1, n1, x0, n0).differences, alternative)


def pair_exact_p(both: Pair, alternative: Alternative = "two-sided") -> float:
    """`cmh_exact_p` of counts that are already validated and paired."""
    a, m1 = whole(both.one.x, "x1"), whole(both.one.n, "n1")
    b, m0 = whole(both.zero.x, "x0"), whole(both.zero.n, "n0")
    informative = (a + b > 0) & (a + b < m1 + m0)
    laws: list[FloatArray] = []
    offset = 0
    rows = zip(*(v[informative].tolist() for v in (a, m1, b, m0)), strict=True)
    for events1, trials1, events0, trials0 in rows:
        low, law = hypergeometric(events1 + events0, trials1, trials0)
        laws.append(law)
        offset += low
    return tail_p(convolve_all(laws), int(a[informative].sum()) - offset, alternative)


def cmh_z2(x1: npt.ArrayLike, n1: npt.ArrayLike, x0: npt.ArrayLike, n0: npt.ArrayLike) -> float:
    """Squared Cochran-Mantel-Haenszel z, the large-sample form of `cmh_exact_p`, 1 df.

    Inputs, target and errors as there (fractional counts allowed); no continuity correction. 0 when
    nothing can vary. Source: Mantel and Haenszel 1959; statistics.md 2b.
    """
    both = pair(x1, n1, x0, n0)
    total, events = both.one.n + both.zero.n, both.one.x + both.zero.x
    expected = events * both.one.n / total
    spread = np.where(total > 1, total - 1.0, math.inf)
    variance = float(np.sum(events * (total - events) * both.one.n * both.zero.n / (total**2 * spread)))
    return float(np.sum(both.one.x - expected)) ** 2 / variance if variance > 0 else 0.0


def two_prop_z_p(x1: float, n1: float, x0: float, n0: float) -> float:
    """Two-sided p-value of the pooled two-proportion z test on total counts.

    Kept for comparison only: it ignores that the same tasks ran twice (type-I error .002 instead of
    .05 on paired benchmarks). 1.0 when a config has no trials or all trials agree. Raises ValueError
    unless 0 <= x <= n. Source: statistics.md 4.2.
    """
    both = pair([x1], [n1], [x0], [n0])
    if both.tasks == 0:
        return 1.0
    pooled = (x1 + x0) / (n1 + n0)
    variance = pooled * (1.0 - pooled) * (1.0 / n1 + 1.0 / n0)
    return two_sided_p((x1 / n1 - x0 / n0) / math.sqrt(variance)) if variance > 0 else 1.0


def signflip(d: npt.ArrayLike, alternative: Alternative = "two-sided") -> float:
    """Sign-flip permutation p-value of "the differences are symmetric around zero".

    `d`: one difference per task, shape (tasks,). Target: tasks like these (population). Exact for
    whole numbers and for differences of rates with common denominators; differences that share no
    reasonable grid are rounded to about five digits and near-ties count against rejection. 1.0 for
    no tasks or all zeros. Raises ValueError for values that are not finite. Source: Fisher 1935;
    statistics.md 2b.
    """
    check_alternative(alternative)
    values = vector(d, "differences")
    # Rates that are equal can differ in the last bit.
    values = values[np.abs(values) > 1e-12]
    if values.size == 0:
        return 1.0
    steps, slack = _on_grid(values)
    law = _signed_sums(np.abs(steps))
    centre = law.size // 2
    total = int(steps.sum())
    # The tails are exactly symmetric, so one of them serves every alternative.
    if alternative != "two-sided":
        start = (total if alternative == "greater" else -total) - slack
        return min(1.0, float(law[max(0, centre + start) :].sum()))
    return min(1.0, 2.0 * float(law[centre + max(0, abs(total) - slack) :].sum())) if total else 1.0


def _on_grid(values: FloatArray) -> tuple[IntArray, int]:
    """Return the values as whole grid steps, and how many steps rounding may have moved the sum."""
    fractions = [Fraction(v).limit_denominator(1000) for v in values.tolist()]
    exact = all(abs(float(f) - v) < 1e-12 for f, v in zip(fractions, values.tolist(), strict=True))
    scale = math.lcm(*(f.denominator for f in fractions))
    if exact and sum(abs(f) for f in fractions) * scale <= GRID_STEPS:
        return np.array([int(f * scale) for f in fractions], dtype=np.int64), 0
    if np.all(np.rint(values) == values) and np.abs(values).sum() <= GRID_STEPS:
        return values.astype(np.int64), 0
    steps = np.rint(values / np.abs(values).sum() * GRID_STEPS).astype(np.int64)
    return steps, values.size


def _signed_sums(steps: IntArray) -> FloatArray:
    """Law of sum(+-step) with fair signs, indexed from -sum to +sum."""
    size = int(steps.sum())
    law = np.zeros(2 * size + 1)
    law[size] = 1.0
    for step in steps.tolist():
        # Neither roll wraps: the support grows by `step` a time and ends exactly at the edges.
        law = 0.5 * (np.roll(law, step) + np.roll(law, -step))
    return law
