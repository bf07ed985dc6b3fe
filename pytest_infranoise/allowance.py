"""What two runs say of their machines: how much of a gap between them infrastructure may explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_infranoise.journal import Run
from pytest_infranoise.stats.gaps import Configs

# Up to such a ratio of ceilings the effect on a score is known to be small (statistics.md 2i).
_CLOSE_CEILINGS = 3.0
_HOST_FACTS = ("cpus", "memory", "cgroup_version", "version", "kernel", "storage_driver")


def allowance(a: Run, b: Run, config_a: str, config_b: str) -> tuple[Configs, str]:
    """Return how much infrastructure a gap between two runs under these configs may hold, and why."""
    known, why = _by_configs(a, b, config_a, config_b)
    if known in ("uncapped", "undocumented") or all(run.meta.get("engine") for run in (a, b)):
        return known, why
    return "undocumented", f"{why}, and a run does not tell its host"


def _by_configs(a: Run, b: Run, config_a: str, config_b: str) -> tuple[Configs, str]:
    rules = (_rule(a, config_a), _rule(b, config_b))
    if None in rules:
        return "undocumented", "a run does not state its configs"
    first, second = (rule or {} for rule in rules)
    if first.get("time", 1) != second.get("time", 1):
        return "uncapped", "the configs give different time"
    if any(first.get(resource) != second.get(resource) for resource in ("cpus", "memory")):
        return _by_ceilings(first, second)
    engine_a, engine_b = a.meta.get("engine") or {}, b.meta.get("engine") or {}
    if not (engine_a and engine_b):
        return "undocumented", "same config, but a run does not tell its host"
    facts = [fact for fact in _HOST_FACTS if engine_a.get(fact) != engine_b.get(fact)]
    if facts:
        return "documented", f"same config, but hosts differ in {', '.join(facts)}"
    if a.meta.get("workers") != b.meta.get("workers"):
        return "documented", "same config and host, but another number of workers"
    return "same", "same config, same kind of host"


def _by_ceilings(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Configs, str]:
    for resource in ("cpus", "memory"):
        low, high = (rule.get(resource, {}).get("ceiling") for rule in (first, second))
        if low == high:
            continue
        if low is None or high is None:
            return "uncapped", f"one of the configs has no {resource} ceiling"
        if not (isinstance(low, int | float) and isinstance(high, int | float)):
            return "undocumented", f"how far the {resource} ceilings are apart depends on the task"
        if max(low, high) > _CLOSE_CEILINGS * min(low, high):
            return "uncapped", f"the {resource} ceilings are more than {_CLOSE_CEILINGS:g}-fold apart"
    return "documented", "the configs differ and are documented"


def _rule(run: Run, config: str) -> Mapping[str, Any] | None:
    return next((entry for entry in run.meta.get("configs", ()) if entry.get("name") == config), None)
