"""Floors and ceilings in the engine's terms, and whether the kernel really has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes.protocol import Limits
from pytest_infranoise.sandboxes.shell import OOM_SCORE_ADJ_OF_CONTAINER

CPU_PERIOD = 100_000  # microseconds
_PAGE = 4096
_CPU_ROUNDING = 0.01  # systemd rounds a quota to 1 % of a core
_MOST_SHARES = 262_144

# What `info` states about the engine: field, and the limit that is not enforced when it is false.
_ABILITIES = (
    ("MemoryLimit", "memory limit"),
    ("SwapLimit", "swap limit"),
    ("CpuCfsPeriod", "CPU quota"),
    ("CpuCfsQuota", "CPU quota"),
    ("CPUShares", "CPU shares"),
    ("PidsLimit", "pids limit"),
)
_WARNS_OF_LIMIT = re.compile(r"discarded|limited without|does not support|not mounted", re.IGNORECASE)
_WARNS_OF_SWAP_ONLY = re.compile(r"swap limit|limited without swap", re.IGNORECASE)


def host_options(allocation: Allocation) -> dict[str, Any]:
    """Return the keyword arguments of ``create_host_config`` that put an allocation into force.

    Swap is made no way around the memory ceiling. The CPU ceiling goes in as quota and period, because
    ``nano_cpus`` refuses more than the host has.
    """
    options: dict[str, Any] = {
        "mem_reservation": allocation.memory_floor,
        "cpu_shares": cpu_shares(allocation.cpus_floor),
        "pids_limit": allocation.pids_ceiling,
        "shm_size": allocation.shm_ceiling,
        "oom_score_adj": OOM_SCORE_ADJ_OF_CONTAINER,
    }
    if allocation.memory_ceiling is not None:
        options["mem_limit"] = allocation.memory_ceiling
        options["memswap_limit"] = allocation.memory_ceiling
    if allocation.cpus_ceiling is not None:
        options["cpu_period"] = CPU_PERIOD
        options["cpu_quota"] = round(allocation.cpus_ceiling * CPU_PERIOD)
    return options


def cpu_shares(cpus: float) -> int:
    """Return the relative weight of a CPU floor: 1024 a core, within what the kernel takes."""
    return min(max(round(cpus * 1024), 2), _MOST_SHARES)


def unsupported_limits(info: Mapping[str, Any], swapless: bool) -> tuple[str, ...]:
    """Return what an engine's ``info`` says it cannot enforce.

    Args:
        info: the engine's answer.
        swapless: the engine's machine is known to have no swap, so that no limit on it is missed.
    """
    missing = dict.fromkeys(limit for field, limit in _ABILITIES if info.get(field) is False)
    if swapless:
        missing.pop("swap limit", None)
    if info.get("OSType", "linux") != "linux":
        missing["Linux containers"] = None
    return tuple(missing)


def limit_warnings(warnings: Iterable[str], swapless: bool) -> list[str]:
    """Return those warnings of a create call that say that a limit is not in force."""
    return [
        warning
        for warning in warnings
        if _WARNS_OF_LIMIT.search(warning) and not (swapless and _WARNS_OF_SWAP_ONLY.search(warning))
    ]


def check_limits(allocation: Allocation, limits: Limits, *, swapless: bool = False) -> list[str]:
    """Return how the limits read back differ from the allocation; empty when they do not.

    The kernel rounds memory to pages, and CPU quotas may be rounded to 1 % of a core. The CPU weight is compared
    on cgroup v1 only: how shares become a v2 weight differs between container runtimes.

    Args:
        allocation: what was asked for.
        limits: what the kernel has.
        swapless: the machine has no swap, so a missing limit on it is none.
    """
    found = []
    ceiling = allocation.memory_ceiling
    if not _same_memory(ceiling, limits.memory):
        found.append(f"memory ceiling: asked {_bytes(ceiling)}, is {_bytes(limits.memory)}")
    if not (swapless and limits.memory_and_swap is None) and not _same_memory(ceiling, limits.memory_and_swap):
        found.append(f"memory and swap ceiling: asked {_bytes(ceiling)}, is {_bytes(limits.memory_and_swap)}")
    if not _same_memory(allocation.memory_floor, limits.memory_floor):
        found.append(f"memory floor: asked {_bytes(allocation.memory_floor)}, is {_bytes(limits.memory_floor)}")
    if not _same_cpus(allocation.cpus_ceiling, limits.cpus):
        found.append(f"CPU ceiling: asked {_cores(allocation.cpus_ceiling)}, is {_cores(limits.cpus)}")
    shares = cpu_shares(allocation.cpus_floor)
    if "v2" not in limits.source and limits.cpu_weight != shares:
        found.append(f"CPU floor: asked {shares} shares, is {limits.cpu_weight or 'unreadable'}")
    if limits.pids != allocation.pids_ceiling:
        found.append(f"pids ceiling: asked {allocation.pids_ceiling}, is {limits.pids or 'none'}")
    return found


def _same_memory(asked: int | None, got: int | None) -> bool:
    if asked is None or got is None:
        return asked is got
    return abs(asked - got) < _PAGE


def _same_cpus(asked: float | None, got: float | None) -> bool:
    if asked is None or got is None:
        return asked is got
    return abs(asked - got) <= max(_CPU_ROUNDING, _CPU_ROUNDING * asked)


def _bytes(size: int | None) -> str:
    return "none" if size is None else f"{size} bytes"


def _cores(cpus: float | None) -> str:
    return "none" if cpus is None else f"{cpus:g} cores"
