"""One running container as a sandbox."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_infranoise.sandboxes import cgroups
from pytest_infranoise.sandboxes import changes
from pytest_infranoise.sandboxes import machine
from pytest_infranoise.sandboxes import overlay
from pytest_infranoise.sandboxes import processes
from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.archives import Archives
from pytest_infranoise.sandboxes.archives import nanoseconds
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.events import EventStream
from pytest_infranoise.sandboxes.execs import Command
from pytest_infranoise.sandboxes.execs import Execution
from pytest_infranoise.sandboxes.kernel_log import KernelLog
from pytest_infranoise.sandboxes.privileges import read_privileges
from pytest_infranoise.sandboxes.privileges import stated_privileges
from pytest_infranoise.sandboxes.protocol import Change
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import EnvStartError
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import FileStat
from pytest_infranoise.sandboxes.protocol import HostFacts
from pytest_infranoise.sandboxes.protocol import Identity
from pytest_infranoise.sandboxes.protocol import Limits
from pytest_infranoise.sandboxes.protocol import LoggedKill
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxState
from pytest_infranoise.sandboxes.shell import FIND_HOLDER
from pytest_infranoise.sandboxes.shell import HOLDER_ARGV
from pytest_infranoise.sandboxes.shell import KILL_ALL
from pytest_infranoise.sandboxes.shell import READ_FILES
from pytest_infranoise.sandboxes.shell import SHELL

_OWN_COMMAND_SECONDS = 30.0
_HOLDER_SECONDS = 10.0  # for an image's entry point to come to our command
_LATE_EXIT = 1.0  # seconds in which the engine learns that a container has ended
_LATE_EVENT = 1.0
_REMOVE_SECONDS = 30.0
_ENGINE_PATIENCE = 5.0
_LOOKS = 100  # at processes, when all that were listed had ended by then
_KILL_SECONDS = 2.0  # for killing from outside; one that has used up its CPU quota dies only when it has more


class DockerSandbox:
    """A container that the backend has created and started.

    Beside the protocol: ``name``, ``on_this_machine``, ``privileges``, ``last_counters``,
    ``sampled_anonymous_peak``, ``reset_peak``, ``full_disks``, ``host_facts``, ``logged_kills`` and what
    ``Inspectable`` has.
    ``root`` is the engine's data root, empty where that is on another machine.
    """

    def __init__(
        self,
        engine: Engine,
        events: EventStream,
        inspected: Mapping[str, Any],
        cgroup_version: str,
        root: str = "",
    ) -> None:
        self.name = str(inspected["Name"]).removeprefix("/")
        self.last_counters = Counters()
        self._id = str(inspected["Id"])
        self._engine = engine
        self._events = events
        self._born = time.monotonic()
        self._anonymous_peak: int | None = None
        self._root = root
        self._full: set[str] = set()
        self._archives = Archives(engine, self._id)
        self.workdir = str(inspected["Config"].get("WorkingDir") or "/")
        self.search_path = _variable(inspected["Config"].get("Env") or (), "PATH")
        self._started = nanoseconds(inspected["State"]["StartedAt"])
        self._layers: Mapping[str, str] = (inspected.get("GraphDriver") or {}).get("Data") or {}
        self._limits: Limits | None = None
        self._holder: int | None = None  # its PID inside the container
        pid = int(inspected["State"]["Pid"])
        self._init_pid = pid
        self._program: processes.Program | None = None  # what the holder's sleep was when first looked at
        self._host = cgroups.locate(pid, self._id)
        self._init = processes.look(pid) if self._host else None
        self._kernel_log: KernelLog | None = None
        if self._host is not None:
            with suppress(OSError):
                self._kernel_log = KernelLog()
        self._stated = stated_privileges(inspected.get("HostConfig") or {})
        self._files: cgroups.Files = self._host or cgroups.ContainerFiles(cgroup_version, self._print_files)

    @property
    def id(self) -> str:
        """The engine's id of the container."""
        return self._id

    @property
    def holder_is_init(self) -> bool:
        """Whether our trapping shell really is PID 1, so that nothing inside can end the container."""
        return self._holder == 1

    @property
    def on_this_machine(self) -> bool:
        """Whether its counters are read from this machine's files, which costs the container nothing."""
        return self._host is not None

    def privileges(self) -> dict[str, Any]:
        """Return what its processes are allowed: capabilities, seccomp, new privileges."""
        read = read_privileges(self._init.pid) if self._init is not None else None
        return read or self._stated

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        user: str | None = None,
        workdir: str | None = None,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> ExecResult:
        """Run a command to its end, or until ``timeout`` seconds are over; see the protocol.

        ``started`` is False and ``exit_code`` 127 for a command that is not there, with ``lost`` None; where the
        engine itself could not start anything, ``lost`` holds its words.
        """
        command = Command(argv, user, workdir, environment)
        return Execution(self._engine, self._id, command, timeout, log, self).run()

    def _own_command(self, script: str, *arguments: str) -> ExecResult:
        """Run a script of ours as root, later in line to be killed than what the trial runs."""
        command = Command([SHELL, "-c", script, SHELL, *arguments], user="0", workdir="/", wrapped=False)
        return Execution(self._engine, self._id, command, _OWN_COMMAND_SECONDS, None, _Blind(self)).run()

    def upload(self, source: Path, target: str) -> None:
        """Put a file, or a directory's whole content, at the path ``target``, owned by root.

        What is a directory there never becomes a file, nor a file a directory: that raises.
        """
        self._archives.upload(source, target)

    def write(self, target: str, content: bytes, mode: int = 0o644) -> None:
        """Put one file at the path ``target``, owned by root."""
        self._archives.write(target, content, mode)

    def read(self, path: str, limit: int = 1024**2) -> bytes:
        """Return the content of a regular file (not of a link to one) of at most ``limit`` bytes."""
        return self._archives.read(path, limit)

    def stat(self, path: str) -> FileStat | None:
        """Return what is at a path, None when nothing is."""
        return self._archives.stat(path)

    def digest(self, path: str) -> str | None:
        """Return the SHA-256 of a regular file's content, None when there is no such file."""
        return self._archives.digest(path)

    def digest_at_hand(self, path: str, limit: int) -> str | None:
        """Return the same of a file that the image does not have so, where that costs the container nothing."""
        upper = self._layers.get("UpperDir")
        return overlay.digest(upper, path, limit) if upper and self._host is not None else None

    def digests(self, path: str, limit: int) -> Mapping[str, str] | None:
        """Return the SHA-256 of the regular files below a directory; see the protocol."""
        return self._archives.digests(path, limit)

    def changes(self, wanted: Callable[[str], object]) -> Mapping[str, Change]:
        """Return what differs from the image, by path, as far as ``wanted`` says so.

        Where this process may read the engine's own storage that takes milliseconds; else the engine is asked,
        which compares every file of the image.
        """
        seen = changes.overlay_changes(self._layers, wanted) if self._host is not None else None
        if seen is not None:
            return seen
        asked = changes.read_changes(self._engine, self._id, wanted)
        return {path: self._touched(path) if change == "modified" else change for path, change in asked.items()}

    def _touched(self, path: str) -> Change:
        """Tell by its time a file that has only another owner or mode from one that was written since the start."""
        stat = self.stat(path)
        aged = stat is not None and stat.kind != "directory" and stat.modified < self._started
        return "touched" if aged else "modified"

    def processes(self) -> Mapping[str, str]:
        """Return what runs beside PID 1 and our holder; see the protocol."""
        if self._host is None:
            return changes.list_processes(self._engine, self._id, self._init_pid)
        self._program = self._program or processes.holders_program(self._host.processes())
        spared, gone = self._spared(self._host), set[int]()
        for _ in range(_LOOKS):
            known = len(gone)
            found = processes.others(self._host.processes(), spared, self._program, gone)
            if found or len(gone) == known:
                break
        return found

    def _spared(self, host: cgroups.HostFiles) -> frozenset[int]:
        init = self._init_pid
        if self._holder is None:
            return frozenset({init})
        found = (pid for pid in host.processes() if processes.namespace_pid(pid, init) == self._holder)
        return frozenset({init, *found})

    def kill_processes(self) -> bool:
        """Kill everything but PID 1 (and the holder, where that is another); True when nothing is left.

        From outside where that is allowed (as root, on the engine's machine), because even a shell that kills
        needs memory in there, for which the kernel may have to kill. From inside else, or when forks outrun it.
        """
        return self._kill_from_host() or self._kill_from_inside()

    def _kill_from_inside(self) -> bool:
        result = self._own_command(KILL_ALL, str(self._holder or 1))
        if result.exit_code in (0, 1):
            return result.exit_code == 0
        # Perhaps the kernel had to kill this very shell, after which there is memory for another.
        return self._own_command(KILL_ALL, str(self._holder or 1)).exit_code == 0 or self._kill_from_host()

    def _kill_from_host(self) -> bool:
        if self._host is None or self._init is None:
            return False
        self.check_alive(suspicious=False)
        spared, gone = self._spared(self._host), set[int]()
        give_up = time.monotonic() + _KILL_SECONDS
        pause = 0.001
        try:
            while processes.kill_others(self._host.processes(), spared, self._id, self._program, gone):
                if time.monotonic() >= give_up:
                    return False
                time.sleep(pause)
                pause = min(pause * 2, 0.05)
        except OSError:  # not allowed, or not by this kernel
            return False
        return True

    def counters(self) -> Counters:
        """Return the kernel's counters now; all None when they cannot be read any more."""
        try:
            counters = cgroups.read_counters(self._files)
        except SandboxError:
            return Counters()
        if counters.memory_usage is not None:
            self.last_counters = counters
        if counters.anonymous is not None:
            self._anonymous_peak = max(counters.anonymous, self._anonymous_peak or 0)
        return counters

    def sampled_anonymous_peak(self, reset: bool = True) -> int | None:
        """Return the most anonymous plus shared memory seen since the last reset, in bytes.

        It is sampled about ten times a second while a command runs, on an engine of this machine; elsewhere
        only when ``counters`` is called. None when never read.
        """
        peak = self._anonymous_peak
        if reset:
            self._anonymous_peak = None
        return peak

    def reset_peak(self) -> bool:
        """Count ``Counters.memory_peak`` anew from here; whether kernel and rights allow it."""
        return self._host is not None and self._host.reset_peak()

    def full_disks(self) -> tuple[str, ...]:
        """Return what was full since the last call, sampled like memory: the engine's disk, /dev/shm, /dev."""
        self._look_at_disks()
        full = tuple(sorted(self._full))
        self._full.clear()
        return full

    def _look_at_disks(self) -> None:
        if self._init is not None and self._init_alive():
            self._full.update(machine.full_disks(self._init.pid, self._root))

    def host_facts(self) -> HostFacts:
        """Return what the engine's machine says of itself, nothing when it is another one."""
        return HostFacts() if self._host is None else machine.host_facts()

    def logged_kills(self) -> tuple[LoggedKill, ...] | None:
        """Return what the kernel's log says to have been killed in here since the last call; None if unreadable."""
        return None if self._kernel_log is None else self._kernel_log.kills(self._id)

    def limits(self) -> Limits:
        """Return the limits that the kernel enforces, as read when the container had started."""
        if self._limits is None:
            self._limits = cgroups.read_limits(self._files)
        return self._limits

    def _print_files(self, paths: Sequence[str]) -> bytes:
        return self._own_command(READ_FILES, *paths).output

    def identity(self) -> Identity:
        """Return what tells this run of this container from any other."""
        inspected = self._inspect()
        return Identity(inspected["Id"], inspected["State"]["StartedAt"], inspected.get("RestartCount", 0))

    def state(self) -> SandboxState:
        """Return the engine's view of the container with the events so far; never raises."""
        state = SandboxState()
        with suppress(SandboxError):
            found = self._settled_state()
            state = _state(found)
            if not state.running and not self._events.gap_since(self._born):
                self._events.wait_for(self._id, "die", _LATE_EVENT)
        return replace(state, events=self._events.of(self._id), event_gap=self._events.gap_since(self._born))

    def _settled_state(self) -> Mapping[str, Any]:
        """Return the engine's state, after giving it time to notice an end that can be seen already."""
        give_up = time.monotonic() + _LATE_EXIT
        while True:
            found = self._inspect()
            if not found["State"]["Running"] or self._init_alive() is not False or time.monotonic() >= give_up:
                return found
            time.sleep(_LATE_EXIT / 20)

    def _init_alive(self) -> bool | None:
        """Whether PID 1 is the one that was started and not about to end; None when that cannot be seen."""
        if self._init is None:
            return None
        now = processes.look(self._init.pid)
        return now is not None and now.alive and now.start == self._init.start

    def remove(self) -> bool:
        """Remove the container by force; True when it is gone, never raises a SandboxError."""
        if self._kernel_log is not None:
            self._kernel_log.close()
            self._kernel_log = None
        return remove_container(self._engine, self._id)

    def _inspect(self) -> Mapping[str, Any]:
        with engine_call("inspect"):
            inspected: Mapping[str, Any] = self._engine.client.inspect_container(self._id)
        return inspected

    # What an execution watches.

    def sample(self) -> None:
        """Read the counters where that costs nothing to the container."""
        if self._host is not None:
            self.counters()
            self._look_at_disks()

    def process_alive(self, pid: int) -> bool | None:
        """Whether a process with the engine's PID is there; None when the engine is elsewhere."""
        if self._host is None:
            return None
        process = processes.look(pid)
        return process is not None and process.runs

    def check_alive(self, suspicious: bool) -> None:
        """Raise ContainerLost when PID 1 is gone or going."""
        alive = self._init_alive()
        if alive is False:
            raise ContainerLost("exec", "the container has ended")
        if alive is None and suspicious:
            give_up = time.monotonic() + _LATE_EXIT
            while time.monotonic() < give_up:
                if not self._inspect()["State"]["Running"]:
                    raise ContainerLost("exec", "the container has ended")
                time.sleep(_LATE_EXIT / 5)

    # What the backend does right after the start.

    def await_holder(self) -> None:
        """Wait until the image's entry point has come to our command, and note which process that became.

        An entry point that never does is taken as it is: it keeps the container alive itself.

        Raises:
            EnvStartError: the container ended instead.
        """
        give_up = time.monotonic() + _HOLDER_SECONDS
        pause = 0.002
        while self._holder is None and time.monotonic() < give_up:
            self._holder = self._find_holder()
            if self._holder is None:
                self._check_started()
                time.sleep(pause)
                pause = min(pause * 2, 0.2)

    def _find_holder(self) -> int | None:
        if self._host is not None and self._init is not None:
            for pid in (self._init.pid, *self._host.processes()):
                if processes.runs_holder(pid):
                    return processes.namespace_pid(pid, self._init.pid)
            return None
        beginning = "".join(HOLDER_ARGV[:3]).partition("\n")[0]
        try:
            result = self._own_command(FIND_HOLDER, beginning)
        except ContainerLost:
            return None
        return min((int(line) for line in result.output.split() if line.isdigit()), default=None)

    def _check_started(self) -> None:
        state = self._inspect()["State"]
        if not state["Running"]:
            raise EnvStartError("start", f"the container ended at once with exit code {state['ExitCode']}")


