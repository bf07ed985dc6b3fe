"""A run -> counts -> ``Analysis``, the one object that every report and every gate reads.

A run is reduced to counts per agent, config and task; everything else follows from those through ``stats``. A
trial without a record is missing and enters no rate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from fractions import Fraction
from typing import Any
from typing import TypeVar

from pytest_infranoise.journal import Run
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import Cell
from pytest_infranoise.results import Comparison
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Delta
from pytest_infranoise.results import Flip
from pytest_infranoise.results import Rate
from pytest_infranoise.results import TaskCoverage
from pytest_infranoise.results import Timeouts
from pytest_infranoise.stats.counts import Alternative
from pytest_infranoise.stats.deltas import UNKNOWN_DELTA
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.exact import cmh_exact_p
from pytest_infranoise.stats.multiplicity import holm
from pytest_infranoise.stats.rates import UNKNOWN_RATE
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import rate_interval

__all__ = ["Analysis", "analyse", "smallest_flip_p"]

_T = TypeVar("_T")


@dataclass(slots=True)
class _Tally:
    """Running counts of one agent under one config."""

    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)
    causes: Counter[Cause] = field(default_factory=Counter)
    timeouts: Counter[Verdict] = field(default_factory=Counter)
    flags: Counter[Flag] = field(default_factory=Counter)
    survived_kills: int = 0

    def plan(self, task: str) -> None:
        self.verdicts.setdefault(task, Counter())
        self.missing[task] += 1

    def add(self, record: Record) -> None:
        self.missing[record.key.task] -= 1
        self.verdicts[record.key.task][record.verdict] += 1
        self.flags.update(set(record.flags))
        if record.verdict is Verdict.INFRA_ERROR:
            self.causes[record.cause or Cause.UNKNOWN] += 1
        if record.reason is FailReason.AGENT_TIMEOUT or Flag.TIMED_OUT in record.flags:
            self.timeouts[record.verdict] += 1
        if record.verdict is Verdict.PASS and Flag.OOM_KILLS in record.flags:
            self.survived_kills += 1

    def cells(self) -> dict[str, Cell]:
        return {
            task: Cell(
                passes=verdicts[Verdict.PASS],
                fails=verdicts[Verdict.FAIL],
                infra=verdicts[Verdict.INFRA_ERROR],
                missing=self.missing[task],
            )
            for task, verdicts in sorted(self.verdicts.items())
        }


def analyse(run: Run) -> Analysis:
    """Judge a run as it was read from its directory, finished or not."""
    meta = run.meta
    planned = dict.fromkeys(run.planned)
    records = [record for record in run.records if record.key in planned]
    configs = _in_order((entry["name"] for entry in meta.get("configs", ())), (key.config for key in planned))
    agents = _in_order(
        ((entry["name"], entry.get("model") or "") for entry in meta.get("agents", ())),
        ((key.agent, key.model) for key in planned),
    )
    tallies = _count(planned, records)
    baseline = meta.get("baseline")
    if baseline not in configs:
        baseline = configs[0] if configs else None
    rules = {entry["name"]: entry for entry in meta.get("configs", ())}
    return Analysis(
        run=str(meta.get("run", run.path.name)),
        path=run.path,
        meta=meta,
        configs=configs,
        baseline=baseline,
        agents=tuple(_agent_result(*agent, configs, baseline, tallies, rules) for agent in agents),
        tasks=_coverage(meta.get("tasks", {}), planned, records),
        planned=len(planned),
        recorded=len(records),
        unfinished=sum(started.key in planned for started in run.unfinished),
        damaged=run.damaged,
        retries=len(run.retries),
        unplanned=len(run.records) - len(records),
        cut_short=meta.get("cut_short") or _not_ended(meta),
        pass_threshold=float(meta.get("pass_threshold", 1.0)),
    )


def _in_order(stated: Iterable[_T], seen: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys([*stated, *seen]))


def _count(planned: Iterable[TrialKey], records: Iterable[Record]) -> dict[tuple[str, str, str], _Tally]:
    tallies: dict[tuple[str, str, str], _Tally] = {}
    for key in planned:
        tallies.setdefault((key.agent, key.model, key.config), _Tally()).plan(key.task)
    for record in records:
        key = record.key
        tallies[key.agent, key.model, key.config].add(record)
    return tallies


def _agent_result(
    agent: str,
    model: str,
    configs: Sequence[str],
    baseline: str | None,
    tallies: Mapping[tuple[str, str, str], _Tally],
    rules: Mapping[str, Mapping[str, Any]],
) -> AgentResult:
    results = [_config_result(config, tallies.get((agent, model, config), _Tally())) for config in configs]
    zero = next((result for result in results if result.config == baseline), None)
    others = [result for result in results if result is not zero]
    return AgentResult(
        agent=agent,
        model=model,
        configs=tuple(results),
        comparisons=_comparisons(zero, others, rules) if zero else (),
        flips=_flips(zero, others) if zero else (),
    )


def _config_result(config: str, tally: _Tally) -> ConfigResult:
    cells = tally.cells()
    recorded = [cell.recorded for cell in cells.values()]
    return ConfigResult(
        config=config,
        cells=cells,
        score=_rate([cell.passes for cell in cells.values()], recorded),
        excluded=_rate(
            [cell.passes for cell in cells.values()], [cell.passes + cell.fails for cell in cells.values()]
        ),
        infra_rate=_rate([cell.infra for cell in cells.values()], recorded),
        only_infra=tuple(task for task, cell in cells.items() if cell.infra and cell.infra == cell.recorded),
        causes=dict(sorted(tally.causes.items(), key=lambda item: (-item[1], item[0]))),
        timeouts=Timeouts(
            fails=tally.timeouts[Verdict.FAIL],
            passes=tally.timeouts[Verdict.PASS],
            infra=tally.timeouts[Verdict.INFRA_ERROR],
        ),
        flags=dict(tally.flags),
        survived_kills=tally.survived_kills,
    )


def _rate(events: Sequence[int], trials: Sequence[int]) -> Rate:
    tasks = sum(number > 0 for number in trials)
    if not tasks:
        return Rate(0, 0, 0, None, UNKNOWN_RATE, "no trials")
    interval, method = rate_interval(events, trials)
    return Rate(
        events=sum(events),
        trials=sum(trials),
        tasks=tasks,
        value=_macro_average(events, trials),
        interval=interval,
        method=method,
    )


def _macro_average(events: Sequence[int], trials: Sequence[int]) -> float:
    """Return the mean of the tasks' rates, rounded once, so that 2 of 5 meets a gate of exactly 40 %."""
    by_size: Counter[int] = Counter()
    for count, number in zip(events, trials, strict=True):
        by_size[number] += count
    total = sum((Fraction(count, number) for number, count in by_size.items() if number), Fraction(0))
    return float(total / sum(number > 0 for number in trials))


