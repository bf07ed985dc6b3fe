"""The tables ``[configs.NAME]`` of ``infranoise.toml``: each a config of its own, or one that extends another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_infranoise.config_grammar import CONFIG_KEYS
from pytest_infranoise.config_grammar import EXAMPLES
from pytest_infranoise.config_grammar import RESERVED
from pytest_infranoise.config_grammar import STRICT
from pytest_infranoise.config_grammar import built_in
from pytest_infranoise.config_grammar import check_config_name
from pytest_infranoise.config_grammar import near_match
from pytest_infranoise.config_grammar import with_parts
from pytest_infranoise.model import ResourceConfig

TABLE_KEYS = (*CONFIG_KEYS, "extends")


def configs_of_tables(tables: object) -> tuple[dict[str, ResourceConfig], list[str]]:
    """Return the configs of all ``[configs.NAME]`` tables, and what is wrong with those that give none."""
    if not isinstance(tables, Mapping):
        return {}, ["configs: write one table for each config: [configs.NAME]"]
    configs: dict[str, ResourceConfig] = {}
    errors: dict[str, None] = {}
    for name in tables:
        try:
            _resolve(name, tables, configs, ())
        except ValueError as error:
            errors[str(error)] = None
    return configs, list(errors)


def _resolve(
    name: str, tables: Mapping[str, Any], configs: dict[str, ResourceConfig], heirs: tuple[str, ...]
) -> ResourceConfig:
    if name in configs:
        return configs[name]
    where, table = f"configs.{name}", tables[name]
    _check_table(name, where, table)
    if name in heirs:
        circle = " -> ".join([*heirs[heirs.index(name) :], name])
        raise ValueError(f"configs: {circle} extend each other in a circle; remove one `extends`")
    parent = ResourceConfig(name, cpus=STRICT, memory=STRICT)
    if "extends" in table:
        parent = _parent(table["extends"], where, tables, configs, (*heirs, name))
    try:
        changed = with_parts(parent, {key: table[key] for key in CONFIG_KEYS if key in table})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    configs[name] = ResourceConfig(name, changed.cpus, changed.memory, changed.time)
    return configs[name]


def _parent(
    text: str,
    where: str,
    tables: Mapping[str, Any],
    configs: dict[str, ResourceConfig],
    heirs: tuple[str, ...],
) -> ResourceConfig:
    if text in tables:
        return _resolve(text, tables, configs, heirs)
    try:
        parent = built_in(text)
    except ValueError as error:
        raise ValueError(f"{where}.extends: {error}") from None
    if parent is None:
        near = near_match(text, [*tables, *RESERVED])
        raise ValueError(
            f"{where}.extends: unknown config {text!r}; {near}write Kx, uncapped, task or the name of another "
            "[configs.NAME]"
        )
    return parent


def _check_table(name: str, where: str, table: Any) -> None:
    try:
        check_config_name(name)
    except ValueError as error:
        raise ValueError(f"configs: {error}") from None
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: write a table: [{where}]")
    for key, value in table.items():
        if key not in TABLE_KEYS:
            hint = near_match(key, TABLE_KEYS) or f"known: {', '.join(TABLE_KEYS)}"
            raise ValueError(f"{where}: unknown key {key!r}; {hint.strip()}")
        if not isinstance(value, str):
            raise ValueError(f"{where}.{key}: {value!r} is not a text; write e.g. {_table_example(key)}")
    if not table:
        raise ValueError(f"{where}: sets nothing; give it memory, cpus, time or extends")


def _table_example(key: str) -> str:
    return {"time": '"1.5x"', "extends": '"3x"'}.get(key, f'"1x..{EXAMPLES.get(key)}"')
