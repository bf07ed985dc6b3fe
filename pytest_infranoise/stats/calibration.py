"""Gate-then-TOST: the smallest ceiling that cuts infra errors without moving the score.

First a gate on infra errors picks one ceiling, then one equivalence test is made on that ceiling
only. It never walks on to a larger one: that would be a second chance at a false claim. With every
ceiling exactly on the margin it calls a wrong one in at most 5 % of runs, where "infra p < .05 and
score p > .05" does so in up to 47 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.counts import table
from pytest_infranoise.stats.deltas import Delta
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.equivalence import Equivalence
from pytest_infranoise.stats.equivalence import tost
from pytest_infranoise.stats.exact import exact_p
from pytest_infranoise.stats.multiplicity import holm
from pytest_infranoise.stats.rates import mean_rate

Status = Literal["calibrated", "inconclusive", "score-moves", "no-infra-reduction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One config against the baseline.

    `config`: its column. `p_infra`: exact one-sided p that infra errors fell; `p_infra_holm`: the
    same after Holm over all rows. `cut`: share of the baseline's infra errors that is gone (nan when
    the baseline has none). `gate`: both say that infra errors fell enough.
    """

    config: int
    infra: Delta
    p_infra: float
    p_infra_holm: float
    cut: float
    gate: bool
    score: Delta
    equivalence: Equivalence


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Outcome of the calibration. `pick` is set only when `status` is `calibrated`."""

    status: Status
    pick: int | None
    candidate: int | None
    margin: float
    alpha: float
    min_cut: float
    rows: tuple[Row, ...]


def calibrate(
    x: npt.ArrayLike,
    e: npt.ArrayLike,
    n: npt.ArrayLike,
    margin: float,
    *,
    alpha: float = 0.05,
    min_cut: float = 0.5,
    eligible: Collection[int] | None = None,
    target: Target = "benchmark",
) -> Calibration:
    """Pick the smallest ceiling that removes infra errors and provably leaves the score in place.

    `x`, `e`, `n`: passes (infra errors counted as failures), infra errors and trials, tasks x configs
    (scalar `n`: in every cell); column 0 is the baseline, the others by rising ceiling. `margin`: a
    proportion fixed before the run. `eligible`: columns that may be picked, default all but 0; the
    others are still tested and corrected for.

    The candidate is the first eligible column whose infra errors fall (exact one-sided p, Holm, at
    most `alpha`) by at least the share `min_cut`. `no-infra-reduction`: there is none.
    `calibrated`: TOST shows its score equal within the margin. `score-moves`: not shown, and its
    delta differs from 0 at `alpha`. `inconclusive`: neither; the usual honest answer.

    Raises ValueError for bad counts, margin, alpha or min_cut. Source: statistics.md 0, 2c and 4.3.
    """
    xs, ns = table(x, n)
    es, _ = table(e, n)
    if es.shape != xs.shape or np.any(xs + es > ns):
        raise ValueError("passes and infra errors must have the same shape and not exceed the trials")
    if not 0 < min_cut <= 1:
        raise ValueError(f"min_cut must lie in (0, 1], got {min_cut}")
    p_infra = [exact_p(es[:, c], ns[:, c], es[:, 0], ns[:, 0], "less", target) for c in range(1, xs.shape[1])]
    rows = tuple(
        _row(xs, es, ns, c, p, adjusted, tost_args=(margin, alpha), min_cut=min_cut, target=target)
        for c, (p, adjusted) in enumerate(zip(p_infra, holm(p_infra).tolist(), strict=True), start=1)
    )
    candidate = next((r for r in rows if r.gate and (eligible is None or r.config in eligible)), None)
    status = _status(candidate, alpha)
    return Calibration(
        status=status,
        pick=candidate.config if candidate is not None and status == "calibrated" else None,
        candidate=candidate.config if candidate is not None else None,
        margin=margin,
        alpha=alpha,
        min_cut=min_cut,
        rows=rows,
    )


def _row(
    xs: FloatArray,
    es: FloatArray,
    ns: FloatArray,
    c: int,
    p: float,
    adjusted: float,
    *,
    tost_args: tuple[float, float],
    min_cut: float,
    target: Target,
) -> Row:
    margin, alpha = tost_args
    cut = _cut(es, ns, c)
    score = delta_paired(xs[:, c], ns[:, c], xs[:, 0], ns[:, 0], target=target)
    return Row(
        config=c,
        infra=delta_paired(es[:, c], ns[:, c], es[:, 0], ns[:, 0], target=target),
        p_infra=p,
        p_infra_holm=adjusted,
        cut=cut,
        gate=adjusted <= alpha and cut >= min_cut,
        score=score,
        equivalence=tost(score, margin, alpha),
    )


def _status(candidate: Row | None, alpha: float) -> Status:
    if candidate is None:
        return "no-infra-reduction"
    if candidate.equivalence.shown:
        return "calibrated"
    return "score-moves" if candidate.score.p < alpha else "inconclusive"


def _cut(errors: FloatArray, trials: FloatArray, config: int) -> float:
    """Share of the baseline's infra error rate that is gone, on the tasks both configs ran."""
    both = (trials[:, config] > 0) & (trials[:, 0] > 0)
    before = mean_rate(errors[both, 0], trials[both, 0])
    after = mean_rate(errors[both, config], trials[both, config])
    return (before - after) / before if before > 0 else math.nan
