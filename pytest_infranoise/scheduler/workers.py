"""How many workers ``-n auto`` means for a session with trials: as many as the floors let run at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from pytest_infranoise.collect import SETTINGS
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Task
from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.budget import Need
from pytest_infranoise.scheduler.budget import need_of
from pytest_infranoise.settings import Settings

MOST_WORKERS = 64
# A worker with pytest, the docker SDK and one trial's bookkeeping in it.
WORKER_MEMORY = 80 * 1024**2
# Enough for DATASET/SUITE/TASK; pytest runs on earth that have no tasks must not notice this.
_LEVELS = 3
_MOST_DIRECTORIES = 2000
_NAMES = ("task.yaml", "task.toml")


def auto_workers(config: pytest.Config) -> int | None:
    """Return the number of workers for the tasks among pytest's arguments; None when there are none.

    Marked test functions are not looked for, because that would take importing every test module.
    """
    if config.option.numprocesses != "auto" or os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    places = list(task_places(Path(config.invocation_params.dir, arg.split("::")[0]) for arg in config.args))
    if not places:
        return None
    try:
        return _workers(config, places)
    except Exception:
        # Whatever is wrong is told in its place, when settings are read, tasks collected and the engine asked.
        return None


def task_places(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield what looks like tasks: directories at the paths and a few levels below, and files that are given.

    What lies beside a file that is given is not asked for. Gives up on large trees.
    """
    level: list[Path] = []
    for path in paths:
        if path.is_dir():
            level.append(path)
        elif path.is_file():
            yield from _place_of(path)
    seen = 0
    for _ in range(_LEVELS + 1):
        below: list[Path] = []
        for directory in level:
            seen += 1
            if seen > _MOST_DIRECTORIES:
                return
            names, children = _look(directory)
            if names.isdisjoint(_NAMES):
                below += children
            else:
                yield directory
        level = below


def _place_of(file: Path) -> Iterator[Path]:
    if file.name in _NAMES:
        yield file.parent
    elif file.suffix == ".jsonl":
        from pytest_infranoise.tasks.swebench import is_instances

        if is_instances(file):
            yield file


def _look(directory: Path) -> tuple[set[str], list[Path]]:
    """Return the names of a directory's files, and its directories."""
    names: set[str] = set()
    children: list[Path] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.is_dir():
                    names.add(entry.name)
                elif not entry.name.startswith((".", "__")):
                    children.append(Path(entry.path))
    except OSError:
        return set(), []
    return names, sorted(children)


def _workers(config: pytest.Config, places: Sequence[Path]) -> int | None:
    from pytest_infranoise.host import capacity
    from pytest_infranoise.host_limits import limits_around
    from pytest_infranoise.sandboxes.docker import DockerBackend
    from pytest_infranoise.sandboxes.engine import engine_address
    from pytest_infranoise.settings import read_settings

    settings = config.stash[SETTINGS] = read_settings(config)
    allocations = list(_allocations(config, settings, places))
    if not allocations:
        return None
    with closing(DockerBackend("workers")) as backend:
        engine = backend.info()
    chosen = settings.schedule
    limit = capacity(engine, limits_around(engine_address()), cpus=chosen.host_cpus, memory=chosen.host_memory)
    needs = [need_of(allocation, limit, chosen.admit) for allocation in allocations]
    return most_at_once(needs, limit, spare=engine.memory - limit.memory)


def _allocations(config: pytest.Config, settings: Settings, places: Sequence[Path]) -> Iterator[Allocation]:
    from pytest_infranoise.resource_configs import allocate

    for task in _tasks(config, settings, places):
        if isinstance(task, Task) and task.unsupported is None:
            for resources in settings.configs:
                yield from [allocate(task, resources)] * (settings.samples * len(settings.agents))


def _tasks(config: pytest.Config, settings: Settings, places: Sequence[Path]) -> Iterator[object]:
    from pytest_infranoise.tasks import swebench

    for place in places:
        if place.is_dir():
            yield config.hook.pytest_infranoise_load_task(path=place, config=config)
        else:
            yield from (instance.task for instance in swebench.load(place, settings.defaults))


def most_at_once(needs: Sequence[Need], limit: Capacity, spare: int = 0) -> int:
    """Return how many trials can run at once at most, each with a worker of its own.

    ``spare`` is memory in bytes beside that of the capacity, which workers use first.
    """
    cpus = memory = 0.0
    number = 0
    for least_cpus, least_memory in zip(
        sorted(need.cpus for need in needs), sorted(need.memory for need in needs), strict=True
    ):
        cpus, memory = cpus + least_cpus, memory + least_memory
        workers = max(0, (number + 1) * WORKER_MEMORY - spare)
        if not Need(cpus, int(memory) + workers).fits(limit) or number == MOST_WORKERS:
            break
        number += 1
    return max(1, number)
