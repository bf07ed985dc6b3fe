"""What the loaders of foreign task formats have in common."""

from __future__ import annotations

import itertools
import re
import stat
from pathlib import Path

from pytest_infranoise.model import Spec
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.files import MAX_TEXT
from pytest_infranoise.tasks.files import file_inside
from pytest_infranoise.tasks.files import read_text
from pytest_infranoise.tasks.schema import check_name
from pytest_infranoise.tasks.tables import PLACEHOLDER
from pytest_infranoise.tasks.tables import Table
from pytest_infranoise.tasks.tables import template_error

# Benchmarks mark their files so that they can be kept out of training data; no agent is shown the mark.
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


def read_file(file: Path) -> bytes | None:
    """Return the content of a regular file; None when there is none.

    Raises:
        TaskError: it cannot be read, or is larger than 1 MiB.
    """
    try:
        # A named pipe would be waited for.
        if not stat.S_ISREG(file.stat().st_mode):
            return None
        with file.open("rb") as stream:
            content = stream.read(MAX_TEXT + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TaskError(file, "", f"cannot be read: {error.strerror}", "change its permissions") from error
    if len(content) > MAX_TEXT:
        raise TaskError(file, "", "is larger than 1 MiB", "put long texts into files")
    return content


def check_directory(top: Table, root: Path) -> None:
    """Note what no task directory may have."""
    if not top.file.resolve().is_relative_to(root.resolve()):
        top.note("", "is a link that leads out of the task's directory", "copy the file there")
    if (root / "conftest.py").is_symlink() or (root / "conftest.py").exists():
        top.note("", "a conftest.py beside it would be run by pytest on this machine", "move it into tests/")


def task_name(top: Table, field: str) -> str | None:
    """Return the directory's name as the task's."""
    root = top.file.parent
    name = root.absolute().name if root.name not in ("", "..") else root.resolve().name
    try:
        return check_name(name)
    except Problem as problem:
        top.note(
            field, f"the directory's name {show(name)} cannot be a task's name", f"rename it: {problem.remedy}"
        )
        return None


def is_name(text: str) -> bool:
    """Whether a text can be the name of something."""
    try:
        return bool(check_name(text))
    except Problem:
        return False


def instruction_text(top: Table, root: Path) -> str | None:
    """Return the text of ``instruction.md`` without the marks of origin in its head, as Harbor shows it."""
    try:
        text = read_text(file_inside(root, "instruction.md"))
    except Problem as problem:
        top.note("instruction.md", problem.problem, problem.remedy)
        return None
    if PLACEHOLDER.fullmatch(text.strip()):
        top.mistakes.append(template_error(root / "instruction.md", "", text.strip()))
        return None
    if not text.strip() or "\0" in text:
        top.note("instruction.md", "holds no plain text", "write what the agent is asked to do")
        return None
    return _without_canary(text) or text


def _without_canary(text: str) -> str:
    lines = text.split("\n")
    marks = len(list(itertools.takewhile(_CANARY.fullmatch, map(str.strip, lines))))
    return "\n".join(itertools.dropwhile(lambda line: not line.strip(), lines[marks:]))


def spec_of(cpus: float | None, memory: int | None, defaults: DefaultResources) -> Spec:
    """Return the spec: what the task states, else the defaults, which the caller knows to be there."""
    low_cpus, high_cpus = (cpus, None) if cpus is not None else _ends(defaults.cpus)
    low_memory, high_memory = (memory, None) if memory is not None else _ends(defaults.memory)
    if low_cpus is None or low_memory is None:
        raise ValueError("a task without resources needs defaults")
    return Spec(low_cpus, int(low_memory), high_cpus, None if high_memory is None else int(high_memory))


def _ends(ends: tuple[float, float] | None) -> tuple[float | None, float | None]:
    if ends is None:
        return None, None
    return ends[0], None if ends[0] == ends[1] else ends[1]
