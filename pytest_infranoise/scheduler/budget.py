"""What trials take of a host, and how much of it is free.

CPU floors may fill the host entirely; the memory that is kept back is no part of the capacity to begin with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pytest_infranoise.model import Allocation

Admit = Literal["floor", "ceiling"]

# Floors are decimal fractions of a core; their sums are off by less than this.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Capacity:
    """Cores and bytes that floors may add up to."""

    cpus: float
    memory: int


@dataclass(frozen=True, slots=True)
class Need:
    """Cores and bytes that are reserved for as long as a trial runs."""

    cpus: float = 0.0
    memory: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.cpus + other.cpus, self.memory + other.memory)

    def fits(self, capacity: Capacity) -> bool:
        """Whether a host can give this much at once."""
        return self.cpus <= capacity.cpus + _ROUNDING and self.memory <= capacity.memory

    def share(self, capacity: Capacity) -> float:
        """Return the part of a host that this takes, of the resource of which it takes the larger part."""
        return max(self.cpus / capacity.cpus, self.memory / capacity.memory)


NOTHING = Need()


def total(needs: Iterable[Need]) -> Need:
    """Return the sum of needs."""
    return sum(needs, NOTHING)


def need_of(allocation: Allocation, capacity: Capacity, admit: Admit) -> Need:
    """Return what a trial reserves: its floors, or with ``ceiling`` the most that it can come to use.

    What has no ceiling, or one above the host, can come to use all of it, so it reserves all of it.
    """
    if admit == "floor":
        return Need(allocation.cpus_floor, allocation.memory_floor)
    cpus, memory = allocation.cpus_ceiling, allocation.memory_ceiling
    return Need(
        capacity.cpus if cpus is None else min(cpus, capacity.cpus),
        capacity.memory if memory is None else min(memory, capacity.memory),
    )
