"""One gap between two configs of two runs, paired by task: how large it is, and what may explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from pytest_infranoise.analysis.deltas import rate
from pytest_infranoise.design import Design
from pytest_infranoise.results import Cell
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Rate
from pytest_infranoise.stats.deltas import Delta
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.gaps import Configs
from pytest_infranoise.stats.gaps import Gap
from pytest_infranoise.stats.gaps import Verdict
from pytest_infranoise.stats.gaps import cv_bias
from pytest_infranoise.stats.gaps import gap_verdict
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import mean_rate


@dataclass(frozen=True, slots=True)
class Side:
    """One agent under one config of one run, on the tasks that are compared; ``score`` as a proportion."""

    agent: str
    config: str
    score: float
    infra_rate: Rate
    samples: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PairedGap:
    """One comparison: B minus A, paired by task.

    ``interval`` has the level at which the verdict was made. ``allowance`` says why the gap may hold so much
    infrastructure. ``infra`` is the change of the infra-error rate.
    """

    a: Side
    b: Side
    tasks: int
    delta: Delta
    interval: Interval
    infra: Delta
    allowance: str
    gap: Gap

    @property
    def size_unknown(self) -> bool:
        """Whether the exact p shows a change, and the interval, widened for few data, not how large it is."""
        return _size_unknown(self.delta, self.interval)


def paired_gap(
    tasks: Sequence[str],
    a: tuple[str, ConfigResult],
    b: tuple[str, ConfigResult],
    allowed: tuple[Configs, str],
    level: float,
) -> PairedGap | None:
    """Compare two configs, each with its agent's label, on those of ``tasks`` that both ran; None without one.

    ``allowed`` is what infrastructure may explain, and why; ``level`` the confidence level of the intervals.
    """
    cells_a, cells_b = _cells(tasks, a[1]), _cells(tasks, b[1])
    both = [(zero, one) for zero, one in zip(cells_a, cells_b, strict=True) if zero.recorded and one.recorded]
    if not both:
        return None
    zeros, ones = [zero for zero, _ in both], [one for _, one in both]
    delta = delta_paired(
        [cell.passes for cell in ones],
        [cell.recorded for cell in ones],
        [cell.passes for cell in zeros],
        [cell.recorded for cell in zeros],
        conf=level,
    )
    infra = delta_paired(
        [cell.infra for cell in ones],
        [cell.recorded for cell in ones],
        [cell.infra for cell in zeros],
        [cell.recorded for cell in zeros],
        conf=level,
    )
    side_a, side_b = _side(a[0], a[1].config, zeros, level), _side(b[0], b[1].config, ones, level)
    interval = _interval(delta)
    return PairedGap(
        a=side_a,
        b=side_b,
        tasks=len(both),
        delta=delta,
        interval=interval,
        infra=infra,
        allowance=allowed[1],
        gap=_gap(side_a, side_b, interval, allowed[0], 1.0 - level, shown=_size_unknown(delta, interval)),
    )


def _cells(tasks: Sequence[str], result: ConfigResult) -> list[Cell]:
    return [result.cells.get(task, Cell()) for task in tasks]


def _side(agent: str, config: str, cells: Sequence[Cell], level: float) -> Side:
    trials = [cell.recorded for cell in cells]
    return Side(
        agent=agent,
        config=config,
        score=mean_rate([cell.passes for cell in cells], trials),
        infra_rate=rate([cell.infra for cell in cells], trials, Design(alpha=1 - level)),
        samples=(min(trials), max(trials)),
    )


def _interval(delta: Delta) -> Interval:
    """Return the interval; with few trials the exact p is the better judge, and 0 is in it where that says so."""
    if delta.guarded and delta.p > 1.0 - delta.conf:
        return delta.ci.hull(Interval(0.0, 0.0))
    return delta.ci


def _size_unknown(delta: Delta, interval: Interval) -> bool:
    return delta.guarded and delta.p <= 1.0 - delta.conf and interval.lo <= 0 <= interval.hi


def _gap(a: Side, b: Side, interval: Interval, configs: Configs, alpha: float, *, shown: bool) -> Gap:
    """Judge a gap by the end of its interval that is nearer to 0, where t and the small-data guard are in.

    That width goes into the bias-aware rule as the standard error that would have given it. ``shown``: the exact p
    says that it is no noise, whatever that width.
    """
    est = b.score - a.score
    reach = est - interval.lo if est >= 0 else interval.hi - est
    # A hair more, so that an interval that ends at 0 exactly is no finding after rounding.
    se = max(reach * (1.0 + 1e-9), 1e-12) / cv_bias(0.0, alpha)
    found = gap_verdict(b.score, a.score, 1, 1, configs=configs, se=se, alpha=alpha)
    if not shown or found.verdict != "within sampling noise":
        return found
    # Of a change whose size is not known nobody can say that it is more than what infrastructure may do.
    beyond: Verdict = "beyond noise but explainable by infrastructure" if found.bias else "distinguishable"
    return replace(found, verdict=beyond)
