"""The course of one attempt: what happens between the phases, and the evidence as it grows.

Counters are read once at every border: what ends one phase begins the next, so that no kill falls between two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from typing import Protocol
from typing import runtime_checkable

from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.logs import PhaseLog
from pytest_infranoise.model import Phase
from pytest_infranoise.sandboxes.protocol import ENGINE_DISK
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import FileUnfit
from pytest_infranoise.sandboxes.protocol import HostFacts
from pytest_infranoise.sandboxes.protocol import Identity
from pytest_infranoise.sandboxes.protocol import LoggedKill
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxState
from pytest_infranoise.sandboxes.shell import SHELL
from pytest_infranoise.trials.evidence import KILL_PROCESSES
from pytest_infranoise.trials.evidence import UNREAD
from pytest_infranoise.trials.evidence import CutOff
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import Intent
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.evidence import Trouble
from pytest_infranoise.trials.integrity import Witness
from pytest_infranoise.trials.phase_run import PhaseRun
from pytest_infranoise.trials.phase_run import unmasked
from pytest_infranoise.trials.watch import Look
from pytest_infranoise.trials.watch import kernel_kills
from pytest_infranoise.trials.watch import watched

READY_SECONDS = 20.0  # for an engine that was lost once to answer again
_END_SECONDS = 3.0  # for the engine to learn that a container has ended whose process 1 is gone


@runtime_checkable
class MemorySandbox(Protocol):
    """What a sandbox may know of memory beside what the protocol asks of it."""

    last_counters: Counters

    def sampled_anonymous_peak(self) -> int | None:
        """Return the highest sample of anonymous plus shared memory since the last call, in bytes."""

    def reset_peak(self) -> bool:
        """Start the kernel's peak anew; whether that is possible."""


@runtime_checkable
class MachineSandbox(Protocol):
    """What a sandbox may know of its disks and of the machine under it."""

    def full_disks(self) -> tuple[str, ...]:
        """Return what was full since the last call."""

    def host_facts(self) -> HostFacts:
        """Return what the engine's machine says of itself."""


@runtime_checkable
class LoggedSandbox(Protocol):
    """What a sandbox may know from the log of its machine's kernel."""

    def logged_kills(self) -> tuple[LoggedKill, ...] | None:
        """Return the kernel kills in it that the log tells of since the last call; None where it is unreadable."""


def _logged_kills(sandbox: Sandbox) -> tuple[LoggedKill, ...] | None:
    return sandbox.logged_kills() if isinstance(sandbox, LoggedSandbox) else None


