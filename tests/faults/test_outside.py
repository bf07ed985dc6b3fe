"""What others do to a trial's container, and what a trial does to its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from pytest_infranoise.model import Record
from pytest_infranoise.model import Timeouts
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from tests.faults.conftest import Judge
from tests.faults.injections import ENOUGH
from tests.faults.injections import SOLVE
from tests.faults.injections import WAIT_FOR_GO
from tests.faults.injections import Inject
from tests.faults.injections import Injections
from tests.faults.injections import image_with
from tests.faults.injections import in_process
from tests.trials.lab import VERIFY
from tests.trials.lab import WORK
from tests.trials.lab import Lab
from tests.trials.lab import beside
from tests.trials.lab import docker

pytestmark = pytest.mark.engine
INJECT = Injections()


def to_container(*argv: str, timeouts: Timeouts | None = None) -> Inject:
    def inject(lab: Lab) -> Record:
        task = lab.task(timeouts=timeouts) if timeouts else lab.task()
        with beside(lab, lambda container: docker(*argv, container)):
            return lab.do(WORK, task)

    return inject


def while_it_works(phase: str, act: Callable[[Lab], Callable[[str], object]]) -> Inject:
    """Act on the container from outside as soon as the phase's command runs."""

    def inject(lab: Lab) -> Record:
        task = lab.task(
            setup=WORK if phase == "setup" else None, verify=WORK if phase == "verifier" else VERIFY
        )  # fmt: skip
        with beside(lab, act(lab)):
            return lab.do(WORK if phase == "agent" else SOLVE, task)

    return inject


for phase in ("setup", "agent", "verifier"):
    INJECT[f"docker-kill-{phase}"] = while_it_works(phase, lambda lab: lambda container: docker("kill", container))
INJECT["docker-rm"] = to_container("rm", "--force")
INJECT["docker-stop"] = to_container("stop", "--time", "1")
INJECT["docker-restart"] = to_container("restart", "--time", "1")
INJECT["docker-pause"] = to_container("pause", timeouts=ENOUGH)


@INJECT("docker-kill-term")
def terminated(lab: Lab) -> Record:
    def act(container: str) -> None:
        docker("kill", "--signal", "TERM", container)
        docker("exec", container, "touch", "/app/go")

    with beside(lab, act):
        return lab.do(f"sh -c ': hard-at-work; {WAIT_FOR_GO}; {SOLVE}'")


@INJECT("host-kill-process-1")
def process_1(lab: Lab) -> Record:
    def kill(container: str) -> None:
        os.kill(int(docker("inspect", "--format", "{{.State.Pid}}", container)), signal.SIGKILL)

    with beside(lab, kill):
        return lab.do(WORK)


@INJECT("exec-on-removed")
def removed(lab: Lab) -> Record:
    def work(sandbox: Sandbox) -> None:
        sandbox.exec(["sh", "-c", SOLVE])
        docker("rm", "--force", sandbox.id)
        with pytest.raises(SandboxError):
            sandbox.exec(["true"])

    return in_process(lab, lab.task(), work)


INJECT["kill-everything"] = lambda lab: lab.do("sleep 60 & kill -9 -1; kill -9 $$")
INJECT["kill-everything-solved"] = lambda lab: lab.do(f"{SOLVE}; sleep 60 & kill -9 -1; kill -9 $$")
INJECT["signals-to-process-1"] = lambda lab: lab.do(
    f"for number in $(seq 1 64); do kill -$number 1 2>/dev/null; done; sleep 0.2; {SOLVE}"
)


INJECT["shell-removed"] = lambda lab: lab.do("rm -rf /bin /usr/bin")


@INJECT("own-process-1-ends")
def own_process_1(lab: Lab) -> Record:
    script = "trap 'exit 0' TERM; \\\"$@\\\" & while :; do wait; done"
    with image_with(f'ENTRYPOINT ["/bin/sh", "-c", "{script}", "sh"]') as image:
        return lab.do("kill -TERM 1; sleep 60", lab.task(image=image))


@pytest.mark.parametrize("fault", INJECT)
def test_outside_and_inside(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
