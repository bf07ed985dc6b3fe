"""Running one command in a container, to its end or its deadline, whatever the engine does meanwhile.

The engine's stream of output says nothing reliable about the end: a background child holds it open, a killed
engine ends it without an error. So a thread of its own reads the output, and the end is what the engine states
about the exec instance, asked again and again.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from typing import NamedTuple
from typing import Protocol
from uuid import uuid4

import requests
import urllib3

from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.engine import shut_down
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import ExecLost
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.shell import SHELL
from pytest_infranoise.sandboxes.shell import WRAPPER

OUTPUT_KEPT = 64 * 1024  # bytes of the end of the output that a result holds
LOG_CAP = 4 * 1024**2  # bytes of output that a log file gets

_LONGEST_LINE = 64 * 1024  # bytes of a line that are held back until its end comes

_NOT_EXECUTABLE = 126  # exit codes
_NOT_FOUND = 127
_KILLED = 137

_FIRST_POLL = 0.02  # seconds
_LONGEST_POLL = 0.15
_SAMPLE = 0.1  # seconds between readings of the counters
_BRISK = 1.0  # seconds for which a command is watched closely: many take no longer
_TRUST_HOST = 2.0  # seconds for which a process seen alive on this machine need not be asked for
_QUIET = 0.15  # seconds without output after which a stream that a background child holds open is left
_LONGEST_DRAIN = 2.0
_LATE_STATUS = 3.0  # seconds past a deadline in which the engine may still state an earlier end: it tells the
# end of one command only when the children of the one before have let go of their streams, or after 2 seconds
_NO_STATUS = "the command has ended, but the engine never stated how"
_NEVER_STARTED = 10.0  # seconds after the end of the stream in which a command must have begun
_ENGINE_PATIENCE = 5.0  # seconds for an engine that failed one call to answer again


class Watch(Protocol):
    """What can be seen of the container from outside while a command runs in it."""

    def sample(self) -> None:
        """Read the counters, so that the last reading before a sudden end is kept."""

    def process_alive(self, pid: int) -> bool | None:
        """Whether a process of the container, by the engine's PID, is there; None when that cannot be seen."""

    def check_alive(self, suspicious: bool) -> None:
        """Raise ContainerLost when the container has ended; ``suspicious`` allows a slower, surer look."""


class Output:
    """What a command writes: the last part in memory, the first part in the log file.

    The two streams that a command writes to come in pieces of any size. They are put together line by line, so
    that a piece of one never lands in the middle of a word of the other.
    """

    def __init__(self, log: Path | None) -> None:
        self.total = 0
        self._tail = bytearray()
        self._begun: dict[int, bytes] = {}  # the line that a stream is in the middle of
        self._log: IO[bytes] | None = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._log = log.open("wb", buffering=0)

    def add(self, data: bytes, stream: int = 1) -> None:
        """Take the next bytes of a stream."""
        data = self._begun.pop(stream, b"") + data
        whole, newline, rest = data.rpartition(b"\n")
        if len(rest) < _LONGEST_LINE:
            self._begun[stream] = rest
            data = whole + newline
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        if self._log is not None and self.total < LOG_CAP:
            try:
                self._log.write(data[: LOG_CAP - self.total])
            except OSError:
                # Without a reader the command would stand still: go on without a log.
                self._log.close()
                self._log = None
        self.total += len(data)
        self._tail += data
        if len(self._tail) > 2 * OUTPUT_KEPT:
            del self._tail[:-OUTPUT_KEPT]

    def tail(self) -> bytes:
        """Return the last part."""
        return bytes(self._tail + b"".join(list(self._begun.values())))[-OUTPUT_KEPT:]

    def close(self) -> None:
        """Close the log file, with a note when it does not hold everything."""
        for rest in self._begun.values():
            self._keep(rest)
        self._begun.clear()
        if self._log is None:
            return
        with contextlib.suppress(OSError), self._log:
            if self.total > LOG_CAP:
                self._log.write(b"\n[%d more bytes were not kept]\n" % (self.total - LOG_CAP))
        self._log = None


