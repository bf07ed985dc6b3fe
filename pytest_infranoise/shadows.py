"""Shadow ceilings: what a lower memory ceiling would have done to trials that ran under a high one.

A forecast from needs, as if nothing that a trial does before it meets a ceiling depended on where the ceiling is.
Agents and allocators adapt, so the forecast stands beside every lower ceiling that was really run, as a check. It
helps to choose which ceilings to run, and is never a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_infranoise.analysis.deltas import rate
from pytest_infranoise.design import Design
from pytest_infranoise.peaks import TrialUsage
from pytest_infranoise.results import Rate
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.deltas import Delta
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import mean_rate
from pytest_infranoise.stats.rates import rate_ci
from pytest_infranoise.stats.shadow import shadow_ceilings

MULTIPLES = (1.0, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True, slots=True)
class Check:
    """A ceiling that was really run, against its forecast; rates as proportions.

    ``kills`` and ``passes`` are measured minus forecast, paired by task, at a level that holds for all checks of
    an agent together.
    """

    config: str
    killed: Rate
    score: float
    kills: Delta
    passes: Delta

    @property
    def off(self) -> bool:
        """Whether the forecast is off by more than sampling explains."""
        return any(delta.p <= 1 - delta.conf for delta in (self.kills, self.passes))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one ceiling would have done; rates as proportions over the tasks that were measured.

    ``killed`` is the rate of trials that needed more, ``score`` the pass rate with those counted as not passed,
    ``tasks`` the number of tasks with such a trial. ``loss`` is the score given up against the source.
    """

    label: str
    killed: Rate
    score: float
    interval: Interval
    loss: float
    loss_interval: Interval
    tasks: int
    check: Check | None


@dataclass(frozen=True, slots=True)
class ShadowTable:
    """The forecasts from one agent's trials under ``source``, its highest memory ceiling.

    ``trials`` have a need, ``unknown`` have none and are left out; ``killed`` met the source's own ceiling, so that
    what they needed is only known to be more. Without forecasts, ``reason`` says why.
    """

    agent: str
    source: str
    trials: int
    unknown: int
    killed: int
    tasks: int
    score: float
    forecasts: tuple[Forecast, ...]
    reason: str = ""


def shadow_tables(
    trials: Sequence[TrialUsage],
    rules: Mapping[str, Mapping[str, Any]],
    target: Target = "benchmark",
    conf: float = 0.95,
) -> tuple[ShadowTable, ...]:
    """Return the forecasts for every agent, in the order of ``trials``.

    Args:
        trials: everything that was recorded.
        rules: the configs' entries in run.json by name.
        target: what intervals cover.
        conf: their level.
    """
    by_agent: dict[str, dict[str, list[TrialUsage]]] = {}
    for trial in trials:
        name = f"{trial.key.agent} ({trial.key.model})" if trial.key.model else trial.key.agent
        by_agent.setdefault(name, {}).setdefault(trial.key.config, []).append(trial)
    return tuple(_Shadow(agent, configs, rules, target, conf).table() for agent, configs in by_agent.items())


