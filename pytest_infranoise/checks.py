"""What can be known to be wrong with tasks and resource configs before anything starts, without an engine.

The plan of a pytest session and ``infranoise lint`` ask the same functions, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Task
from pytest_infranoise.resource_configs import allocate
from pytest_infranoise.resource_configs import check_floor


@dataclass(frozen=True, slots=True)
class Demand:
    """What one task asks for under one config."""

    task: str
    file: str
    config: str
    allocation: Allocation


def duplicates(tasks: Iterable[Task]) -> list[str]:
    """Return one line for each task whose name another one has taken before it."""
    first: dict[str, Task] = {}
    problems = []
    for task in tasks:
        other = first.setdefault(task.name, task)
        if other.file != task.file:
            problems.append(
                f"{task.file}: name: {task.name!r} is also the name of {other.file}; rename one of them"
            )
    return problems


def demands(tasks: Iterable[Task], configs: Sequence[ResourceConfig]) -> tuple[list[Demand], list[str]]:
    """Return what tasks ask for under every config, and one line for each that no engine could enforce.

    Tasks that cannot be run at all ask for nothing.
    """
    found: list[Demand] = []
    problems: list[str] = []
    for task in tasks:
        if task.unsupported is not None:
            continue
        for config in configs:
            try:
                found.append(Demand(task.name, str(task.file), config.name, allocate(task, config)))
            except ValueError as error:
                problems.append(str(error))
    return found, problems


def floors_above(demanded: Iterable[Demand], cpus: float, memory: int) -> list[str]:
    """Return one line for each task with a floor above what a host can give, in cores and bytes."""
    configs: dict[tuple[str, str, str], dict[str, None]] = {}
    for demand in demanded:
        problem = check_floor("", demand.allocation, cpus, memory)
        if problem is not None:
            configs.setdefault((demand.file, demand.task, problem), {})[demand.config] = None
    return [
        f"{file}: task {task!r} under {_configs(list(names))}{problem}"
        for (file, task, problem), names in configs.items()
    ]


def _configs(names: Sequence[str]) -> str:
    noun = "config" if len(names) == 1 else "configs"
    return f"{noun} {', '.join(map(repr, names))}"
