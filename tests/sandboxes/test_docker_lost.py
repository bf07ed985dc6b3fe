from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from docker import APIClient

from pytest_infranoise.sandboxes.docker import RUN_LABEL
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.protocol import EngineLost

from .conftest import request_for
from .proxy import Wire
from .proxy import a_wire

pytestmark = pytest.mark.engine

SECONDS = 2.0  # that a call to the engine may take in these tests


@pytest.fixture
def wire() -> Iterator[Wire]:
    with a_wire() as wire:
        yield wire


@pytest.fixture
def backend(backend: DockerBackend, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerBackend]:
    """A backend at the end of the wire; the other one cleans up after it."""
    monkeypatch.setenv("DOCKER_HOST", wire.address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pytest_infranoise.sandboxes.engine._PING_SECONDS", 1.0)
    monkeypatch.setattr("pytest_infranoise.sandboxes.execs._ENGINE_PATIENCE", 1.0)
    monkeypatch.setattr("pytest_infranoise.sandboxes.container._ENGINE_PATIENCE", 1.0)
    monkeypatch.setattr("pytest_infranoise.sandboxes.docker._AFTER_FAILURE_SECONDS", 1.0)
    behind = DockerBackend(backend.run, timeout=SECONDS)
    yield behind
    behind.close()


def later(action: object) -> threading.Timer:
    assert callable(action)
    timer = threading.Timer(0.5, action)
    timer.start()
    return timer


@pytest.mark.parametrize("how", ["cut", "hold_answers"])
def test_an_engine_that_goes_away_while_a_command_runs(backend: DockerBackend, wire: Wire, how: str) -> None:
    sandbox = backend.create(request_for())
    timer = later(getattr(wire, how))

    began = time.monotonic()
    with pytest.raises(EngineLost):
        sandbox.exec(["sleep", "600"])
    timer.join()

    assert time.monotonic() - began < 60
    assert not backend.ready(0)
    state = sandbox.state()
    assert (state.running, state.exit_code) == (None, None)
    if how == "cut":
        assert state.event_gap
    assert not sandbox.remove()


def test_an_engine_that_is_back_is_used_again(backend: DockerBackend, wire: Wire) -> None:
    sandbox = backend.create(request_for())
    wire.cut()
    with pytest.raises(EngineLost):
        sandbox.exec(["true"])
    assert not backend.ready(0.2)

    wire.mend()

    assert backend.ready(10)
    assert sandbox.exec(["echo", "back"]).output == b"back\n"
    assert sandbox.state().event_gap
    assert sandbox.remove()


def test_one_refused_connection_is_not_the_end(backend: DockerBackend, wire: Wire) -> None:
    sandbox = backend.create(request_for())

    def blink() -> None:
        wire.cut()
        time.sleep(0.2)
        wire.mend()

    timer = later(blink)
    result = sandbox.exec(["sh", "-c", "echo out; sleep 1.5; exit 3"])
    timer.join()

    assert (result.exit_code, result.lost) == (3, None)


def test_events_go_on_after_a_gap(backend: DockerBackend, wire: Wire, engine: APIClient) -> None:
    sandbox = backend.create(request_for())
    wire.cut()
    engine.kill(sandbox.id)
    engine.wait(sandbox.id)

    wire.mend()
    assert backend.ready(10)
    assert backend._events.open(30)
    assert backend._events.wait_for(sandbox.id, "die", 10)

    actions = [event.action for event in sandbox.state().events]
    assert actions == ["create", "start", "kill", "die"]
    assert sandbox.state().event_gap
    later_one = backend.create(request_for())
    assert not later_one.state().event_gap


def test_a_create_that_nobody_answered_leaves_nothing(
    backend: DockerBackend, wire: Wire, engine: APIClient
) -> None:
    backend.create(request_for()).remove()
    request = request_for()
    wire.hold_answers()
    timer = threading.Timer(SECONDS + 0.5, wire.mend)
    timer.start()

    with pytest.raises(EngineLost):
        backend.create(request)
    timer.join()

    assert wire.held_answers
    assert engine.containers(all=True, filters={"name": request.name}) == []
    assert engine.containers(all=True, filters={"label": f"{RUN_LABEL}={backend.run}"}) == []


def test_closing_does_not_wait_for_an_engine_that_hangs(backend: DockerBackend, wire: Wire) -> None:
    backend.create(request_for()).remove()
    thread = backend._events._thread
    assert thread is not None
    wire.hold_answers()

    began = time.monotonic()
    backend.close()

    assert time.monotonic() - began < 10
    assert not thread.is_alive()
