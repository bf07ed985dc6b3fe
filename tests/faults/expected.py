"""What every fault must end as: written from the method (docs/verdicts.md), before any of them was injected.

``outcome`` is the verdict with its cause or reason, or what takes the place of a verdict. ``rule`` is the number of
the rule that must decide, None where more than one may. ``flags`` are all that must be there and no others, but for
``starved``, which a busy machine may add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag

PASS = "pass"
CONFIG_ERROR = "config-error"
INTERRUPTED = "interrupted"
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the table."""

    how: str
    outcome: str
    rule: int | None = None
    flags: tuple[Flag, ...] = ()


def infra(how: str, cause: Cause, rule: int | None, *flags: Flag) -> Fault:
    return Fault(how, f"infra-error: {cause}", rule, flags)


def fail(how: str, reason: FailReason, *flags: Flag, rule: int = 13) -> Fault:
    return Fault(how, f"fail: {reason}", rule, flags)


def doubted(how: str, *flags: Flag) -> Fault:
    """Return what becomes of a pass that an agent may have given itself."""
    return infra(how, Cause.VERIFIER_ERROR, 12, Flag.TAMPERED, *flags)


def passes(how: str, *flags: Flag) -> Fault:
    return Fault(how, PASS, 2, flags)


def mistake(how: str) -> Fault:
    return Fault(how, CONFIG_ERROR)


OOM, PIDS, LATE, GAP, LEAK = Flag.OOM_KILLS, Flag.PIDS_DENIED, Flag.TIMED_OUT, Flag.ENGINE_GAP, Flag.LEAKED
TESTS_FAILED, CRASH, TIMEOUT = FailReason.TESTS_FAILED, FailReason.AGENT_CRASH, FailReason.AGENT_TIMEOUT

MEMORY = {
    "oom-main": infra("the agent's main process grows past the ceiling", Cause.RESOURCE_KILL, 6, OOM),
    "oom-main-children-count": infra(
        "the same where a child's death counts as a fail", Cause.RESOURCE_KILL, 6, OOM
    ),
    "oom-child": infra("a child grows past the ceiling, the agent goes on", Cause.RESOURCE_KILL, 6, OOM),
    "oom-child-counts": fail("the same where a child's death counts as a fail", TESTS_FAILED, OOM),
    "oom-grandchild-survived": passes("a grandchild is killed, the agent solves the task all the same", OOM),
    "oom-child-then-timeout": infra("a child is killed, then the time is over", Cause.RESOURCE_KILL, 6, OOM, LATE),
    "oom-setup": infra("the setup command grows past the ceiling", Cause.RESOURCE_KILL, 6, OOM),
    "oom-verifier": infra("the verifier grows past the ceiling", Cause.RESOURCE_KILL, 6, OOM),
    "oom-process-1": infra("process 1 is made the kernel's first victim", Cause.RESOURCE_KILL, 6, OOM),
    "oom-tmpfs": infra("files in /dev/shm fill the memory ceiling", Cause.RESOURCE_KILL, 6, OOM),
    "oom-parent": infra("a cgroup above is full, the trial far below its ceiling", Cause.HOST_PRESSURE, 6, OOM),
    "oom-neighbour": fail("a neighbour under one parent limit is killed, and ours blamed", TESTS_FAILED),
    "page-cache": passes("files fill the ceiling with page cache"),
}

OUTSIDE = {
    "host-kill-process-1": infra("kill -9 of process 1 on the host", Cause.CONTAINER_LOST, 9),
    "docker-kill-setup": infra("docker kill in the setup phase", Cause.CONTAINER_LOST, 9),
    "docker-kill-agent": infra("docker kill in the agent phase", Cause.CONTAINER_LOST, 9),
    "docker-kill-verifier": infra("docker kill in the verifier phase", Cause.CONTAINER_LOST, 9),
    "docker-rm": infra("docker rm -f during a command", Cause.CONTAINER_LOST, 9),
    "docker-stop": infra("docker stop during a command", Cause.CONTAINER_LOST, 9),
    "docker-restart": infra("docker restart during a command", Cause.CONTAINER_LOST, 9),
    "docker-pause": infra("docker pause until the time is over", Cause.CONTAINER_LOST, 9, LATE),
    "docker-kill-term": passes("docker kill --signal TERM, which ends nothing"),
    "exec-on-removed": infra("the container is removed between two commands", Cause.CONTAINER_LOST, 9),
}

