"""What a trial may ask of the place it runs in, whatever engine is behind it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Literal
from typing import Protocol
from typing import runtime_checkable

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Cause

ENGINE_DISK = "the engine's disk"  # among the disks that may be full


class SandboxError(Exception):
    """An engine call failed; ``cause`` is what the call itself proves.

    The verdict may still find a better cause: a container that is gone is first of all gone, and only the
    kernel's counters can say that it was killed for memory.
    """

    cause = Cause.UNKNOWN

    def __init__(self, call: str, text: str, status: int | None = None) -> None:
        super().__init__(f"{call}: {text}")
        self.call = call
        self.text = text
        self.status = status


class ConfigError(SandboxError):
    """The user's mistake: no trial result can come from it."""


class EngineLost(SandboxError):
    """The engine does not answer, so the effect of the last call is unknown."""

    cause = Cause.DAEMON_LOST


class HostDiskFull(SandboxError):
    """The engine's own storage is full."""

    cause = Cause.HOST_DISK_FULL


class ImagePullError(SandboxError):
    """A valid image could not be fetched for a passing reason."""

    cause = Cause.IMAGE_PULL


class NetworkSetupError(SandboxError):
    """The container's network could not be made."""

    cause = Cause.NETWORK_SETUP


class EnvStartError(SandboxError):
    """A well-specified container could not be created or started."""

    cause = Cause.ENV_START


class ContainerLost(SandboxError):
    """The container is not running any more, or not there at all."""

    cause = Cause.CONTAINER_LOST


class ExecLost(SandboxError):
    """A command's exit status cannot be known."""

    cause = Cause.EXEC_LOST


class FileMissing(SandboxError):
    """A file that was asked for is not in the container."""


class FileUnfit(FileMissing):
    """There is something at a file's path, but no regular file, or one that is too long."""


class DeadlineExceeded(Exception):
    """The phase's time is over; raised by every call that an agent makes after its deadline."""


class EnforcementError(Exception):
    """The engine gave other limits than were asked for: nothing measured on it can be trusted."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    ``exit_code`` is None when it was stopped at its deadline, or when the engine cannot say (then ``lost``
    tells why). ``started`` is False when the process never came to be, whatever the exit code. ``output`` is
    the last part of stdout and stderr together; all of it, up to a cap, is in the log file if one was given.
    ``pid`` is the engine's, 0 for a process that never came to be; ``output_bytes`` counts what was written.
    """

    exit_code: int | None
    output: bytes
    seconds: float
    started: bool = True
    timed_out: bool = False
    truncated: bool = False
    lost: str | None = None
    pid: int | None = None
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """Kernel counters of one container at one moment, counted since its start; None where unreadable.

    Memory in bytes, times in seconds. ``own_ceiling_events`` is cgroup v2's ``oom`` in ``memory.events.local``
    (None on v1, which has no such counter). ``ceiling_hits`` is how often a charge met the ceiling: v1's
    ``failcnt``, v2's local ``max``; page cache that can be dropped counts too, so it is for people only. The
    ``stalled`` times are v2's own pressure files.
    """

    oom_kills: int | None = None
    own_ceiling_events: int | None = None
    memory_usage: int | None = None
    memory_peak: int | None = None
    anonymous: int | None = None  # anonymous plus shared memory
    pids_denied: int | None = None
    cpu_seconds: float | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_seconds: float | None = None
    oom_group_kills: int | None = None
    ceiling_hits: int | None = None
    pids: int | None = None
    memory_stalled_seconds: float | None = None
    cpu_stalled_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The engine's machine at one moment; None where that cannot be read, all of it when it is another one.

    Memory in bytes, times in seconds since the boot. ``memory_stalled`` and ``io_stalled`` count the time in which
    everything that was ready to run waited for memory or disks, ``cpu_stalled`` that in which something waited
    for a CPU.
    """

    oom_kills: int | None = None
    memory_available: int | None = None
    load: float | None = None
    stolen_seconds: float | None = None
    memory_stalled_seconds: float | None = None
    io_stalled_seconds: float | None = None
    cpu_stalled_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LoggedKill:
    """A process of a container that the kernel says in its log to have killed for memory.

    ``limit`` is whose limit had been met: the container's own, that of a cgroup above it, or none but the host's
    memory. ``process`` is the name that it had given itself.
    """

    limit: Literal["own", "parent", "host"]
    process: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits as the kernel states them for one container; None means no limit (or not readable: see ``source``)."""

    memory: int | None
    memory_and_swap: int | None
    memory_floor: int | None
    cpus: float | None
    cpu_weight: int | None
    pids: int | None
    source: str  # "cgroup v1 files on the host", "cgroup v2 files in the container", ...


