"""Are two configs the same within a margin? Two one-sided tests, never "p > .05".

A p-value of .40 only says that the delta is small in units of its own error. Equivalence is shown
when the whole 1 - 2 alpha interval lies inside a margin that was fixed before the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from pytest_infranoise.stats.deltas import Delta
from pytest_infranoise.stats.deltas import Votes
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.roots import root

# Beyond this normal quantile the tail is below 1e-300.
FARTHEST_Z = 37.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Outcome of a TOST; all values are proportions.

    `p`: larger of the two one-sided p-values. `shown`: the interval lies inside +-margin.
    `interval`: the 1 - 2 alpha interval. `smallest`: smallest margin that would have been shown
    ("same within"). `no_inflation`: the upper limit alone lies below the margin.
    """

    margin: float
    alpha: float
    p: float
    shown: bool
    interval: Interval
    smallest: float
    no_inflation: bool


def tost(delta: Delta, margin: float, alpha: float = 0.05) -> Equivalence:
    """Two one-sided tests of |difference| >= margin, for the target that `delta` was made for.

    `margin` is a proportion (.03 is 3 percentage points), chosen from use, not from data. A guarded
    delta must pass with its widened interval. Raises ValueError unless margin > 0 and
    0 < alpha < .5. Source: Schuirmann 1987; statistics.md 2c.
    """
    _check(margin, alpha)
    interval = delta.interval(1.0 - 2.0 * alpha)
    smallest = max(-interval.lo, interval.hi)
    return Equivalence(
        margin=margin,
        alpha=alpha,
        p=tost_p(delta, margin),
        shown=smallest < margin,
        interval=interval,
        smallest=smallest,
        no_inflation=interval.hi < margin,
    )


def tost_p(delta: Delta, margin: float) -> float:
    """p-value of the TOST: the smallest alpha at which `margin` would be shown.

    1.0 where no interval exists. Errors and source as in `tost`.
    """
    _check(margin, 0.05)
    if math.isnan(delta.est):
        return 1.0
    p_t = one_sided_max(delta.est, delta.se, delta.df, margin)
    if delta.votes is None:
        return p_t
    p_votes = _votes_p(delta.votes, margin)
    # Without a usable SE the guard's interval is the only one there is.
    return max(p_t, p_votes) if delta.se > 0 and delta.df > 0 else p_votes


def one_sided_max(est: float, se: float, df: float, margin: float) -> float:
    """Larger one-sided Student p-value of est <= -margin and est >= margin; 1.0 without an SE."""
    if not se > 0 or not df > 0:
        return 1.0
    below, above = special.stdtr(df, -(est + margin) / se), special.stdtr(df, (est - margin) / se)
    return float(max(below, above))


def smallest_margin(delta: Delta, alpha: float = 0.05) -> float:
    """Smallest margin within which this delta has been shown to be equivalent to 0; at most 1.

    Errors and source as in `tost`.
    """
    _check(1.0, alpha)
    interval = delta.interval(1.0 - 2.0 * alpha)
    return max(-interval.lo, interval.hi)


def p_within(delta: Delta, margin: float) -> float:
    """Posterior probability of |difference| < margin under a flat prior: for display, no test.

    nan for a guarded delta and without an SE, where the Student posterior is not to be believed.
    Raises ValueError unless margin > 0. Source: statistics.md 2c.
    """
    _check(margin, 0.05)
    if delta.guarded or not delta.se > 0 or not delta.df > 0:
        return math.nan
    upper, lower = (margin - delta.est) / delta.se, (-margin - delta.est) / delta.se
    return float(special.stdtr(delta.df, upper) - special.stdtr(delta.df, lower))


def _votes_p(votes: Votes, margin: float) -> float:
    """Tail of the largest normal quantile whose Newcombe interval stays inside the margin."""

    def excess(z: float) -> float:
        interval = votes.interval_at(z)
        return max(-interval.lo, interval.hi) - margin

    if excess(0.0) >= 0:
        return 1.0
    if excess(FARTHEST_Z) < 0:
        return 0.0
    return float(special.ndtr(-root(excess, 0.0, FARTHEST_Z)))


def _check(margin: float, alpha: float) -> None:
    if not (margin > 0 and math.isfinite(margin)):
        raise ValueError(f"margin must be positive, got {margin}")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie between 0 and 0.5, got {alpha}")
