"""The grammar of resource configs, and how one becomes an allocation for a task."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Rule
from pytest_infranoise.model import Task
from pytest_infranoise.units import format_memory

DEFAULT_CONFIGS = ("1x", "3x", "uncapped")
GRAMMAR = "write Kx (floor 1x, ceiling K times the spec, e.g. 1x or 3x) or uncapped (floor 1x, no ceiling)"

# Docker refuses to create a container below this.
SMALLEST_MEMORY = 6 * 1024**2

_MULTIPLE = re.compile(r"(\d+(?:\.\d+)?)x")


def parse_config(text: str) -> ResourceConfig:
    """Return the config that ``text`` names.

    Raises:
        ValueError: there is no such config; the message names the grammar.
    """
    if text == "uncapped":
        rule = Rule(1.0, None)
        return ResourceConfig(text, cpus=rule, memory=rule)
    match = _MULTIPLE.fullmatch(text)
    if match is None:
        raise ValueError(f"unknown resource config {text!r}; {GRAMMAR}")
    factor = float(match[1])
    if factor < 1 or not math.isfinite(factor):
        raise ValueError(f"resource config {text!r}: a ceiling below the floor of 1x; {GRAMMAR}")
    rule = Rule(1.0, factor)
    return ResourceConfig(f"{factor:g}x", cpus=rule, memory=rule)


def parse_configs(values: Iterable[str]) -> tuple[ResourceConfig, ...]:
    """Return the configs of comma lists, in order.

    Raises:
        ValueError: one is unknown, or given twice (``1.0x`` is ``1x``), or there is none.
    """
    configs: dict[str, ResourceConfig] = {}
    for value in values:
        for text in value.split(","):
            config = parse_config(text.strip())
            if config.name in configs:
                raise ValueError(f"resource config {config.name!r} is given twice")
            configs[config.name] = config
    if not configs:
        raise ValueError(f"no resource config given; {GRAMMAR}")
    return tuple(configs.values())


def allocate(task: Task, config: ResourceConfig) -> Allocation:
    """Return floors and ceilings of ``task`` under ``config``.

    Raises:
        ValueError: the engine could not enforce them; the message names task and config.
    """
    spec = task.spec
    allocation = Allocation(
        cpus_floor=spec.cpus * config.cpus.floor,
        cpus_ceiling=None if config.cpus.ceiling is None else spec.cpus * config.cpus.ceiling,
        memory_floor=int(spec.memory * config.memory.floor),
        memory_ceiling=None if config.memory.ceiling is None else int(spec.memory * config.memory.ceiling),
        pids_ceiling=task.pids_ceiling,
        shm_ceiling=task.shm_ceiling,
    )
    if allocation.memory_ceiling is not None and allocation.memory_ceiling < SMALLEST_MEMORY:
        raise ValueError(
            f"{task.file}: resources.memory: task {task.name!r} under config {config.name!r} has a memory ceiling "
            f"of {format_memory(allocation.memory_ceiling)}, below the {format_memory(SMALLEST_MEMORY)} that "
            "Docker accepts; raise the spec"
        )
    return allocation


def check_floor(what: str, allocation: Allocation, cpus: float, memory: int) -> str | None:
    """Return why a host with so many cores and bytes to give can never run ``what``; None if it can."""
    if allocation.memory_floor > memory:
        return (
            f"{what} has a memory floor of {format_memory(allocation.memory_floor)}, more than the "
            f"{format_memory(memory)} this host can give; lower resources.memory or use a larger host"
        )
    if allocation.cpus_floor > cpus:
        return (
            f"{what} has a CPU floor of {allocation.cpus_floor:g}, more than the {cpus:g} this host can give; "
            "lower resources.cpus or use a larger host"
        )
    return None
