"""Task directories to load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_infranoise.model import Task
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.native import load

ABSENT = object()
MIB = 1024**2

GOOD: Mapping[str, Any] = {
    "infranoise": 1,
    "image": "debian:bookworm-slim",
    "resources": {"cpus": 1, "memory": "64M"},
}


def write_files(root: Path) -> Path:
    """Make the files of a right task, except its task.yaml."""
    (root / "verifier").mkdir(parents=True)
    (root / "verifier" / "verify.sh").write_text("true\n")
    (root / "instruction.md").write_text("Do it.\n")
    (root / "solution.sh").write_text("true\n")
    (root / "app").mkdir()
    (root / "app" / "data").write_text("1\n")
    (root / "environment").mkdir()
    (root / "environment" / "Dockerfile").write_text("FROM scratch\n")
    return root


def write_task(root: Path, **changes: Any) -> Path:
    """Make a right task, with keys changed, added, or (``ABSENT``) taken out."""
    write_files(root)
    data = {key: value for key, value in {**GOOD, **changes}.items() if value is not ABSENT}
    (root / "task.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return root


def loaded(root: Path) -> Task:
    task = load(root)
    assert task is not None
    return task


def mistakes(root: Path) -> list[str]:
    """Return the lines of the error that loading gives, without the file's path."""
    with pytest.raises(TaskError) as caught:
        load(root)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(str(root)) for line in lines)
    return [line.removeprefix(f"{root}/task.yaml: ") for line in lines]
