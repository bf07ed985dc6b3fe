"""Agents for tests, at module level so that they can be sent to a child process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from pytest_infranoise.agents.protocol import AgentConfigError
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Cause
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import Sandbox


@dataclass
class HostAgent:
    """Without ``on_host``: runs in a child process."""

    options: dict[str, Any] = field(default_factory=dict)
    ready: bool = False

    def setup(self, sandbox: Sandbox) -> None:
        self.ready = True
        self.pid = os.getpid()

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        print("solving:", instruction.strip())
        assert self.ready
        assert self.pid == os.getpid()
        result = sandbox.exec(["sh", "-c", "echo done > answer; pwd; exit 7"])
        assert result.exit_code == 7
        return AgentResult(
            details={"said": result.output.decode().strip(), "parent": os.getppid(), "pid": self.pid}
        )


class Sleeper(HostAgent):
    """Sleeps past its deadline and would then finish the work; has children of its own meanwhile."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sandbox.write("/app/children", f"{os.getpid()} {child.pid}".encode())
        time.sleep(self.options.get("seconds", 600))
        sandbox.exec(["sh", "-c", "echo done > answer"])
        return AgentResult()


class Stubborn(HostAgent):
    """Does not take no for an answer."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        while True:
            try:
                sandbox.exec(["sleep", "600"])
                sandbox.write("/app/answer", b"done")
            except DeadlineExceeded:
                print("again")


class Printing(HostAgent):
    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        print("printed", instruction)
        subprocess.run(["sh", "-c", 'echo "warned $0" >&2', instruction], check=True)
        return AgentResult()


class Raising(HostAgent):
    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        raise KeyError("choices")


class RaisingInSetup(HostAgent):
    def setup(self, sandbox: Sandbox) -> None:
        raise OSError("no mirror answers")


class Dying(HostAgent):
    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        os._exit(5)


class OutOfQuota(HostAgent):
    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        return AgentResult(exit_code=1, cause=Cause.MODEL_API, summary="429 after 5 retries")


class WrongKey(AgentConfigError):
    """What an adapter may make of ours."""


class Refused(HostAgent):
    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        raise WrongKey("401: no such key; set MY_API_KEY")


class RefusedInSetup(HostAgent):
    def setup(self, sandbox: Sandbox) -> None:
        raise WrongKey("404: no such model")


class Throwing(HostAgent):
    """Raises one of ``THROWN``."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        raise THROWN[self.options["error"]]("504: no answer")


def _foreign(name: str) -> type[Exception]:
    return type(name, (Exception,), {"__module__": "google.api_core.exceptions"})


class OwnTimeout(DeadlineExceeded):
    """What an adapter may make of ours."""


class OwnLoss(ContainerLost):
    """The same of what the engine tells."""

    def __init__(self, text: str) -> None:
        super().__init__("tool", text)


# What others may call as we call ours.
FOREIGN = ("DeadlineExceeded", "AgentConfigError", "ConfigError", "SandboxError", "ContainerLost", "TypeError")
THROWN: dict[str, Callable[[str], Exception]] = {
    **{name: _foreign(name) for name in FOREIGN},
    "OwnTimeout": OwnTimeout,
    "OwnLoss": OwnLoss,
}


class Asking(HostAgent):
    """Calls everything a sandbox has."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        sandbox.write("/app/note", b"\x00\xff")
        try:
            sandbox.read("/app/nothing")
        except FileMissing as error:
            missing = error.call
        try:
            sandbox.remove()
        except PermissionError as error:
            refused = str(error)
        details = {
            "missing": missing,
            "refused": refused,
            "content": list(sandbox.read("/app/note")),
            "id": sandbox.id,
            "same": sandbox.identity().id == sandbox.id,
            "running": sandbox.state().running,
            "kills": sandbox.counters().oom_kills,
            "memory": sandbox.limits().memory,
            "killed": sandbox.kill_processes(),
        }
        sandbox.write("/app/answer", b"done")
        return AgentResult(details=details)


class NotPicklable(HostAgent):
    def __init__(self) -> None:
        super().__init__()
        self.callback: Callable[[], None] = lambda: None


class InProcess:
    """Runs in the trial's own process, and so must only use the sandbox."""

    on_host = False

    def __init__(self, run: Callable[[Sandbox], AgentResult]) -> None:
        self._run = run

    def setup(self, sandbox: Sandbox) -> None:
        pass

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        return self._run(sandbox)
