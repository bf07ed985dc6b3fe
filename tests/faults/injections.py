"""What the modules of the matrix share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Reads
from pytest_infranoise.model import Record
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Trial
from pytest_infranoise.model import Verifier
from pytest_infranoise.sandboxes.protocol import Sandbox
from tests.agents.agents import InProcess
from tests.trials.lab import BASE
from tests.trials.lab import MIB
from tests.trials.lab import Lab
from tests.trials.lab import docker

Inject = Callable[[Lab], Record | str]

SOLVE = "echo done > answer"
# `tail` keeps a whole line in memory, and zeros are one line.
HOG = "head -c 200M /dev/zero | tail >/dev/null"
SHORT = Timeouts(setup=60, agent=1, verifier=60)
# For what must have happened before the time is over, on a busy machine too.
ENOUGH = Timeouts(setup=60, agent=4, verifier=60)
WAIT_FOR_GO = "while [ ! -e go ]; do sleep 0.05; done"
REWARDS = "/logs/verifier"


class Injections(dict[str, Inject]):
    """Faults by their names in the table."""

    def __call__(self, *names: str) -> Callable[[Inject], Inject]:
        def named(inject: Inject) -> Inject:
            for name in names:
                assert name not in self
                self[name] = inject
            return inject

        return named


def run(lab: Lab, trial: Trial, **changes: Any) -> Record:
    """Run a trial with its built-in agent; ``changes`` are of what its process gives to it."""
    agent = make_builtin(AgentContext(trial.agent, trial.task, trial.key, lab.seed))
    return lab.run_trial(trial, agent, **changes)


def in_process(lab: Lab, task: Task, act: Callable[[Sandbox], object]) -> Record:
    """Run a trial whose agent acts through the sandbox and from outside."""

    def work(sandbox: Sandbox) -> AgentResult:
        act(sandbox)
        return AgentResult()

    return lab.run_trial(lab.trial(task), InProcess(work))


def with_shm(trial: Trial, mib: int) -> Trial:
    return replace(trial, allocation=replace(trial.allocation, shm_ceiling=mib * MIB))


def grade(lab: Lab, script: str, **changes: Any) -> Task:
    """Return a task whose verifier leaves Harbor's reward files."""
    task = lab.task(verify=script)
    options: dict[str, Any] = {
        "files": [f"{REWARDS}/reward.json", f"{REWARDS}/reward.txt"],
        "ctrf": f"{REWARDS}/ctrf.json",
        "writes_ctrf": False,
    }
    options.update(changes.pop("options", {}))
    verifier = Verifier(
        "sh /tests/verify.sh",
        task.verifier.files,
        target="/tests",
        workdir="",
        stale=(*options["files"], options["ctrf"]),
        reads=Reads.REWARD_FILES,
        options=options,
    )
    return lab.task(verifier=verifier, directories=(REWARDS,), **changes)


@contextmanager
def image_with(*changes: str) -> Iterator[str]:
    """Make an image of the base image with Dockerfile instructions."""
    container = docker("create", BASE)
    try:
        flags = [part for change in changes for part in ("--change", change)]
        image = docker("commit", *flags, container)
    finally:
        docker("rm", "--force", container)
    try:
        yield image
    finally:
        subprocess.run(["docker", "rmi", "--force", image], capture_output=True, timeout=60)
