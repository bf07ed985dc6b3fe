"""SWE-bench instances from a JSON lines file: each line is one task, named by its ``instance_id``.

Every line needs

- ``instance_id``, ``problem_statement`` (the instruction, as it is) and ``patch`` (the gold patch: the oracle);
- the image, as ``image``, ``image_name`` or ``docker_image``, with the repository in ``/testbed``;
- ``FAIL_TO_PASS`` (at least one test) and ``PASS_TO_PASS``, as lists or as JSON in a string;
- how the tests are run: ``eval_script`` as SWE-bench 5 publishes it, which applies the test patch itself and prints
  the markers around the tests' output; or ``test_cmd`` (a command or a list of them, also ``test_command`` or
  ``test_cmds``) and ``test_patch``, which we apply then, after files that it changes are as in ``base_commit``
  again (a whole hash: HEAD may be a commit of the agent's).

``log_parser`` is SWE-bench's name of what the tests print (default: ``pytest -rA``). A table ``infranoise`` is
ours: ``resources`` and ``timeouts`` as in native task files, ``workdir``, ``setup``, ``network``, ``pull``. All
other keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_infranoise.model import Task
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.schema import check_name
from pytest_infranoise.tasks.swebench_instance import make_task

SUFFIX = ".jsonl"
MAX_LINE = 64 * 1024**2  # bytes

_NAME = b'"instance_id"'
_TESTS = (b'"FAIL_TO_PASS"', b'"PASS_TO_PASS"', b'"test_patch"')


@dataclass(frozen=True, slots=True)
class Instance:
    """One line: what to call it, and its task or what is wrong with it."""

    label: str
    task: Task | TaskError


def is_instances(file: Path) -> bool:
    """Whether a file's first line is recognisably an instance: predictions and other JSON lines are not."""
    if file.suffix != SUFFIX or not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            line = next((line for line in iter(lambda: stream.readline(MAX_LINE), b"") if line.strip()), b"")
    except OSError:
        return False
    return _NAME in line and any(key in line for key in _TESTS)


def load(file: Path, defaults: DefaultResources = NO_DEFAULTS) -> Iterator[Instance]:
    """Yield every instance of a file, in order.

    Raises:
        TaskError: the file cannot be read.
    """
    first: dict[str, int] = {}
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), 1):
                if line.strip():
                    yield _instance(file, number, line, first, defaults)
    except OSError as error:
        raise TaskError(file, "", f"cannot be read: {error.strerror}", "change its permissions") from error


def _instance(file: Path, number: int, line: bytes, first: dict[str, int], defaults: DefaultResources) -> Instance:
    label = f"line-{number}"
    try:
        data = _parse(line)
        name = data.get("instance_id")
        if isinstance(name, str) and _is_name(name):
            if name in first:
                again = f"{show(name)} is also in line {first[name]}"
                return Instance(label, TaskError(file, f"line {number}: instance_id", again, "remove one of them"))
            first[name] = number
            label = name
        return Instance(label, make_task(file, data, defaults))
    except Problem as problem:
        return Instance(label, TaskError(file, f"line {number}", problem.problem, problem.remedy))
    except TaskError as error:
        return Instance(label, _in_line(number, error))


def _in_line(number: int, error: TaskError) -> TaskError:
    return TaskError.of(
        [
            TaskError(one.file, f"line {number}: {one.field}", one.problem, one.remedy)
            for one in (error, *error.others)
        ]
    )


def _is_name(name: str) -> bool:
    try:
        return bool(check_name(name))
    except Problem:
        return False


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(line.decode("utf-8-sig").strip(), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Problem("is not UTF-8 text", "save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise Problem(f"is not valid JSON: {error.msg} (column {error.colno})", "correct it") from error
    except RecursionError as error:
        raise Problem("is nested too deep to be read", "make it flatter") from error
    except Problem:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise Problem(f"cannot be read: {error}", "correct it") from error
    if not isinstance(data, dict):
        raise Problem(f"{show(data)} is not an object", "write one JSON object in each line")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise Problem(f"the key {show(key)} is given twice", "remove one of them")
        data[key] = value
    return data


def _no_constant(name: str) -> None:
    raise Problem(f"{name} is not valid JSON", "write a number")
