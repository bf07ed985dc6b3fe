"""Out of memory, of every process that can be, and what only looks like it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Record
from pytest_infranoise.sandboxes import docker as backend_module
from pytest_infranoise.sandboxes.limits import host_options
from tests.faults.conftest import Judge
from tests.faults.injections import ENOUGH
from tests.faults.injections import HOG
from tests.faults.injections import SOLVE
from tests.faults.injections import WAIT_FOR_GO
from tests.faults.injections import Injections
from tests.faults.injections import run
from tests.faults.injections import with_shm
from tests.trials.lab import BASE
from tests.trials.lab import MIB
from tests.trials.lab import VERIFY
from tests.trials.lab import Lab
from tests.trials.lab import beside
from tests.trials.lab import docker
from tests.trials.test_runner import KILL_PROCESS_1

pytestmark = pytest.mark.engine
INJECT = Injections()

_CGROUPS = Path("/sys/fs/cgroup/memory")


INJECT["oom-main"] = lambda lab: run(lab, lab.trial(lab.task(), command="exec tail </dev/zero"))
INJECT["oom-main-children-count"] = lambda lab: run(
    lab, lab.trial(lab.task(), command="exec tail </dev/zero"), oom_child="fail"
)
INJECT["oom-child"] = lambda lab: lab.do(f"{HOG}; exit 0")
INJECT["oom-child-counts"] = lambda lab: run(lab, lab.trial(lab.task(), command=f"{HOG}; exit 0"), oom_child="fail")
INJECT["oom-grandchild-survived"] = lambda lab: lab.do(f"sh -c 'sh -c \"{HOG}\"'; {SOLVE}")
INJECT["oom-child-then-timeout"] = lambda lab: lab.do(f"{HOG}; sleep 60", lab.task(timeouts=ENOUGH))
INJECT["oom-setup"] = lambda lab: lab.do(SOLVE, lab.task(setup=HOG))
INJECT["oom-verifier"] = lambda lab: lab.do(SOLVE, lab.task(verify=f"{HOG} || exit\n{VERIFY}"))
INJECT["oom-process-1"] = lambda lab: lab.do(KILL_PROCESS_1)
INJECT["page-cache"] = lambda lab: lab.do(f"head -c 300M /dev/zero >/tmp/file; cat /tmp/file >/dev/null; {SOLVE}")


@INJECT("oom-tmpfs")
def tmpfs(lab: Lab) -> Record:
    trial = lab.trial(lab.task(), command="head -c 100M /dev/zero >/dev/shm/full; exit 0")
    return run(lab, with_shm(trial, 200))


@contextmanager
def under_one_parent(mib: int) -> Iterator[str]:
    """Put what is created meanwhile under a cgroup with a memory limit of its own."""
    parent = f"infranoise-fault-{os.getpid()}-{os.urandom(3).hex()}"
    place = _CGROUPS / parent
    place.mkdir()
    (place / "memory.limit_in_bytes").write_text(str(mib * MIB))

    def options(allocation: Allocation) -> dict[str, Any]:
        return {**host_options(allocation), "cgroup_parent": f"/{parent}"}

    try:
        with patch.object(backend_module, "host_options", options):
            yield parent
    finally:
        for controller in _CGROUPS.parent.iterdir():
            if (controller / parent).is_dir():
                (controller / parent).rmdir()


@INJECT("oom-parent")
def parent(lab: Lab) -> Record:
    with under_one_parent(100):
        return lab.do(f"{HOG}; exit 0", memory=2048)


@INJECT("oom-neighbour")
def neighbour(lab: Lab) -> Record:
    with under_one_parent(100) as parent:
        hog = ["docker", "run", "--rm", "--network=none", f"--cgroup-parent=/{parent}", "--oom-score-adj=1000"]
        command = f"{' '.join(hog)} {BASE} sh -c '{HOG}'"
        agent = f"{WAIT_FOR_GO}; echo wrong > answer"

        def act(container: str) -> None:
            subprocess.run(command, shell=True, capture_output=True, timeout=60)
            docker("exec", container, "touch", "/app/go")

        with beside(lab, act):
            return lab.do(f"sh -c ': hard-at-work; {agent}'", memory=2048)


@pytest.mark.parametrize("fault", INJECT)
def test_memory(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