def _comparisons(
    zero: ConfigResult, others: Sequence[ConfigResult], configs: Mapping[str, Mapping[str, Any]]
) -> tuple[Comparison, ...]:
    tasks = list(dict.fromkeys(task for result in (zero, *others) for task in result.cells))
    score = _deltas([_delta(tasks, result, zero) for result in others])
    sides = [infra_alternative(configs.get(zero.config), configs.get(result.config)) for result in others]
    infra = _deltas([_delta(tasks, result, zero, side) for result, side in zip(others, sides, strict=True)])
    return tuple(
        Comparison(result.config, zero.config, *deltas)
        for result, deltas in zip(others, zip(score, infra, strict=True), strict=True)
    )


def _not_ended(meta: Mapping[str, Any]) -> str | None:
    return None if meta.get("finished") else "the run has not ended, or was killed"


def infra_alternative(zero: Mapping[str, Any] | None, one: Mapping[str, Any] | None) -> Alternative:
    """Return which change of the infra-error rate the exact test looks for.

    A fall when no ceiling is lower than the baseline's, a rise when none is higher, else either: set by the configs
    alone, never by the data.
    """
    ends = [(_ceiling(zero, part), _ceiling(one, part)) for part in ("cpus", "memory")]
    if any(before is None or after is None for before, after in ends):
        return "two-sided"
    ordered = [(before, after) for before, after in ends if before is not None and after is not None]
    if all(before <= after for before, after in ordered):
        return "less"
    return "greater" if all(before >= after for before, after in ordered) else "two-sided"


