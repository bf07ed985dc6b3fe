"""What an agent is to the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Protocol

from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Task
from pytest_infranoise.model import TrialKey
from pytest_infranoise.sandboxes.protocol import Sandbox


class AgentConfigError(Exception):
    """Raised by an agent that cannot work on any trial: its provider refuses the key, or knows no such model.

    The run is stopped, and the trial has no record. For what may go away by itself there is ``Cause.MODEL_API``.
    """


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How an agent says it ended.

    ``exit_code`` None means that it has none to tell. ``cause`` is set only from a typed failure that is not
    the agent's own (``Cause.MODEL_API``), never from reading its transcript.
    """

    exit_code: int | None = 0
    cause: Cause | None = None
    summary: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What one trial's agent is made for."""

    choice: AgentChoice
    task: Task
    key: TrialKey
    seed: int


class Agent(Protocol):
    """Solves a task in a sandbox.

    ``on_host`` says where the agent's own code works. False: every step is a command in the sandbox, so the
    sandbox's deadline ends it. True (assumed when the attribute is absent): it runs in a child process that is
    killed at the deadline; such an agent must be picklable.
    """

    on_host: bool

    def setup(self, sandbox: Sandbox) -> None:
        """Install what the agent needs, inside the setup phase.

        Raises:
            AgentConfigError: it cannot work on any trial. Whatever else is raised means that the setup failed.
        """

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        """Work on the task until done; calls on the sandbox raise ``DeadlineExceeded`` when time is over.

        Raises:
            AgentConfigError: it cannot work on any trial. Whatever else is raised is an error of its own code.
        """
