"""What a Harbor task file says of memory, storage and network, in its newer and its older keys."""

from __future__ import annotations

import re

from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.schema import MAX_MEMORY
from pytest_infranoise.tasks.schema import MIN_MEMORY
from pytest_infranoise.tasks.tables import Table
from pytest_infranoise.units import format_memory

_MIB = 1024**2
# The old keys: a number with one of three units, which are powers of 1024.
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMG])\s*", re.IGNORECASE)
_UNITS = {"K": 1024, "M": _MIB, "G": 1024**3}


def memory_of(environment: Table) -> int | None:
    """Return the memory in bytes; None when the task states none."""
    size = _size(environment, "memory", "memory_mb")
    if size is not None and not MIN_MEMORY <= size <= MAX_MEMORY:
        key = "memory_mb" if "memory_mb" in environment else "memory"
        problem = f"{format_memory(size)} is less than a container can start with"
        environment.note(key, problem if size < MIN_MEMORY else "is no sensible amount", "write e.g. 2048")
        return None
    return size


def storage_of(environment: Table) -> int | None:
    """Return the disk space in bytes; None when the task states none."""
    return _size(environment, "storage", "storage_mb")


def _size(environment: Table, old: str, new: str) -> int | None:
    """Return bytes from the old key (text with a unit) or the new one (MiB); both must say the same."""
    whole = environment.whole(new, 0, MAX_MEMORY // _MIB)
    text = environment.text(old)
    if text is None:
        return None if whole is None else whole * _MIB
    match = _SIZE.fullmatch(text)
    if match is None:
        environment.note(old, f"{show(text)} is not an amount", f"write e.g. 2G, or {new} = 2048")
        return None
    # Harbor counts in whole MiB.
    stated = int(float(match[1]) * _UNITS[match[2].upper()]) // _MIB
    if whole is not None and whole != stated:
        environment.note(old, f"{show(text)} is {stated} MiB, but {new} is {whole}", "remove one of them")
        return None
    return stated * _MIB


def network_of(environment: Table) -> bool:
    """Return whether the container has a network; lists of allowed hosts are not supported and not seen here."""
    mode = environment.choice("network_mode", {"public": True, "no-network": False})
    old = environment.truth("allow_internet")
    if mode is not None and old is not None and mode != old:
        stated = environment.data["network_mode"]
        problem = f"is {show(old)}, but network_mode is {show(stated)}"
        environment.note("allow_internet", problem, "remove one of them")
    if mode is not None:
        return mode
    return True if old is None else old
