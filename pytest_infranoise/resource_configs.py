"""What a resource config makes of a task: the allocation and the time that one trial gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pytest_infranoise.config_grammar import MAX_MEMORY
from pytest_infranoise.config_grammar import format_rule
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Amount
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Rule
from pytest_infranoise.model import Task
from pytest_infranoise.model import Trial
from pytest_infranoise.model import TrialKey
from pytest_infranoise.units import format_memory


class _Limits(NamedTuple):
    """What an engine takes of a resource, and how amounts of it are written."""

    noun: str
    smallest_floor: float
    smallest_ceiling: float
    largest: float  # larger ones are mistakes, long before the kernel refuses them
    show: Callable[[float], str]


# Docker refuses smaller limits and reservations of memory and smaller quotas; the kernel has no smaller share.
_LIMITS = {
    "memory": _Limits("memory", 6 * 1024**2, 6 * 1024**2, MAX_MEMORY, format_memory),
    "cpus": _Limits("CPU", 0.002, 0.01, 1_000_000, "{:g}".format),
}


def make_trial(key: TrialKey, task: Task, config: ResourceConfig, agent: AgentChoice) -> Trial:
    """Return the trial of ``task`` under ``config``: floors, ceilings, and the agent's time.

    Raises:
        ValueError: see ``allocate``.
    """
    timed = replace(task, timeouts=replace(task.timeouts, agent=task.timeouts.agent * config.time))
    return Trial(key, timed, config, allocate(task, config), agent)


def allocate(task: Task, config: ResourceConfig) -> Allocation:
    """Return floors and ceilings of ``task`` under ``config``.

    Raises:
        ValueError: a floor is above its ceiling, or the engine could not enforce one of them; the message names
            task and config.
    """
    spec = task.spec
    try:
        cpus = _ends("cpus", config.cpus, spec.cpus, spec.cpus_ceiling)
        memory = _ends("memory", config.memory, spec.memory, spec.memory_ceiling)
    except _Impossible as error:
        raise ValueError(
            f"{task.file}: resources.{error.resource}: task {task.name!r} under config {config.name!r} has {error}"
        ) from None
    return Allocation(
        cpus_floor=cpus[0],
        cpus_ceiling=cpus[1],
        memory_floor=int(memory[0]),
        memory_ceiling=None if memory[1] is None else int(memory[1]),
        pids_ceiling=task.pids_ceiling,
        shm_ceiling=task.shm_ceiling,
    )


class _Impossible(Exception):
    def __init__(self, resource: str, text: str) -> None:
        super().__init__(text)
        self.resource = resource


def _ends(resource: str, rule: Rule, spec: float, own_ceiling: float | None) -> tuple[float, float | None]:
    floor = _end(rule.floor, spec)
    ceiling = None if rule.ceiling is None else _end(rule.ceiling, spec)
    if rule.own and own_ceiling is not None:
        ceiling = own_ceiling
    problem = _problem(_LIMITS[resource], floor, ceiling, f"{resource}={format_rule(rule, resource)}")
    if problem is not None:
        raise _Impossible(resource, problem)
    return floor, ceiling


def _problem(limits: _Limits, floor: float, ceiling: float | None, rule: str) -> str | None:
    noun, show = limits.noun, limits.show
    if ceiling is not None:
        if floor > ceiling:
            return (
                f"a {noun} floor of {show(floor)}, above its ceiling of {show(ceiling)} (the config says {rule}); "
                "lower the floor or raise the ceiling"
            )
        if ceiling < limits.smallest_ceiling:
            smallest = show(limits.smallest_ceiling)
            return f"a {noun} ceiling of {show(ceiling)}, below the {smallest} that the engine accepts; raise it"
        if ceiling > limits.largest:
            return f"a {noun} ceiling of {show(ceiling)}, more than there is; write uncapped for none"
    if floor < limits.smallest_floor:
        smallest = show(limits.smallest_floor)
        return f"a {noun} floor of {show(floor)}, below the {smallest} that the engine accepts; raise it"
    return None


def _end(end: float | Amount, spec: float) -> float:
    # What binary fractions add to 3 * 0.1 is no difference between a floor and a ceiling of 0.3.
    return round(end.value if isinstance(end, Amount) else spec * end, 6)


def check_floor(what: str, allocation: Allocation, cpus: float, memory: int) -> str | None:
    """Return why a host with so many cores and bytes to give can never run ``what``; None if it can."""
    if allocation.memory_floor > memory:
        return (
            f"{what} has a memory floor of {format_memory(allocation.memory_floor)}, more than the "
            f"{format_memory(memory)} this host can give; lower the floor or use a larger host"
        )
    if allocation.cpus_floor > cpus:
        return (
            f"{what} has a CPU floor of {allocation.cpus_floor:g}, more than the {cpus:g} this host can give; "
            "lower the floor or use a larger host"
        )
    return None
