"""Trials whose engine goes away under them."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.agents.builtin import NopAgent
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Trial
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.trials import course
from pytest_infranoise.trials import runner
from tests.trials.lab import WORK
from tests.trials.lab import Lab
from tests.trials.lab import beside
from tests.trials.lab import containers_of
from tests.trials.second_engine import SecondEngine
from tests.trials.second_engine import second_engine
from tests.trials.second_engine import unavailable

pytestmark = [
    pytest.mark.engine,
    # The SDK leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def second(engine: None) -> Iterator[SecondEngine]:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with second_engine() as second:
        yield second


class QuietLab(Lab):
    """Does not ask the engine for anything of its own."""

    def admit(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        return nullcontext({})


@pytest.fixture
def lab(second: SecondEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("DOCKER_HOST", second.address)
    run = f"test-{tmp_path.name}"
    backend = DockerBackend(run, timeout=2)
    yield QuietLab(tmp_path, backend, run)
    assert backend.ready(30)
    backend.remove_labelled({"infranoise.run": run})
    backend.close()
    assert containers_of(run) == []
    gc.collect()


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "READY_SECONDS", 1.0)
    monkeypatch.setattr(runner, "READY_SECONDS", 1.0)


def test_an_engine_that_is_killed(lab: Lab, second: SecondEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    try:
        with beside(lab, lambda _: second.signal(signal.SIGKILL)):
            record = lab.do(WORK)
    finally:
        second.start()
    assert (record.verdict, record.cause, record.rule) == (
        Verdict.INFRA_ERROR,
        Cause.DAEMON_LOST,
        "4 engine lost",
    )
    assert record.flags == (Flag.ENGINE_GAP, Flag.LEAKED)
    assert record.details["engine_answers"] is False
    assert len(containers_of(lab.run)) == 1


def test_an_engine_that_comes_back(lab: Lab, second: SecondEngine) -> None:
    starting = threading.Thread(target=second.start)

    def restart(_: str) -> None:
        second.signal(signal.SIGKILL)
        starting.start()

    with beside(lab, restart):
        record = lab.do(WORK)
    starting.join()
    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.DAEMON_LOST)
    assert record.flags == (Flag.ENGINE_GAP,)
    assert containers_of(lab.run) == []


def test_an_engine_that_hangs(lab: Lab, second: SecondEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    try:
        with beside(lab, lambda _: second.signal(signal.SIGSTOP)):
            record = lab.do(WORK)
    finally:
        second.signal(signal.SIGCONT)
    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.DAEMON_LOST)
    assert Flag.LEAKED in record.flags


def test_no_engine_at_create(lab: Lab, second: SecondEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    lab.backend.image(lab.task().image, None, "never")
    second.signal(signal.SIGKILL)
    trial = lab.trial(lab.task())
    try:
        record = lab.run_trial(trial, NopAgent(), image=lambda task: str(task.image))
    finally:
        second.start()
    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.DAEMON_LOST)
    assert list(record.details["phases"]) == ["start"]
