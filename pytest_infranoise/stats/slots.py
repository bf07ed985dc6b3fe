"""Does the score drift with the hour or the day? Variation between blocks of wall-clock time.

Running every config in every slot makes slot effects cancel in deltas; what is left here is how far
a score can be quoted beyond the session. With one slot that is not measured; with fewer than five it
is measured badly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import vector
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import t_quantile

# With fewer slots the SD is printed but not to be trusted.
TRUSTED_SLOTS = 5


class Fit(NamedTuple):
    """Common mean of estimates with known variances, their true variance, and Cochran's Q."""

    mean: float
    sigma2: float
    q: float


class SlotComponents(NamedTuple):
    """Slot-to-slot variation of a score; proportions, nan where not measured.

    `sigma2`: variance between slots (square root: slot SD). `q`, `p`: test that there is none. `mean`,
    `se`, `interval`: score quoted beyond the session (t with slots - 1 df).
    """

    slots: int
    sigma2: float
    q: float
    p: float
    mean: float
    se: float
    interval: Interval

    @property
    def measured(self) -> bool:
        """Whether variation between slots could be measured at all (two slots or more)."""
        return self.slots > 1

    @property
    def trusted(self) -> bool:
        """Whether there are enough slots (five) to rely on it."""
        return self.slots >= TRUSTED_SLOTS


def slot_components(y: npt.ArrayLike, v: npt.ArrayLike, conf: float = 0.95) -> SlotComponents:
    """Split the variation of a score over slots into sampling noise and slot-to-slot variance.

    `y`: score per slot, `v`: its sampling variance (`se_fixed` squared), shape (slots,). A variance
    of 0 or nan (all-or-none slots) is not certainty: it is replaced by the largest one; if none is
    positive all slots weigh the same and all variation counts as slot variation. One slot: only its
    mean; none: nan. Raises ValueError for bad shapes or negative variances. Source: DerSimonian and
    Laird 1986, Hartung and Knapp 2001; statistics.md 2l.
    """
    values, variances = _usable(y, v)
    size = values.size
    if size < 2:
        mean = float(values[0]) if size else math.nan
        return SlotComponents(size, math.nan, math.nan, math.nan, mean, math.nan, Interval(-math.inf, math.inf))
    fit = dersimonian_laird(values, variances)
    weights = 1.0 / (variances + fit.sigma2) if fit.sigma2 > 0 or np.all(variances > 0) else np.ones(size)
    spread = float(np.sum(weights * (values - fit.mean) ** 2))
    se = math.sqrt(spread / ((size - 1.0) * float(weights.sum())))
    # Slots that agree by chance must not shrink the interval below what their own noise allows.
    floor = max(se, 1.0 / math.sqrt(float(weights.sum()))) if np.all(variances > 0) else se
    half = t_quantile(conf, size - 1.0) * floor if floor > 0 else math.inf
    p = float(special.chdtrc(size - 1.0, fit.q)) if np.all(variances > 0) else math.nan
    interval = Interval(fit.mean - half, fit.mean + half)
    return SlotComponents(size, fit.sigma2, fit.q, p, fit.mean, se, interval)


def dersimonian_laird(y: FloatArray, v: FloatArray) -> Fit:
    """Moment estimate of the true variance behind estimates `y` with sampling variances `v`.

    Needs two estimates or more; variances all positive, or all 0 (then plain mean and variance).
    Source: DerSimonian and Laird 1986.
    """
    if not np.all(v > 0):
        return Fit(float(y.mean()), float(np.var(y, ddof=1)), math.nan)
    w = 1.0 / v
    q = float(np.sum(w * (y - np.average(y, weights=w)) ** 2))
    scale = float(w.sum() - np.sum(w**2) / w.sum())
    sigma2 = max(0.0, (q - (y.size - 1.0)) / scale) if scale > 0 else 0.0
    return Fit(float(np.average(y, weights=1.0 / (v + sigma2))), sigma2, q)


def beyond_session_se(se: float, sigma2: float, slots: int) -> float:
    """SE of a score quoted for other days: sqrt(SE^2 + sigma2 / slots); nan with fewer than two slots.

    Use it with t on slots - 1 df. Raises ValueError for negative input. Source: statistics.md 2l.
    """
    if se < 0 or sigma2 < 0 or slots < 0:
        raise ValueError("SE, variance and slots must not be negative")
    return math.sqrt(se**2 + sigma2 / slots) if slots > 1 else math.nan


def overdispersion(deltas: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Observed variance of round-level deltas over the variance that independent trials would give.

    `deltas`: one per round; `expected`: sampling variance of each, or a single one. Above 1.5, trials
    are not independent (noisy neighbours). nan with fewer than two rounds or nothing expected. Raises
    ValueError for bad values. Source: statistics.md 2l.
    """
    values = vector(deltas, "deltas")
    mean_expected = float(np.mean(vector(np.atleast_1d(expected), "expected"))) if np.size(expected) else 0.0
    if mean_expected < 0:
        raise ValueError("variances must not be negative")
    return float(np.var(values, ddof=1)) / mean_expected if values.size > 1 and mean_expected > 0 else math.nan


def _usable(y: npt.ArrayLike, v: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    values = vector(y, "scores")
    variances = np.nan_to_num(np.asarray(v, dtype=np.float64), nan=0.0)
    if variances.shape != values.shape or np.any(variances < 0) or not np.all(np.isfinite(variances)):
        raise ValueError("need one non-negative variance per slot")
    return values, np.where(variances > 0, variances, variances.max(initial=0.0))
