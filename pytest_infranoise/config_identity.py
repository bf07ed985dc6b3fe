"""Whether two resource configs of one name are the same, as ``run.json`` has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_CLOSE = 1e-6  # what texts of multiples may lose


def same_config(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two entries of ``configs`` give every task the same floors, ceilings and time."""
    ends = [(resource, end) for resource in ("cpus", "memory") for end in ("floor", "ceiling")]
    return _same(one.get("time", 1.0), other.get("time", 1.0)) and all(
        _same(one[resource][end], other[resource][end]) for resource, end in ends
    )


def _same(one: float | str | None, other: float | str | None) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_CLOSE)
    return one == other


def config_words(entry: Mapping[str, Any]) -> str:
    """Return an entry's floors, ceilings and time, as ``--resource-config`` takes them."""
    parts = [
        f"{resource}={_end(entry[resource]['floor'])}..{_end(entry[resource]['ceiling'])}" for resource in _PARTS
    ]
    return ",".join([*parts, *([f"time={entry['time']:g}x"] if entry.get("time", 1.0) != 1 else [])])


_PARTS = ("memory", "cpus")


def _end(end: float | str | None) -> str:
    if end is None:
        return "uncapped"
    return end if isinstance(end, str) else f"{end:g}x"
