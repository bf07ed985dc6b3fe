"""Looking after each round without inflating errors.

With a fixed number of rounds: group-sequential bounds and repeated confidence intervals, valid for
stopping on a difference and on equivalence alike (naive peeking: type-I error .136 instead of .05).
Without one: an asymptotic confidence sequence. A stopped run's estimate is biased away from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal
from typing import get_args

import numpy as np
from scipy import special

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.deltas import UNKNOWN_DELTA
from pytest_infranoise.stats.deltas import Delta
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.roots import root

Spending = Literal["obf", "pocock"]
# One sample per task says nothing about its own variance: the first look is after round two.
FIRST_LOOK = 2
# Nodes per standard deviation of one step; Gauss-Legendre on a smooth integrand needs few.
NODES_PER_SD = 6
FARTHEST_Z = 37.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What may be claimed after a round. `ci` and `tost_interval` stay valid under repeated looks."""

    round: int
    rounds: int
    ci: Interval
    tost_interval: Interval
    different: bool
    equivalent: bool

    @property
    def stop(self) -> bool:
        """Whether a claim can be made, or no rounds are left."""
        return self.different or self.equivalent or self.round >= self.rounds


def gs_spend(fracs: Sequence[float], alpha: float = 0.05, kind: Spending = "obf") -> list[float]:
    """Cumulative two-sided error spent at each information fraction (Lan-DeMets).

    `fracs`: increasing, in (0, 1]. `obf`: O'Brien-Fleming type, alpha / 2 on each side; `pocock`:
    Pocock type. Raises ValueError for bad fractions, alpha or kind. Source: Lan and DeMets 1983;
    statistics.md 2k.
    """
    _check(fracs, alpha, kind)
    if kind == "pocock":
        return [alpha * math.log1p((math.e - 1.0) * t) for t in fracs]
    z = float(special.ndtri(alpha / 4.0))
    return [4.0 * float(special.ndtr(z / math.sqrt(t))) for t in fracs]


def gs_bounds(fracs: Sequence[float], alpha: float = 0.05, kind: Spending = "obf") -> list[float]:
    """Two-sided critical values of |z| at each look, so that the spent error is `gs_spend`.

    Arguments and errors as there. Looks so early that nothing is spent have a bound of 37. Source:
    Lan and DeMets 1983, by numerical integration (Armitage, McPherson, Rowe 1969).
    """
    _check(fracs, alpha, kind)
    return list(_bounds(tuple(float(t) for t in fracs), alpha, kind))


def look(
    delta: Delta,
    round_: int,
    rounds: int,
    margin: float,
    *,
    alpha: float = 0.05,
    kind: Spending = "obf",
) -> Look:
    """Decide after `round_` of `rounds` planned rounds whether the delta can be called.

    `delta` from all rounds so far (target: benchmark); `margin` a proportion. Repeated interval
    est +- c SE with Lan-DeMets c, the t value of the same tail when df are few; equivalence uses the
    bounds at 2 alpha. A guarded delta is widened as always. Before round two nothing is claimed.
    Raises ValueError unless 1 <= round_ <= rounds and margin > 0. Source: Jennison and Turnbull 1989;
    statistics.md 2k and 4.5.
    """
    if not 1 <= round_ <= rounds or not margin > 0:
        raise ValueError(f"need 1 <= round <= rounds and margin > 0, got {round_}, {rounds}, {margin}")
    fracs = tuple(j / rounds for j in range(1, rounds + 1))
    _check(fracs, 2.0 * alpha, kind)
    ci = tost_interval = UNKNOWN_DELTA
    if round_ >= FIRST_LOOK and not math.isnan(delta.est):
        ci = delta.interval_at(_bounds(fracs, alpha, kind)[round_ - 1])
        tost_interval = delta.interval_at(_bounds(fracs, 2.0 * alpha, kind)[round_ - 1])
    return Look(
        round=round_,
        rounds=rounds,
        ci=ci,
        tost_interval=tost_interval,
        different=ci.lo > 0 or ci.hi < 0,
        equivalent=max(-tost_interval.lo, tost_interval.hi) < margin,
    )


