"""What pydantic found in a task file, told with the field as its author wrote it, the problem and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic import ValidationError

from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.schema import CpuRange
from pytest_infranoise.tasks.schema import MemoryRange
from pytest_infranoise.tasks.schema import Resources
from pytest_infranoise.tasks.schema import StrategyEntry
from pytest_infranoise.tasks.schema import TaskFile
from pytest_infranoise.tasks.schema import TimeoutsEntry
from pytest_infranoise.tasks.schema import VerifierEntry

_MODELS: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): TaskFile,
    ("resources",): Resources,
    ("resources", "cpus"): CpuRange,
    ("resources", "memory"): MemoryRange,
    ("cpus",): CpuRange,
    ("memory",): MemoryRange,
    ("timeouts",): TimeoutsEntry,
    ("verifier",): VerifierEntry,
}

_ADD = {
    ("resources",): "write e.g. resources: {cpus: 1, memory: 512M}",
    ("resources", "cpus"): "write e.g. cpus: 1",
    ("resources", "memory"): "write e.g. memory: 512M",
    ("cpus",): "write e.g. cpus=1",
    ("memory",): "write e.g. memory='512M'",
}

# For each of pydantic's error types: what a value is not, and what to write instead.
_TYPES = {
    "bool_type": ("true or false", "write true or false"),
    "float_type": ("a number", "write e.g. 1 or 0.5"),
    "finite_number": ("a number", "write e.g. 1 or 0.5"),
    "int_type": ("a whole number", "write e.g. 64"),
    "string_type": ("text", "put it in quotes"),
    "string_unicode": ("text", "remove what is no character"),
    "list_type": ("a list", "write e.g. [one, two]"),
    "model_type": ("a mapping", "write KEY: VALUE lines"),
    "dict_type": ("a mapping", "write KEY: VALUE lines"),
}

_BOUNDS: Mapping[str, tuple[str, str, str]] = {
    "greater_than": ("gt", "is too small", "write more than {}"),
    "greater_than_equal": ("ge", "is too small", "write at least {}"),
    "less_than": ("lt", "is too large", "write less than {}"),
    "less_than_equal": ("le", "is too large", "write at most {}"),
}


def explain(error: ValidationError, model: type[BaseModel] = TaskFile) -> Iterator[tuple[str, str, str]]:
    """Yield field, problem and remedy of each mistake; ``model`` is what was validated."""
    for details in error.errors(include_url=False):
        place = _place(details)
        yield (_field(place), *_message(details, place, model))


def _message(details: Mapping[str, Any], place: tuple[str | int, ...], model: type[BaseModel]) -> tuple[str, str]:
    kind, value, context = details["type"], details["input"], {"model": model, **details.get("ctx", {})}
    if isinstance(context.get("error"), Problem):
        return context["error"].problem, context["error"].remedy
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(context, place)
    if value is None:
        return "the key is empty", "give it a value, or remove it"
    if kind in _TYPES:
        what, remedy = _TYPES[kind]
        return f"{show(value)} is not {what}", remedy
    if kind in _BOUNDS:
        bound, problem, remedy = _BOUNDS[kind]
        return f"{show(value)} {problem}", remedy.format(f"{context[bound]:g}")
    if kind == "literal_error":
        return f"{show(value)} is not known", f"write {context['expected']}"
    return f"{show(value)}: {details['msg']}", "see `infranoise schema`"


def _missing(context: Mapping[str, Any], place: tuple[str | int, ...]) -> tuple[str, str]:
    return "is missing", _ADD.get(tuple(str(part) for part in place), "add it")


def _unknown(context: Mapping[str, Any], place: tuple[str | int, ...]) -> tuple[str, str]:
    known = list((_model(place[:-1]) if place[:-1] else context["model"]).model_fields)
    close = difflib.get_close_matches(str(place[-1])[:100].lower().replace("-", "_"), known, n=1)
    return "is an unknown key", f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def _model(place: tuple[str | int, ...]) -> type[BaseModel]:
    if place[:1] == ("strategies",):
        return StrategyEntry
    return _MODELS[tuple(str(part) for part in place)]


_SPECIAL: Mapping[str, Callable[[Mapping[str, Any], tuple[str | int, ...]], tuple[str, str]]] = {
    "missing": _missing,
    "extra_forbidden": _unknown,
    "invalid_key": lambda context, place: ("is a key that is not text", "put it in quotes"),
    "too_short": lambda context, place: ("nothing is in it", "add an entry, or remove the key"),
}


def _place(details: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return the keys on the way to a mistake without what pydantic adds of its own."""
    location: tuple[str | int, ...] = details["loc"]
    if location[:1] in (("cpus",), ("memory",)):
        return location[:1] + location[2:]
    if location[:2] in (("resources", "cpus"), ("resources", "memory")):
        return location[:2] + location[3:]  # the third tells which kind of amount it was taken for
    if location[-1:] == ("[key]",) and details["type"] != "extra_forbidden":
        return location[:-1]
    return location


def _field(place: tuple[str | int, ...]) -> str:
    field = ""
    for part in place:
        if isinstance(part, int):
            field += f"[{part}]"
        else:
            field += f".{part}" if field else part
    return field if len(field) <= 200 else f"{field[:200]}..."
