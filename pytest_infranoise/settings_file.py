"""``infranoise.toml`` (or ``[tool.infranoise]`` in a ``pyproject.toml``): finding, reading and checking it.

Mistakes are returned, not raised: they concern nobody as long as no trial is collected.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.config_tables import configs_of_tables
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.settings_design import design_errors
from pytest_infranoise.settings_schedule import CHOICES
from pytest_infranoise.tasks.defaults import parse_cpus
from pytest_infranoise.tasks.defaults import parse_memory_range

TOML_KEYS = (
    "admit",
    "agent",
    "agents",
    "alpha",
    "baseline",
    "configs",
    "default-cpus",
    "default-memory",
    "gates",
    "margin",
    "min-cut",
    "order",
    "pass-threshold",
    "preflight",
    "resource-configs",
    "samples",
    "seed",
    "target",
)
AGENT_KEYS = ("kind", "command", "model", "env")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file as read; ``values`` and ``configs`` are empty when there are ``errors``, or no file.

    ``configs`` are the resource configs that it defines, by name.
    """

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    configs: Mapping[str, ResourceConfig] = field(default_factory=dict)


def find_toml(path: Path) -> Path | None:
    """Return the nearest file with our settings in ``path`` or above it; none that we may not see."""
    start = path if _holds(path.is_dir) else path.parent
    for directory in (start, *start.parents):
        own = directory / "infranoise.toml"
        if _holds(own.is_file):
            return own
        project = directory / "pyproject.toml"
        if _holds(project.is_file) and _holds(partial(_mentions_us, project)):
            return project
    return None


def _mentions_us(project: Path) -> bool:
    return b"[tool.infranoise" in project.read_bytes()


def _holds(check: Callable[[], bool]) -> bool:
    """Whether a check of a file holds; one that the system refuses, or whose name is too long for it, does not."""
    try:
        return check()
    except OSError:
        return False


def read_settings_file(paths: Iterable[Path]) -> SettingsFile:
    """Return the settings file that applies to the paths given to pytest."""
    found = {file: None for path in paths if _holds(path.exists) and (file := find_toml(path.resolve()))}
    if len(found) > 1:
        given = ", ".join(str(path) for path in found)
        return SettingsFile(
            errors=(f"several settings files apply to the paths given ({given}); run them one by one",)
        )
    for path in found:
        return _read(path)
    return SettingsFile()


def _read(path: Path) -> SettingsFile:
    import tomllib  # here, because most pytest runs on earth have no such file

    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        return SettingsFile(path, errors=(f"{path}: cannot be read: {error.strerror}",))
    except (RecursionError, ValueError) as error:
        return SettingsFile(path, errors=(f"{path}: not valid TOML: {error}",))
    table: Any = data
    for key in () if path.name == "infranoise.toml" else ("tool", "infranoise"):
        table = table.get(key, {})
        if not isinstance(table, dict):
            return SettingsFile(path, errors=(f"{path}: {key}: write one table: [tool.infranoise]",))
    configs, config_errors = configs_of_tables(table.get("configs", {}))
    errors = tuple(f"{path}: {error}" for error in _toml_errors(table, configs, config_errors))
    return SettingsFile(path, {} if errors else table, errors, {} if errors else configs)


def _toml_errors(
    table: Mapping[str, Any], configs: Mapping[str, ResourceConfig], config_errors: Sequence[str]
) -> list[str]:
    errors = [_unknown("key", key, TOML_KEYS) for key in table if key not in TOML_KEYS]
    checks = (
        ("agent", lambda value: _strings(value) or isinstance(value, str), "a name or a list of names"),
        ("gates", _strings, "a list of gates"),
        ("resource-configs", _strings, "a list of resource configs"),
        ("preflight", lambda value: isinstance(value, bool), "true or false"),
        ("samples", lambda value: _number(value, int) and value >= 1, "a whole number of at least 1"),
        ("seed", lambda value: _number(value, int), "a whole number"),
        ("pass-threshold", lambda value: _number(value, int, float) and 0 < value <= 1, "above 0 and at most 1"),
    )
    for key, check, expected in checks:
        if key in table and not check(table[key]):
            errors.append(f"{key}: {table[key]!r} is not {expected}")
    for key, choices in CHOICES.items():
        if key in table and table[key] not in choices:
            errors.append(f"{key}: {table[key]!r} is none of {', '.join(choices)}")
    agents = table.get("agents", {})
    if not isinstance(agents, dict):
        return [*errors, "agents: write one table for each agent: [agents.NAME]"]
    for name, agent in agents.items():
        errors += _agent_errors(name, agent)
    errors += config_errors
    errors += _default_errors(table)
    errors += design_errors(table)
    if not errors and "resource-configs" in table:
        try:
            parse_configs(table["resource-configs"], configs)
        except ValueError as error:
            errors.append(f"resource-configs: {error}")
    return errors


def _default_errors(table: Mapping[str, Any]) -> Iterator[str]:
    readers: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("default-cpus", parse_cpus),
        ("default-memory", parse_memory_range),
    )
    for key, parse in readers:
        try:
            if key in table:
                parse(str(table[key]))
        except ValueError as error:
            yield f"{key}: {error}"


def _agent_errors(name: str, agent: Any) -> list[str]:
    where = f"agents.{name}"
    if not isinstance(agent, dict):
        return [f"{where}: write a table: [{where}]"]
    errors = [f"{where}: {_unknown('key', key, AGENT_KEYS)}" for key in agent if key not in AGENT_KEYS]
    for key in ("kind", "command", "model"):
        if key in agent and not isinstance(agent[key], str):
            errors.append(f"{where}.{key}: {agent[key]!r} is not a string")
    if "env" in agent and not _strings(agent["env"]):
        errors.append(f"{where}.env: {agent['env']!r} is not a list of variable names")
    if agent.get("kind") == "command" and not str(agent.get("command", "")).strip():
        errors.append(f"{where}.command: missing; a command agent needs its text")
    return errors


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint}"
