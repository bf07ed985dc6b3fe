"""What a reader has to know of the configs of one run, with its tasks and on its host: one line each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from itertools import combinations

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.units import format_memory
from pytest_infranoise.units import plural

# task -> config -> what it gets
_Table = Mapping[str, Mapping[str, Allocation]]


@dataclass(frozen=True, slots=True)
class Host:
    """The cores and bytes of the machine that trials run on."""

    cpus: float
    memory: int


def config_notes(
    configs: Sequence[ResourceConfig], planned: Iterable[tuple[str, str, Allocation]], host: Host
) -> list[str]:
    """Return the notes on ``configs``.

    Args:
        configs: in the user's order.
        planned: task, config and allocation of every trial; repetitions do not matter.
        host: where they run; a CPU ceiling at or above what it has throttles nothing.
    """
    table: dict[str, dict[str, Allocation]] = {}
    for task, config, allocation in planned:
        table.setdefault(task, {})[config] = allocation
    names = [config.name for config in configs]
    return [
        *_without_own_ceiling(configs, table),
        *_cpus_above_host(names, table, host),
        *_memory_above_host(names, table, host),
        *_same(configs, table, host),
    ]


def _without_own_ceiling(configs: Sequence[ResourceConfig], table: _Table) -> Iterator[str]:
    by_text: dict[str, list[str]] = {}
    for config in configs:
        rows = [row[config.name] for row in table.values() if config.name in row]
        tasks = plural(len(rows), "task")
        parts = [
            ("CPU", config.cpus.own, sum(row.cpus_ceiling == row.cpus_floor for row in rows)),
            ("memory", config.memory.own, sum(row.memory_ceiling == row.memory_floor for row in rows)),
        ]
        told = [f"for {noun} by {number} of {tasks}" for noun, own, number in parts if own and number]
        if told:
            by_text.setdefault(" and ".join(told), []).append(config.name)
    for text, names in by_text.items():
        yield (
            f"{', '.join(names)}: no ceiling above the spec is stated {text}; there the spec is floor and ceiling, "
            "as under 1x"
        )


def _cpus_above_host(names: Sequence[str], table: _Table, host: Host) -> Iterator[str]:
    above = _above(names, table, lambda allocation: allocation.cpus_ceiling, host.cpus)
    if not above:
        return
    cpus = f"{host.cpus:g} CPU{'' if host.cpus == 1 else 's'}"
    text = f"CPU ceilings at or above the host's {cpus} throttle nothing: {above}"
    rows = [row for row in table.values() if len(row) > 1]
    alike = sum(len({_real(entry, host).cpus_ceiling for entry in row.values()}) == 1 for row in rows)
    yield (
        f"{text}; the configs do not differ in CPU on this host for {alike} of {plural(len(rows), 'task')}"
        if alike
        else text
    )


def _memory_above_host(names: Sequence[str], table: _Table, host: Host) -> Iterator[str]:
    above = _above(names, table, lambda allocation: allocation.memory_ceiling, host.memory)
    if above:
        limit = format_memory(host.memory)
        yield f"memory ceilings at or above the host's {limit}, which runs out first: {above}"


def _above(
    names: Sequence[str], table: _Table, ceiling_of: Callable[[Allocation], float | None], limit: float
) -> str:
    parts = []
    for name in names:
        ceilings = [ceiling_of(row[name]) for row in table.values() if name in row]
        number = sum(ceiling is not None and ceiling >= limit for ceiling in ceilings)
        if number:
            parts.append(f"{name} for {number} of {plural(len(ceilings), 'task')}")
    return ", ".join(parts)


def _same(configs: Sequence[ResourceConfig], table: _Table, host: Host) -> Iterator[str]:
    for one, two in combinations(configs, 2):
        rows = [row for row in table.values() if one.name in row and two.name in row]
        equal = all(_real(row[one.name], host) == _real(row[two.name], host) for row in rows)
        if rows and equal and one.time == two.time:
            yield f"{one.name} and {two.name} are the same for every task here: a difference of theirs is chance"


def _real(allocation: Allocation, host: Host) -> Allocation:
    """Return an allocation without a CPU ceiling that throttles nothing."""
    ceiling = allocation.cpus_ceiling
    return replace(allocation, cpus_ceiling=None if ceiling is None or ceiling >= host.cpus else ceiling)
