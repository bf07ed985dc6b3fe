"""The options about what is to be shown: decided before a run, and recorded with it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from pytest_infranoise.design import Design
from pytest_infranoise.settings_values import scalar
from pytest_infranoise.settings_values import told

if TYPE_CHECKING:
    import pytest

    from pytest_infranoise.settings_file import SettingsFile

DESIGN = Design()
TARGETS = ("benchmark", "population")


class _Number(NamedTuple):
    """A number of the design: its default as it is typed, what it may be, and that in words."""

    default: float
    allowed: Callable[[float], bool]
    expected: str


NUMBERS: Mapping[str, _Number] = {
    "margin": _Number(
        100 * DESIGN.margin,
        lambda value: 0.1 <= value <= 50,
        "between 0.1 and 50 percentage points (3 is 3 points)",
    ),
    "alpha": _Number(DESIGN.alpha, lambda value: 0.0001 <= value <= 0.2, "between 0.0001 and 0.2"),
    "min_cut": _Number(
        DESIGN.min_cut, lambda value: 0 < value <= 1, "a share above 0 and at most 1 (0.5 is a half)"
    ),
}


def add_design_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """Declare the options with their ini twins."""
    group.addoption(
        "--infranoise-baseline",
        metavar="CONFIG",
        help="config that changes refer to (default: the first one)",
    )
    group.addoption(
        "--infranoise-margin",
        type=float,
        metavar="POINTS",
        help="Score difference in percentage points below which two configs count as the same; it is fixed before "
        "the run and recorded. Default: 3.",
    )
    group.addoption(
        "--infranoise-alpha",
        type=float,
        metavar="LEVEL",
        help="significance level of tests; intervals are at 1 - LEVEL (default: 0.05)",
    )
    group.addoption(
        "--infranoise-min-cut",
        type=float,
        metavar="SHARE",
        help="share of the baseline's infra-errors that a ceiling must remove to be recommended (default: 0.5)",
    )
    group.addoption(
        "--infranoise-target",
        metavar="TARGET",
        help="What intervals cover: benchmark (exactly these tasks) or population (tasks like these, which makes "
        "them wider). Default: benchmark.",
    )
    parser.addini("infranoise_baseline", "config that changes refer to", type="string", default="")
    parser.addini("infranoise_margin", "margin in percentage points", type="float", default=None)
    parser.addini("infranoise_alpha", "significance level", type="float", default=None)
    parser.addini("infranoise_min_cut", "share of infra-errors to remove", type="float", default=None)
    parser.addini("infranoise_target", "benchmark or population", type="string", default="")


def design_errors(table: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the design in a settings file's table."""
    errors = []
    for name, number in NUMBERS.items():
        key = name.replace("_", "-")
        if key in table and not (_is_number(table[key]) and number.allowed(table[key])):
            errors.append(f"{key}: {table[key]!r} is not {number.expected}")
    if "target" in table and table["target"] not in TARGETS:
        errors.append(f"target: {table['target']!r} is neither {TARGETS[0]} nor {TARGETS[1]}")
    if "baseline" in table and not isinstance(table["baseline"], str):
        errors.append(f"baseline: {table['baseline']!r} is not the name of a config")
    return errors


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_design(config: pytest.Config, file: SettingsFile) -> tuple[Design, list[str]]:
    """Return the design, and what is wrong with it where that was not typed.

    Raises:
        ValueError: something wrong was typed, or an ini value is no number.
    """
    values, errors = {}, []
    for name, number in NUMBERS.items():
        value = float(scalar(config, name, float, file.values.get(name.replace("_", "-"), number.default)))
        if not number.allowed(value):
            errors.append(told(config, file.path, name, f"{value:g} is not {number.expected}"))
            value = number.default
        values[name] = value
    target = _text(config, file, "target") or DESIGN.target
    if target not in TARGETS:
        errors.append(told(config, file.path, "target", f"{target!r} is neither {TARGETS[0]} nor {TARGETS[1]}"))
        target = DESIGN.target
    # Rounded, so that 3 points come out as the proportion 0.03 and not as a neighbour of it.
    margin = round(values["margin"] / 100, 9)
    design = Design(margin=margin, alpha=values["alpha"], min_cut=values["min_cut"])
    return replace(design, target="population") if target == "population" else design, errors


def read_baseline(config: pytest.Config, file: SettingsFile, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the baseline's name, one of ``names``, and what is wrong with it where that was not typed.

    Raises:
        ValueError: a config that is not among ``names`` was typed.
    """
    given = _text(config, file, "baseline")
    if given is None or given in names:
        return given or names[0], []
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    error = f"no resource config {given!r} in this run; {hint}configs: {', '.join(names)}"
    return names[0], [told(config, file.path, "baseline", error)]


def _text(config: pytest.Config, file: SettingsFile, name: str) -> str | None:
    typed = getattr(config.option, f"infranoise_{name}")
    if typed is not None:
        return str(typed).strip()
    return config.getini(f"infranoise_{name}").strip() or file.values.get(name)
