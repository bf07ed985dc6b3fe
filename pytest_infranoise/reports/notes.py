"""What the summary says of how trials were judged and kept apart, where that is not what everybody expects."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from pytest_infranoise.units import format_memory


def run_notes(meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each thing that a reader has to know; ``meta`` is a run's ``run.json``."""
    parts = list(_policy(meta.get("policy", {})))
    if parts:
        yield f"policy: {'; '.join(parts)}"
    reached = _reachable(meta.get("isolation", {}))
    if reached:
        yield reached
    allowed = meta.get("isolation", {}).get("allowed_host_ports")
    if allowed:
        ports = ", ".join(map(str, allowed))
        yield f"trials with a network could reach ports of the engine's host, as allowed: {ports}"


def _policy(policy: Mapping[str, Any]) -> Iterator[str]:
    if policy.get("oom_child", "infra") != "infra":
        yield "a child killed for memory without a pass is left to the verifier (oom-child fail)"
    if policy.get("oom_mode", "single") != "single":
        yield "the first kernel kill for memory ends the trial (oom-mode group)"
    if policy.get("retries"):
        yield f"up to {policy['retries']} retries of infra-errors whose outcome is unknown"
    if policy.get("memory_reserve_asked"):
        reserve = policy["memory_reserve"]
        yield f"memory reserve of the host {format_memory(reserve)}" if reserve else "no memory reserve"


def _reachable(isolation: Mapping[str, Any]) -> str | None:
    """Say what trials with a network could reach that they should not, and why; None when it was all closed."""
    words = {
        "other_trials": "other trials",
        "link_local": "link-local metadata addresses",
        "host_ports": "the host's ports",
    }
    found = [text for key, text in words.items() if isolation.get(key) == "reachable"]
    if not found:
        return None
    return f"trials with a network could reach {' and '.join(found)} ({isolation.get('why')})"
