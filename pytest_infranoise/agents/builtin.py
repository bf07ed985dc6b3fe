"""The agents that need no model: ``oracle``, ``nop``, ``command`` and ``scripted``.

Each works by commands in the sandbox only, so that the sandbox's deadline ends it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_infranoise.agents.protocol import Agent
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Solution
from pytest_infranoise.model import Strategy
from pytest_infranoise.model import Task
from pytest_infranoise.model import TrialKey
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.uploads import put
from pytest_infranoise.tasks.host_environment import resolve
from pytest_infranoise.tasks.host_environment import unset

INSTRUCTION_FILE = "/infranoise/instruction.md"
AGENT_DIR = "/infranoise/agent"
KINDS = ("oracle", "nop", "command", "scripted")

_MAX_VARIABLE = 100_000  # bytes; the kernel refuses a variable of 128 KiB and more


def check(choice: AgentChoice, task: Task) -> str | None:
    """Return why a built-in agent cannot work on a task, or None; nothing is started or read for it."""
    if choice.kind not in KINDS:
        return f"unknown agent {choice.name!r}; built in: {', '.join(KINDS)}"
    if choice.kind == "oracle":
        return _check_oracle(choice, task)
    if choice.kind == "scripted" and not task.strategies:
        return f"{task.file}: the task has no strategies, which the agent {choice.name!r} needs"
    if choice.kind == "command":
        return _check_command(choice)
    return None


def _check_oracle(choice: AgentChoice, task: Task) -> str | None:
    if task.solution is not None:
        missing = "; ".join(unset(task.solution.environment))
        return f"{task.file}: solution environment: {missing}" if missing else None
    if task.oracle is None:
        return f"{task.file}: the task has no oracle, which the agent {choice.name!r} needs"
    return None


def _check_command(choice: AgentChoice) -> str | None:
    if not str(choice.options.get("command", "")).strip():
        return f"agent {choice.name!r}: a command agent needs its text"
    unset = [name for name in choice.options.get("env", ()) if name not in os.environ]
    if unset:
        return (
            f"agent {choice.name!r}: not set in the environment: {', '.join(unset)}; set it, or take it out of the "
            "agent's env in infranoise.toml"
        )
    return None


def make_builtin(context: AgentContext) -> Agent:
    """Return the built-in agent that ``context.choice`` names.

    Raises:
        ValueError: there is none, or it cannot work on this task; the message is fit to show to a user.
    """
    choice, task = context.choice, context.task
    problem = check(choice, task)
    if problem is not None:
        raise ValueError(problem)
    if choice.kind == "oracle" and task.solution is not None:
        return SolutionAgent(task.solution, task.workdir or None)
    if choice.kind == "oracle" and task.oracle is not None:
        return OracleAgent(task.oracle, task.workdir or None)
    if choice.kind == "command":
        return CommandAgent(choice.options["command"], task.workdir or None, choice.options.get("env", ()))
    if choice.kind == "scripted":
        return ScriptedAgent(draw(task.strategies, context.seed, context.key), task.workdir or None)
    return NopAgent()


def draw(strategies: Sequence[Strategy], seed: int, key: TrialKey) -> Strategy:
    """Return the strategy of one trial, drawn by its odds, independently of every other trial.

    Depends on nothing but its arguments, so every process and every later run with the seed draws the same.
    """
    parts = [seed, key.agent, key.model, key.task, key.config, key.sample]
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    point = int.from_bytes(digest[:8]) / 2**64 * sum(strategy.odds for strategy in strategies)
    for strategy in strategies:
        point -= strategy.odds
        if point < 0:
            return strategy
    return strategies[-1]  # only by rounding


class NopAgent:
    """Does nothing: a task that it passes is broken."""

    on_host = False

    def setup(self, sandbox: Sandbox) -> None:
        """Need nothing."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        """Be done at once."""
        return AgentResult()


class OracleAgent:
    """Runs the task's own solution: a task that it fails is broken, or its resources are too small."""

    on_host = False

    def __init__(self, script: Path, workdir: str | None) -> None:
        self._script = script
        self._workdir = workdir

    def setup(self, sandbox: Sandbox) -> None:
        """Need nothing."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        """Run the solution."""
        return _run_script(sandbox, self._script, self._workdir, instruction, {})


class SolutionAgent:
    """Runs a solution that is more than one script, in the way that its task's format has it."""

    on_host = False

    def __init__(self, solution: Solution, workdir: str | None) -> None:
        self._solution = solution
        self._workdir = workdir

    def setup(self, sandbox: Sandbox) -> None:
        """Need nothing."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        """Put the solution into the container and run it."""
        solution = self._solution
        try:
            for upload in solution.uploads:
                put(sandbox, upload)
            if solution.executable is not None:
                sandbox.exec(["chmod", "a+x", "--", solution.executable], user="0", workdir="/")
        except (DeadlineExceeded, SandboxError) as error:
            return _unfinished(error, {})
        environment = {**instruction_environment(instruction), **resolve(solution.environment)}
        return _run(sandbox, ["sh", "-c", solution.command], self._workdir, environment, {})


class ScriptedAgent:
    """Runs one of the task's own strategies: a stand-in for a model, with odds that are known."""

    on_host = False

    def __init__(self, strategy: Strategy, workdir: str | None) -> None:
        self._strategy = strategy
        self._workdir = workdir

    def setup(self, sandbox: Sandbox) -> None:
        """Need nothing."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        """Run the strategy that was drawn."""
        details = {"strategy": self._strategy.name}
        return _run_script(sandbox, self._strategy.script, self._workdir, instruction, details)


class CommandAgent:
    """Runs any shell command in the container, with the variables named in ``env`` passed on from the host.

    Their values are kept out of everything that is written down: ``secrets`` tells the runner what to mask.
    """

    on_host = False

    def __init__(self, command: str, workdir: str | None, env: Sequence[str] = ()) -> None:
        self._command = command
        self._workdir = workdir
        self._passed = {name: os.environ[name] for name in env}

    def __repr__(self) -> str:
        return f"CommandAgent({self._command!r}, env={list(self._passed)})"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no log, record or message may show."""
        return tuple(self._passed.values())

    def setup(self, sandbox: Sandbox) -> None:
        """Need nothing."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        """Run the command."""
        environment = {**self._passed, **instruction_environment(instruction)}
        return _run(sandbox, ["sh", "-c", self._command], self._workdir, environment, {})


def instruction_environment(instruction: str) -> dict[str, str]:
    """Return the variables that tell a command what to do; one too long for a variable is in the file only."""
    variables = {"INFRANOISE_INSTRUCTION_FILE": INSTRUCTION_FILE}
    if len(instruction.encode()) <= _MAX_VARIABLE and "\0" not in instruction:
        variables["INFRANOISE_INSTRUCTION"] = instruction
    return variables


def _run_script(
    sandbox: Sandbox, script: Path, workdir: str | None, instruction: str, details: Mapping[str, Any]
) -> AgentResult:
    target = f"{AGENT_DIR}/{script.name}"
    try:
        sandbox.write(target, script.read_bytes(), 0o755)
    except (DeadlineExceeded, SandboxError) as error:
        return _unfinished(error, details)
    return _run(sandbox, ["sh", target], workdir, instruction_environment(instruction), details)


def _run(
    sandbox: Sandbox,
    argv: Sequence[str],
    workdir: str | None,
    environment: Mapping[str, str],
    details: Mapping[str, Any],
) -> AgentResult:
    try:
        result = sandbox.exec(argv, workdir=workdir, environment=environment)
    except (DeadlineExceeded, SandboxError) as error:
        return _unfinished(error, details)
    return AgentResult(exit_code=result.exit_code, details=details)


def _unfinished(error: Exception, details: Mapping[str, Any]) -> AgentResult:
    # The sandbox has seen the error too; what was drawn must be on record however the trial ends.
    return AgentResult(exit_code=None, summary=type(error).__name__, details=details)
