"""``infranoise lint``: everything that is wrong with a whole dataset; needs no engine and runs nothing.

It finds tasks where pytest would, loads them with the same loaders, and plans them with the same functions as a
session does. Loaders that other pytest plugins add are not asked.
"""

from __future__ import annotations

import fnmatch
import math
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_infranoise.checks import Demand
from pytest_infranoise.checks import demands
from pytest_infranoise.checks import duplicates
from pytest_infranoise.checks import floors_above
from pytest_infranoise.config_grammar import DEFAULT_CONFIGS
from pytest_infranoise.config_grammar import UnknownConfig
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.config_notes import Host
from pytest_infranoise.config_notes import config_notes
from pytest_infranoise.host import capacity_of
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Task
from pytest_infranoise.settings_file import read_settings_file
from pytest_infranoise.tasks import loaders
from pytest_infranoise.tasks import swebench
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.defaults import parse_cpus
from pytest_infranoise.tasks.defaults import parse_memory_range
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import printable
from pytest_infranoise.tasks.host_environment import unset_variables
from pytest_infranoise.units import format_memory
from pytest_infranoise.units import parse_memory
from pytest_infranoise.units import plural

# Where pytest does not look for tests by default (its ini value norecursedirs).
_NOT_ENTERED = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}", "__pycache__")


@dataclass(frozen=True, slots=True)
class Choices:
    """What a dataset is planned for.

    ``cpus`` and ``memory`` (bytes) are those of the host that it is to run on, None where nothing is stated.
    ``errors`` are the mistakes in ``infranoise.toml``.
    """

    configs: tuple[ResourceConfig, ...]
    cpus: float | None = None
    memory: int | None = None
    defaults: DefaultResources = NO_DEFAULTS
    errors: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The host in words; empty when nothing is stated."""
        parts = [] if self.cpus is None else [f"{self.cpus:g} CPU{'' if self.cpus == 1 else 's'}"]
        parts += [] if self.memory is None else [format_memory(self.memory)]
        return " and ".join(parts)


def read_choices(
    paths: Iterable[Path],
    configs: Sequence[str],
    host: tuple[float | None, str | None],
    defaults: tuple[str | None, str | None],
) -> Choices:
    """Return the choices in options; configs come from the ``infranoise.toml`` of the paths if none are given.

    Raises:
        ValueError: one is wrong; the message is fit to show to a user.
    """
    file = read_settings_file(paths)
    values = configs or file.values.get("resource-configs", DEFAULT_CONFIGS)
    cpus, memory = host
    default_cpus, default_memory = (
        file.values.get(key) if given is None else given
        for key, given in zip(("default-cpus", "default-memory"), defaults, strict=True)
    )
    if cpus is not None and not 0 < cpus < math.inf:
        raise ValueError(f"--cpus: {cpus:g} is no number of CPUs; give e.g. 16")
    size = None if memory is None else parse_memory(memory)
    if size == 0:
        raise ValueError(f"--memory: {memory} is no memory; give e.g. 64G")
    try:
        chosen = parse_configs(values, file.configs)
    except UnknownConfig as error:
        if file.errors:  # where it may well be defined
            raise ValueError("; ".join((str(error).partition(";")[0], *file.errors))) from None
        raise
    return Choices(
        configs=chosen,
        cpus=cpus,
        memory=size,
        defaults=DefaultResources(
            None if default_cpus is None else parse_cpus(str(default_cpus)),
            None if default_memory is None else parse_memory_range(str(default_memory)),
        ),
        errors=file.errors,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A task file, or one line of a file; ``task`` is what is in it or what is wrong with it."""

    where: Path
    task: Task | Exception


