"""Images before the first trial, on a real engine; and the lines that tell how it goes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import TrialKey
from pytest_infranoise.plan import Plan
from pytest_infranoise.plan import PlannedTask
from pytest_infranoise.plan import PlannedTrial
from pytest_infranoise.prepare import PreparationError
from pytest_infranoise.prepare import prepare
from pytest_infranoise.progress import Progress
from pytest_infranoise.progress import as_completed
from pytest_infranoise.sandboxes.docker import DockerBackend
from tests.suite import BASE_IMAGE


def plan(*tasks: PlannedTask) -> Plan:
    trials = [
        PlannedTrial(
            f"{task.name}::1x-0", TrialKey("nop", "", task.name, "1x", 0), task.file, Allocation(1, 1, 1, 1)
        )
        for task in tasks
    ]
    return Plan(tuple(trials), tasks, tuple(task.name for task in tasks), {}, 0, ())


def built(name: str, directory: Path, *lines: str, timeout: float | None = None) -> PlannedTask:
    directory.mkdir(exist_ok=True)
    (directory / "Dockerfile").write_text("\n".join([f"FROM {BASE_IMAGE}", *lines, ""]))
    return PlannedTask(name, f"{name}/task.yaml", None, str(directory), "missing", timeout)


def named(name: str, image: str, pull: str = "never") -> PlannedTask:
    return PlannedTask(name, f"{name}/task.yaml", image, None, pull)


@pytest.fixture
def backend() -> Iterator[DockerBackend]:
    """A backend; the images built meanwhile are removed in the end."""
    client = docker.from_env()
    label: dict[str, str | list[str] | bool] = {"label": "infranoise.content"}
    before = {image.id for image in client.images.list(filters=label)}
    backend = DockerBackend("test")
    yield backend
    backend.close()
    for image in client.images.list(filters=label):
        if image.id and image.id not in before and "infranoise.test-prepare" in image.labels:
            client.images.remove(image.id, force=True)
    client.close()


OURS = "LABEL infranoise.test-prepare=1"


@pytest.mark.engine
def test_every_image_is_there_once_before_anything_starts_and_one_failure_stops_no_other(
    backend: DockerBackend, tmp_path: Path
) -> None:
    mark = uuid4().hex
    draw = [OURS, f"RUN : {mark}; head -c 16 /dev/urandom > /drawn"]
    tasks = [
        built("one", tmp_path / "shared", *draw),
        PlannedTask("two", "two/task.yaml", None, str(tmp_path / "shared"), "missing"),
        built("copy", tmp_path / "copy", *draw),
        built("broken", tmp_path / "broken", f"RUN echo {mark}; exit 3"),
        named("there", BASE_IMAGE),
        named("absent", "infranoise/nosuch:1"),
    ]
    said: list[str] = []

    prepared = prepare(plan(*tasks), backend, said.append)

    images = prepared.images
    assert images["one"] == images["two"] == images["copy"]
    assert set(images) == {"one", "two", "copy", "there"}
    assert mark in prepared.image_errors["broken"]["text"]
    assert prepared.image_errors["broken"]["kind"] == "ConfigError"
    assert "`pull: never`" in prepared.image_errors["absent"]["text"]
    assert [line.startswith("infranoise: no image for broken: ") for line in said].count(True) == 1
    assert said[-1].startswith("infranoise: images: ")
    assert "built, 1 there already, 2 not to be had, in" in said[-1]
    assert all(len(line) < 400 and "\n" not in line for line in said)


@pytest.mark.engine
def test_nothing_is_said_where_nothing_had_to_be_done(backend: DockerBackend) -> None:
    said: list[str] = []

    prepare(plan(named("a", BASE_IMAGE), named("b", BASE_IMAGE)), backend, said.append)

    assert said == []


@pytest.mark.engine
def test_a_task_may_say_how_long_its_build_takes(backend: DockerBackend, tmp_path: Path) -> None:
    slow = built("slow", tmp_path / "slow", OURS, f"RUN : {uuid4().hex}; sleep 4", timeout=1.5)
    sharing = PlannedTask("sharing", "sharing/task.yaml", None, slow.build, "missing", 60.0)

    with pytest.raises(PreparationError, match=r"slow/task\.yaml: image: .*not done in 2 s"):
        prepare(plan(slow), backend, print)
    assert set(prepare(plan(slow, sharing), DockerBackend("test"), print).images) == {"slow", "sharing"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_tell_what_is_done_and_what_is_at_work() -> None:
    clock, said = Clock(), list[str]()
    progress = Progress(said.append, "images", 7, clock)
    progress.begins("building a")
    progress.tick()
    assert said == []

    clock.now = 3
    for name in ("pulling b", "building c", "building d", "building e"):
        progress.begins(name)
    progress.done()
    progress.tick()
    assert said == [
        "infranoise: images: 1 of 7 done in 3 s; building a (3 s), pulling b (0 s), building c (0 s), 2 more"
    ]


@given(waits=st.lists(st.floats(0, 600), max_size=60))
def test_lines_are_never_a_flood(waits: list[float]) -> None:
    clock, times = Clock(), list[float]()
    progress = Progress(lambda line: times.append(clock.now), "images", 1, clock)
    progress.begins("building a")
    for wait in waits:
        clock.now += wait
        progress.tick()

    for before, after in pairwise(times):
        assert after - before >= 10
        assert after >= 1.25 * before


def test_nothing_is_said_when_nothing_is_at_work() -> None:
    clock, said = Clock(), list[str]()
    progress = Progress(said.append, "images", 2, clock)
    progress.begins("building a")
    progress.ends("building a")
    clock.now = 100
    progress.tick()

    assert said == []


def test_results_come_with_their_names_failures_too() -> None:
    good: Future[int] = Future()
    bad: Future[int] = Future()
    good.set_result(1)
    bad.set_exception(ValueError("no"))

    found = dict(as_completed({good: "good", bad: "bad"}, Progress(print, "things", 2)))

    assert found["good"].result() == 1
    with pytest.raises(ValueError, match="no"):
        found["bad"].result()