def _state(inspected: Mapping[str, Any]) -> SandboxState:
    state = inspected["State"]
    return SandboxState(
        running=state["Running"],
        exit_code=state["ExitCode"],
        oom_killed=state["OOMKilled"],
        error=state.get("Error") or "",
        status=state.get("Status") or "",
        started_at=state.get("StartedAt") or "",
        finished_at=state.get("FinishedAt") or "",
        dead=state.get("Dead"),
        restarts=inspected.get("RestartCount"),
    )


def _variable(environment: Sequence[str], name: str) -> str:
    """Return a variable's value, empty when it is not set; of several, the last one counts."""
    values = [text.partition("=")[2] for text in environment if text.startswith(f"{name}=")]
    return values[-1] if values else ""


class _Blind:
    """Watches nothing: for commands of ours, which are short and must not be taken for the trial's."""

    def __init__(self, sandbox: DockerSandbox) -> None:
        self._sandbox = sandbox

    def sample(self) -> None:
        """Do nothing."""

    def process_alive(self, pid: int) -> bool | None:
        """Return what the sandbox sees."""
        return self._sandbox.process_alive(pid)

    def check_alive(self, suspicious: bool) -> None:
        """Raise what the sandbox raises."""
        self._sandbox.check_alive(suspicious)


def remove_container(engine: Engine, container: str) -> bool:
    """Remove a container by force, with its anonymous volumes; True when it is gone, never a SandboxError."""
    give_up = time.monotonic() + _REMOVE_SECONDS
    while True:
        # What the call says is of no interest, only whether the container is still there.
        with suppress(SandboxError), engine_call("remove"):
            engine.client.remove_container(container, v=True, force=True)
        try:
            with engine_call("inspect"):
                engine.client.inspect_container(container)
        except EngineLost:
            if not engine.ready(_ENGINE_PATIENCE):
                return False
        except SandboxError as error:
            if error.status == 404:
                return True
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.2)
