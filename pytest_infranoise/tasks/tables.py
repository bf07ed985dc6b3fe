"""Reads nested mappings of foreign task files key by key; mistakes are collected, unknown keys left alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import TypeVar

from pytest_infranoise.model import HostVariable
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.host_environment import from_template
from pytest_infranoise.tasks.schema import check_variable

T = TypeVar("T")

# A value that a generator was to fill in: {name}, {{ name }}, <NAME>, {% ... %}, $NAME alone is a value.
PLACEHOLDER = re.compile(r"\{\{? *[A-Za-z_][\w.]* *\}?\}|<[A-Z][A-Z0-9_ -]*>|\{%.*%\}")
_EMBEDDED = re.compile(r"(?<!\$)(\{\{? *[A-Za-z_][\w.]* *\}?\}|\{%.*?%\})")


class Table:
    """One mapping of a task file; ``mistakes`` is shared by all tables of the file.

    Every getter notes a wrong value as a mistake and returns None (or the default) then.
    """

    def __init__(self, file: Path, data: Mapping[str, Any], mistakes: list[TaskError], place: str = "") -> None:
        self.file = file
        self.data = data
        self.mistakes = mistakes
        self.place = place

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def note(self, key: str, problem: str, remedy: str) -> None:
        """Note a mistake; an empty key is the table itself."""
        place = ".".join(part for part in (self.place, key) if part)
        self.mistakes.append(TaskError(self.file, place, problem, remedy))

    def table(self, key: str) -> Table:
        """Return a table in this one; one without content when there is none."""
        value = self._typed(key, dict, "a table", f"write [{key}]")
        return Table(self.file, value or {}, self.mistakes, ".".join(part for part in (self.place, key) if part))

    def text(self, key: str) -> str | None:
        """Return a text that is not empty."""
        value = self._typed(key, str, "text", "put it in quotes")
        if value is not None and (not value.strip() or "\0" in value):
            self.note(key, f"{show(value)} is no text", "write it, or remove the key")
            return None
        return value

    def truth(self, key: str) -> bool | None:
        """Return true or false."""
        return self._typed(key, bool, "true or false", "write true or false")

    def number(self, key: str, low: float, high: float, *, above: bool = False) -> float | None:
        """Return a number between two others, ``above`` the lower one if so asked."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            self.note(key, f"{show(value)} is not a number", "write e.g. 1 or 0.5")
            return None
        if value < low or value > high or (above and value == low):
            remedy = f"write {'more than' if above else 'at least'} {low:g} and at most {high:g}"
            self.note(key, f"{show(value)} is no sensible value", remedy)
            return None
        return float(value)

    def whole(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number between two others; 2.0 is one."""
        known = len(self.mistakes)
        value = self.number(key, low, high)
        if value is None or len(self.mistakes) > known:
            return None
        if not value.is_integer():
            self.note(key, f"{show(self.data[key])} is not a whole number", f"write e.g. {math.ceil(value)}")
            return None
        return int(value)

    def choice(self, key: str, known: Mapping[str, T]) -> T | None:
        """Return what one of the known words stands for."""
        value = self.text(key)
        if value is None:
            return None
        if value.lower() not in known:
            self.note(key, f"{show(value)} is not known", f"write {' or '.join(known)}")
            return None
        return known[value.lower()]

    def items(self, key: str) -> list[Any]:
        """Return a list; an empty one when there is none."""
        return self._typed(key, list, "a list", "write e.g. [one, two]") or []

    def checked(self, key: str, check: Callable[[str], str]) -> str | None:
        """Return a text that ``check`` accepts, which raises a ``Problem`` else."""
        value = self.text(key)
        try:
            return None if value is None else check(value)
        except Problem as problem:
            self.note(key, problem.problem, problem.remedy)
            return None

    def environment(self, key: str) -> dict[str, str | HostVariable]:
        """Return variables; what is written ``${NAME}`` or ``${NAME:-default}`` comes from this machine later."""
        values: dict[str, str | HostVariable] = {}
        table = self.table(key)
        for name in table.data:
            try:
                check_variable(name)
            except Problem as problem:
                table.note("", problem.problem, problem.remedy)
                continue
            # An empty value is a value.
            value = table._typed(name, str, "text", "put it in quotes")
            if value is not None and "\0" in value:
                table.note(name, "the text has a NUL character", "remove it")
            elif value is not None:
                values[name] = from_template(value)
        return values

    def _typed(self, key: str, kind: type[T], what: str, remedy: str) -> T | None:
        value = self.data.get(key)
        if value is None or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)):
            return value
        self.note(key, f"{show(value)} is not {what}", remedy)
        return None


def placeholders(data: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield field and text of every value that is nothing but a placeholder; ``{name}`` is a mapping in YAML."""
    waiting: list[tuple[str, object]] = [(place, data)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, str) and PLACEHOLDER.fullmatch(value.strip()):
            yield where, value.strip()
        elif isinstance(value, Mapping) and where and list(value.values()) == [None]:
            yield where, f"{{{next(iter(value))}}}"
        elif isinstance(value, Mapping):
            waiting.extend((f"{where}.{key}" if where else str(key), part) for key, part in value.items())
        elif isinstance(value, list):
            waiting.extend((f"{where}[{index}]", part) for index, part in enumerate(value))


def find_placeholder(text: str) -> tuple[int, str] | None:
    """Return line number and text of the first placeholder in a file that cannot be read as what it should be."""
    for number, line in enumerate(text.splitlines(), 1):
        match = _EMBEDDED.search(line.partition("#")[0])
        if match is not None:
            return number, match[1]
    return None


def template_error(file: Path, where: str, placeholder: str) -> TaskError:
    """Return the mistake that a file is a template which nobody has filled in."""
    return TaskError(
        file,
        where,
        f"is a template: the placeholder {show(placeholder)} was never filled in",
        "fill it in, or leave the directory out with --ignore",
    )


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