def asymp_cs(mean: float, sd: float, n: float, alpha: float = 0.05, n_opt: float | None = None) -> Interval:
    """Asymptotic confidence sequence for a mean difference: valid at every look at once.

    `mean`, `sd` of `n` differences in [-1, 1]; narrowest near `n_opt`, which must be fixed before the
    run (default: `n`, for a single planned look). Without trials or variation: [-1, 1]. Raises
    ValueError for alpha outside (0, 1) or n_opt not positive. Source: Waudby-Smith et al., arXiv
    2103.06476; statistics.md 2k.
    """
    if not 0 < alpha < 1 or (n_opt is not None and not n_opt > 0):
        raise ValueError(f"need 0 < alpha < 1 and n_opt > 0, got {alpha} and {n_opt}")
    if not n > 0 or not sd > 0 or math.isnan(mean):
        return UNKNOWN_DELTA
    log_term = -2.0 * math.log(alpha)
    rho2 = (log_term + math.log(log_term) + 1.0) / (n if n_opt is None else n_opt)
    # Alpha close to 1 would make the tuning term negative; any positive value is valid.
    rho2 = max(rho2, 1e-12)
    grown = n * rho2 + 1.0
    half = sd * math.sqrt(2.0 * grown / (n**2 * rho2) * math.log(math.sqrt(grown) / alpha))
    return Interval(mean - half, mean + half)


def mcnemar_evalue(up: int, down: int) -> float:
    """e-value against "no task changed" from discordant pairs; reject at 1 / alpha, at any time.

    `up`, `down`: pairs that passed only under config one, only under config zero. Beta(1/2, 1/2)
    mixture. 1.0 without pairs, inf beyond the float range. It cannot show equivalence. Raises
    ValueError for negative numbers. Source: cf. Turner, Ly, Grunwald, safe tests; statistics.md 2k.
    """
    if up < 0 or down < 0:
        raise ValueError(f"numbers of pairs must not be negative, got {up} and {down}")
    log_e = (up + down) * math.log(2.0) + float(special.betaln(up + 0.5, down + 0.5)) - math.log(math.pi)
    return math.exp(log_e) if log_e < 700.0 else math.inf


@lru_cache(maxsize=256)
def _bounds(fracs: tuple[float, ...], alpha: float, kind: Spending) -> tuple[float, ...]:
    spent = gs_spend(fracs, alpha, kind)
    bounds = [float(-special.ndtri(spent[0] / 2.0)) if spent[0] > 0 else FARTHEST_Z]
    nodes, weights = _nodes(bounds[0], fracs[0], fracs[0])
    density = np.exp(-(nodes**2) / (2.0 * fracs[0])) / math.sqrt(2.0 * math.pi * fracs[0])
    for j in range(1, len(fracs)):
        step = math.sqrt(fracs[j] - fracs[j - 1])
        mass = density * weights
        bounds.append(_next_bound(nodes, mass, fracs[j], step, spent[j] - spent[j - 1]))
        grown, grown_weights = _nodes(bounds[-1], fracs[j], step**2)
        kernel = np.exp(-((grown[:, None] - nodes[None, :]) ** 2) / (2.0 * step**2))
        density = kernel @ mass / (math.sqrt(2.0 * math.pi) * step)
        nodes, weights = grown, grown_weights
    return tuple(bounds)


def _next_bound(nodes: FloatArray, mass: FloatArray, frac: float, step: float, spend: float) -> float:
    """Bound at which the paths still inside cross with probability `spend`."""

    def excess(bound: float) -> float:
        edge = bound * math.sqrt(frac)
        out = special.ndtr((nodes - edge) / step) + special.ndtr((-edge - nodes) / step)
        return float(out @ mass) - spend

    return FARTHEST_Z if excess(FARTHEST_Z) >= 0 else root(excess, 0.0, FARTHEST_Z, xtol=1e-10)


def _nodes(bound: float, frac: float, step2: float) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre nodes over the continuation region, as fine as one step requires."""
    reach = min(bound, 8.5) * math.sqrt(frac)
    size = max(64, math.ceil(2.0 * reach / math.sqrt(step2) * NODES_PER_SD))
    x, w = np.polynomial.legendre.leggauss(size)
    return reach * x, reach * w


def _check(fracs: Sequence[float], alpha: float, kind: str) -> None:
    if kind not in get_args(Spending):
        raise ValueError(f"kind must be one of {get_args(Spending)}, got {kind!r}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    edges = [0.0, *fracs]
    if len(edges) < 2 or edges[-1] > 1 or any(b <= a for a, b in pairwise(edges)):
        raise ValueError(f"information fractions must rise within (0, 1], got {list(fracs)}")
