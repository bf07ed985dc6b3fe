"""Harbor and Terminal-Bench 2 tasks: a directory with a ``task.toml``, used unchanged.

Schema 1.0 to 1.4 with the older spellings. Tables and keys that nothing here reads are left alone, because
Harbor does the same. What Harbor runs in a way that this harness cannot is a reason to skip the task.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_infranoise.model import Reads
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Verifier
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.files import content_hash
from pytest_infranoise.tasks.foreign import check_directory
from pytest_infranoise.tasks.foreign import instruction_text
from pytest_infranoise.tasks.foreign import read_file
from pytest_infranoise.tasks.foreign import spec_of
from pytest_infranoise.tasks.foreign import task_name
from pytest_infranoise.tasks.harbor_limits import memory_of
from pytest_infranoise.tasks.harbor_limits import network_of
from pytest_infranoise.tasks.harbor_limits import storage_of
from pytest_infranoise.tasks.harbor_parts import healthcheck_of
from pytest_infranoise.tasks.harbor_parts import image_of
from pytest_infranoise.tasks.harbor_parts import solution_of
from pytest_infranoise.tasks.harbor_parts import strategies_of
from pytest_infranoise.tasks.harbor_parts import tags_of
from pytest_infranoise.tasks.harbor_parts import user_of
from pytest_infranoise.tasks.harbor_parts import verifier_of
from pytest_infranoise.tasks.harbor_unsupported import unsupported
from pytest_infranoise.tasks.schema import MAX_SECONDS
from pytest_infranoise.tasks.schema import check_name
from pytest_infranoise.tasks.schema import check_workdir
from pytest_infranoise.tasks.tables import Table
from pytest_infranoise.tasks.tables import find_placeholder
from pytest_infranoise.tasks.tables import placeholders
from pytest_infranoise.tasks.tables import template_error

FILE = "task.toml"
LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")

AGENT_SECONDS = 600.0  # where the file says nothing; Harbor's own default has changed between releases
VERIFIER_SECONDS = 600.0
SETUP_SECONDS = 360.0  # what Harbor gives to the agent's installation

_TABLES = ("environment", "verifier", "agent", "metadata", "task", "steps")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"1\.(\d+)")
_NEWEST = 4


def load(path: Path, defaults: DefaultResources = NO_DEFAULTS) -> Task | None:
    """Return the task in a directory, or None when it holds no ``task.toml`` of Harbor's.

    A task is called as in its ``[task]`` table, with ``__`` for the slash (``org/name`` is ``org__name``: a name
    is part of ids and paths), else like its directory.

    Args:
        path: the directory.
        defaults: floor and ceiling for tasks that state no CPUs or no memory.

    Raises:
        TaskError: the task has mistakes; all that could be found are told.
    """
    file = path / FILE
    content = read_file(file)
    if content is None:
        return None
    ours = any((path / name).exists() for name in ("instruction.md", "environment", "tests", "steps"))
    try:
        text = content.decode("utf-8-sig")
        data = tomllib.loads(text.replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        if not ours:
            return None
        raise TaskError(file, "", "is not UTF-8 text", "save it as UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if not ours:
            return None
        raise _syntax_error(file, text, error) from error
    if not ours and not any(isinstance(data.get(key), dict | list) for key in _TABLES):
        return None
    return _load(file, data, defaults)


def _syntax_error(file: Path, text: str, error: Exception) -> TaskError:
    found = find_placeholder(text)
    if found is not None:
        return template_error(file, f"line {found[0]}", found[1])
    if isinstance(error, RecursionError):
        return TaskError(file, "", "is nested too deep to be read", "make it flatter")
    return TaskError(file, "", f"is not valid TOML: {error}", "correct it, or fetch the file again")


def _load(file: Path, data: Mapping[str, Any], defaults: DefaultResources) -> Task:
    mistakes: list[TaskError] = []
    mistakes.extend(template_error(file, *found) for found in placeholders(data))
    if mistakes:
        raise TaskError.of(mistakes)
    top = Table(file, data, mistakes)
    reason = _newer(top) or unsupported(file.parent, data)
    # What cannot be run is skipped with its reason; its other values are nobody's concern.
    task = _read(top, defaults) if reason is None else _skipped(file, data, reason, mistakes)
    if task is None or mistakes:
        raise TaskError.of(mistakes)
    return task


def _newer(top: Table) -> str | None:
    for key in ("schema_version", "version"):
        if key not in top:
            continue
        version = top.text(key)
        if version is None:
            return None
        match = _VERSION.fullmatch(version)
        if match is None or int(match[1]) > _NEWEST:
            return f"{key} {show(version)} is not 1.0 to 1.{_NEWEST}"
    return None


def _skipped(file: Path, data: Mapping[str, Any], reason: str, mistakes: list[TaskError]) -> Task | None:
    name = _name(Table(file, data, mistakes))
    if name is None:
        return None
    return Task(
        name=name,
        file=file,
        instruction="",
        image=None,
        build=None,
        spec=spec_of(None, None, DefaultResources((1, 1), (1024**3, 1024**3))),
        verifier=Verifier("", None, reads=Reads.REWARD_FILES),
        content_hash=content_hash(file.parent),
        unsupported=reason,
    )


def _read(top: Table, defaults: DefaultResources) -> Task | None:
    root, environment, agent = top.file.parent, top.table("environment"), top.table("agent")
    check_directory(top, root)
    name, timeouts = _name(top), _timeouts(top)
    image, build, files = image_of(environment, root)
    cpus, memory = environment.number("cpus", 0.01, 4096), memory_of(environment)
    _check_resources(environment, cpus, memory, defaults)
    build_timeout = environment.number("build_timeout_sec", 0, MAX_SECONDS, above=True)
    check = healthcheck_of(environment.table("healthcheck"))
    verifier, solution = verifier_of(top, root), solution_of(top, root)
    instruction = instruction_text(top, root)
    network, variables = network_of(environment), environment.environment("env")
    workdir, user = environment.checked("workdir", check_workdir), user_of(agent)
    strategies, storage = strategies_of(top, root), storage_of(environment)
    if top.mistakes or name is None or instruction is None or verifier is None:
        return None
    waiting = 0.0 if check is None else check.start_period + check.retries * (check.interval + check.timeout)
    return Task(
        name=name,
        file=top.file,
        instruction=instruction,
        image=image,
        build=build,
        spec=spec_of(cpus, memory, defaults),
        verifier=verifier,
        content_hash=content_hash(root),
        timeouts=Timeouts(SETUP_SECONDS + waiting, *timeouts),
        files=files,
        solution=solution,
        healthcheck=check,
        directories=LOGS,
        network=network,
        environment=variables,
        workdir=workdir or "",
        agent_user=user,
        strategies=strategies,
        tags=tags_of(top),
        storage=storage,
        build_timeout=build_timeout,
    )


def _name(top: Table) -> str | None:
    package = top.table("task")
    name = package.text("name")
    if name is None:
        return task_name(top, "task.name") if "name" not in package else None
    found = find_placeholder(name)
    if found is not None:
        top.mistakes.append(template_error(top.file, "task.name", found[1]))
    elif _NAME.fullmatch(name) is None or ".." in name:
        package.note("name", f"{show(name)} is not ORG/NAME", "use letters, digits, '.', '_' and '-' in both")
    else:
        return package.checked("name", lambda text: check_name(text.replace("/", "__")))
    return None


def _timeouts(top: Table) -> tuple[float, float]:
    seconds = [top.table(key).number("timeout_sec", 0, MAX_SECONDS, above=True) for key in ("agent", "verifier")]
    return seconds[0] or AGENT_SECONDS, seconds[1] or VERIFIER_SECONDS


def _check_resources(
    environment: Table, cpus: float | None, memory: int | None, defaults: DefaultResources
) -> None:
    if cpus is None and defaults.cpus is None and "cpus" not in environment:
        environment.note("cpus", "is missing", "add it, or give --infranoise-default-cpus, e.g. 1 or 1..2")
    given = "memory" in environment or "memory_mb" in environment
    if memory is None and defaults.memory is None and not given:
        environment.note(
            "memory_mb", "is missing", "add it, or give --infranoise-default-memory, e.g. 2G or 2G..6G"
        )
