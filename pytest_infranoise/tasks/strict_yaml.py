"""YAML read so that nothing in it is silently something else than its author meant.

Dates, times and numbers written in other ways than decimal stay text, and a key that is given twice is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import show

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

_TAG = "tag:yaml.org,2002:"
_NARROWED = (_TAG + "int", _TAG + "float", _TAG + "timestamp")


class YamlProblem(Problem):
    """A text is no YAML that can be read; ``where`` is the line, or empty."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.where = where


class _Loader(_BaseLoader):
    # YAML 1.1 reads 1000:50 as the number 60050, and 0755 as 493.
    yaml_implicit_resolvers = {  # noqa: RUF012 - declared so by PyYAML
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NARROWED]
        for first, resolvers in _BaseLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_TAG + "int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _TAG + "float",
    re.compile(
        r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
    list("-+0123456789."),
)


def compose(text: str) -> yaml.Node | None:
    """Return the text's one document as nodes, None when it is empty.

    Raises:
        YamlProblem: it is not YAML, or more than one document.
    """
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _problem(error) from error
    finally:
        if loader is not None:
            loader.dispose()


def construct(node: yaml.Node) -> dict[str, Any]:
    """Return what the nodes stand for, as plain mappings, lists and scalars.

    Raises:
        YamlProblem: a value contradicts its tag, or the document is no mapping.
    """
    loader = _Loader("")
    try:
        data = loader.construct_document(node)
    except Exception as error:  # PyYAML lets errors of many types out for values that contradict their tags
        raise _problem(error) from error
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        raise YamlProblem("", "is not a mapping of keys to values", "write KEY: VALUE lines")
    return data


def has_key(node: yaml.Node | None, key: str) -> bool:
    """Whether a document is a mapping with this key at its top."""
    if not isinstance(node, yaml.MappingNode):
        return False
    return any(isinstance(name, yaml.ScalarNode) and name.value == key for name, _ in node.value)


def repeated_keys(node: yaml.Node) -> Iterator[tuple[str, str, str]]:
    """Yield each key that is given again in the same mapping, as field, problem and remedy."""
    waiting: list[tuple[str, yaml.Node]] = [("", node)]
    seen: set[int] = set()
    while waiting:
        place, current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, yaml.SequenceNode):
            waiting.extend((f"{place}[{index}]", child) for index, child in enumerate(current.value))
        elif isinstance(current, yaml.MappingNode):
            yield from _repeated(place, current)
            waiting.extend((_join(place, name), child) for name, child in current.value)


def _repeated(place: str, node: yaml.MappingNode) -> Iterator[tuple[str, str, str]]:
    lines: dict[tuple[str, str], int] = {}
    for name, _ in node.value:
        if not isinstance(name, yaml.ScalarNode):
            continue
        line, key = name.start_mark.line + 1, (name.tag, name.value)
        if key in lines:
            where = f"line {line}" if line == lines[key] else f"lines {lines[key]} and {line}"
            yield _join(place, name), f"is given twice, in {where}", "remove one of them"
        lines.setdefault(key, line)


def _join(place: str, name: yaml.Node) -> str:
    key = str(name.value) if isinstance(name, yaml.ScalarNode) else "?"
    return f"{place}.{key}" if place else key


def _problem(error: Exception) -> YamlProblem:
    if isinstance(error, RecursionError):
        return YamlProblem("", "is nested too deep to be read", "make it flatter")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"line {mark.line + 1}" if mark is not None else ""
    text = getattr(error, "problem", None) or getattr(error, "reason", None) or show(str(error))
    return YamlProblem(where, f"is not valid YAML: {text}", "correct it")