class Course:
    """Takes one attempt from border to border and keeps its ``evidence``.

    Args:
        ready: waits up to a number of seconds for the engine; whether it answers.
        log: gives the log of a phase.
        ceiling: the memory ceiling as asked for, in bytes; None when uncapped.
        intended: writes down, where it outlives this process, what is about to be done to the container.
        mask: takes secrets out of a text, which has to be done before anything is cut off it.
        oom_group: whether the first kernel kill for memory ends the trial.
        guard: gives what else may end a phase while it runs.
    """

    def __init__(
        self,
        ready: Callable[[float], bool],
        log: Callable[[Phase], PhaseLog],
        ceiling: int | None,
        intended: Callable[[Intent], None] = lambda intent: None,
        *,
        mask: Callable[[str], str] = unmasked,
        oom_group: bool = False,
        guard: Callable[[Sandbox], Look] | None = None,
    ) -> None:
        self.evidence = Evidence()
        self.sandbox: Sandbox | None = None
        self.witness: Witness | None = None  # of who else may decide the verdict
        self.image_paths: frozenset[str] = frozenset()  # which of the verifier's places were there before setup
        self._ready = ready
        self._log = log
        self._ceiling = ceiling
        self._counters = UNREAD
        self._identity: Identity | None = None
        self._gap_seen = False
        self._peak_before: int | None = None
        self._intended = intended
        self._host = HostFacts()
        self._disks_full: tuple[str, ...] = ()
        self._mask = mask
        self._oom_group = oom_group
        self._guard = guard
        self._looks: list[Look] = []

    @contextmanager
    def start(self) -> Iterator[None]:
        """Go through what comes before setup; a failed engine call becomes evidence."""
        begun = PhaseEvidence(None, entered=True, began=time.time())
        clock = time.monotonic()
        self.evidence = replace(self.evidence, start=begun)
        trouble = None
        try:
            yield
        except SandboxError as error:
            trouble = Trouble.of(error, self._mask)
            if isinstance(error, EngineLost):
                self._ask_engine()
            elif self.sandbox is not None:
                self.look()
        seconds = round(time.monotonic() - clock, 3)
        ended = replace(begun, seconds=seconds, trouble=trouble, ended=trouble is None)
        self.evidence = replace(self.evidence, start=ended)

    def attach(self, sandbox: Sandbox) -> None:
        """Begin with a container that has just started."""
        self.sandbox = sandbox
        self.evidence = replace(self.evidence, holder_is_init=sandbox.holder_is_init)
        self._identity = sandbox.identity()
        self._counters = sandbox.counters()
        _logged_kills(sandbox)  # what was killed until here is no phase's
        if isinstance(sandbox, MachineSandbox):
            self._host = sandbox.host_facts()
            self._disks_full = sandbox.full_disks()
        self._looks = [kernel_kills(sandbox)] if self._oom_group else []
        if self._guard is not None:
            self._looks.append(self._guard(sandbox))

    @contextmanager
    def phase(self, phase: Phase, seconds: float, workdir: str | None = None) -> Iterator[PhaseRun]:
        """Go through one phase; failed engine calls and the deadline become evidence, other exceptions pass."""
        sandbox = self.container()
        begun = PhaseEvidence(
            phase,
            entered=True,
            began=time.time(),
            limit=seconds,
            before=self._counters,
            ceiling=self._ceiling,
            host_before=self._host,
        )
        run = PhaseRun(begun, DeadlineSandbox(sandbox, seconds, self._log(phase), workdir), self._mask)
        self._keep(run.evidence())
        try:
            with watched(self._looks, partial(self._cut_off, run), partial(self._kill_again, run)):
                yield run
        except DeadlineExceeded:
            run.timed_out = True
        except SandboxError as error:
            run.note(run.box.trouble or error)
        except BaseException:
            self._keep(run.evidence())
            raise
        if run.cut_intent is not None:
            self.evidence = replace(self.evidence, intents=(*self.evidence.intents, run.cut_intent))
        self._border(run, sandbox)

    def _cut_off(self, run: PhaseRun, why: CutOff) -> bool:
        """End a phase unless it is over; called from another thread, so nothing but the phase itself is touched."""
        if run.settled or run.timed_out or not run.box.remaining():
            return False
        run.cut, run.cut_intent = why, Intent(KILL_PROCESSES, why.text, time.time())
        self._intended(run.cut_intent)
        run.box.cut_off()
        # Read before the kill, as in ``kill_processes``. Without an answer, the border will find out why.
        with suppress(SandboxError):
            counters = self.container().counters()
            run.counters = counters if counters.memory_usage is not None else None
            run.logged_kills = _logged_kills(self.container())
        return True

    def _kill_again(self, run: PhaseRun) -> None:
        try:
            run.unkillable = not self.container().kill_processes()
        except SandboxError:
            run.unkillable = True

    def kill_processes(self, run: PhaseRun, why: str) -> None:
        """Kill everything but PID 1 and note it when that cannot be done.

        Raises:
            ContainerLost: the container is gone.
            EngineLost: the engine is.
        """
        # The kill itself needs memory in there: at the ceiling, it may cost a kernel kill of our own making.
        run.counters = self._read_counters(run, self.container())
        run.logged_kills = _logged_kills(self.container())
        self.intend(KILL_PROCESSES, why)
        try:
            run.unkillable = not self.container().kill_processes()
        except (ContainerLost, EngineLost):
            raise
        except SandboxError as error:
            run.note(error)
            run.unkillable = True

    def check_identity(self) -> None:
        """Compare the container with the one that the trial began in."""
        same = self.container().identity() == self._identity
        self.evidence = replace(self.evidence, identity_intact=same)

    def intend(self, what: str, why: str) -> None:
        """Write down what is about to be done to the container."""
        intent = Intent(what, why, time.time())
        self._intended(intent)
        self.evidence = replace(self.evidence, intents=(*self.evidence.intents, intent))

    def look(self) -> SandboxState:
        """Take in the engine's view of the container, at the latest before it is removed."""
        state = self.container().state()
        self.evidence = replace(self.evidence, state=state)
        return state

    def container(self) -> Sandbox:
        """Return the container that was attached."""
        if self.sandbox is None:
            raise RuntimeError("no container has been started")
        return self.sandbox

    def _keep(self, evidence: PhaseEvidence) -> None:
        changes: dict[str, Any] = {evidence.name: evidence}
        self.evidence = replace(self.evidence, **changes)

    def _ask_engine(self) -> bool:
        answers = self._ready(READY_SECONDS)
        self.evidence = replace(self.evidence, engine_answers=answers)
        return answers

    def _border(self, run: PhaseRun, sandbox: Sandbox) -> None:
        if run.evidence().engine_lost and not self._ask_engine():
            self._keep(run.evidence())
            return
        after = run.counters or self._read_counters(run, sandbox)
        logged = _logged_kills(sandbox)
        vanished = after.memory_usage is None and self._counters.memory_usage is not None
        lost = vanished or isinstance(run.trouble or run.box.trouble, ContainerLost)
        asked = time.monotonic()
        ended = self._has_ended(run, sandbox, patient=lost)
        gap = self.evidence.state.event_gap
        if self._oom_group and run.cut is None and _grew(self._counters.oom_kills, after.oom_kills):
            run.cut = CutOff(None, "the kernel killed a process for memory")  # too late for the watch to see
        evidence = replace(
            run.evidence(),
            ended=not ended and run.trouble is None,
            after=after,
            peak=None if self._is_an_earlier_peak(after.memory_peak) else after.memory_peak,
            # What is logged after counters that were read before a kill may be that kill's own doing.
            logged_kills=_joined(run.logged_kills, logged) if run.counters is None else run.logged_kills,
            container_ended=ended,
            engine_gap=gap and not self._gap_seen,
            shell_gone=run.box.unstarted and not ended and _is_missing(sandbox, SHELL),
            engine_seconds=round(time.monotonic() - asked, 4),
        )
        self._gap_seen = self._gap_seen or gap
        self._counters = after if run.counters is None else self._read_counters(run, sandbox)
        if isinstance(sandbox, MemorySandbox):
            evidence = replace(_with_samples(evidence, sandbox), anonymous_peak=sandbox.sampled_anonymous_peak())
            if not ended:
                self._peak_before = None if sandbox.reset_peak() else after.memory_peak
        if isinstance(sandbox, MachineSandbox):
            evidence = self._with_machine(evidence, sandbox)
        self._keep(evidence)

    def _with_machine(self, phase: PhaseEvidence, sandbox: MachineSandbox) -> PhaseEvidence:
        """Add what became full in a phase: what was full before it is not its doing."""
        full, before = sandbox.full_disks(), self._disks_full
        self._disks_full = sandbox.full_disks()  # what is full now
        self._host = sandbox.host_facts()
        return replace(
            phase,
            full_disks=tuple(disk for disk in full if disk not in before and disk != ENGINE_DISK),
            engine_disk_full=ENGINE_DISK in full,
            host_after=self._host,
        )

    def _is_an_earlier_peak(self, peak: int | None) -> bool:
        """Whether a peak that could not be reset (only root can, and not everywhere) may be of a phase before."""
        return peak is not None and self._peak_before is not None and peak <= self._peak_before

    def _read_counters(self, run: PhaseRun, sandbox: Sandbox) -> Counters:
        try:
            return sandbox.counters()
        except SandboxError as error:
            run.note(error)
            return UNREAD

    def _has_ended(self, run: PhaseRun, sandbox: Sandbox, *, patient: bool) -> bool:
        """Return whether the container is gone; ``patient`` waits until the engine knows what others saw first."""
        state = self.look()
        give_up = time.monotonic() + _END_SECONDS
        while state.running and patient and time.monotonic() < give_up:
            time.sleep(0.05)
            state = self.look()
        if state.running is not None:
            return not state.running
        try:
            sandbox.identity()
        except ContainerLost as error:
            run.note(error)
            return True
        except SandboxError as error:
            run.note(error)
        return False


def _is_missing(sandbox: Sandbox, path: str) -> bool:
    """Whether there is nothing at a path, by the engine's own look at the container's files."""
    try:
        sandbox.read(path)
    except FileUnfit:
        return False
    except FileMissing:
        return True
    except SandboxError:
        return False
    return False


def _joined(
    first: tuple[LoggedKill, ...] | None, second: tuple[LoggedKill, ...] | None
) -> tuple[LoggedKill, ...] | None:
    """Put two readings of the kernel's log together: each has what came after the one before."""
    return second if first is None else (*first, *(second or ()))


def _grew(before: int | None, after: int | None) -> bool:
    return after is not None and after > (before or 0)


def _with_samples(phase: PhaseEvidence, sandbox: MemorySandbox) -> PhaseEvidence:
    """Add what the counters had shown before they vanished: samples prove what they show, and nothing else."""
    last = sandbox.last_counters
    if phase.after.memory_usage is not None or last.memory_usage is None:
        return phase
    sampled = replace(phase, after=last)
    if not (sampled.oom_kills or sampled.pids_denied):
        sampled = phase
    return replace(sampled, peak=last.memory_peak, peak_is_sampled=True)