class _Reader(threading.Thread):
    """Starts an exec instance and reads what it writes until the stream ends or is closed."""

    def __init__(self, engine: Engine, exec_id: str, log: Path | None) -> None:
        super().__init__(name="infranoise-exec", daemon=True)
        self.ended = threading.Event()
        self.failure: Exception | None = None
        self.last_data = time.monotonic()
        self.output = Output(log)
        self._engine = engine
        self._exec_id = exec_id
        self._response: requests.Response | None = None
        self._lock = threading.Lock()
        self._closed = False

    def run(self) -> None:
        try:
            body = {"Detach": False, "Tty": False}
            path = f"/exec/{self._exec_id}/start"
            with self._engine.request("exec", "POST", path, json=body, endless=True) as response:
                self._response = response
                self._read(response)
        except (SandboxError, OSError, urllib3.exceptions.HTTPError) as error:
            self.failure = error
        finally:
            self.ended.set()

    def _read(self, response: requests.Response) -> None:
        """Take apart the frames: a byte that tells the stream, three unused, four of length, then the data."""
        while len(header := response.raw.read(8)) == 8:
            stream, left = struct.unpack(">B3xL", header)
            while left and (data := response.raw.read(min(left, OUTPUT_KEPT))):
                left -= len(data)
                with self._lock:
                    if self._closed:
                        return
                    self.output.add(data, stream)
                    self.last_data = time.monotonic()

    def drain(self) -> None:
        """Wait for output that is still on its way, but not for a background child."""
        give_up = time.monotonic() + _LONGEST_DRAIN
        while not self.ended.wait(_QUIET / 3):
            now = time.monotonic()
            if now >= give_up or now - self.last_data >= _QUIET:
                return

    def close(self) -> None:
        """Let go of the stream; the command itself is not touched."""
        with self._lock:
            self._closed = True
            self.output.close()
        shut_down(self._response)
        self.join(timeout=2)


class _End(NamedTuple):
    """How a command ended, as far as the engine can say."""

    exit_code: int | None = None
    started: bool = True
    timed_out: bool = False
    lost: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command and how it is to run; ``wrapped`` makes it the kernel's first victim."""

    argv: Sequence[str]
    user: str | None = None
    workdir: str | None = None
    environment: Mapping[str, str] | None = None
    wrapped: bool = True


