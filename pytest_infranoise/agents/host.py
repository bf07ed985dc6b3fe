"""Runs an agent whose code works on the host in a child process, so that its deadline can be kept.

The child holds no connection to the engine: every call on its sandbox goes over a pipe to this process, which
makes it on a ``DeadlineSandbox``. Setup and run happen in the same child. It is killed, with the processes that
it started, at the deadline or when the trial is over, and ends by itself when this process is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from typing import NoReturn

from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.protocol import Agent
from pytest_infranoise.agents.protocol import AgentConfigError
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.sandboxes import protocol
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import Identity
from pytest_infranoise.sandboxes.protocol import Limits
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxState

_SLICE = 0.2  # seconds between looks whether the phase still has time
_CALLS = frozenset(
    {"exec", "upload", "write", "read", "kill_processes", "counters", "limits", "identity", "state", "remove"}
)


class AgentFailed(Exception):
    """The agent's own code raised, or its process died; the text has its traceback."""


def check_picklable(agent: object) -> str | None:
    """Return why an agent cannot be sent to a child process, or None."""
    try:
        pickle.dumps(agent)
    except Exception as error:  # pickling runs the agent's own code, which may raise anything
        return (
            f"{type(agent).__qualname__} runs on the host, in a child process, and so must be picklable: {error}. "
            "Open clients and connections in setup() or run(), define the class at module level, or set "
            "on_host = False if it only runs commands in the sandbox"
        )
    return None


class HostedAgent:
    """An agent in a child process; used like the agent itself, on a ``DeadlineSandbox``.

    What the agent prints goes to the file ``log``. ``close`` must be called in the end.
    """

    def __init__(self, agent: object, log: Path) -> None:
        self._payload = pickle.dumps(agent)
        self._log = log
        self._process: BaseProcess | None = None
        self._calls: Connection | None = None
        self._lifeline: Connection | None = None

    def setup(self, sandbox: DeadlineSandbox) -> None:
        """Run the agent's ``setup`` in the child."""
        self._do(("setup",), sandbox)

    def run(self, instruction: str, sandbox: DeadlineSandbox) -> AgentResult:
        """Run the agent's ``run`` in the child.

        Raises:
            DeadlineExceeded: time was over; the child is dead.
            AgentFailed: the agent raised, or its process ended.
            AgentConfigError: the agent raised that.
        """
        result = self._do(("run", instruction), sandbox)
        if not isinstance(result, AgentResult):
            raise AgentFailed(f"run() returned {type(result).__name__}, not an AgentResult")
        return result

    def close(self) -> None:
        """Kill the child and what it started."""
        process, self._process = self._process, None
        if process is not None and process.pid is not None:
            _kill_tree(process.pid)
            process.join()
            process.close()
        for connection in (self._calls, self._lifeline):
            if connection is not None:
                connection.close()
        self._calls = self._lifeline = None

    def _start(self, sandbox: DeadlineSandbox) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        their_lifeline, our_lifeline = context.Pipe(duplex=False)
        facts = (sandbox.id, sandbox.holder_is_init)
        self._calls, self._lifeline = ours, our_lifeline
        self._process = context.Process(
            target=_child_main, args=(self._payload, theirs, their_lifeline, facts, str(self._log))
        )
        self._process.start()
        # Only the child may hold its ends, or neither side would ever see the other one's death.
        theirs.close()
        their_lifeline.close()
        return ours

    def _do(self, request: tuple[str, ...], sandbox: DeadlineSandbox) -> Any:
        calls = self._calls or self._start(sandbox)
        try:
            calls.send(request)
            while _arrived(calls, sandbox):
                kind, *content = calls.recv()
                if kind == "done":
                    return content[0]
                if kind == "raised":
                    _raise(*content)
                if not sandbox.remaining():
                    break  # an agent that swallows every refusal could go on for ever
                calls.send(_serve(sandbox, *content))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = self._exit_code()
            raise AgentFailed(f"the agent's process ended (exit status {code})") from None
        self.close()
        raise sandbox.expire()

    def _exit_code(self) -> int | None:
        if self._process is None:
            return None
        self._process.join(1)
        return self._process.exitcode


def _arrived(calls: Connection, sandbox: DeadlineSandbox) -> bool:
    """Wait for a message until time is over, which may come sooner than it seemed; whether there is one."""
    while left := sandbox.remaining():
        if calls.poll(min(left, _SLICE)):
            return True
    return calls.poll()


