"""The options that say in what order trials run, and out of what their floors are shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.scheduler.budget import Admit
from pytest_infranoise.scheduler.order import ORDERS
from pytest_infranoise.scheduler.order import Order
from pytest_infranoise.units import parse_memory

if TYPE_CHECKING:
    import pytest

CHOICES: Mapping[str, tuple[str, ...]] = {"order": tuple(ORDERS), "admit": ("floor", "ceiling")}
_SMALLEST_CPUS = 0.01
_SMALLEST_MEMORY = 6 * 1024**2


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """What the user chose; ``host_cpus`` and ``host_memory`` (bytes) are None for what the engine's host has.

    ``heartbeat`` is in minutes, 0 for none.
    """

    order: Order = "shuffled"
    admit: Admit = "floor"
    host_cpus: float | None = None
    host_memory: int | None = None
    heartbeat: float = 5.0


DEFAULT_SCHEDULE = ScheduleSettings()


def add_options(group: Any, parser: pytest.Parser) -> None:
    """Declare the options with their ini twins."""
    group.addoption(
        "--infranoise-order",
        choices=CHOICES["order"],
        help="Order of trials: shuffled inside rounds (default), packed for the shortest run, or blocks, in which "
        "only trials of one config run at a time.",
    )
    group.addoption(
        "--infranoise-admit",
        choices=CHOICES["admit"],
        help="What is reserved for a trial before it starts: its floor (default), or its ceiling, with which a "
        "neighbour can take nothing from it. Without a ceiling it then reserves the whole host.",
    )
    group.addoption(
        "--infranoise-host-cpus",
        metavar="CPUS",
        help="CPUs that floors may add up to (default: those of the engine's host)",
    )
    group.addoption(
        "--infranoise-host-memory",
        metavar="MEMORY",
        help="memory that floors may add up to, e.g. 12G (default: that of the engine's host, less 5%%)",
    )
    group.addoption(
        "--infranoise-heartbeat",
        metavar="MINUTES",
        help="Minutes between lines that say how far a session is, where its output is no terminal (default: 5). "
        "0 for none.",
    )
    parser.addini("infranoise_order", "order of trials (see --infranoise-order)", type="string", default="")
    parser.addini("infranoise_admit", "what is reserved for a trial: floor or ceiling", type="string", default="")
    parser.addini("infranoise_host_cpus", "CPUs that floors may add up to", type="string", default="")
    parser.addini("infranoise_host_memory", "memory that floors may add up to", type="string", default="")
    parser.addini("infranoise_heartbeat", "minutes between lines that say how far it is", type="string", default="")


def read_schedule(config: pytest.Config, toml: Mapping[str, Any]) -> tuple[ScheduleSettings, tuple[str, ...]]:
    """Return the settings, and what is wrong with ini values: that concerns nobody until a trial is selected.

    ``toml`` has the values of ``infranoise.toml``, which are right.

    Raises:
        ValueError: what was typed is wrong.
    """
    errors: list[str] = []
    values: dict[str, Any] = {name: _choice(config, name, toml, errors) for name in CHOICES}
    for name, parse in (("host_cpus", _cpus), ("host_memory", _memory), ("heartbeat", _minutes)):
        typed, ini = getattr(config.option, f"infranoise_{name}"), str(config.getini(f"infranoise_{name}")).strip()
        try:
            values[name] = parse(typed if typed is not None else ini) if typed is not None or ini else None
        except ValueError as error:
            if typed is not None:
                raise ValueError(f"--infranoise-{name.replace('_', '-')}: {error}") from None
            errors.append(f"ini value infranoise_{name}: {error}")
    return ScheduleSettings(**{key: value for key, value in values.items() if value is not None}), tuple(errors)


def _choice(config: pytest.Config, name: str, toml: Mapping[str, Any], errors: list[str]) -> str | None:
    typed: str | None = getattr(config.option, f"infranoise_{name}")
    if typed is not None:
        return typed
    ini = str(config.getini(f"infranoise_{name}")).strip()
    if ini and ini not in CHOICES[name]:
        errors.append(f"ini value infranoise_{name}: {ini!r} is none of {', '.join(CHOICES[name])}")
        return None
    return ini or toml.get(name)


def _cpus(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not _SMALLEST_CPUS <= number < float("inf"):
        raise ValueError(f"{text!r} is not a number of CPUs; write e.g. 8 or 7.5")
    return number


def _memory(text: str) -> int:
    size = parse_memory(text)
    if size < _SMALLEST_MEMORY:
        raise ValueError(f"{text!r} is less memory than one container needs; write e.g. 12G")
    return size


def _minutes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{text!r} is not a number of minutes; write e.g. 5, or 0 for no such lines")
    return number