@dataclass(frozen=True, slots=True)
class Identity:
    """What must stay the same from setup to the verifier's end, or the container is another one."""

    id: str
    started_at: str
    restarts: int


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """One event of the engine about one container, as it came in."""

    time: float  # seconds since the epoch
    action: str  # "oom", "kill", "die", "destroy", ...
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SandboxState:
    """The container as the engine sees it in the end; all unknown when it is gone."""

    running: bool | None = None
    exit_code: int | None = None
    oom_killed: bool | None = None
    error: str = ""
    events: tuple[EngineEvent, ...] = ()
    event_gap: bool = False  # the event stream dropped while the container lived
    status: str = ""
    started_at: str = ""
    finished_at: str = ""
    dead: bool | None = None
    restarts: int | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself and its host."""

    id: str
    version: str
    cgroup_version: str  # "1" or "2"
    kernel: str
    storage_driver: str
    host: str
    cpus: float
    memory: int  # bytes
    unsupported: tuple[str, ...]  # limits that it cannot enforce, each one phrase; empty when fit for measuring
    warnings: tuple[str, ...] = ()
    containerd: str = ""
    runc: str = ""
    security: tuple[str, ...] = ()
    root: str = ""  # the directory of its images and containers, where that is on this machine
    here: bool = False  # whether it runs on this machine's kernel


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What a trial wants: an image and the limits to run it under."""

    name: str
    image: str
    allocation: Allocation
    labels: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    network: bool = True
    user: str | None = None
    workdir: str | None = None


class Sandbox(Protocol):
    """A running container. Every call may raise a ``SandboxError``."""

    @property
    def id(self) -> str:
        """The engine's id of the container."""

    @property
    def holder_is_init(self) -> bool:
        """Whether our trapping shell really is PID 1, so that nothing inside can end the container."""

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
        """Run a command to its end, or until ``timeout`` seconds are over.

        It runs in a session of its own and is the kernel's first victim when memory is short. A command that
        reaches its timeout is left running: ``kill_processes`` ends it, and everything it started.
        """

    def upload(self, source: Path, target: str) -> None:
        """Put a file, or a directory's whole content, at the path ``target``, owned by root."""

    def write(self, target: str, content: bytes, mode: int = 0o644) -> None:
        """Put one file at the path ``target``, owned by root."""

    def read(self, path: str, limit: int = 1024**2) -> bytes:
        """Return a file's content.

        Raises:
            FileMissing: there is no such file.
            FileUnfit: it is not a regular file, or it is longer than ``limit`` bytes.
        """

    def kill_processes(self) -> bool:
        """Kill everything but PID 1, children that were detached included; True when nothing is left."""

    def counters(self) -> Counters:
        """Return the kernel's counters now; all None when they cannot be read any more."""

    def limits(self) -> Limits:
        """Return the limits that the kernel enforces."""

    def identity(self) -> Identity:
        """Return what tells this run of this container from any other."""

    def state(self) -> SandboxState:
        """Return the engine's view of the container with the events so far; never raises."""

    def remove(self) -> bool:
        """Remove the container by force; True when it is gone."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """One file of a container, as the engine sees it: no program in there is asked. Links are not followed."""

    kind: Literal["file", "directory", "link", "other"]
    size: int  # bytes
    modified: int  # nanoseconds since the epoch, by the container's file system
    mode: int  # permission bits
    link: str = ""  # where a link leads


# Stands in what is seen of a process that calls itself as one of ours is called, and is another program.
DISGUISED = "[not what it says]"

# "touched" is a file of the image with another owner, mode or time, and the same content as far as can be told.
Change = Literal["modified", "added", "deleted", "touched"]


@runtime_checkable
class Inspectable(Protocol):
    """A sandbox that can be looked into without asking anything that lives in it; any call may raise."""

    @property
    def workdir(self) -> str:
        """Where the image has commands run that are given no other place."""

    @property
    def search_path(self) -> str:
        """Where commands look for programs: the value of ``PATH`` that they are given, empty when there is none."""

    def stat(self, path: str) -> FileStat | None:
        """Return what is at a path, None when nothing is."""

    def digest(self, path: str) -> str | None:
        """Return the SHA-256 of a regular file's content, None when there is no such file."""

    def digest_at_hand(self, path: str, limit: int) -> str | None:
        """Return the same of a file that ``changes`` names, where it can be had without a copy of the file.

        None also where it cannot, and for more than ``limit`` bytes.
        """

    def digests(self, path: str, limit: int) -> Mapping[str, str] | None:
        """Return the SHA-256 of the files below a directory; None where none is, or more than ``limit`` bytes."""

    def changes(self, wanted: Callable[[str], object]) -> Mapping[str, Change]:
        """Return what differs from the image, by path, as far as ``wanted`` says so."""

    def processes(self) -> Mapping[str, str]:
        """Return what runs beside our own processes: a name that no other process has, and what is seen of it.

        That is its command line and, where this machine can see them, its directory and the files it holds open.
        """


class Backend(Protocol):
    """An engine that makes sandboxes."""

    name: str

    def info(self) -> EngineInfo:
        """Return what the engine is.

        Raises:
            EngineLost: none answers.
        """

    def ready(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the engine to answer; whether it does."""

    def image(
        self,
        task_image: str | None,
        build: Path | None,
        pull: str,
        *,
        seconds: float | None = None,
        working: Callable[[str], object] | None = None,
    ) -> str:
        """Return the id of an image, after pulling or building it where it is not there yet.

        ``seconds`` is how long a build may take; ``working`` is told "pulling" or "building" when there is
        something to do that takes time.

        Raises:
            ConfigError: it cannot exist as asked for.
            ImagePullError: it could not be fetched now.
        """

    def create(self, request: SandboxRequest) -> Sandbox:
        """Create and start a container; nothing is left behind when this raises."""

    def labelled(self, label: str) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of every container and network that carries ``label``, by id."""

    def remove_labelled(self, labels: Mapping[str, str]) -> int:
        """Remove every container and network that carries all these labels; how many there were."""

    def close(self) -> None:
        """Let go of connections and threads."""
