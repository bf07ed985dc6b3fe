"""What a trial showed, as pure data: the only thing that a verdict is made from.

Whatever is not known is None, and stays None: no rule may read it as zero or as "no".
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from enum import StrEnum
from typing import Any

from pytest_infranoise.model import Cause
from pytest_infranoise.model import Phase
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import EngineEvent
from pytest_infranoise.sandboxes.protocol import HostFacts
from pytest_infranoise.sandboxes.protocol import LoggedKill
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxState

CEILING_REACHED = 0.98  # the kernel kills a little below the limit: it charges pages in batches
KILLED = 137  # exit status of a process ended by SIGKILL, as shells and engines state it
MAX_TEXT = 1000

_FOREIGN_ACTIONS = frozenset({"kill", "stop", "destroy", "restart", "pause"})
UNREAD = Counters()
UNREAD_HOST = HostFacts()
REMOVE = "remove-container"
KILL_PROCESSES = "kill-processes"


@dataclass(frozen=True, slots=True)
class Trouble:
    """The first engine call that failed in a phase."""

    kind: str
    cause: Cause
    call: str
    text: str
    status: int | None = None

    @classmethod
    def of(cls, error: SandboxError, mask: Callable[[str], str] = str) -> Trouble:
        """Return what a failed call says; ``mask`` takes out what may not be written down."""
        return cls(type(error).__name__, error.cause, error.call, mask(error.text)[:MAX_TEXT], error.status)

    @property
    def is_config_error(self) -> bool:
        """Whether the engine says that what it was asked for cannot be."""
        return self.kind == ConfigError.__name__


@dataclass(frozen=True, slots=True)
class Intent:
    """Something that we did to the container on purpose, written down before it was done."""

    what: str
    why: str
    time: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class CutOff:
    """Why we ended a phase before its end and before its time; ``cause`` is None where the kernel says it."""

    cause: Cause | None
    text: str


class ArtefactStatus(StrEnum):
    """What became of the file in which the verifier states its verdict."""

    COMPLETE = "complete"
    MISSING = "missing"
    MALFORMED = "malformed"
    WRONG_NONCE = "wrong-nonce"
    NO_TESTS = "no-tests"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Artefact:
    """The verifier's verdict; ``reward`` is known only of a complete one.

    ``stated`` is the number in one that is not, where it has one: it decides nothing, but the verifier has spoken.
    """

    status: ArtefactStatus = ArtefactStatus.MISSING
    reward: float | None = None
    tests: int | None = None
    text: str = ""
    source: str = ""  # where it was read, when that is not our own artefact
    other: float | None = None  # what another reward file beside that one says, when it says something else
    failed: int | None = None  # tests that did not pass, by the test tool's own report
    stated: float | None = None


@dataclass(frozen=True, slots=True)
class CommandFact:
    """How one command of a phase ended; ``argv`` is a hash, because command lines may hold secrets."""

    argv: str
    began: float  # seconds since the epoch
    seconds: float
    exit_code: int | None
    pid: int | None
    started: bool
    timed_out: bool
    output_bytes: int
    truncated: bool
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class Integrity:
    """What was seen of a trial's own processes deciding its verdict, one phrase each.

    ``forged`` leaves no other explanation. ``doubts`` let no pass stand, but may have an honest one. ``notes``
    have one and change nothing. ``others`` is what the agent left running when the verifier came, None when that
    could not be seen; ``unseen`` is what could not be looked at.
    """

    forged: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseEvidence:
    """What one phase showed; ``phase`` is None for what comes before setup (image, admission, start).

    ``timed_out`` says that our own deadline fired, ``cut_off`` that we ended the phase for another reason.
    ``error`` is an exception of the agent's own code.
    ``container_ended`` and ``engine_gap`` are the engine's view at the phase's end, of this phase only.
    ``ceiling`` is the memory ceiling in force (None: uncapped), ``peak`` the highest use in this phase where the
    kernel can tell it, page cache included (``peak_is_sampled``: it may have been higher), ``anonymous_peak`` the
    highest sample without page cache. ``full_disks`` are file systems of the trial's own that became full in this
    phase, ``engine_disk_full`` is the engine's. ``shell_gone``: a command could not start,
    because there is no shell in the container any more. ``engine_seconds`` is how long the engine took to describe
    the container at the phase's end, ``logged_kills`` what the kernel's log tells of (some may be left out there),
    None where it cannot be read, ``clock_step`` by how much this machine's clock was set meanwhile, in seconds.
    """

    phase: Phase | None
    entered: bool = False
    ended: bool = False
    began: float = 0.0  # seconds since the epoch
    seconds: float = 0.0
    limit: float | None = None  # seconds
    exit_code: int | None = None
    exec_started: bool = True
    exec_lost: str | None = None
    timed_out: bool = False
    unkillable: bool = False
    error: str | None = None
    last_line: str = ""  # of the output of the phase's last command: for people, no rule reads it
    trouble: Trouble | None = None
    container_ended: bool = False
    engine_gap: bool = False
    before: Counters = UNREAD
    after: Counters = UNREAD
    ceiling: int | None = None
    peak: int | None = None
    peak_is_sampled: bool = False
    anonymous_peak: int | None = None
    full_disks: tuple[str, ...] = ()
    engine_disk_full: bool = False
    shell_gone: bool = False
    logged_kills: tuple[LoggedKill, ...] | None = None
    host_before: HostFacts = UNREAD_HOST
    host_after: HostFacts = UNREAD_HOST
    engine_seconds: float | None = None
    clock_step: float | None = None
    commands: tuple[CommandFact, ...] = ()
    commands_in_all: int = 0
    cut_off: CutOff | None = None

    @property
    def name(self) -> str:
        """The phase's name in texts."""
        return self.phase.value if self.phase else "start"

    @property
    def oom_kills(self) -> int | None:
        """Processes that the kernel killed for memory in this phase."""
        return _delta(self.before.oom_kills, self.after.oom_kills)

    @property
    def pids_denied(self) -> int | None:
        """Processes that the pids ceiling kept from starting in this phase."""
        return _delta(self.before.pids_denied, self.after.pids_denied)

    @property
    def host_oom_kills(self) -> int | None:
        """Processes that the kernel killed for memory anywhere on the engine's machine in this phase."""
        return _delta(self.host_before.oom_kills, self.host_after.oom_kills)

    @property
    def throttled_share(self) -> float | None:
        """Share of the CPU periods of this phase in which the trial was throttled."""
        periods = _delta(self.before.periods, self.after.periods)
        throttled = _delta(self.before.throttled_periods, self.after.throttled_periods)
        if not periods or throttled is None:
            return None
        return min(1.0, throttled / periods)

    @property
    def own_ceiling_reached(self) -> bool | None:
        """Whether the trial met its own memory ceiling: what tells its own kill from its host's.

        cgroup v2 counts it; on v1 the kernel's log tells it of the kills that are in there, and the peak has to do
        for others.
        """
        if self.ceiling is None:
            return False
        events = _delta(self.before.own_ceiling_events, self.after.own_ceiling_events)
        if events is not None:
            return events > 0
        logged = [kill.limit == "own" for kill in self.logged_kills or ()]
        if any(logged):
            return True
        if logged and len(logged) >= (self.oom_kills or 0):
            return False
        if self.peak is not None and self.peak >= CEILING_REACHED * self.ceiling:
            return True
        return None if self.peak is None or self.peak_is_sampled else False

    @property
    def engine_lost(self) -> bool:
        """Whether a call in this phase found no engine."""
        return self.trouble is not None and self.trouble.cause is Cause.DAEMON_LOST


