"""Real trials from a few words."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.protocol import Agent
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import write_meta
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Record
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Rule
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Trial
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verifier
from pytest_infranoise.sandboxes.protocol import Backend
from pytest_infranoise.trials.runner import TrialContext
from pytest_infranoise.trials.runner import run_trial

BASE = "infranoise/base:bookworm"
MIB = 1024**2
SAY = """printf '{"reward": %s, "nonce": "%s"}\\n' "$reward" "$INFRANOISE_NONCE" > "$INFRANOISE_REWARD_FILE"\n"""
# The task of most trials here: leave the word "done" in the file answer.
VERIFY = f'reward=0; [ "$(cat "$INFRANOISE_WORKDIR/answer" 2>/dev/null)" = done ] && reward=1\n{SAY}'

WORK = "sh -c 'sleep 60; : hard-at-work'"  # for an agent that somebody else is to end


def docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def containers_of(run: str) -> list[str]:
    return docker("ps", "--all", "--quiet", "--filter", f"label=infranoise.run={run}").split()


@dataclass
class Lab:
    """Makes trials from a few words, runs them for real, and reads back what is on disk."""

    path: Path
    backend: Backend
    run: str = field(default_factory=lambda: f"test-{os.getpid()}-{os.urandom(3).hex()}")
    seed: int = 1
    admissions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_dir = self.path / "run"
        write_meta(self.run_dir, {"run": self.run, "planned": []})
        self.journal = Journal(self.run_dir, "main")

    def task(self, *, verify: str = VERIFY, name: str = "job", **changes: Any) -> Task:
        root = self.path / f"task-{os.urandom(4).hex()}"
        files = root / "verifier"
        files.mkdir(parents=True)
        (files / "verify.sh").write_text(verify)
        (root / "task.yaml").write_text("infranoise: 1\n")
        values = {
            "name": name,
            "file": root / "task.yaml",
            "instruction": "Write done to the file answer.\n",
            "image": BASE,
            "build": None,
            "spec": Spec(1, 64 * MIB),
            "verifier": Verifier("sh verify.sh", files),
            "content_hash": "c0ffee",
            "timeouts": Timeouts(setup=20, agent=20, verifier=20),
            "network": False,
        }
        return Task(**{**values, **changes})

    def trial(
        self,
        task: Task,
        *,
        memory: int | None = 64,
        cpus: float = 2.0,
        pids: int = 256,
        sample: int = 0,
        **options: Any,
    ) -> Trial:
        ceiling = None if memory is None else memory * MIB
        name = "uncapped" if memory is None else "1x"
        rule = Rule(1.0, None if memory is None else 1.0)
        choice = AgentChoice("agent", "command", options={"command": "true", **options})
        return Trial(
            TrialKey("agent", "", task.name, name, sample),
            task,
            ResourceConfig(name, rule, rule),
            Allocation(min(cpus, 1.0), cpus, 64 * MIB, ceiling, pids_ceiling=pids),
            choice,
        )

    @contextlib.contextmanager
    def _admit(self, trial: Trial) -> Iterator[Mapping[str, Any]]:
        self.admissions.append("granted")
        yield {"waited_seconds": 0.0}
        self.admissions.append(f"released with {len(containers_of(self.run))} containers")

    def admit(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        return self._admit(trial)

    def context(self, **changes: Any) -> TrialContext:
        context = TrialContext(
            run=self.run,
            run_dir=self.run_dir,
            worker="main",
            host="here",
            backend=self.backend,
            journal=self.journal,
            pass_threshold=1.0,
            image=lambda task: self.backend.image(task.image, task.build, task.pull),
            admit=self.admit,
        )
        return replace(context, **changes)

    def do(self, command: str, task: Task | None = None, *, memory: int | None = 64, **options: Any) -> Record:
        """Run one trial with the command as its agent."""
        trial = self.trial(task or self.task(), memory=memory, command=command, **options)
        return self.run_trial(trial, make_builtin(AgentContext(trial.agent, trial.task, trial.key, self.seed)))

    def run_trial(self, trial: Trial, agent: Agent, **changes: Any) -> Record:
        record = run_trial(trial, agent, self.context(**changes))
        assert self.records()[-1] == Record.from_json(record.to_json())
        return record

    def read(self) -> Run:
        return read_run(self.run_dir)

    def records(self) -> list[Record]:
        read = self.read()
        assert read.damaged == 0
        return sorted(read.records, key=lambda record: record.started)

    def log(self, name: str) -> str:
        (path,) = (self.run_dir / "artifacts").rglob(f"{name}.log")
        return path.read_text()


def at_work(lab: Lab) -> str | None:
    for container in containers_of(lab.run):
        top = subprocess.run(["docker", "top", container], capture_output=True, timeout=60)
        if b"hard-at-work" in top.stdout:
            return container
    return None


@contextlib.contextmanager
def beside(lab: Lab, act: Callable[[str], object]) -> Iterator[None]:
    """Do something to the trial's container from outside as soon as its agent runs."""
    failed: list[BaseException] = []

    def wait_and_act() -> None:
        try:
            give_up = time.monotonic() + 30
            while (container := at_work(lab)) is None:
                assert time.monotonic() < give_up
                time.sleep(0.05)
            act(container)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    yield
    thread.join()
    assert not failed, failed
