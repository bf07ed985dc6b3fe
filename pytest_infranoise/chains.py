"""How resource configs compare: which of them gives more, and whether they form a chain of rising ceilings.

Judged on the configs' entries in run.json, so that what can never be shown can be told before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from typing import Literal

Rules = Mapping[str, Mapping[str, Any]]
Direction = Literal["two-sided", "greater", "less"]


def infra_alternative(zero: Mapping[str, Any] | None, one: Mapping[str, Any] | None) -> Direction:
    """Return which change of the infra-error rate the exact test looks for.

    A fall when no ceiling is lower than the baseline's, a rise when none is higher, else either: set by the configs
    alone, never by the data.
    """
    ends = [(_ceiling(zero, part), _ceiling(one, part)) for part in ("cpus", "memory")]
    if any(before is None or after is None for before, after in ends):
        return "two-sided"
    ordered = [(before, after) for before, after in ends if before is not None and after is not None]
    if all(before <= after for before, after in ordered):
        return "less"
    return "greater" if all(before >= after for before, after in ordered) else "two-sided"


def _ceiling(config: Mapping[str, Any] | None, resource: str) -> float | None:
    """Return a ceiling as a multiple of the spec, infinite without one; None when it is no multiple."""
    if config is None or resource not in config:
        return None
    end = config[resource].get("ceiling")
    if end is None:
        return math.inf
    return float(end) if isinstance(end, int | float) else None


def chain(names: Sequence[str], rules: Rules) -> tuple[tuple[str, ...] | None, str]:
    """Return the configs by rising ceilings; None, and why, when they are no chain.

    In a chain each config gives at least as much of everything as the one before it, and more of something.
    """
    amounts = {name: _amounts(rules.get(name)) for name in names}
    for name, values in amounts.items():
        if values is None:
            return None, f"{name} is no multiple of the spec"
    known = {name: values for name, values in amounts.items() if values is not None}
    ordered = sorted(known, key=lambda name: known[name])
    for lower, higher in pairwise(ordered):
        if known[lower] == known[higher]:
            return None, f"{lower} and {higher} are the same"
        if any(less > more for less, more in zip(known[lower], known[higher], strict=True)):
            return None, f"neither of {lower} and {higher} gives at least as much of everything"
    return tuple(ordered), ""


def _amounts(config: Mapping[str, Any] | None) -> tuple[float, ...] | None:
    """Return ceilings, floors and time as multiples; None when one of them is none."""
    ends = [_ceiling(config, resource) for resource in ("memory", "cpus")]
    if config is None or any(end is None for end in ends):
        return None
    floors = [config[resource].get("floor", 1.0) for resource in ("memory", "cpus")]
    values = [*ends, *floors, config.get("time", 1.0)]
    if not all(isinstance(value, int | float) for value in values):
        return None
    return tuple(float(value) for value in values)


def uncapped(config: Mapping[str, Any] | None) -> bool:
    """Whether a config has no ceiling on memory, so that there is none to recommend."""
    return _ceiling(config, "memory") == math.inf


def calibration_problem(names: Sequence[str], rules: Rules, baseline: str, pick: str | None = None) -> str:
    """Return why no run of these configs can be calibrated, or never to ``pick``; empty when one can."""
    ordered, why = chain(names, rules)
    if ordered is None:
        return f"the configs are no chain of rising ceilings: {why}"
    above = ordered[ordered.index(baseline) + 1 :] if baseline in ordered else ()
    eligible = [name for name in above if not uncapped(rules.get(name))]
    if not eligible:
        return f"no config has a memory ceiling above that of the baseline {baseline}"
    if pick is not None and pick not in eligible:
        return f"{pick} is no ceiling above the baseline's; those are: {', '.join(eligible)}"
    return ""
