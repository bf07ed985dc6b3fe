"""Engines that go away under a trial: killed, stopped, or not to be reached for a moment."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_infranoise.model import Record
from pytest_infranoise.sandboxes.docker import DockerBackend
from tests.faults.conftest import Judge
from tests.faults.injections import SOLVE
from tests.faults.injections import WAIT_FOR_GO
from tests.faults.injections import Inject
from tests.faults.injections import Injections
from tests.faults.injections import run
from tests.sandboxes.proxy import a_wire
from tests.trials.lab import VERIFY
from tests.trials.lab import WORK
from tests.trials.lab import Lab
from tests.trials.lab import beside
from tests.trials.lab import docker
from tests.trials.second_engine import SecondEngine
from tests.trials.second_engine import second_engine
from tests.trials.second_engine import unavailable
from tests.trials.test_engine_gone import QuietLab
from tests.trials.test_engine_gone import impatient

pytestmark = [
    pytest.mark.engine,
    # The SDK leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]
INJECT = Injections()
ENGINES: list[SecondEngine] = []


@pytest.fixture(scope="module")
def second() -> Iterator[SecondEngine]:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with second_engine() as second:
        ENGINES.append(second)
        yield second


@pytest.fixture
def far_lab(second: SecondEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("DOCKER_HOST", second.address)
    impatient(monkeypatch)
    for place in ("engine._PING_SECONDS", "execs._ENGINE_PATIENCE", "container._ENGINE_PATIENCE"):
        monkeypatch.setattr(f"pytest_infranoise.sandboxes.{place}", 1.0)
    monkeypatch.setattr("pytest_infranoise.sandboxes.docker._AFTER_FAILURE_SECONDS", 1.0)
    backend = DockerBackend(f"fault-{tmp_path.name}", timeout=2)
    yield QuietLab(tmp_path, backend, backend.run)
    backend.close()
    gc.collect()


def working_in(lab: Lab, phase: str) -> Record:
    task = lab.task(setup=WORK if phase == "setup" else None, verify=WORK if phase == "verifier" else VERIFY)
    return lab.do(WORK if phase == "agent" else SOLVE, task)


def killed_and_restarted(phase: str) -> Inject:
    def inject(lab: Lab) -> Record:
        (second,) = ENGINES
        starting = threading.Thread(target=second.start)

        def restart(_: str) -> None:
            second.signal(signal.SIGKILL)
            starting.start()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pytest_infranoise.trials.course.READY_SECONDS", 20.0)
            patch.setattr("pytest_infranoise.trials.runner.READY_SECONDS", 20.0)
            with beside(lab, restart):
                record = working_in(lab, phase)
        starting.join()
        return record

    return inject


def stopped(phase: str) -> Inject:
    def inject(lab: Lab) -> Record:
        (second,) = ENGINES
        try:
            with beside(lab, lambda _: second.signal(signal.SIGSTOP)):
                return working_in(lab, phase)
        finally:
            second.signal(signal.SIGCONT)

    return inject


for phase in ("setup", "agent", "verifier"):
    INJECT[f"engine-killed-{phase}"] = killed_and_restarted(phase)
    INJECT[f"engine-stopped-{phase}"] = stopped(phase)


@INJECT("engine-gone")
def gone(lab: Lab) -> Record:
    (second,) = ENGINES
    try:
        with beside(lab, lambda _: second.signal(signal.SIGKILL)):
            return lab.do(WORK)
    finally:
        second.start()


@INJECT("engine-gone-create")
def gone_at_create(lab: Lab) -> Record:
    (second,) = ENGINES
    image = lab.backend.image(lab.task().image, None, "never")
    second.signal(signal.SIGKILL)
    try:
        return run(lab, lab.trial(lab.task(), command=SOLVE), image=lambda task: image)
    finally:
        second.start()


@pytest.mark.parametrize("fault", INJECT)
def test_engine(fault: str, far_lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](far_lab), far_lab.run)


BLINK = Injections()


def blinking(after: str) -> Inject:
    def inject(lab: Lab) -> Record:
        lab.backend.info()  # connects it to the engine itself
        with a_wire() as wire, pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", wire.address)
            patch.setenv("NO_PROXY", "127.0.0.1")
            behind = DockerBackend(lab.run, timeout=10)

            def blink(container: str) -> None:
                wire.cut()
                time.sleep(0.3)
                wire.mend()
                docker("exec", container, "touch", "/app/go")

            trial = lab.trial(lab.task(), command=f"sh -c ': hard-at-work; {WAIT_FOR_GO}'; {after}")
            with beside(lab, blink):
                record = run(lab, trial, backend=behind)
            behind.close()
        return record

    return inject


BLINK["engine-blink-solved"] = blinking(SOLVE)
BLINK["engine-blink"] = blinking("exit 0")


@pytest.mark.parametrize("fault", BLINK)
def test_connection(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: BLINK[fault](lab), lab.run)
