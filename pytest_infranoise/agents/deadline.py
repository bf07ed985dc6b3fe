"""The sandbox as a phase sees it: no call outlives the phase, and no failed call goes unseen."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from pathlib import Path

from pytest_infranoise.agents.logs import PhaseLog
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import Identity
from pytest_infranoise.sandboxes.protocol import Limits
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxState


class DeadlineSandbox:
    """Passes calls on until ``seconds`` are over; from then on every call raises ``DeadlineExceeded``.

    What it saw is kept also when the caller swallows it: ``expired`` once a call met the deadline, ``trouble``
    the first failed call that is not the caller's own mistake, ``lost`` and ``unstarted`` the first command
    whose end is not known or that never ran. ``cut`` says that the phase was ended for another reason. Commands
    write to ``log`` unless they are given a file of their own, and run in ``workdir`` and as ``user`` unless they
    are given others. ``saw`` is told of every command that was run to its end, with the time when it began.
    """

    saw: Callable[[Sequence[str], float, ExecResult], None] | None = None

    def __init__(
        self, sandbox: Sandbox, seconds: float, log: PhaseLog | None = None, workdir: str | None = None
    ) -> None:
        self.workdir = workdir
        self.user: str | None = None
        self.seconds = seconds
        self.expired = False
        self.trouble: SandboxError | None = None
        self.lost: str | None = None
        self.unstarted = False
        self.cut = False
        self._sandbox = sandbox
        self._log = log
        self._deadline = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds that are left, never below 0."""
        return 0.0 if self.cut else max(0.0, self._deadline - time.monotonic())

    def restart(self, seconds: float) -> None:
        """Give the phase its time from now on; what was seen so far is kept."""
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds

    def cut_off(self) -> None:
        """End the phase's time now, for another reason than its deadline; from any thread."""
        self.cut = True

    def expire(self) -> DeadlineExceeded:
        """Note that the deadline was met, and return what to raise."""
        self.expired = not self.cut
        self._deadline = time.monotonic()
        return DeadlineExceeded(f"the phase's {self.seconds:g} s are over")

    @contextmanager
    def _call(self) -> Iterator[float]:
        left = self.remaining()
        if not left:
            raise self.expire()
        try:
            yield left
        except (FileMissing, ConfigError):
            raise
        except SandboxError as error:
            self.trouble = self.trouble or error
            raise

    @property
    def id(self) -> str:
        """The engine's id of the container."""
        return self._sandbox.id

    @property
    def holder_is_init(self) -> bool:
        """Whether our trapping shell really is PID 1."""
        return self._sandbox.holder_is_init

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
        """Run a command until ``timeout``, or to the deadline where that is nearer.

        Raises:
            DeadlineExceeded: the deadline stopped it.
        """
        began = time.time()
        with self._call() as left, self._log_file(log) as file:
            result = self._sandbox.exec(
                argv,
                timeout=left if timeout is None else min(timeout, left),
                user=self.user if user is None else user,
                workdir=workdir or self.workdir,
                environment=environment,
                log=file,
            )
        if self.saw is not None:
            self.saw(argv, began, result)
        self.lost = self.lost or result.lost
        # Where the engine says nothing, the command was not there: the caller's mistake.
        self.unstarted = self.unstarted or (result.lost is not None and not result.started)
        if result.timed_out and (timeout is None or timeout >= left):
            raise self.expire()
        return result

    def _log_file(self, own: Path | None) -> AbstractContextManager[Path | None]:
        if own is not None or self._log is None:
            return nullcontext(own)
        return self._log.part()

    def part(self) -> AbstractContextManager[Path | None]:
        """Give a file for one command's output, which goes into the phase's log afterwards; None without a log."""
        return self._log_file(None)

    def upload(self, source: Path, target: str) -> None:
        """Put a file, or a directory's whole content, at the path ``target``."""
        with self._call():
            self._sandbox.upload(source, target)

    def write(self, target: str, content: bytes, mode: int = 0o644) -> None:
        """Put one file at the path ``target``."""
        with self._call():
            self._sandbox.write(target, content, mode)

    def read(self, path: str, limit: int = 1024**2) -> bytes:
        """Return a file's content."""
        with self._call():
            return self._sandbox.read(path, limit)

    def kill_processes(self) -> bool:
        """Kill everything but PID 1."""
        with self._call():
            return self._sandbox.kill_processes()

    def counters(self) -> Counters:
        """Return the kernel's counters now."""
        with self._call():
            return self._sandbox.counters()

    def limits(self) -> Limits:
        """Return the limits that the kernel enforces."""
        with self._call():
            return self._sandbox.limits()

    def identity(self) -> Identity:
        """Return what tells this run of this container from any other."""
        with self._call():
            return self._sandbox.identity()

    def state(self) -> SandboxState:
        """Return the engine's view of the container."""
        with self._call():
            return self._sandbox.state()

    def remove(self) -> bool:
        """Refuse: the container is the runner's."""
        raise PermissionError("only the runner removes the container")
