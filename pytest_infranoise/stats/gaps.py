"""Is a gap between two published scores the model, the sample, or the machine?

The infrastructure allowance bounds a bias: it shifts the gap and does not average out, so it is
added to the interval and not pooled into the standard error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal
from typing import get_args

from scipy import special

from pytest_infranoise.stats.deltas import newcombe
from pytest_infranoise.stats.roots import root

Configs = Literal["same", "documented", "undocumented", "uncapped"]
Verdict = Literal[
    "within sampling noise",
    "beyond noise but explainable by infrastructure",
    "distinguishable",
]

# How far resource configs alone can move a score (proportions): equal and documented; documented but
# different; not documented; one side may be uncapped.
ALLOWANCE: dict[Configs, float] = {"same": 0.0, "documented": 0.02, "undocumented": 0.03, "uncapped": 0.06}
# Share of single-trial variance between tasks that agent benchmarks show; cancels when both scores
# come from the same tasks.
USUAL_ICC = 0.6
# Nearer to 0 or 1 than this, less of it lies between tasks: published rows show .3 to .6 at scores around
# 25 %, 0 to .45 below 10 %.
_USUAL_UP_TO = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Verdict on a gap; all numbers are proportions.

    `half_noise`: gap that sampling alone explains. `half`: gap that sampling and infrastructure
    together explain (bias-aware); `half_additive`: the same by plain addition, slightly larger.
    """

    gap: float
    se: float
    bias: float
    half_noise: float
    half: float
    half_additive: float
    verdict: Verdict


def cv_bias(t: float, alpha: float = 0.05) -> float:
    """Critical value of |N(t, 1)|: how many SEs exclude chance plus a bias of at most `t` SEs.

    Raises ValueError for nan, or alpha outside (0, 1). Source: Armstrong and Kolesar 2018 (R
    `RDHonest::CVb`); statistics.md 2i.
    """
    if math.isnan(t) or not 0 < alpha < 1:
        raise ValueError(f"need a number and 0 < alpha < 1, got {t} and {alpha}")
    t = abs(t)
    one_sided = float(-special.ndtri(alpha))
    # The far tail no longer matters here, and t may be infinite.
    if t > 30.0:
        return t + one_sided

    def excess(c: float) -> float:
        return float(special.ndtr(t - c) + special.ndtr(-t - c)) - alpha

    return root(excess, 0.0, t + float(-special.ndtri(alpha / 2.0)) + 1.0)


def gap_se(s1: float, s2: float, tasks: int, k1: int, k2: int | None = None, icc: float = USUAL_ICC) -> float:
    """Standard error of s1 - s2 from published figures only (target: these tasks).

    Scores as proportions; `k1`, `k2` samples per task (default equal). `icc`: .6 when both ran the
    same tasks, 0 when unknown. A score of exactly 0 or 1 is pulled inward (one event and one failure
    added), because it does not come without error. inf without trials. Raises ValueError for scores
    outside [0, 1] or icc outside [0, 1). Source: statistics.md 2i.
    """
    k2 = k1 if k2 is None else k2
    if not (0 <= s1 <= 1 and 0 <= s2 <= 1 and 0 <= icc < 1 and min(tasks, k1, k2) >= 0):
        raise ValueError(f"need scores in [0, 1], icc in [0, 1), counts >= 0: {s1}, {s2}, {icc}, {tasks}")
    if min(tasks, k1, k2) == 0:
        return math.inf
    return math.sqrt((1.0 - icc) * (_variance(s1, tasks * k1) + _variance(s2, tasks * k2)))


def usual_icc(score: float) -> float:
    """ICC to assume for a score of which only the number is known; falls to 0 at scores of 0 and 1.

    So low that the standard errors that follow are not below the published ones of Terminal-Bench 2 by
    more than those differ among each other. Raises ValueError for scores outside [0, 1]. Source:
    statistics.md 1, and those rows.
    """
    if not 0 <= score <= 1:
        raise ValueError(f"need a score in [0, 1], got {score}")
    return USUAL_ICC * min(1.0, min(score, 1.0 - score) / _USUAL_UP_TO)


