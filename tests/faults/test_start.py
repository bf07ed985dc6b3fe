"""Trials that do not come to start, or whose commands do not."""

from __future__ import annotations

import threading

import pytest

from pytest_infranoise.host import boot_id
from pytest_infranoise.model import Record
from pytest_infranoise.sandboxes import docker as backend_module
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.trials.runner import container_name
from tests.faults.conftest import Judge
from tests.faults.injections import SOLVE
from tests.faults.injections import Inject
from tests.faults.injections import Injections
from tests.faults.injections import image_with
from tests.faults.injections import run
from tests.sandboxes.proxy import a_wire
from tests.trials.lab import BASE
from tests.trials.lab import Lab
from tests.trials.lab import docker

pytestmark = pytest.mark.engine
INJECT = Injections()

FETCH = "perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerAddr => \"1.1.1.1:80\", Timeout => 2)'"


def with_image(*changes: str) -> Inject:
    def inject(lab: Lab) -> Record:
        with image_with(*changes) as image:
            return lab.do(SOLVE, lab.task(image=image))

    return inject


INJECT["image-missing"] = lambda lab: lab.do(SOLVE, lab.task(image="infranoise/no-such-image:1", pull="never"))
INJECT["image-bad-name"] = lambda lab: lab.do(SOLVE, lab.task(image="Not/AN//image"))
INJECT["image-unpullable"] = lambda lab: lab.do(SOLVE, lab.task(image="127.0.0.1:1/nothing:1"))
INJECT["bad-command"] = with_image('ENTRYPOINT ["/no/such/program"]')
INJECT["bad-command-not-executable"] = with_image('ENTRYPOINT ["/etc/passwd"]')
INJECT["bad-workdir"] = with_image("WORKDIR /etc/passwd")
INJECT["bad-user"] = lambda lab: lab.do(SOLVE, lab.task(user="nosuchuser"))
INJECT["ceiling-too-low"] = lambda lab: lab.do(SOLVE, memory=4)
INJECT["exec-never-started"] = lambda lab: lab.do(SOLVE, lab.task(agent_user="nosuchuser"))
INJECT["exec-126"] = lambda lab: lab.do("exit 126")
INJECT["setup-fails"] = lambda lab: lab.do(SOLVE, lab.task(setup="exit 4"))
INJECT["no-network-setup"] = lambda lab: lab.do(SOLVE, lab.task(setup=FETCH))
INJECT["no-network-agent"] = lambda lab: lab.do(f"{FETCH} && {SOLVE}; exit 0")


@INJECT("name-conflict")
def name_conflict(lab: Lab) -> Record:
    trial = lab.trial(lab.task(), command=SOLVE)
    other = docker("create", "--name", container_name(trial, lab.run, 0), BASE)
    try:
        return run(lab, trial)
    finally:
        docker("rm", "--force", other)


@INJECT("name-conflict-own")
def own_leftover(lab: Lab) -> Record:
    trial = lab.trial(lab.task(), command=SOLVE)
    labels = {"run": lab.run, "worker": "main", "trial": str(trial.key), "attempt": "0", "host": "here"}
    labels["boot"] = boot_id()
    flags = [part for name, value in labels.items() for part in ("--label", f"infranoise.{name}={value}")]
    docker("create", *flags, "--name", container_name(trial, lab.run, 0), BASE)
    return run(lab, trial)


@INJECT("create-timed-out")
def create_timed_out(lab: Lab) -> Record:
    with a_wire() as wire, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", wire.address)
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr("pytest_infranoise.sandboxes.engine._PING_SECONDS", 1.0)
        patch.setattr(backend_module, "_AFTER_FAILURE_SECONDS", 1.0)
        behind = DockerBackend(lab.run, timeout=2)
        behind.info()
        assert behind._events.open(10)
        image = behind.image(BASE, None, "never")
        mend = threading.Timer(4, wire.mend)
        trial = lab.trial(lab.task(), command=SOLVE)
        wire.hold_answers()
        mend.start()
        record = run(lab, trial, backend=behind, image=lambda task: image)
        mend.join()
        behind.close()
    assert wire.held_answers
    return record


@INJECT("network-removed")
def network_removed(lab: Lab) -> Record:
    assert isinstance(lab.backend, DockerBackend)
    docker("network", "rm", lab.backend.ensure_network())
    return lab.do(SOLVE, lab.task(network=True))


@pytest.mark.parametrize("fault", INJECT)
def test_start(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