class _Shadow:
    """The forecasts from one agent's trials."""

    def __init__(
        self,
        agent: str,
        configs: Mapping[str, Sequence[TrialUsage]],
        rules: Mapping[str, Mapping[str, Any]],
        target: Target,
        conf: float,
    ) -> None:
        self._agent = agent
        self._configs = configs
        self._rules = rules
        self._target: Target = target
        self._conf = conf
        self._source = max(configs, key=lambda config: _height(configs[config]))
        # Two deltas for every config that is checked.
        self._check_conf = 1 - (1 - conf) / (2 * max(len(configs) - 1, 1))
        self._known = [trial for trial in configs[self._source] if trial.least_need is not None]

    def table(self) -> ShadowTable:
        """Return the forecasts, or why there are none."""
        everything = self._configs[self._source]
        passes, trials = self._counts(self._known, {trial: trial.passed for trial in self._known})
        forecasts, reason = self._forecasts()
        return ShadowTable(
            agent=self._agent,
            source=self._source,
            trials=len(self._known),
            unknown=len(everything) - len(self._known),
            killed=sum(trial.own_kill for trial in self._known),
            tasks=len(trials),
            score=mean_rate(passes, trials),
            forecasts=forecasts,
            reason=reason,
        )

    def _forecasts(self) -> tuple[tuple[Forecast, ...], str]:
        if not self._known:
            return (), "no trial has a sample of memory without page cache"
        lower = {
            config: ceilings
            for config, trials in self._configs.items()
            if config != self._source and (ceilings := self._lower(_ceilings(trials)))
        }
        rows = [(self._order(config, ceilings), config, ceilings) for config, ceilings in lower.items()]
        taken = {self._multiple(config) for config in lower}
        rows += [
            (multiple, f"{multiple:g}x", ceilings)
            for multiple in MULTIPLES
            if multiple not in taken and (ceilings := self._lower(self._of_spec(multiple)))
        ]
        if not rows:
            return (), f"no ceiling below that of {self._source} to forecast: its trials state no spec"
        return tuple(
            self._forecast(label, ceilings) for _, label, ceilings in sorted(rows, key=lambda row: row[0])
        ), ""

    def _lower(self, ceilings: Mapping[str, float]) -> dict[str, float]:
        """Return the ceilings of those tasks where they are below the source's; none if somewhere they are not."""
        found = {}
        for trial in self._known:
            ceiling, own = ceilings.get(trial.key.task), trial.memory_ceiling
            if ceiling is None:
                continue
            if own is None or ceiling >= own:
                return {}
            found[trial.key.task] = ceiling
        return found

    def _of_spec(self, multiple: float) -> dict[str, float]:
        return {trial.key.task: trial.memory_spec * multiple for trial in self._known if trial.memory_spec}

    def _multiple(self, config: str) -> float | None:
        ceiling = self._rules.get(config, {}).get("memory", {}).get("ceiling")
        return float(ceiling) if isinstance(ceiling, int | float) else None

    def _order(self, config: str, ceilings: Mapping[str, float]) -> float:
        """Return where a config stands among multiples of the spec."""
        multiple = self._multiple(config)
        if multiple is not None:
            return multiple
        specs = self._of_spec(1.0)
        shares = [ceiling / specs[task] for task, ceiling in ceilings.items() if task in specs]
        return sum(shares) / len(shares) if shares else math.inf

    def _forecast(self, label: str, ceilings: Mapping[str, float]) -> Forecast:
        trials = [trial for trial in self._known if trial.key.task in ceilings]
        shares = [(trial.least_need or 0.0) / ceilings[trial.key.task] for trial in trials]
        # Who was killed at a ceiling needed more than that, and so more than any lower one.
        shares = [math.inf if trial.own_kill else share for trial, share in zip(trials, shares, strict=True)]
        (found,) = shadow_ceilings(
            [trial.key.task for trial in trials],
            [trial.passed for trial in trials],
            shares,
            1.0,
            self._target,
            self._conf,
        )
        over = dict(zip(trials, (share > 1.0 for share in shares), strict=True))
        survived, numbers = self._counts(trials, {trial: trial.passed and not over[trial] for trial in trials})
        return Forecast(
            label=label,
            killed=self._rate(trials, over),
            score=mean_rate(survived, numbers),
            interval=rate_ci(survived, numbers, self._target, self._conf),
            loss=found.loss,
            loss_interval=found.loss_ci,
            tasks=found.tasks_affected,
            check=self._check(label, trials, over) if label in self._configs else None,
        )

    def _check(self, config: str, trials: Sequence[TrialUsage], over: Mapping[TrialUsage, bool]) -> Check | None:
        tasks = list(dict.fromkeys(trial.key.task for trial in trials))
        real = [trial for trial in self._configs[config] if trial.key.task in tasks]
        if not real:
            return None
        survived = {trial: trial.passed and not over[trial] for trial in trials}
        kills = self._delta(tasks, (real, {trial: trial.own_kill for trial in real}), (trials, over))
        passes = self._delta(tasks, (real, {trial: trial.passed for trial in real}), (trials, survived))
        return Check(
            config=config,
            killed=self._rate(real, {trial: trial.own_kill for trial in real}),
            score=mean_rate(*self._counts(real, {trial: trial.passed for trial in real})),
            kills=kills,
            passes=passes,
        )

    def _delta(
        self,
        tasks: Sequence[str],
        one: tuple[Sequence[TrialUsage], Mapping[TrialUsage, bool]],
        zero: tuple[Sequence[TrialUsage], Mapping[TrialUsage, bool]],
    ) -> Delta:
        x1, n1 = self._counts(*one, tasks=tasks)
        x0, n0 = self._counts(*zero, tasks=tasks)
        return delta_paired(x1, n1, x0, n0, self._check_conf, self._target)

    def _rate(self, trials: Sequence[TrialUsage], flags: Mapping[TrialUsage, bool]) -> Rate:
        return rate(*self._counts(trials, flags), Design(alpha=1 - self._conf, target=self._target))

    @staticmethod
    def _counts(
        trials: Sequence[TrialUsage], flags: Mapping[TrialUsage, bool], tasks: Sequence[str] = ()
    ) -> tuple[list[int], list[int]]:
        """Return flagged trials and all trials per task."""
        places = {task: place for place, task in enumerate(tasks or dict.fromkeys(t.key.task for t in trials))}
        events, numbers = np.zeros(len(places), dtype=int), np.zeros(len(places), dtype=int)
        for trial in trials:
            events[places[trial.key.task]] += flags[trial]
            numbers[places[trial.key.task]] += 1
        return events.tolist(), numbers.tolist()


def _ceilings(trials: Sequence[TrialUsage]) -> dict[str, float]:
    return {trial.key.task: trial.memory_ceiling for trial in trials if trial.memory_ceiling is not None}


def _height(trials: Sequence[TrialUsage]) -> float:
    """Return how high a config's ceilings are on average; those that nobody knows are the lowest."""
    ceilings = _ceilings(trials)
    return sum(ceilings.values()) / len(ceilings) if ceilings else -1.0
