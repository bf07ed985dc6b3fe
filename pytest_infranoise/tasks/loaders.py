"""All task formats, tried in order."""

from __future__ import annotations

from pathlib import Path

from pytest_infranoise.model import Task
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources

FILES = ("task.yaml", "task.toml")


def load(path: Path, defaults: DefaultResources = NO_DEFAULTS) -> Task | None:
    """Return the task in a directory, whatever its format; None when it holds none.

    Args:
        path: the directory.
        defaults: floor and ceiling for tasks that state no resources.

    Raises:
        TaskError: the task has mistakes; all that could be found are told.
    """
    if (path / "task.yaml").is_file():
        from pytest_infranoise.tasks import native
        from pytest_infranoise.tasks import terminal_bench

        task = native.load(path) or terminal_bench.load(path, defaults)
        if task is not None:
            return task
    if (path / "task.toml").is_file():
        from pytest_infranoise.tasks import harbor

        return harbor.load(path, defaults)
    return None