INSIDE = {
    "kill-everything": fail("the agent kills all processes it can, itself last", CRASH),
    "kill-everything-solved": passes("the same, after the work was done"),
    "signals-to-process-1": passes("the agent sends process 1 every signal"),
    "shell-removed": fail("the agent removes /bin", FailReason.SANDBOX_BROKEN, rule=9),
    "own-process-1-ends": fail(
        "an image's own process 1 is told to end", FailReason.SANDBOX_BROKEN, rule=9
    ),
}  # fmt: skip

LIMITS = {
    "pids": infra("the agent starts more processes than its ceiling", Cause.RESOURCE_EXHAUSTED, 8, PIDS),
    "pids-solved": passes("the same, and the task is solved", PIDS),
    "pids-verifier": infra("the verifier starts more processes", Cause.RESOURCE_EXHAUSTED, 8, PIDS),
    "full-shm": infra("the agent fills /dev/shm", Cause.RESOURCE_EXHAUSTED, 8),
    "full-shm-solved": passes("the same, and the task is solved"),
    "full-shm-verifier": infra("the verifier fills /dev/shm", Cause.RESOURCE_EXHAUSTED, 8),
    "full-tmpfs": infra("the agent fills the tmpfs on /dev", Cause.RESOURCE_EXHAUSTED, 8),
    "full-data-root-create": infra("the engine's disk is full at create", Cause.HOST_DISK_FULL, 8),
    "full-data-root-agent": infra("the engine's disk fills up under the agent", Cause.HOST_DISK_FULL, 8),
    "full-data-root-verifier": infra("it is full when the tests come", Cause.HOST_DISK_FULL, 8),
}

START = {
    "image-missing": mistake("an image that is not there and may not be pulled"),
    "image-bad-name": mistake("an image name that cannot be one"),
    "image-unpullable": infra("a registry that refuses connections", Cause.IMAGE_PULL, 5),
    "bad-command": mistake("an entry point that is not there"),
    "bad-command-not-executable": mistake("an entry point that cannot be executed"),
    "bad-user": mistake("a user that is not there"),
    "bad-workdir": mistake("a working directory that is a file"),
    "ceiling-too-low": mistake("a memory ceiling below what the engine takes"),
    "name-conflict": infra("somebody else's container has the name", Cause.ENV_START, 5),
    "name-conflict-own": passes("this attempt's own left-over has the name"),
    "create-timed-out": infra("the answer to create is lost, the container made", Cause.DAEMON_LOST, 10, GAP),
    "exec-never-started": infra("a command under an unknown user", Cause.EXEC_LOST, 10),
    "exec-126": fail("a command that exits 126 by itself", CRASH),
    "network-pool-exhausted": infra("no address pool is left", Cause.NETWORK_SETUP, 5),
    "network-removed": infra("our network is removed before the start", Cause.NETWORK_SETUP, 5),
    "no-network-setup": infra("setup needs a network, and there is none", Cause.SETUP_FAILED, 11),
    "no-network-agent": fail("the agent needs a network, and there is none", TESTS_FAILED),
    "setup-fails": infra("the setup command ends with 4", Cause.SETUP_FAILED, 11),
}

TIME = {
    "agent-timeout": fail("the agent's time is over", TIMEOUT, LATE),
    "agent-timeout-solved": passes("the same, after the work was done", LATE),
    "agent-timeout-detached": fail("the same, with a detached child that would finish the work", TIMEOUT, LATE),
    "agent-timeout-no-verdict": infra("the agent's time is over, then no verdict", Cause.VERIFIER_ERROR, 12, LATE),
    "setup-timeout": infra("the setup's time is over", Cause.SETUP_FAILED, 7),
    "verifier-timeout": infra("the verifier's time is over", Cause.VERIFIER_ERROR, 7),
    "verifier-timeout-late": passes("the same, after it gave its verdict"),
}

_NO_VERDICT = {
    "none": "nothing",
    "empty": "an empty file",
    "nan": "NaN",
    "huge-number": "a number beyond any float",
    "huge-file": "a file of megabytes",
    "binary": "random bytes",
    "directory": "a directory",
}
VERIFIER = {
    "verifier-crash": infra("the verifier dies of SIGSEGV", Cause.VERIFIER_ERROR, 12),
    "verifier-kills-itself": infra("the verifier dies of its own SIGKILL", Cause.VERIFIER_ERROR, 12),
    **{
        f"{way}-{name}": infra(f"the verifier leaves {what} ({place})", Cause.VERIFIER_ERROR, 12)
        for way, place in (("nonce", "our artefact"), ("files", "reward files"))
        for name, what in _NO_VERDICT.items()
    },
    "files-huge-json": infra("a reward.json too large to read beside reward.txt", Cause.VERIFIER_ERROR, 12),
    "nonce-wrong": infra("the verdict carries another nonce", Cause.VERIFIER_ERROR, 12),
    "no-tests": infra("the verifier states that no test ran", Cause.VERIFIER_ERROR, 12),
    "no-report": infra("a 0 without the test tool's report", Cause.VERIFIER_ERROR, 12),
    "two-rewards-pass": passes("reward.json says 1, reward.txt 0", Flag.TWO_REWARDS),
    "two-rewards-fail": fail("reward.json says 0, reward.txt 1", TESTS_FAILED, Flag.TWO_REWARDS),
}