@dataclass(frozen=True, slots=True)
class Findings:
    """What is to be said of a dataset, as lines; only ``errors`` and ``problems`` are wrong.

    ``errors`` are mistakes in task files, ``problems`` what keeps sound tasks from being run as planned: those of
    the ``tasks`` that are neither ``ready`` nor skipped nor broken.
    """

    choices: Choices
    tasks: int
    ready: int
    broken: int
    errors: tuple[str, ...]
    problems: tuple[str, ...]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong; no task at all is."""
        return bool(self.tasks) and not self.errors and not self.problems

    def lines(self) -> Iterator[str]:
        """Yield everything that is to be said, the summary last."""
        yield from (*self.errors, *self.problems, *self.skipped)
        yield from (f"note: {note}" for note in self.notes)
        names = ", ".join(config.name for config in self.choices.configs)
        host = self.choices.host or "no stated host (floors are checked with --cpus and --memory)"
        yield f"planned under {names} on {host}: {plural(len(self.problems), 'problem')}"
        unplanned = self.tasks - self.ready - len(self.skipped) - self.broken
        parts = [f"{self.ready} ready", f"{len(self.skipped)} skipped", f"{self.broken} broken"]
        if unplanned:
            parts.insert(1, f"{unplanned} not to be run as planned")
        yield f"{plural(self.tasks, 'task')}: {', '.join(parts)}"


def lint(paths: Iterable[Path], choices: Choices) -> Findings:
    """Return what is wrong with every task in ``paths``: directories, task files or JSON lines files."""
    found, remarks = search(paths, choices.defaults)
    loaded = [item.task for item in found if isinstance(item.task, Task)]
    sound = [task for task in loaded if task.unsupported is None]
    demanded, impossible = demands(sound, choices.configs)
    return Findings(
        choices=choices,
        tasks=len(found),
        ready=sum(_planned(task, loaded, demanded, choices) for task in sound),
        broken=len(found) - len(loaded),
        errors=tuple(line for item in found for line in _mistakes(item)),
        problems=tuple(
            dict.fromkeys([*choices.errors, *duplicates(loaded), *impossible, *_floors(demanded, choices)])
        ),
        skipped=tuple(_skipped(task) for task in loaded if task.unsupported is not None),
        notes=(
            *remarks,
            *(line for task in sound for line in unset_variables(task)),
            *_without_oracle(sound),
            *_notes(demanded, choices),
        ),
    )


def _planned(task: Task, loaded: Sequence[Task], demanded: Sequence[Demand], choices: Choices) -> bool:
    """Return whether a sound task can be run as planned: its name is its own, and every config fits."""
    own = [demand for demand in demanded if (demand.file, demand.task) == (str(task.file), task.name)]
    first = next(other for other in loaded if other.name == task.name)
    return first.file == task.file and len(own) == len(choices.configs) and not _floors(own, choices)


def _without_oracle(tasks: Iterable[Task]) -> Iterator[str]:
    names = [task.name for task in tasks if task.oracle is None and task.solution is None]
    if names:
        yield printable(f"without an oracle, so that a preflight can only try nop: {', '.join(names)}")


def _floors(demanded: Sequence[Demand], choices: Choices) -> list[str]:
    if not choices.host:
        return []
    limit = capacity_of(choices.cpus or math.inf, choices.memory or sys.maxsize)
    return floors_above(demanded, limit.cpus, limit.memory)


def _notes(demanded: Sequence[Demand], choices: Choices) -> list[str]:
    if choices.cpus is None or choices.memory is None:
        return []
    rows = [(demand.task, demand.config, demand.allocation) for demand in demanded]
    return config_notes(choices.configs, rows, Host(choices.cpus, choices.memory))


def _skipped(task: Task) -> str:
    return printable(f"{task.file}: task {task.name!r} is skipped: {task.unsupported}")


def _mistakes(found: Found) -> list[str]:
    if isinstance(found.task, Task):
        return []
    if isinstance(found.task, TaskError):
        return str(found.task).split("\n")
    return [printable(f"{found.where}: {type(found.task).__name__}: {found.task}")]


def search(paths: Iterable[Path], defaults: DefaultResources = NO_DEFAULTS) -> tuple[list[Found], list[str]]:
    """Return every task in ``paths`` in pytest's order, and remarks.

    Each is there once, however often and by whatever way it is reached.
    """
    given = [path.parent if path.name in loaders.FILES else path for path in paths]
    walk = _Walk(defaults, frozenset(path.resolve() for path in given))
    found: list[Found] = []
    for path in given:
        found += walk.through(path)
    return found, [printable(remark) for remark in walk.remarks]


class _Walk:
    """A search that takes nothing twice; ``given`` are the resolved paths that the user named."""

    def __init__(self, defaults: DefaultResources, given: frozenset[Path]) -> None:
        self.remarks: list[str] = []
        self._defaults = defaults
        self._given = given
        self._seen: set[Path] = set()

    def through(self, path: Path) -> Iterator[Found]:
        """Yield the task in a directory or those below it, or those in a file."""
        place = path.resolve()
        if place in self._seen:
            return
        self._seen.add(place)
        if not path.is_dir():
            yield from self._file(path, given=place in self._given)
            return
        try:
            task: Task | Exception | None = loaders.load(path, self._defaults)
        except Exception as error:
            task = error
        if task is not None:
            yield Found(path, task)
            return
        for name in loaders.FILES:
            if (path / name).is_file():
                self.remarks.append(f"{path / name}: is in no format that is known here, so there is no task in it")
        yield from self._children(path)

    def _children(self, path: Path) -> Iterator[Found]:
        try:
            children = sorted(path.iterdir(), key=lambda child: child.name)
        except OSError as error:
            yield Found(path, TaskError(path, "", f"cannot be read: {error.strerror}", "change its permissions"))
            return
        for child in children:
            if child.suffix == swebench.SUFFIX or (child.is_dir() and not _left_out(child)):
                yield from self.through(child)

    def _file(self, path: Path, *, given: bool) -> Iterator[Found]:
        if not swebench.is_instances(path):
            if given:
                problem = "is neither a task file nor JSON lines of SWE-bench instances"
                yield Found(path, TaskError(path, "", problem, "give a directory, a task file or such JSON lines"))
            return
        if not given and not (path.parent / "infranoise.toml").is_file():
            remark = "has SWE-bench instances, which are only taken when the file is given by name"
            self.remarks.append(f"{path}: {remark}")
            return
        try:
            for instance in swebench.load(path, self._defaults):
                yield Found(path, instance.task)
        except TaskError as error:
            yield Found(path, error)


def _left_out(directory: Path) -> bool:
    skipped = any(fnmatch.fnmatch(directory.name, pattern) for pattern in _NOT_ENTERED)
    return skipped or (directory / "pyvenv.cfg").is_file()
