"""Records -> running counts and measurements of one agent under one config."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Phase
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.results import Cell
from pytest_infranoise.results import Spread
from pytest_infranoise.results import TaskUsage
from pytest_infranoise.results import Timeouts
from pytest_infranoise.results import Usage


@dataclass(slots=True)
class _TaskTally:
    """Measurements of one task's trials."""

    trials: int = 0
    peak: int | None = None
    anonymous: int | None = None
    kills: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Tally:
    """Running counts of one agent under one config."""

    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    missing: Counter[str] = field(default_factory=Counter)
    causes: Counter[Cause] = field(default_factory=Counter)
    timed_out: Counter[Verdict] = field(default_factory=Counter)
    flags: Counter[Flag] = field(default_factory=Counter)
    survived_kills: int = 0
    starved_timeouts: int = 0
    # task -> sample -> (passed, started)
    outcomes: dict[str, dict[int, tuple[bool, float]]] = field(default_factory=dict)
    _tasks: dict[str, _TaskTally] = field(default_factory=dict)
    _peaks: list[float] = field(default_factory=list)
    _anonymous: list[float] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)
    _agent_seconds: list[float] = field(default_factory=list)
    _throttled: list[float] = field(default_factory=list)

    def plan(self, task: str) -> None:
        """Expect one trial of a task."""
        self.verdicts.setdefault(task, Counter())
        self.missing[task] += 1

    def add(self, record: Record) -> None:
        """Count the record of a planned trial."""
        task = record.key.task
        self.missing[task] -= 1
        self.verdicts[task][record.verdict] += 1
        self.flags.update(set(record.flags))
        if record.verdict is Verdict.INFRA_ERROR:
            self.causes[record.cause or Cause.UNKNOWN] += 1
        if record.reason is FailReason.AGENT_TIMEOUT or Flag.TIMED_OUT in record.flags:
            self.timed_out[record.verdict] += 1
            self.starved_timeouts += record.verdict is Verdict.FAIL and Flag.STARVED in record.flags
        if record.verdict is Verdict.PASS and Flag.OOM_KILLS in record.flags:
            self.survived_kills += 1
        self.outcomes.setdefault(task, {})[record.key.sample] = (record.verdict is Verdict.PASS, record.started)
        self._measure(task, record)

    def _measure(self, task: str, record: Record) -> None:
        tally = self._tasks.setdefault(task, _TaskTally())
        phases = _phases(record)
        anonymous = largest(_number(phase.get("anonymous_peak")) for phase in phases.values())
        peak = _number(record.peak_memory)
        agent = phases.get(Phase.AGENT, {})
        tally.trials += peak is not None or anonymous is not None
        tally.peak = _whole(largest((tally.peak, peak)))
        tally.anonymous = _whole(largest((tally.anonymous, anonymous)))
        tally.kills += Flag.OOM_KILLS in record.flags or record.cause is Cause.RESOURCE_KILL
        tally.seconds = max(tally.seconds, record.seconds)
        measured = (
            (self._peaks, peak),
            (self._anonymous, anonymous),
            (self._seconds, record.seconds or None),
            (self._agent_seconds, _number(agent.get("seconds"))),
            (self._throttled, _number(agent.get("throttled_share"))),
        )
        for values, value in measured:
            if value is not None:
                values.append(value)

    @property
    def cells(self) -> dict[str, Cell]:
        """Counts of every planned task, by name."""
        return {
            task: Cell(
                passes=verdicts[Verdict.PASS],
                fails=verdicts[Verdict.FAIL],
                infra=verdicts[Verdict.INFRA_ERROR],
                missing=self.missing[task],
            )
            for task, verdicts in sorted(self.verdicts.items())
        }

    @property
    def timeouts(self) -> Timeouts:
        """Trials whose agent ran into its deadline."""
        return Timeouts(
            fails=self.timed_out[Verdict.FAIL],
            passes=self.timed_out[Verdict.PASS],
            infra=self.timed_out[Verdict.INFRA_ERROR],
            starved=self.starved_timeouts,
        )

    @property
    def usage(self) -> Usage:
        """What was used, per task and over all trials."""
        return Usage(
            tasks={
                task: TaskUsage(tally.trials, tally.peak, tally.anonymous, tally.kills, tally.seconds)
                for task, tally in sorted(self._tasks.items())
            },
            peak=_spread(self._peaks),
            anonymous=_spread(self._anonymous),
            seconds=_spread(self._seconds),
            agent_seconds=_spread(self._agent_seconds),
            throttled=_spread(self._throttled),
        )


def count(planned: Iterable[TrialKey], records: Iterable[Record]) -> dict[tuple[str, str, str], Tally]:
    """Return the tallies by agent, model and config."""
    tallies: dict[tuple[str, str, str], Tally] = {}
    for key in planned:
        tallies.setdefault((key.agent, key.model, key.config), Tally()).plan(key.task)
    for record in records:
        key = record.key
        tallies[key.agent, key.model, key.config].add(record)
    return tallies


def specs(records: Iterable[Record], floors: Mapping[str, float]) -> dict[str, int]:
    """Return the recommended memory of tasks in bytes.

    ``floors`` has the configs whose memory floor is a multiple of the spec, and that multiple.
    """
    found: dict[str, int] = {}
    for record in records:
        factor = floors.get(record.key.config)
        if factor and record.key.task not in found:
            allocation = record.details.get("allocation")
            floor = _number(allocation.get("memory_floor")) if isinstance(allocation, Mapping) else None
            if floor:
                found[record.key.task] = round(floor / factor)
    return dict(sorted(found.items()))


def largest(values: Iterable[float | None]) -> float | None:
    """Return the largest number; None when there is none."""
    return max((value for value in values if value is not None), default=None)


def _phases(record: Record) -> Mapping[str, Mapping[str, Any]]:
    # What a foreign importer writes into details is its own affair.
    phases = record.details.get("phases")
    if not isinstance(phases, Mapping):
        return {}
    return {name: phase for name, phase in phases.items() if isinstance(phase, Mapping)}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(len(values), min(values), statistics.median(values), max(values))
