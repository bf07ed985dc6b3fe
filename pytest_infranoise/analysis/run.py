"""Puts a run's records together as one ``Analysis``.

A run is reduced to counts per agent, config and task; everything else follows from those through ``stats``. A
trial without a record is missing and enters no rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any
from typing import TypeVar

from pytest_infranoise.analysis import conclusions
from pytest_infranoise.analysis.deltas import all_tasks
from pytest_infranoise.analysis.deltas import columns
from pytest_infranoise.analysis.deltas import comparisons
from pytest_infranoise.analysis.deltas import finite
from pytest_infranoise.analysis.deltas import rate
from pytest_infranoise.analysis.deltas import with_holm
from pytest_infranoise.analysis.drift import drift
from pytest_infranoise.analysis.tallies import Tally
from pytest_infranoise.analysis.tallies import count
from pytest_infranoise.analysis.tallies import specs
from pytest_infranoise.chains import chain
from pytest_infranoise.design import Design
from pytest_infranoise.findings import Interaction
from pytest_infranoise.journal import Run
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.peaks import TrialUsage
from pytest_infranoise.peaks import near_spec
from pytest_infranoise.peaks import usages
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import Cell
from pytest_infranoise.results import Comparison
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Delta
from pytest_infranoise.results import Flip
from pytest_infranoise.results import TaskCoverage
from pytest_infranoise.stats.interaction import Side
from pytest_infranoise.stats.interaction import interaction
from pytest_infranoise.stats.rates import icc
from pytest_infranoise.stats.rates import naive_wilson
from pytest_infranoise.stats.rates import within_task_variance
from pytest_infranoise.stats.variants import score_variants

_T = TypeVar("_T")
_Rules = Mapping[str, Mapping[str, Any]]
_Tallies = Mapping[tuple[str, str, str], Tally]


def analyse(run: Run) -> Analysis:
    """Judge a run as it was read from its directory, finished or not."""
    meta = run.meta
    planned = dict.fromkeys(run.planned)
    records = [record for record in run.records if record.key in planned]
    configs = _in_order((entry["name"] for entry in meta.get("configs", ())), (key.config for key in planned))
    names = _in_order(
        ((entry["name"], entry.get("model") or "") for entry in meta.get("agents", ())),
        ((key.agent, key.model) for key in planned),
    )
    baseline = meta.get("baseline")
    if baseline not in configs:
        baseline = configs[0] if configs else None
    rules = {entry["name"]: entry for entry in meta.get("configs", ())}
    memory = specs(records, {name: _memory_floor(rule) for name, rule in rules.items()})
    design = _design(meta.get("design", {}))
    tallies = count(planned, records)
    judge = _Judge(configs, baseline, rules, design, usages(run), run.missing)
    agents = tuple(judge.agent(*name, tallies) for name in names)
    return Analysis(
        run=str(meta.get("run", run.path.name)),
        path=run.path,
        meta=meta,
        configs=configs,
        baseline=baseline,
        agents=agents,
        tasks=_coverage(meta.get("tasks", {}), planned, records),
        planned=len(planned),
        recorded=len(records),
        unfinished=sum(started.key in planned for started in run.unfinished),
        damaged=run.damaged,
        retries=sum(record.key in planned for record in run.retries),
        retries_passed=sum(record.key in planned and record.verdict is Verdict.PASS for record in run.retries),
        unplanned=len(run.records) - len(records),
        cut_short=meta.get("cut_short") or _not_ended(meta),
        pass_threshold=float(meta.get("pass_threshold", 1.0)),
        design=design,
        specs=memory,
        interactions=_interactions(agents, baseline, design),
    )


def compare(analysis: Analysis, agent: AgentResult, config: str, baseline: str) -> Comparison | None:
    """Compare any two configs of an agent; None when one of them was not planned."""
    one, zero = agent.result(config), agent.result(baseline)
    if one is None or zero is None:
        return None
    rules = {entry["name"]: entry for entry in analysis.meta.get("configs", ())}
    return comparisons(zero, [one], rules, analysis.design)[0]


def _in_order(stated: Iterable[_T], seen: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys([*stated, *seen]))


def _design(stated: Mapping[str, Any]) -> Design:
    """Return what run.json says was decided before the run; a run of an earlier version had no choice."""
    known = {field.name for field in fields(Design)}
    return Design(**{name: value for name, value in stated.items() if name in known})


def _not_ended(meta: Mapping[str, Any]) -> str | None:
    return None if meta.get("finished") else "the run has not ended, or was killed"


def _memory_floor(rule: Mapping[str, Any]) -> float:
    """Return a config's memory floor as a multiple of the spec; 0 where it is none."""
    floor = rule.get("memory", {}).get("floor")
    return float(floor) if isinstance(floor, int | float) else 0.0


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges one agent at a time, all of them by the same design."""

    configs: Sequence[str]
    baseline: str | None
    rules: _Rules
    design: Design
    usages: Sequence[TrialUsage]
    missing: Sequence[TrialKey]

    def agent(self, agent: str, model: str, tallies: _Tallies) -> AgentResult:
        """Return everything about one agent."""
        by_config = {config: tallies.get((agent, model, config), Tally()) for config in self.configs}
        results = {config: self._config(config, tally) for config, tally in by_config.items()}
        ran = [config for config, result in results.items() if result.recorded]
        order, no_chain = chain(ran, self.rules)
        zero = results.get(self.baseline) if self.baseline is not None else None
        others = [result for result in results.values() if result is not zero]
        compared = comparisons(zero, others, self.rules, self.design) if zero else ()
        found = AgentResult(
            agent=agent,
            model=model,
            configs=tuple(results.values()),
            comparisons=compared,
            flips=_flips(zero, others) if zero else (),
            chain=order,
            no_chain=no_chain,
            trends=conclusions.trends([results[config] for config in order], self.design) if order else None,
            calibration=None,
            planner=None,
            movers=None,
            drift=None,
        )
        if zero is None or not zero.recorded or len(ran) < 2:
            return replace(found, drift=drift([by_config[config] for config in ran]))
        return self._conclude(found, zero, ran, by_config)

    def _config(self, config: str, tally: Tally) -> ConfigResult:
        cells = tally.cells
        passes = [cell.passes for cell in cells.values()]
        infra = [cell.infra for cell in cells.values()]
        recorded = [cell.recorded for cell in cells.values()]
        return ConfigResult(
            config=config,
            cells=cells,
            score=rate(passes, recorded, self.design),
            excluded=rate(passes, [cell.passes + cell.fails for cell in cells.values()], self.design),
            infra_rate=rate(infra, recorded, self.design),
            only_infra=tuple(task for task, cell in cells.items() if cell.infra and cell.infra == cell.recorded),
            causes=dict(sorted(tally.causes.items(), key=lambda item: (-item[1], item[0]))),
            timeouts=tally.timeouts,
            flags=dict(tally.flags),
            survived_kills=tally.survived_kills,
            naive_score=naive_wilson(passes, recorded, self.design.conf),
            variants=score_variants(passes, infra, recorded),
            within_task_variance=finite(within_task_variance(passes, recorded)),
            icc=finite(icc(passes, recorded)),
            usage=tally.usage,
        )

    def _conclude(
        self, found: AgentResult, zero: ConfigResult, ran: Sequence[str], tallies: Mapping[str, Tally]
    ) -> AgentResult:
        """Fill in what needs a baseline and another config, both with records."""
        results = {result.config: result for result in found.configs}
        order = found.chain or ()
        above = order[order.index(zero.config) + 1 :] if zero.config in order else ()
        calibration = conclusions.calibration(zero, [results[config] for config in above], self.rules, self.design)
        others = [config for config in ran if config != zero.config]
        top = above[-1] if above else others[-1]
        planned = (calibration.candidate if calibration else None) or top
        comparison = found.comparison(planned)
        near = self._near_spec(found, {task for config in ran for task in results[config].cells})
        return replace(
            found,
            calibration=calibration,
            planner=conclusions.planner(zero, comparison, results[planned], near, self.design)
            if comparison
            else None,
            top=top,
            movers=conclusions.movers(zero, results[top], [results[config] for config in order]),
            drift=drift([tallies[config] for config in (zero.config, *(c for c in others if c != top), top)]),
        )

    def _near_spec(self, agent: AgentResult, tasks: AbstractSet[str]) -> frozenset[str] | None:
        """Return the agent's tasks that a ceiling can have reached; None where those are all that it has."""
        name = (agent.agent, agent.model)
        trials = (trial for trial in self.usages if (trial.key.agent, trial.key.model) == name)
        missing = (key for key in self.missing if (key.agent, key.model) == name)
        rerun = near_spec(trials, missing).rerun
        return None if rerun >= tasks else rerun


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