def _ceiling(config: Mapping[str, Any] | None, resource: str) -> float | None:
    """Return a ceiling as a multiple of the spec, infinite without one; None when it is no multiple."""
    if config is None or resource not in config:
        return None
    end = config[resource].get("ceiling")
    if end is None:
        return math.inf
    return float(end) if isinstance(end, int | float) else None


def _delta(
    tasks: Sequence[str], one: ConfigResult, zero: ConfigResult, infra_side: Alternative | None = None
) -> Delta:
    infra = infra_side is not None
    x1, n1 = _columns(tasks, one, infra)
    x0, n0 = _columns(tasks, zero, infra)
    delta = delta_paired(x1, n1, x0, n0)
    if not delta.tasks:
        return Delta(None, UNKNOWN_DELTA, None, None, 0, delta.dropped, "no common task")
    p = delta.p if infra_side is None else cmh_exact_p(x1, n1, x0, n0, alternative=infra_side)
    interval = delta.ci
    if delta.guarded and delta.p > 1 - delta.conf:
        # With so few trials the exact p is the better judge, and an interval without 0 would deny it.
        interval = interval.hull(Interval(0.0, 0.0))
    return Delta(delta.est, interval, p, None, delta.tasks, delta.dropped, delta.method)


def _columns(tasks: Sequence[str], result: ConfigResult, infra: bool) -> tuple[list[int], list[int]]:
    cells = [result.cells.get(task, Cell()) for task in tasks]
    return [cell.infra if infra else cell.passes for cell in cells], [cell.recorded for cell in cells]


def _deltas(deltas: Sequence[Delta]) -> list[Delta]:
    adjusted = holm([math.nan if delta.p is None else delta.p for delta in deltas])
    return [
        delta if delta.p is None else replace(delta, p_holm=float(p))
        for delta, p in zip(deltas, adjusted, strict=True)
    ]


def _flips(zero: ConfigResult, others: Sequence[ConfigResult]) -> tuple[Flip, ...]:
    flips = []
    for task, before in zero.cells.items():
        if not before.recorded:
            continue
        cells = {result.config: result.cells[task] for result in others if task in result.cells}
        cells = {config: cell for config, cell in cells.items() if cell.recorded}
        changes = [_share(cell) - _share(before) for cell in cells.values()]
        if any(changes):
            flips.append(Flip(task, {zero.config: before, **cells}, max(changes, key=abs)))
    return tuple(sorted(flips, key=lambda flip: (-abs(flip.largest), flip.task)))


def _share(cell: Cell) -> Fraction:
    return Fraction(cell.passes, cell.recorded)


def smallest_flip_p(samples: int) -> float:
    """Return the exact two-sided p of one task going from 0 to all of ``samples`` passes: as strong as it gets."""
    return cmh_exact_p([samples], [samples], [0], [samples])


def _coverage(meta: Mapping[str, Any], planned: Iterable[TrialKey], records: Iterable[Record]) -> TaskCoverage:
    measured = {record.key.task for record in records}
    skipped = {task: reason for task, reason in sorted(meta.get("skipped", {}).items()) if task not in measured}
    collected = {*meta.get("collected", ()), *(key.task for key in planned)}
    return TaskCoverage(
        measured=tuple(sorted(measured)),
        skipped=skipped,
        not_run=tuple(sorted(collected - measured - skipped.keys())),
        broken=int(meta.get("broken", 0)),
    )
