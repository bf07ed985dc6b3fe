from __future__ import annotations

import threading
import time

import pytest
from docker import APIClient

from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.events import EventStream

from .conftest import request_for

pytestmark = pytest.mark.engine


def test_the_life_of_a_container(sandbox: DockerSandbox, engine: APIClient) -> None:
    sandbox.exec(["sh", "-c", "echo secret"])
    engine.kill(sandbox.id, signal="USR1")
    engine.kill(sandbox.id)

    engine.wait(sandbox.id)
    state = sandbox.state()

    assert [event.action for event in state.events] == ["create", "start", "kill", "kill", "die"]
    assert [event.attributes for event in state.events[2:]] == [
        {"signal": "10"},
        {"signal": "9"},
        {"exitCode": "137"},
    ]
    times = [event.time for event in state.events]
    assert times == sorted(times)
    assert (state.running, state.exit_code, state.event_gap) == (False, 137, False)


def test_a_kill_for_memory_comes_in(sandbox: DockerSandbox) -> None:
    sandbox.exec(["perl", "-e", "my $held = 'x' x 200000000"])

    assert sandbox._events.wait_for(sandbox.id, "oom", 10)


def test_only_events_of_own_containers_are_kept(backend: DockerBackend) -> None:
    other = DockerBackend(backend.run)
    try:
        mine, theirs = backend.create(request_for()), other.create(request_for())

        assert backend._events.of(mine.id)
        assert other._events.wait_for(theirs.id, "start", 10)
        assert backend._events.of(theirs.id) == ()
    finally:
        other.close()


def test_a_stream_that_was_never_open_is_a_gap() -> None:
    stream = EventStream(Engine(), "infranoise.test=none")

    assert stream.gap_since(time.monotonic())
    stream.close()


def test_opening_and_closing_often(backend: DockerBackend) -> None:
    before = threading.active_count()
    for _ in range(20):
        stream = EventStream(backend._engine, "infranoise.test=none")
        assert stream.open(10)
        assert stream.open(10)
        stream.close()
        stream.close()

    assert threading.active_count() == before