def _interactions(agents: Sequence[AgentResult], baseline: str | None, design: Design) -> tuple[Interaction, ...]:
    """Compare the agents' deltas, every pair of them under every config."""
    found = [
        entry
        for one, zero in combinations(agents, 2)
        for comparison in one.comparisons
        if baseline is not None and (entry := _interaction(one, zero, comparison.config, baseline, design))
    ]
    adjusted = with_holm([entry.delta for entry in found])
    return tuple(replace(entry, delta=delta) for entry, delta in zip(found, adjusted, strict=True))


def _interaction(
    one: AgentResult, zero: AgentResult, config: str, baseline: str, design: Design
) -> Interaction | None:
    cells = [agent.result(name) for agent in (one, zero) for name in (config, baseline)]
    results = [cell for cell in cells if cell is not None]
    tasks = all_tasks(results)
    counts = [columns(tasks, result) for result in results]
    first, second = (Side(a.passes, a.trials, b.passes, b.trials) for a, b in (counts[:2], counts[2:]))
    found = interaction(first, second, design.conf, design.target)
    if not found.tasks:
        return None
    common = [place for place in range(len(tasks)) if all(part.trials[place] for part in counts)]
    after_one, before_one, after_zero, before_zero = (
        sum(part.passes[place] / part.trials[place] for place in common) / len(common) for part in counts
    )
    return Interaction(
        one=one.label,
        zero=zero.label,
        config=config,
        baseline=baseline,
        before=before_one - before_zero,
        after=after_one - after_zero,
        delta=Delta(
            value=found.est,
            interval=found.interval,
            p=found.p,
            p_holm=None,
            tasks=found.tasks,
            dropped=found.dropped,
            method="difference of deltas" + ("+guard" if found.guarded else ""),
            guarded=found.guarded,
            discordant=found.discordant,
        ),
    )