def _serve(sandbox: DeadlineSandbox, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    if name not in _CALLS:
        return "raised", "AttributeError", (f"a sandbox has no {name!r}",), ""
    try:
        return "done", getattr(sandbox, name)(*args, **kwargs)
    except Exception as error:  # whatever it is, it belongs to the agent that made the call
        return "raised", *_packed(error)


_BUILTIN_ERRORS = {
    kind.__name__: kind for kind in (AttributeError, PermissionError, TypeError, ValueError, OSError)
}
_OURS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (*vars(protocol).values(), AgentConfigError)
    if isinstance(kind, type) and issubclass(kind, SandboxError | DeadlineExceeded | AgentConfigError)
}
_CARRIED = frozenset((*_OURS.values(), *_BUILTIN_ERRORS.values()))


def _packed(error: BaseException) -> tuple[str, tuple[Any, ...], str]:
    """Return an exception as plain data: pickled ones fail to load for reasons of their own.

    It is named by the nearest class that the other side knows, and by none where there is none: the class itself
    may be anybody's, and have the name of one of ours.
    """
    name = next((kind.__name__ for kind in type(error).__mro__ if kind in _CARRIED), "")
    if isinstance(error, SandboxError):
        return name, (error.call, error.text, error.status), ""
    trace = "".join(traceback.format_exception(error))
    return name, (str(error) if name else trace.strip(),), trace


def _raise(name: str, args: tuple[Any, ...], trace: str) -> NoReturn:
    if name in _OURS:
        raise _OURS[name](*args)
    raise AgentFailed(trace.strip() or args[0])


def _kill_tree(pid: int) -> None:
    import psutil  # here, because only agents on the host need it

    try:
        root = psutil.Process(pid)
        root.suspend()  # so that it starts nothing more while its children are listed
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        family = []
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # A child whose parent has died is in nobody's list any more, but may still be in the group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# From here on: what runs in the child.


class RemoteSandbox:
    """The agent's side of the pipe; one call at a time, whatever threads the agent has."""

    def __init__(self, calls: Connection, sandbox_id: str, holder_is_init: bool) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._id = sandbox_id
        self._holder_is_init = holder_is_init

    @property
    def id(self) -> str:
        """The engine's id of the container."""
        return self._id

    @property
    def holder_is_init(self) -> bool:
        """Whether our trapping shell really is PID 1."""
        return self._holder_is_init

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._calls.send(("call", name, args, kwargs))
            kind, *content = self._calls.recv()
        if kind == "done":
            return content[0]
        name, args, _ = content
        if name in _BUILTIN_ERRORS:
            raise _BUILTIN_ERRORS[name](*args)
        return _raise(name, args, "")

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
        """Run a command to its end, or until ``timeout`` seconds are over."""
        variables = None if environment is None else dict(environment)
        result: ExecResult = self._call(
            "exec", list(argv), timeout=timeout, user=user, workdir=workdir, environment=variables, log=log
        )
        return result

    def upload(self, source: Path, target: str) -> None:
        """Put a file, or a directory's whole content, at the path ``target``."""
        self._call("upload", Path(source).absolute(), target)

    def write(self, target: str, content: bytes, mode: int = 0o644) -> None:
        """Put one file at the path ``target``."""
        self._call("write", target, content, mode)

    def read(self, path: str, limit: int = 1024**2) -> bytes:
        """Return a file's content."""
        content: bytes = self._call("read", path, limit)
        return content

    def kill_processes(self) -> bool:
        """Kill everything but PID 1."""
        return bool(self._call("kill_processes"))

    def counters(self) -> Counters:
        """Return the kernel's counters now."""
        counters: Counters = self._call("counters")
        return counters

    def limits(self) -> Limits:
        """Return the limits that the kernel enforces."""
        limits: Limits = self._call("limits")
        return limits

    def identity(self) -> Identity:
        """Return what tells this run of this container from any other."""
        identity: Identity = self._call("identity")
        return identity

    def state(self) -> SandboxState:
        """Return the engine's view of the container."""
        state: SandboxState = self._call("state")
        return state

    def remove(self) -> bool:
        """Be refused: the container is the runner's."""
        return bool(self._call("remove"))


def _child_main(payload: bytes, calls: Connection, lifeline: Connection, facts: tuple[str, bool], log: str) -> None:
    os.setsid()
    _print_to(log)
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    agent: Agent | None = None
    sandbox: Sandbox = RemoteSandbox(calls, *facts)
    with contextlib.suppress(EOFError):
        while True:
            request, *args = calls.recv()
            try:
                agent = agent or pickle.loads(payload)
                answer: tuple[Any, ...] = ("done", getattr(agent, request)(*args, sandbox))
                pickle.dumps(answer)
            except BaseException as error:
                answer = ("raised", *_packed(error))
            calls.send(answer)


def _print_to(log: str) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _die_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()  # nothing is ever sent: this ends when the other process does
    os.killpg(os.getpgrp(), signal.SIGKILL)