OUTPUT = {
    "output-1-gb": passes("the agent prints 1 GB"),
    "output-invalid-utf8": passes("the agent and the verifier print bytes that are no UTF-8"),
    "output-control-characters": passes("the agent and the verifier print control characters"),
    "output-control-characters-fail": infra("setup fails with control characters", Cause.SETUP_FAILED, 11),
}

_CODES = {1: "", 126: "", 127: "", 137: " (SIGKILL)", 139: " (SIGSEGV)", 143: " (SIGTERM)"}
AGENTS = {
    **{f"exit-{code}": fail(f"the agent ends with {code}{how}", CRASH) for code, how in _CODES.items()},
    **{f"exit-{code}-solved": passes(f"the same{how}, after the work was done") for code, how in _CODES.items()},
    "agent-code-raises": infra("the agent's own code raises", Cause.HARNESS_CRASH, 11),
    "agent-process-dies": infra("the agent's process on the host dies", Cause.HARNESS_CRASH, 11),
    "provider-exhausted": infra("the agent says that its provider failed", Cause.MODEL_API, 11),
    "told-to-stop": Fault("Ctrl-C while the agent works", INTERRUPTED),
}

ENGINE = {
    **{
        f"engine-killed-{phase}": infra(f"dockerd killed and restarted, {phase} phase", Cause.DAEMON_LOST, 4, GAP)
        for phase in ("setup", "agent", "verifier")
    },
    **{
        f"engine-stopped-{phase}": infra(f"dockerd stopped, {phase} phase", Cause.DAEMON_LOST, 4, GAP, LEAK)
        for phase in ("setup", "agent", "verifier")
    },
    "engine-gone": infra("dockerd killed for good", Cause.DAEMON_LOST, 4, GAP, LEAK),
    "engine-gone-create": infra("no dockerd at create", Cause.DAEMON_LOST, 4, GAP, LEAK),
    "engine-blink-solved": passes("the connection breaks off for a moment, then a pass", GAP),
    "engine-blink": infra("the connection breaks off for a moment, then no pass", Cause.DAEMON_LOST, 4, GAP),
}

HARNESS = {
    "worker-killed-before": infra("a worker is killed before its journal line", Cause.HARNESS_CRASH, 0),
    "worker-killed-after": passes("a worker is killed after its journal line"),
    "runner-disk-full": Fault("the runner's disk is full", MISSING),
}

TAMPERING = {
    "tamper-planted": fail("rewards planted before the verifier starts", TESTS_FAILED),
    "tamper-rewritten": doubted("a background process rewrites the reward"),
    "tamper-link": doubted("a background process puts a link in the reward's place"),
    "tamper-tests": fail("the tests are changed before the verifier's come", TESTS_FAILED),
    "tamper-interpreter": doubted("a program that the verifier calls is put in front of the image's"),
    "tamper-interpreter-replaced": doubted("an interpreter of the image is replaced in its place"),
    "tamper-moved": doubted("a program is deleted and another one put where scripts find it"),
    "tamper-image-path": doubted("a program is put where only the image's own PATH leads"),
    "tamper-directory": doubted(
        "a directory is made anew without a program, which is then put elsewhere", Flag.TOOLS_CHANGED
    ),
    "tamper-same-size": doubted("a program that setup installed is replaced, size and time restored"),
    "tamper-touched-record": doubted("a program is replaced, and a package manager's record touched"),
    "tamper-link-to-own": doubted("a program is made a link to one that the agent wrote"),
    "tamper-disguised": doubted("a process that looks like ours rewrites the reward"),
    "tamper-disguised-later": doubted("a process of the agent comes to look like ours while the verifier runs"),
    "tamper-disguised-late": fail("a process that looks like ours works on after the deadline", TIMEOUT, LATE),
    "tamper-second-reward": doubted("a background process adds a reward.json", Flag.TWO_REWARDS),
}

FAULTS: Mapping[str, Fault] = {
    **MEMORY, **OUTSIDE, **INSIDE, **LIMITS, **START, **TIME, **VERIFIER, **OUTPUT, **AGENTS, **ENGINE, **HARNESS,
    **TAMPERING,
}  # fmt: skip