def _delta(before: int | None, after: int | None) -> int | None:
    # Counters that went back belong to another run of the container: nothing is known then.
    if before is None or after is None or after < before:
        return None
    return after - before


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that one attempt at a trial showed.

    ``identity_intact`` is whether the container that the verifier ended in is the one that setup began in, None
    when that could not be asked. ``agent_cause`` is a failure that the agent itself states by type, ``crash``
    the traceback of an exception of the runner's own. ``engine_answers`` is what the engine did after it had
    been lost once.
    """

    start: PhaseEvidence = PhaseEvidence(None)
    setup: PhaseEvidence = PhaseEvidence(Phase.SETUP)
    agent: PhaseEvidence = PhaseEvidence(Phase.AGENT)
    verifier: PhaseEvidence = PhaseEvidence(Phase.VERIFIER)
    artefact: Artefact = Artefact()
    state: SandboxState = field(default_factory=SandboxState)
    identity_intact: bool | None = None
    holder_is_init: bool | None = None
    engine_answers: bool | None = None
    intents: tuple[Intent, ...] = ()
    agent_cause: Cause | None = None
    crash: str | None = None
    integrity: Integrity = Integrity()

    @property
    def phases(self) -> tuple[PhaseEvidence, ...]:
        """What was entered, in order, the time before setup first."""
        return tuple(phase for phase in (self.start, self.setup, self.agent, self.verifier) if phase.entered)

    @property
    def foreign_events(self) -> tuple[EngineEvent, ...]:
        """What somebody else did to the container, by the engine's own account."""
        removed = min((intent.time for intent in self.intents if intent.what == REMOVE), default=float("inf"))
        return tuple(
            event for event in self.state.events if event.action in _FOREIGN_ACTIONS and event.time < removed
        )

    def foreign_actions_in(self, phase: PhaseEvidence) -> tuple[str, ...]:
        """Return what somebody else did to the container during a phase."""
        return tuple(event.action for event in self.foreign_events if event in self.events_in(phase, event.action))

    def events_in(self, phase: PhaseEvidence, action: str) -> Iterator[EngineEvent]:
        """Yield the events of a kind that came in during a phase, or between it and the next one.

        Events before setup belong to the first phase, those after the end to the last.
        """
        entered = self.phases
        index = entered.index(phase)
        begin = phase.began if index else float("-inf")
        end = entered[index + 1].began if index + 1 < len(entered) else float("inf")
        return (event for event in self.state.events if event.action == action and begin <= event.time < end)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object."""
        data = asdict(self)
        phases = {}
        for phase in self.phases:
            deltas = {"oom_kills": phase.oom_kills, "pids_denied": phase.pids_denied}
            deltas["host_oom_kills"] = phase.host_oom_kills
            phases[phase.name] = data[phase.name] | deltas | {"throttled_share": phase.throttled_share}
        for name in ("start", *Phase):
            del data[name]
        return {"phases": phases, **data}
