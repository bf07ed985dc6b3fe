"""Does a rate rise or fall over the ordered ceilings? One test that uses every config.

`trend_stratified` is the default: more power than the largest ceiling against the baseline alone.
`cochran_armitage` ignores that tasks are the same in every config and is kept for comparison.
Monotone-looking rates are no evidence by themselves: six observed infra rates come out monotone in
about half of the runs at five samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import table
from pytest_infranoise.stats.counts import whole
from pytest_infranoise.stats.exact import convolve_all
from pytest_infranoise.stats.exact import score_law
from pytest_infranoise.stats.exact import two_sided_p
from pytest_infranoise.stats.rates import standard_error


class Trend(NamedTuple):
    """Test of a linear trend: statistic `z` (positive: rising), two-sided `p`, informative tasks."""

    z: float
    p: float
    tasks: int


class Slope(NamedTuple):
    """Mean change of the rate per config step, with SE, t statistic's p, and df."""

    est: float
    se: float
    p: float
    df: float


def trend_stratified(x: npt.ArrayLike, n: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> Trend:
    """Stratified Cochran-Armitage ("Mantel") trend over ordered configs, tasks as strata.

    `x`, `n`: events and trials, tasks x configs (a cell may be empty; scalar `n`: in every cell).
    `scores`: one number per config, default 0, 1, 2, ... Target: these tasks (null: no task
    changes). A task whose trials all agree says nothing; if none says anything z is 0 and p is 1.
    Raises ValueError for bad counts or scores. Source: Mantel 1963; statistics.md 2d.
    """
    xs, ns = table(x, n)
    steps = _scores(scores, xs.shape[1])
    total, events = ns.sum(axis=1), xs.sum(axis=1)
    keep = total > 1
    xs, ns, total, events = xs[keep], ns[keep], total[keep], events[keep]
    shift = xs @ steps - events * (ns @ steps) / total
    spread = total * (ns @ steps**2) - (ns @ steps) ** 2
    variance = events * (total - events) / (total**2 * (total - 1.0)) * spread
    informative = int(np.count_nonzero(variance > 0))
    if informative == 0:
        return Trend(0.0, 1.0, 0)
    z = float(shift.sum()) / math.sqrt(float(variance.sum()))
    return Trend(z, two_sided_p(z), informative)


def trend_exact_p(x: npt.ArrayLike, n: npt.ArrayLike) -> float:
    """Two-sided exact p of the stratified trend, for tables with too few tasks for its normal law.

    Inputs, target and errors as in `trend_stratified`, whole counts, scores 0, 1, 2, ... Trials are relabelled
    within each task; outcomes at least as far from the mean as the observed one count. 1.0 when nothing can vary.
    Source: Mantel 1963 (the permutation law of the same statistic); statistics.md 2d.
    """
    xs, ns = table(x, n)
    steps = np.arange(xs.shape[1])
    rows = zip(whole(xs.ravel(), "x").reshape(xs.shape), whole(ns.ravel(), "n").reshape(xs.shape), strict=True)
    informative = [(events, trials) for events, trials in rows if 0 < events.sum() < trials.sum()]
    law = convolve_all([score_law(int(events.sum()), trials, steps) for events, trials in informative])
    places = np.arange(law.size)
    observed = sum(int(events @ steps) for events, _ in informative)
    # Rounded, because totals at equal distance on both sides must tie.
    distance = np.round(np.abs(places - places @ law), 9)
    return min(1.0, float(law[distance >= distance[observed]].sum()))


def cochran_armitage(x: npt.ArrayLike, n: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> Trend:
    """Plain Cochran-Armitage trend on total counts per config, for comparison only.

    `x`, `n`: shape (configs,). Ignores the pairing by task (type-I error .002 on benchmarks).
    z is 0 and p is 1 when all trials agree or all sit in one config. Raises ValueError for bad
    counts or scores. Source: Armitage 1955; statistics.md 2d.
    """
    xs, ns = table(np.atleast_2d(np.asarray(x, float)), np.atleast_2d(np.asarray(n, float)))
    steps = _scores(scores, xs.shape[1])
    total, events = float(ns.sum()), float(xs.sum())
    if total <= 0:
        return Trend(0.0, 1.0, 0)
    centred = steps - float((ns @ steps)[0]) / total
    pooled = events / total
    variance = pooled * (1.0 - pooled) * float((ns @ centred**2)[0])
    if variance <= 0:
        return Trend(0.0, 1.0, 0)
    z = float((xs @ centred)[0]) / math.sqrt(variance)
    return Trend(z, two_sided_p(z), 1)


def trend_slopes(x: npt.ArrayLike, n: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> Slope:
    """Mean over tasks of each task's least-squares slope, with a one-sample t (population target).

    Inputs and errors as in `trend_stratified`. Tasks with trials in fewer than two configs are
    dropped. Fewer than two tasks, or equal slopes everywhere: se nan or 0 and p 1, since no t exists.
    Source: statistics.md 2d.
    """
    xs, ns = table(x, n)
    steps = _scores(scores, xs.shape[1])
    rates = np.divide(xs, ns, out=np.zeros_like(xs), where=ns > 0)
    slopes = np.array([_slope(r[m > 0], steps[m > 0]) for r, m in zip(rates, ns, strict=True)], dtype=float)
    slopes = slopes[~np.isnan(slopes)]
    if slopes.size == 0:
        return Slope(math.nan, math.nan, 1.0, 0.0)
    est, se, df = float(slopes.mean()), standard_error(slopes), slopes.size - 1.0
    p = float(2.0 * special.stdtr(df, -abs(est) / se)) if se > 0 else 1.0
    return Slope(est, se, p, df)


def isotonic(
    rates: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    increasing: bool = True,
) -> FloatArray:
    """Closest monotone sequence to the observed rates: for display, never a test.

    `rates`: shape (configs,), nan where a config has no trials (stays nan). `weights`: trials per
    config, default equal; a config of weight 0 is left as nan. Raises ValueError for bad shapes or
    negative weights. Source: Barlow et al. 1972; statistics.md 2d.
    """
    values = np.asarray(rates, dtype=np.float64)
    w = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or w.shape != values.shape or np.any(w < 0):
        raise ValueError("rates and weights must be 1-d of equal length, weights not negative")
    fit = np.full(values.shape, math.nan)
    known = ~np.isnan(values) & (w > 0)
    if np.any(known):
        from scipy.optimize import isotonic_regression  # here, because it takes long to load

        fit[known] = isotonic_regression(values[known], weights=w[known], increasing=increasing).x
    return fit


def _scores(scores: npt.ArrayLike | None, configs: int) -> FloatArray:
    steps = np.arange(configs, dtype=np.float64) if scores is None else np.asarray(scores, dtype=np.float64)
    if steps.shape != (configs,) or not np.all(np.isfinite(steps)):
        raise ValueError(f"need one finite score per config ({configs}), got shape {steps.shape}")
    return steps


def _slope(rates: FloatArray, steps: FloatArray) -> float:
    if steps.size < 2 or np.ptp(steps) == 0:
        return math.nan
    centred = steps - steps.mean()
    return float(centred @ rates) / float(centred @ centred)