class Execution:
    """One run of one command in one container."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        command: Command,
        timeout: float | None,
        log: Path | None,
        watch: Watch,
    ) -> None:
        self._engine = engine
        self._container = container
        self._command = command
        self._watch = watch
        self._log = log
        self._token = uuid4().hex.encode()
        self._began = time.monotonic()
        self._deadline = None if timeout is None else self._began + timeout
        self._next_sample = self._began + _SAMPLE
        self._pause = _FIRST_POLL
        self._ended_at: float | None = None  # when the process was seen to be gone
        self._overdue = False
        self._output_unsure = False  # an engine that dies ends the stream without a word

    def run(self) -> ExecResult:
        """Run it.

        Raises:
            ContainerLost: the container ended before or while the command ran.
            EngineLost: the engine does not answer any more.
        """
        exec_id = self._create()
        reader = _Reader(self._engine, exec_id, self._log)
        reader.start()
        try:
            end = self._wait(exec_id, reader)
            if not end.timed_out:
                reader.drain()
        finally:
            reader.close()
        self._watch.sample()
        self._watch.check_alive(suspicious=end.exit_code in (None, _KILLED) and not end.timed_out)
        return self._result(end, reader)

    def _create(self) -> str:
        argv = list(self._command.argv)
        if self._command.wrapped:
            argv = [SHELL, "-c", WRAPPER, self._token.decode(), *argv]
        environment = self._command.environment
        with engine_call("exec"):
            created = self._engine.client.exec_create(
                self._container,
                argv,
                user=self._command.user or "",
                workdir=self._command.workdir,
                environment=dict(environment) if environment else None,
            )
        return str(created["Id"])

    def _wait(self, exec_id: str, reader: _Reader) -> _End:
        reader.ended.wait(self._until(self._pause))
        while True:
            try:
                running, exit_code, pid = self._status(exec_id)
            except ExecLost as error:
                return _End(lost=str(error))
            if not running:
                end = self._ended(exit_code, pid, reader)
                if end is not None:
                    return end
            if self._deadline is not None and time.monotonic() >= self._deadline:
                gone = self._gone(pid, reader)
                if not gone or self._overdue:
                    return _End(lost=_NO_STATUS, pid=pid) if gone and pid else _End(timed_out=True, pid=pid)
                self._overdue = True
                self._deadline += _LATE_STATUS
            self._rest(pid, reader)

    def _gone(self, pid: int, reader: _Reader) -> bool:
        """Whether the command seems to have ended before the engine says so."""
        alive = self._watch.process_alive(pid) if pid else None
        return reader.ended.is_set() if alive is None else not alive

    def _ended(self, exit_code: int | None, pid: int, reader: _Reader) -> _End | None:
        """Return the end of a command that does not run; None when it only has not begun yet."""
        if exit_code is not None and pid:
            return _End(exit_code, pid=pid)
        if exit_code is not None:
            reader.drain()
            text = reader.output.tail().decode(errors="replace").strip()
            lost = text or "the engine could not start the command"
            return _End(exit_code, started=False, lost=lost, pid=pid)
        if not reader.ended.is_set():
            return None
        if isinstance(reader.failure, ContainerLost):
            raise reader.failure
        if isinstance(reader.failure, SandboxError) and not isinstance(reader.failure, EngineLost):
            return _End(started=False, lost=str(reader.failure))
        if time.monotonic() - reader.last_data < _NEVER_STARTED:
            return None
        return _End(
            started=False, lost=f"the engine never started the command ({reader.failure or 'no reason given'})"
        )

    def _status(self, exec_id: str) -> tuple[bool, int | None, int]:
        """Return whether it runs, its exit code and its PID (0 before the start)."""
        give_up = time.monotonic() + _ENGINE_PATIENCE
        while True:
            try:
                with engine_call("exec"):
                    state = self._engine.client.exec_inspect(exec_id)
                return bool(state["Running"]), state["ExitCode"], state["Pid"] or 0
            except EngineLost:
                # One refused connection on a busy machine is not yet an engine that is gone.
                left = give_up - time.monotonic()
                self._output_unsure = True
                if left <= 0 or not self._engine.ready(left):
                    raise

    def _rest(self, pid: int, reader: _Reader) -> None:
        """Wait for a sign of the end: of the stream, of the process where it can be seen, or just a while.

        A process that is seen alive on this machine spares the engine most of the asking.
        """
        on_host = bool(pid) and bool(self._watch.process_alive(pid))
        stream_open = not reader.ended.is_set()
        give_up = time.monotonic() + (_TRUST_HOST if on_host else self._pause)
        self._pause = min(self._pause * 1.5, _LONGEST_POLL)
        while (left := self._until(give_up - (now := time.monotonic()))) > 0:
            step = min(left, _FIRST_POLL * 2 if now - self._began < _BRISK else _SAMPLE)
            if stream_open and reader.ended.wait(step):
                break
            if not stream_open:
                time.sleep(step)
            self._sample()
            if on_host and not self._watch.process_alive(pid):
                self._ended_at = time.monotonic()
                break
        else:
            return
        self._pause = _FIRST_POLL / 8  # the engine will know of the end in a moment

    def _until(self, pause: float) -> float:
        if self._deadline is None:
            return pause
        return min(pause, max(self._deadline - time.monotonic(), 0))

    def _sample(self) -> None:
        now = time.monotonic()
        if now >= self._next_sample:
            self._watch.sample()
            self._next_sample = now + _SAMPLE

    def _result(self, end: _End, reader: _Reader) -> ExecResult:
        output = reader.output.tail()
        not_found = end.exit_code == _NOT_FOUND and output.endswith(self._token)
        if end.exit_code in (_NOT_EXECUTABLE, _NOT_FOUND):
            # The wrapper's own words begin with its name, which is the token.
            output = output.removesuffix(self._token).replace(self._token, b"sh")
        return ExecResult(
            exit_code=end.exit_code,
            output=output,
            seconds=(self._ended_at or time.monotonic()) - self._began,
            started=end.started and not not_found,
            timed_out=end.timed_out,
            truncated=reader.output.total > OUTPUT_KEPT or reader.failure is not None or self._output_unsure,
            lost=end.lost,
            pid=end.pid,
            output_bytes=reader.output.total,
        )
