"""Where a score difference comes from: fewer crashes, or tasks newly solved.

`accounting` is an identity and needs no assumption. `decompose` splits further and assumes that
crashed trials would have passed as often as the task's other trials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal
from typing import get_args

import numpy as np
import numpy.typing as npt

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import check_conf
from pytest_infranoise.stats.counts import check_counts
from pytest_infranoise.stats.counts import vector
from pytest_infranoise.stats.deltas import UNKNOWN_DELTA
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import standard_error
from pytest_infranoise.stats.rates import t_quantile

QSource = Literal["baseline", "both", "top"]
# Fewer tasks than this with a share in a part, and the spread of the part is not trusted alone.
GUARD_LIMIT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """dS = -dE - dF, exactly: change of pass, infra error and genuine failure rate (proportions).

    `unlock_lower` to `unlock_upper`: what the data alone say about score that does not come from
    removed crashes (unlock_upper may fall below 0 with a negative dS; then nothing was unlocked).
    nan without tasks.
    """

    dS: float
    dE: float
    dF: float
    unlock_lower: float
    unlock_upper: float
    tasks: int
    dropped: int

    @property
    def iv_pass_rate(self) -> float:
        """DS / -dE: above 1 refutes "only crashes were removed"; nan unless infra errors fell."""
        return self.dS / -self.dE if self.dE < 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """Split of a score difference; `infra` + `capability` = dS (proportions, nan without tasks).

    `infra`: removed crashes times the pass rate they would have had; `capability`: change of the
    pass rate among trials that did not crash. `borrowed`: tasks without a pass rate of their own in
    the config that `q_source` names, which use the other config's.
    """

    infra: float
    capability: float
    infra_ci: Interval
    capability_ci: Interval
    rescued_pass_rate: float
    borrowed: int
    tasks: int
    q_source: QSource


@dataclass(frozen=True, slots=True)
class _Cells:
    """Passes, infra errors and trials of one config on the tasks both configs ran."""

    x: FloatArray
    e: FloatArray
    n: FloatArray

    @property
    def crash(self) -> FloatArray:
        return self.e / self.n

    @property
    def q(self) -> FloatArray:
        """Pass rate among trials that did not crash; nan for a task that always crashes."""
        valid = self.n - self.e
        q: FloatArray = np.divide(self.x, valid, out=np.full(self.x.shape, math.nan), where=valid > 0)
        return q


def accounting(
    x1: npt.ArrayLike,
    e1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    e0: npt.ArrayLike,
    n0: npt.ArrayLike,
) -> Accounting:
    """Account for a score difference between config one and the baseline, without assumptions.

    `x`, `e`, `n`: passes, infra errors and trials, shape (tasks,). Target: these tasks. Tasks missing
    in one config are dropped. Raises ValueError unless x + e <= n. Source: statistics.md 2f.
    """
    one, zero, dropped = _cells(x1, e1, n1, x0, e0, n0)
    d_score = _mean(one.x / one.n - zero.x / zero.n)
    d_infra = _mean(one.crash - zero.crash)
    d_fail = _mean((one.n - one.x - one.e) / one.n - (zero.n - zero.x - zero.e) / zero.n)
    return Accounting(
        dS=d_score,
        dE=d_infra,
        dF=d_fail,
        unlock_lower=max(0.0, -d_fail) if not math.isnan(d_fail) else math.nan,
        unlock_upper=d_score,
        tasks=one.n.size,
        dropped=dropped,
    )


def decompose(
    x1: npt.ArrayLike,
    e1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    e0: npt.ArrayLike,
    n0: npt.ArrayLike,
    q_source: QSource = "baseline",
    conf: float = 0.95,
) -> Decomposition:
    """Split a score difference, task by task, into crashes removed and capability gained.

    Inputs and errors as in `accounting`; also ValueError for an unknown `q_source`. With S = (1-e) q
    per task and the baseline's q0: infra = (e0-e1) q0, capability = (1-e1)(q1-q0). `top` uses q1
    instead, `both` the average of the two. Intervals are t over tasks; with fewer than ten tasks
    that have a share in a part, or no spread, they are widened to what the small-data intervals of
    the infra and score deltas allow. q0 comes from trials that survived: it leans upward where the
    crashing trials were the doomed ones. Source: Kitagawa 1955, Oaxaca 1973; statistics.md 2f.
    """
    if q_source not in get_args(QSource):
        raise ValueError(f"q_source must be one of {get_args(QSource)}, got {q_source!r}")
    check_conf(conf)
    one, zero, _ = _cells(x1, e1, n1, x0, e0, n0)
    infra, capability = _split(one, zero, q_source)
    infra_guard, capability_guard = _guards(one, zero, conf)
    removed = _mean(zero.crash - one.crash)
    own = {"baseline": np.isnan(zero.q), "top": np.isnan(one.q), "both": np.isnan(zero.q) | np.isnan(one.q)}
    return Decomposition(
        infra=_mean(infra),
        capability=_mean(capability),
        infra_ci=_part_ci(infra, infra_guard, conf),
        capability_ci=_part_ci(capability, capability_guard, conf),
        rescued_pass_rate=_mean(infra) / removed if removed > 0 else math.nan,
        borrowed=int(np.count_nonzero(own[q_source])),
        tasks=one.n.size,
        q_source=q_source,
    )


def _cells(
    x1: npt.ArrayLike,
    e1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    e0: npt.ArrayLike,
    n0: npt.ArrayLike,
) -> tuple[_Cells, _Cells, int]:
    one = [vector(v, name) for v, name in ((x1, "x1"), (e1, "e1"), (n1, "n1"))]
    zero = [vector(v, name) for v, name in ((x0, "x0"), (e0, "e0"), (n0, "n0"))]
    for passes, errors, trials in (one, zero):
        check_counts(errors, trials)
        check_counts(passes, trials - errors)
    if one[2].shape != zero[2].shape:
        raise ValueError(f"configs list different tasks: {one[2].size} and {zero[2].size}")
    both = (one[2] > 0) & (zero[2] > 0)
    kept1, kept0 = (_Cells(*(v[both] for v in cells)) for cells in (one, zero))
    return kept1, kept0, int(both.size - np.count_nonzero(both))


def _split(one: _Cells, zero: _Cells, q_source: QSource) -> tuple[FloatArray, FloatArray]:
    """Per-task infra and capability parts."""
    q0, q1 = zero.q, one.q
    # A task that always crashes in both configs has no pass rate; any value gives parts of 0.
    q0, q1 = np.where(np.isnan(q0), q1, q0), np.where(np.isnan(q1), q0, q1)
    q0, q1 = np.nan_to_num(q0), np.nan_to_num(q1)
    rate = {"baseline": q0, "top": q1, "both": (q0 + q1) / 2.0}[q_source]
    infra = (zero.crash - one.crash) * rate
    return infra, one.x / one.n - zero.x / zero.n - infra


def _guards(one: _Cells, zero: _Cells, conf: float) -> tuple[Interval, Interval]:
    """Intervals that hold each part whatever the crashed trials would have done.

    A removed crash is worth between 0 and 1, so the infra part lies between 0 and the change of the
    infra error rate; the capability part is the rest of the score difference.
    """
    crash = delta_paired(one.e, one.n, zero.e, zero.n, conf)
    score = delta_paired(one.x, one.n, zero.x, zero.n, conf)
    infra = Interval(min(0.0, -crash.hi), max(0.0, -crash.lo))
    return infra, Interval(score.lo - infra.hi, score.hi - infra.lo).clip(-1.0, 1.0)


def _part_ci(part: FloatArray, guard: Interval, conf: float) -> Interval:
    if part.size == 0:
        return UNKNOWN_DELTA
    est, se = _mean(part), standard_error(part)
    guard = guard.hull(Interval(est, est))
    if not se > 0:
        return guard
    half = t_quantile(conf, part.size - 1.0) * se
    plain = Interval(est - half, est + half).clip(-1.0, 1.0)
    return plain if np.count_nonzero(part) >= GUARD_LIMIT else plain.hull(guard)


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else math.nan
