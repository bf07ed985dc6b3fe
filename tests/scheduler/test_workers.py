from __future__ import annotations

from pathlib import Path

import pytest

from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.budget import Need
from pytest_infranoise.scheduler.workers import MOST_WORKERS
from pytest_infranoise.scheduler.workers import WORKER_MEMORY
from pytest_infranoise.scheduler.workers import auto_workers
from pytest_infranoise.scheduler.workers import most_at_once
from pytest_infranoise.scheduler.workers import task_places
from tests.suite import make_task
from tests.tasks.instances import instance
from tests.tasks.instances import write_instances

GIB = 1024**3
SPARE = 100 * GIB


@pytest.mark.parametrize(
    ("needs", "spare", "expected"),
    [
        ([Need(1, GIB)] * 20, SPARE, 8),
        ([Need(0.1, 4 * GIB)] * 20, SPARE, 4),
        ([Need(0.1, 12 * GIB), *[Need(0.1, GIB)] * 4], SPARE, 5),
        ([Need(0.1, GIB)] * 3, SPARE, 3),
        ([Need(0.01, 1024)] * 1000, SPARE, MOST_WORKERS),
        ([Need(100, 100 * GIB)], SPARE, 1),
        ([], SPARE, 1),
        # Without memory to spare, every worker takes its own from that of the trials.
        ([Need(0.1, WORKER_MEMORY)] * 1000, 0, 16 * GIB // (2 * WORKER_MEMORY)),
    ],
)
def test_as_many_workers_as_can_run_at_once(needs: list[Need], spare: int, expected: int) -> None:
    assert most_at_once(needs, Capacity(8, 16 * GIB), spare) == min(expected, MOST_WORKERS)


def test_tasks_are_found_where_they_usually_lie_and_nowhere_inside_tasks(tmp_path: Path) -> None:
    deep = make_task(tmp_path / "dataset" / "suite", "deep")
    near = make_task(tmp_path, "near")
    make_task(near, "inside")
    make_task(tmp_path / ".hidden", "task")
    make_task(tmp_path / "a" / "b" / "c", "too-deep")

    assert set(task_places([tmp_path])) == {deep, near}
    assert list(task_places([near / "task.yaml"])) == [near]
    assert list(task_places([tmp_path / "nowhere"])) == []


def test_of_a_file_only_what_it_is_itself_counts(tmp_path: Path) -> None:
    hello = make_task(tmp_path / "bench", "hello")
    instance = '{"instance_id": "a__b-1", "FAIL_TO_PASS": ["t"]}\n'
    others = {"test_a.py": "", "notes.txt": "", "data.jsonl": '{"x": 1}\n', "bench/test_b.py": ""}
    for name, text in {**others, "instances.jsonl": instance}.items():
        (tmp_path / name).write_text(text, "utf-8")
    (hello / "test_c.py").touch()

    assert [place for name in others for place in task_places([tmp_path / name])] == []
    assert list(task_places([hello / "test_c.py"])) == []
    files = [tmp_path / "test_a.py", tmp_path / "instances.jsonl", hello / "task.yaml"]
    assert list(task_places(files)) == [tmp_path / "instances.jsonl", hello]


@pytest.mark.engine
def test_instances_count_like_other_tasks(pytester: pytest.Pytester) -> None:
    write_instances(pytester.path / "swe.jsonl", instance(), instance(instance_id="acme__adder-2"))
    resources = ["--infranoise-default-cpus=0.1", "--infranoise-default-memory=100M"]
    limits = ["--infranoise-host-memory=250M", "--resource-config=1x", "--infranoise-samples=3"]

    config = pytester.parseconfig("swe.jsonl", "-nauto", "--infranoise-agent=oracle", *resources, *limits)

    assert auto_workers(config) == 2


def test_large_trees_without_tasks_are_given_up_on(tmp_path: Path) -> None:
    for number in range(2100):
        (tmp_path / f"{number:04}").mkdir()
    make_task(tmp_path, "9999")

    assert list(task_places([tmp_path])) == []
