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
    """What was observed beside the verdict and never changes it; ``tampered`` alone stands on no pass."""

    OOM_KILLS = "oom-kills"
    PIDS_DENIED = "pids-denied"
    TIMED_OUT = "timed-out"
    STARVED = "starved"
    ENGINE_GAP = "engine-gap"
    LEAKED = "leaked"
    TWO_REWARDS = "two-rewards"
    TAMPERED = "tampered"
    TOOLS_CHANGED = "tools-changed"


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
class Amount:
    """Cores or bytes that a config states outright, whatever a task's spec is."""

    value: float


@dataclass(frozen=True, slots=True)
class Rule:
    """One resource's floor and ceiling: a number is a multiple of the spec, a ceiling of None is uncapped.

    With ``own``, a task that states a ceiling itself has that one instead of ``ceiling``.
    """

    floor: float | Amount = 1.0
    ceiling: float | Amount | None = 1.0
    own: bool = False


@dataclass(frozen=True, slots=True)
class ResourceConfig:
    """A named rule that turns a spec into floors and ceilings; ``time`` multiplies the agent's timeout."""

    name: str
    cpus: Rule
    memory: Rule
    time: float = 1.0


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
class HostVariable:
    """A value that a task takes from this machine's environment when it runs; it is never written down."""

    name: str
    default: str | None = None


Environment = Mapping[str, "str | HostVariable"]


@dataclass(frozen=True, slots=True)
class Upload:
    """Something to put into a container: a file, a directory's content, or bytes, at the path ``target``."""

    source: Path | bytes = field(repr=False)
    target: str
    mode: int = 0o644  # of bytes


class Reads(StrEnum):
    """How a verifier's verdict is read; ``trials.readers`` has the rules of each."""

    NONCE = "nonce"  # our own artefact, INFRANOISE_REWARD_FILE
    REWARD_FILES = "reward-files"  # Harbor: /logs/verifier/reward.json, else reward.txt
    PYTEST_SUMMARY = "pytest-summary"  # Terminal-Bench 1: a result per test in what the command printed
    SWEBENCH = "swebench"  # the results of a repository's own tests in what the command printed


@dataclass(frozen=True, slots=True)
class Verifier:
    """What decides whether the agent solved the task.

    Args:
        command: run by ``sh -c`` once the agent phase is over.
        files: uploaded to ``target`` then, and no earlier.
        user: who runs the command; None is root, "" the image's own user.
        target: where ``files`` go. What was there before is removed, unless the image had it.
        uploads: what goes anywhere else, after ``files``; checked by hash like them.
        workdir: where the command runs; None is ``target``, "" the task's own working directory.
        environment: variables of the command alone.
        executable: a path among the uploads that is made executable.
        stale: paths that are removed as root before the command runs: nobody else may have written them.
        reads: how the verdict is read.
        options: what that way of reading needs to know of this task, JSON-safe.
    """

    command: str
    files: Path | None
    user: str | None = None
    target: str = "/infranoise/verifier"
    uploads: tuple[Upload, ...] = ()
    workdir: str | None = None
    environment: Environment = field(default_factory=dict)
    executable: str | None = None
    stale: tuple[str, ...] = ()
    reads: Reads = Reads.NONCE
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Solution:
    """How the agent ``oracle`` solves a task whose solution is more than one script (``Task.oracle``).

    Args:
        command: run by ``sh -c`` in the task's working directory as the agent's user.
        uploads: put into the container when the oracle starts, and for no other agent.
        environment: variables of the command alone.
        executable: a path among the uploads that is made executable.
    """

    command: str
    uploads: tuple[Upload, ...]
    environment: Environment = field(default_factory=dict)
    executable: str | None = None


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A command that must succeed in setup before the agent may start; times in seconds.

    Failures in the first ``start_period`` are not counted; after it, ``retries`` in a row are too many.
    """

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Task:
    """One benchmark problem, loaded and checked; nothing in it depends on a config.

    Args:
        user: the container's user; None is the image's own.
        workdir: where the agent works, made when missing; "" is the image's own, used as it is.
        agent_user: who runs the agent's commands where that is not the container's user.
        oracle: a script that solves the task, or ``solution``.
        directories: made in setup, writable for everybody.
        build_timeout: seconds that building the image may take; None is the default.
        storage: the disk space that the task asks for in bytes; no engine of ours enforces it.
        unsupported: why the task cannot be run faithfully; it is collected and skipped.
    """

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
    environment: Environment = field(default_factory=dict)
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
    agent_user: str | None = None
    solution: Solution | None = None
    healthcheck: Healthcheck | None = None
    directories: tuple[str, ...] = ()
    storage: int | None = None
    build_timeout: float | None = None

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