def published_se(
    s1: float,
    s2: float,
    tasks: int,
    k1: int,
    k2: int | None = None,
    *,
    icc: float | None = None,
    alpha: float = 0.05,
) -> float:
    """Cautious standard error of s1 - s2 where only the two scores are known (target: these tasks).

    `gap_se` with `usual_icc` of each score (or `icc` for both), and never less than Newcombe's
    interval on as many effective trials asks for: near 0 and 1 the normal interval calls three events
    against none a difference. Arguments and errors as in `gap_se`. Source: Newcombe 1998; statistics.md 2i.
    """
    k2 = k1 if k2 is None else k2
    plain = gap_se(s1, s2, tasks, k1, k2, 0.0 if icc is None else icc)
    if math.isinf(plain):
        return plain
    icc1, icc2 = (usual_icc(s1), usual_icc(s2)) if icc is None else (icc, icc)
    normal = math.sqrt((1.0 - icc1) * _variance(s1, tasks * k1) + (1.0 - icc2) * _variance(s2, tasks * k2))
    size1, size2 = tasks * k1 / (1.0 - icc1), tasks * k2 / (1.0 - icc2)
    interval = newcombe(s1 * size1, size1, s2 * size2, size2, 1.0 - alpha)
    reach = max(s1 - s2 - interval.lo if s1 >= s2 else 0.0, interval.hi - (s1 - s2) if s1 <= s2 else 0.0)
    return max(normal, reach / cv_bias(0.0, alpha))


def gap_verdict(
    s1: float,
    s2: float,
    tasks: int,
    k1: int,
    k2: int | None = None,
    *,
    configs: Configs = "undocumented",
    icc: float = USUAL_ICC,
    se: float | None = None,
    bias: float | None = None,
    alpha: float = 0.05,
) -> Gap:
    """Judge the gap s1 - s2 between two published scores.

    `configs`: what is known of the two resource configs; `bias` overrides its allowance. `se`: SE of
    the gap from per-task data, where there is any; else `gap_se`. Raises ValueError like `gap_se`, and
    for a negative bias or an se that is not positive. Source: statistics.md 2i.
    """
    if configs not in get_args(Configs):
        raise ValueError(f"configs must be one of {get_args(Configs)}, got {configs!r}")
    sampling = gap_se(s1, s2, tasks, k1, k2, icc)
    spread = sampling if se is None else se
    allowance = ALLOWANCE[configs] if bias is None else bias
    if not spread > 0 or not allowance >= 0:
        raise ValueError(f"need se > 0 and bias >= 0, got {spread} and {allowance}")
    noise = cv_bias(0.0, alpha) * spread
    half = cv_bias(allowance / spread, alpha) * spread
    return Gap(
        gap=s1 - s2,
        se=spread,
        bias=allowance,
        half_noise=noise,
        half=half,
        half_additive=noise + allowance,
        verdict=_verdict(abs(s1 - s2), noise, half),
    )


def smallest_gap(
    score: float,
    tasks: int,
    k: int,
    *,
    configs: Configs = "undocumented",
    icc: float = USUAL_ICC,
    alpha: float = 0.05,
) -> float:
    """Smallest distinguishable gap between two scores near `score`, a proportion.

    Arguments and errors as in `gap_verdict`. Source: statistics.md 2i, table.
    """
    return gap_verdict(score, score, tasks, k, configs=configs, icc=icc, alpha=alpha).half


def _variance(score: float, trials: int) -> float:
    inward = (score * trials + 1.0) / (trials + 2.0) if score in (0.0, 1.0) else score
    return inward * (1.0 - inward) / trials


def _verdict(gap: float, noise: float, half: float) -> Verdict:
    if gap <= noise:
        return "within sampling noise"
    return "beyond noise but explainable by infrastructure" if gap <= half else "distinguishable"
