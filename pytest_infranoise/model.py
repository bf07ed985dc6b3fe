"""The project's vocabulary as pure data: what every other module talks about and nothing it does.

Both wings import this module: what runs trials fills these values, what reads runs counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any

RECORD_SCHEMA = 1


class Verdict(StrEnum):
    """How a trial ended."""

    PASS = "pass"
    FAIL = "fail"
    INFRA_ERROR = "infra-error"


class Cause(StrEnum):
    """Why a trial is an infra-error."""

    RESOURCE_KILL = "resource-kill"
    RESOURCE_EXHAUSTED = "resource-exhausted"
    HOST_PRESSURE = "host-pressure"
    HOST_DISK_FULL = "host-disk-full"
    EVICTED = "evicted"
    UNSCHEDULABLE = "unschedulable"
    IMAGE_PULL = "image-pull"
    NETWORK_SETUP = "network-setup"
    ENV_START = "env-start"
    DAEMON_LOST = "daemon-lost"
    EXEC_LOST = "exec-lost"
    CONTAINER_LOST = "container-lost"
    SETUP_FAILED = "setup-failed"
    VERIFIER_ERROR = "verifier-error"
    MODEL_API = "model-api"
    HARNESS_CRASH = "harness-crash"
    UNKNOWN = "unknown"


class FailReason(StrEnum):
    """What a fail, which is the agent's own, came from."""

    TESTS_FAILED = "tests-failed"
    AGENT_TIMEOUT = "agent-timeout"
    AGENT_CRASH = "agent-crash"
    SANDBOX_BROKEN = "sandbox-broken"


class Flag(StrEnum):
    """What was observed beside the verdict and never changes it."""

    OOM_KILLS = "oom-kills"
    PIDS_DENIED = "pids-denied"
    TIMED_OUT = "timed-out"
    STARVED = "starved"
    ENGINE_GAP = "engine-gap"
    LEAKED = "leaked"


class Phase(StrEnum):
    """The parts of a trial, each with its own clock, counters and exit status."""

    SETUP = "setup"
    AGENT = "agent"
    VERIFIER = "verifier"


@dataclass(frozen=True, slots=True)
class Spec:
    """A task's recommended resources: the 1x point.

    A task that states a floor and a ceiling has its floor as ``cpus`` and ``memory``.
    """

    cpus: float
    memory: int  # bytes
    cpus_ceiling: float | None = None
    memory_ceiling: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class Rule:
    """One resource's floor and ceiling as multiples of the spec; a ceiling of None is uncapped."""

    floor: float = 1.0
    ceiling: float | None = 1.0


@dataclass(frozen=True, slots=True)
class ResourceConfig:
    """A named rule that turns a spec into floors and ceilings."""

    name: str
    cpus: Rule
    memory: Rule


@dataclass(frozen=True, slots=True)
class Allocation:
    """The floor and ceiling that one trial gets, in cores and bytes; None means uncapped."""

    cpus_floor: float
    cpus_ceiling: float | None
    memory_floor: int
    memory_ceiling: int | None
    pids_ceiling: int = 4096
    shm_ceiling: int = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each phase may take."""

    setup: float = 60.0
    agent: float = 600.0
    verifier: float = 120.0


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way in which the ``scripted`` agent may try a task, drawn with probability ``odds``."""

    name: str
    script: Path
    odds: float


@dataclass(frozen=True, slots=True)
class Verifier:
    """What decides whether the agent solved the task.

    ``files`` are uploaded only when the agent phase is over; ``command`` is run by ``sh -c`` in the
    directory they were uploaded to.
    """

    command: str
    files: Path
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One benchmark problem, loaded and checked; nothing in it depends on a config."""

    name: str
    file: Path
    instruction: str
    image: str | None
    build: Path | None
    spec: Spec
    verifier: Verifier
    content_hash: str
    pull: str = "missing"
    timeouts: Timeouts = Timeouts()
    network: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str = "/app"
    files: Path | None = None
    setup: str | None = None
    oracle: Path | None = None
    strategies: tuple[Strategy, ...] = ()
    tags: tuple[str, ...] = ()
    keep_processes: bool = False
    pids_ceiling: int = 4096
    shm_ceiling: int = 64 * 1024**2
    unsupported: str | None = None

    @property
    def root(self) -> Path:
        """The task's directory."""
        return self.file.parent


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """An agent as the user chose it: by name, so that every process can build it again."""

    name: str
    kind: str
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class TrialKey:
    """What identifies a trial in a run, across processes, sessions and merged runs."""

    agent: str
    model: str
    task: str
    config: str
    sample: int

    def __str__(self) -> str:
        agent = f"{self.agent}({self.model})" if self.model else self.agent
        return f"{self.task}::{agent}-{self.config}-{self.sample}"

    def to_json(self) -> dict[str, Any]:
        """Return the five fields as a JSON object."""
        return {
            "agent": self.agent,
            "model": self.model,
            "task": self.task,
            "config": self.config,
            "sample": self.sample,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialKey:
        """Rebuild a key from ``to_json``."""
        return cls(data["agent"], data["model"], data["task"], data["config"], data["sample"])


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything one trial is run from."""

    key: TrialKey
    task: Task
    config: ResourceConfig
    allocation: Allocation
    agent: AgentChoice


@dataclass(frozen=True, slots=True)
class Record:
    """What is written down of one attempt at a trial; ``details`` holds the evidence, JSON-safe."""

    run: str
    key: TrialKey
    attempt: int
    task_hash: str
    verdict: Verdict
    rule: str
    summary: str
    cause: Cause | None = None
    reason: FailReason | None = None
    flags: tuple[Flag, ...] = ()
    reward: float | None = None
    worker: str = "main"
    started: float = 0.0  # seconds since the epoch
    seconds: float = 0.0
    peak_memory: int | None = None  # bytes, page cache included
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record as one JSON object, schema version first."""
        return {
            "schema": RECORD_SCHEMA,
            "run": self.run,
            **self.key.to_json(),
            "attempt": self.attempt,
            "task_hash": self.task_hash,
            "verdict": self.verdict.value,
            "cause": self.cause.value if self.cause else None,
            "reason": self.reason.value if self.reason else None,
            "rule": self.rule,
            "summary": self.summary,
            "flags": [flag.value for flag in self.flags],
            "reward": self.reward,
            "worker": self.worker,
            "started": self.started,
            "seconds": self.seconds,
            "peak_memory": self.peak_memory,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Rebuild a record from ``to_json``.

        Raises:
            ValueError: the record has a schema that this version does not know.
            KeyError: a field is missing.
        """
        if data["schema"] != RECORD_SCHEMA:
            raise ValueError(f"record schema {data['schema']!r} is not {RECORD_SCHEMA}")
        return cls(
            run=data["run"],
            key=TrialKey.from_json(data),
            attempt=data["attempt"],
            task_hash=data["task_hash"],
            verdict=Verdict(data["verdict"]),
            cause=Cause(data["cause"]) if data["cause"] else None,
            reason=FailReason(data["reason"]) if data["reason"] else None,
            rule=data["rule"],
            summary=data["summary"],
            flags=tuple(Flag(flag) for flag in data["flags"]),
            reward=data["reward"],
            worker=data["worker"],
            started=data["started"],
            seconds=data["seconds"],
            peak_memory=data["peak_memory"],
            details=data["details"],
        )
