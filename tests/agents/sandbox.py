"""A sandbox in memory, for unit tests of what stands in front of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import Identity
from pytest_infranoise.sandboxes.protocol import Limits
from pytest_infranoise.sandboxes.protocol import SandboxState


class MemorySandbox:
    """Keeps files and what was executed; ``act`` decides how a command ends."""

    id = "c0ffee"
    holder_is_init = True

    def __init__(self, act: Callable[[Sequence[str]], ExecResult] | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.calls: list[dict[str, Any]] = []
        self._act = act or (lambda argv: ExecResult(0, b"ok", 0.0))

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
        self.calls.append(
            {"argv": argv, "timeout": timeout, "workdir": workdir, "environment": dict(environment or {})}
        )
        if argv[0] == "sleep":
            seconds = min(float(argv[1]), timeout if timeout is not None else float("inf"))
            time.sleep(seconds)
            return ExecResult(None if seconds == timeout else 0, b"", seconds, timed_out=seconds == timeout)
        result = self._act(argv)
        if log is not None:
            log.write_bytes(result.output)
        return result

    def upload(self, source: Path, target: str) -> None:
        self.files[target] = source.read_bytes()

    def write(self, target: str, content: bytes, mode: int = 0o644) -> None:
        self.files[target] = content

    def read(self, path: str, limit: int = 1024**2) -> bytes:
        if path not in self.files:
            raise FileMissing("archive", f"no such file: {path}", 404)
        return self.files[path]

    def kill_processes(self) -> bool:
        return True

    def counters(self) -> Counters:
        return Counters(oom_kills=0)

    def limits(self) -> Limits:
        return Limits(None, None, None, None, None, None, "nowhere")

    def identity(self) -> Identity:
        return Identity(self.id, "now", 0)

    def state(self) -> SandboxState:
        return SandboxState(running=True)

    def remove(self) -> bool:
        raise AssertionError("only the runner removes")
