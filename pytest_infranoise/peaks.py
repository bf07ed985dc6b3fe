"""What memory each trial needed, as far as its record tells, and under which limits.

The **need** of a trial is its highest sample of anonymous plus shared memory over all phases: what the kernel
cannot take back, and so what a lower ceiling would have met. The kernel's own peak also counts page cache, which
it drops before it kills, so it bounds the need from above and is no need itself. Samples are taken about ten times
a second: a need is a lower bound, and a short spike may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple

from pytest_infranoise.journal import Run
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict

# A trial that never used this share of its recommended memory cannot respond to a ceiling.
NEAR_SPEC = 0.8
# The kernel kills a little below the limit, because it charges pages in batches.
_CEILING_REACHED = 0.98


@dataclass(frozen=True, slots=True)
class TrialUsage:
    """What one recorded trial used and was allowed; bytes and cores, None where the record does not say.

    ``need`` and ``peak``: see the module; ``peak`` is None too when it was only sampled. ``killed``: the kernel
    killed a process of it for memory, ``own_kill``: because the trial's own ceiling was reached.
    ``memory_ceiling`` and ``cpus_ceiling`` are as read back where that could be, infinite for none.
    ``memory_spec`` and ``cpus_spec`` are the task's 1x point.
    """

    key: TrialKey
    task_hash: str
    verdict: Verdict
    need: int | None
    peak: int | None
    killed: bool
    own_kill: bool
    starved: bool
    timed_out: bool
    memory_floor: int | None
    memory_ceiling: float | None
    cpus_ceiling: float | None
    memory_spec: float | None
    cpus_spec: float | None

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.verdict is Verdict.PASS

    @property
    def least_need(self) -> float | None:
        """Return what it needed at least: a kill by its own ceiling proves that much and more."""
        if self.own_kill and self.memory_ceiling is not None:
            return max(self.memory_ceiling, self.need or 0)
        return self.need

    def near_spec(self) -> bool | None:
        """Whether a ceiling on memory could have mattered to it; None when its record cannot tell."""
        if self.killed:
            return True
        if self.memory_spec is None:
            return None
        limit = NEAR_SPEC * self.memory_spec
        if self.need is not None and self.need >= limit:
            return True
        # What a trial would have needed that was ended from outside, nobody knows.
        if self.verdict is Verdict.INFRA_ERROR or (self.peak is None and self.need is None):
            return None
        return None if self.need is None and self.peak is not None and self.peak >= limit else False


class NearSpec(NamedTuple):
    """Tasks that a ceiling at or above the spec can have acted on, and those whose records cannot tell."""

    tasks: frozenset[str]
    unknown: frozenset[str]

    @property
    def rerun(self) -> frozenset[str]:
        """Tasks that have to be run again to know what a ceiling does: all but the others."""
        return self.tasks | self.unknown


def near_spec(trials: Iterable[TrialUsage], missing: Iterable[TrialKey]) -> NearSpec:
    """Return which tasks came near their spec in any of ``trials``, in memory or by lack of CPU or time.

    ``missing``: planned trials without a record, which cannot tell.
    """
    near, unknown = set[str](), {key.task for key in missing}
    for trial in trials:
        verdict = trial.near_spec()
        # More cores than a throttled or late trial had could have changed it, whatever its memory.
        if verdict or trial.starved or trial.timed_out:
            near.add(trial.key.task)
        elif verdict is None:
            unknown.add(trial.key.task)
    return NearSpec(frozenset(near), frozenset(unknown - near))


def usages(run: Run) -> tuple[TrialUsage, ...]:
    """Return what every planned trial with a record used, in the order of the plan."""
    rules = {str(entry.get("name")): entry for entry in run.meta.get("configs", ())}
    records = {record.key: record for record in run.records}
    return tuple(
        _usage(records[key], rules.get(key.config, {})) for key in dict.fromkeys(run.planned) if key in records
    )


def _usage(record: Record, rule: Mapping[str, Any]) -> TrialUsage:
    details = record.details
    phases = [phase for phase in _mapping(details.get("phases")).values() if isinstance(phase, Mapping)]
    allocation, limits = _mapping(details.get("allocation")), _mapping(details.get("limits"))
    sampled = any(phase.get("peak_is_sampled") for phase in phases)
    ceiling = _ceiling(limits, "memory", allocation, "memory_ceiling")
    needs = [need for phase in phases if (need := _number(phase.get("anonymous_peak"))) is not None]
    return TrialUsage(
        key=record.key,
        task_hash=record.task_hash,
        verdict=record.verdict,
        need=int(max(needs)) if needs else None,
        peak=None if sampled else record.peak_memory,
        killed=Flag.OOM_KILLS in record.flags or record.cause in (Cause.RESOURCE_KILL, Cause.HOST_PRESSURE),
        own_kill=record.cause is Cause.RESOURCE_KILL or _survived_own_ceiling(record, ceiling),
        starved=Flag.STARVED in record.flags,
        timed_out=Flag.TIMED_OUT in record.flags,
        memory_floor=_whole(allocation.get("memory_floor")),
        memory_ceiling=ceiling,
        cpus_ceiling=_ceiling(limits, "cpus", allocation, "cpus_ceiling"),
        memory_spec=_spec(rule, "memory", allocation),
        cpus_spec=_spec(rule, "cpus", allocation),
    )


def _survived_own_ceiling(record: Record, ceiling: float | None) -> bool:
    """Whether a kill that decided nothing came from the trial's own ceiling, by the kernel's peak."""
    if Flag.OOM_KILLS not in record.flags or record.cause is not None or ceiling is None:
        return False
    return record.peak_memory is not None and record.peak_memory >= _CEILING_REACHED * ceiling


def _ceiling(limits: Mapping[str, Any], read: str, allocation: Mapping[str, Any], asked: str) -> float | None:
    """Return the ceiling in force; what was read back says None for "none" and for "not readable" alike."""
    number = _number(limits.get(read))
    if number is not None:
        return number
    if asked not in allocation:
        return None
    number = _number(allocation[asked])
    return math.inf if number is None else number


def _spec(rule: Mapping[str, Any], resource: str, allocation: Mapping[str, Any]) -> float | None:
    """Return the 1x point that an allocation was made from; None when neither end is a multiple of it."""
    ends = _mapping(rule.get(resource))
    for end in ("floor", "ceiling"):
        multiple, amount = _number(ends.get(end)), _number(allocation.get(f"{resource}_{end}"))
        if multiple and amount is not None:
            return amount / multiple
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _number(value: Any) -> float | None:
    """Return a finite number of a record; records of other versions and harnesses may hold anything there."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
