"""What the trials of a preflight say about a task: pure rules.

A task is fit when its oracle passes and doing nothing does not, under the baseline. An oracle that has not been
seen to pass is reason enough to leave a task out, whatever kept it from passing: nothing measured on the task
would be known to be possible. That is no verdict about any agent, and no rate has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import Verdict
from pytest_infranoise.units import format_memory

ORACLE = "oracle"
NOP = "nop"
_MIB = 1024**2

# What says nothing about the task: worth a second attempt.
PASSING = frozenset(
    {
        Cause.HOST_PRESSURE,
        Cause.HOST_DISK_FULL,
        Cause.EVICTED,
        Cause.UNSCHEDULABLE,
        Cause.IMAGE_PULL,
        Cause.NETWORK_SETUP,
        Cause.ENV_START,
        Cause.DAEMON_LOST,
        Cause.EXEC_LOST,
        Cause.CONTAINER_LOST,
        Cause.HARNESS_CRASH,
        Cause.UNKNOWN,
    }
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one preflight trial ended; ``verdict`` is None when it was the user's mistake (a config-error)."""

    agent: str
    config: str
    verdict: str | None
    text: str
    cause: str | None = None
    killed: bool = False  # the kernel killed something in it for memory
    seconds: float = 0.0
    peak_memory: int | None = None
    anonymous_peak: int | None = None

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return self.verdict == Verdict.PASS

    @property
    def decided(self) -> bool:
        """Whether its verifier said pass or fail."""
        return self.verdict in (Verdict.PASS, Verdict.FAIL)

    @property
    def inconclusive(self) -> bool:
        """Whether it says nothing about the task."""
        return self.cause in PASSING


@dataclass(frozen=True, slots=True)
class Fitness:
    """Whether a task is fit to be measured.

    ``problem`` is why not. ``needs_memory`` are the bytes that the oracle took without a memory ceiling, known
    only of one that was killed under its own.
    """

    task: str
    problem: str | None = None
    notes: tuple[str, ...] = ()
    needs_memory: int | None = None
    trials: tuple[Outcome, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object, for ``run.json``."""
        return {**asdict(self), "fit": self.problem is None}


def outcome_of(record: Record) -> Outcome:
    """Return what counts of a trial's record."""
    why = record.cause or record.reason
    return Outcome(
        agent=record.key.agent,
        config=record.key.config,
        verdict=record.verdict.value,
        text=f"{why}: {record.summary}" if why else record.summary,
        cause=record.cause.value if record.cause else None,
        killed=record.cause is Cause.RESOURCE_KILL or Flag.OOM_KILLS in record.flags,
        seconds=record.seconds,
        peak_memory=record.peak_memory,
        anonymous_peak=_anonymous(record.details),
    )


def _anonymous(details: Mapping[str, Any]) -> int | None:
    phases = details.get("phases", {}).values()
    return max((phase["anonymous_peak"] for phase in phases if phase.get("anonymous_peak")), default=None)


def judge(
    task: str, oracle: Outcome | None, uncapped: Outcome | None, nop: Outcome, notes: tuple[str, ...] = ()
) -> Fitness:
    """Return whether a task is fit.

    Args:
        task: its name.
        oracle: how the oracle did; None without one.
        uncapped: how it did without a memory ceiling, when it had been killed under its own.
        nop: how doing nothing did.
        notes: what else is to be said.
    """
    needs = _needs(uncapped)
    problems = [text for text in (_oracle_problem(oracle, uncapped, needs), _nop_problem(nop)) if text]
    if not nop.decided and (nop.verdict is not None or not problems):
        notes = (*notes, f"nop did not show that doing nothing does not pass: {nop.text}")
    return Fitness(
        task=task,
        problem="; ".join(problems) or None,
        notes=notes,
        needs_memory=needs,
        trials=tuple(trial for trial in (oracle, uncapped, nop) if trial is not None),
    )


def _needs(uncapped: Outcome | None) -> int | None:
    """Return what an oracle needs, in whole MiB, where it passes without a ceiling."""
    if uncapped is None or not uncapped.passed or uncapped.peak_memory is None:
        return None
    return math.ceil(uncapped.peak_memory / _MIB) * _MIB


def _oracle_problem(oracle: Outcome | None, uncapped: Outcome | None, needs: int | None) -> str | None:
    if oracle is None or oracle.passed:
        return None
    if oracle.verdict is None:
        return f"CONFIG-ERROR: {oracle.text}"
    if oracle.inconclusive:
        return f"the oracle could not be checked, twice: {oracle.text}"
    if uncapped is None:
        return f"the oracle does not pass under {oracle.config}: {oracle.text}"
    if needs is not None:
        kept = uncapped.anonymous_peak
        beside = f", at least {format_memory(kept)} of it no page cache" if kept and kept < needs - _MIB else ""
        return (
            f"oracle needs {needs // _MIB} MiB (its peak without a memory ceiling{beside}); "
            f"it was killed for memory under {oracle.config}"
        )
    told = "passes" if uncapped.passed else f"does not pass either: {uncapped.text}"
    return f"the oracle was killed for memory under {oracle.config}, and without a memory ceiling it {told}"


def _nop_problem(nop: Outcome) -> str | None:
    return f"nop passes: the verifier under {nop.config} is content when nothing was done" if nop.passed else None
