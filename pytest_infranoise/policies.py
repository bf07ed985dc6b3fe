"""What is a matter of choice in judging and running trials, and what is published of it.

Whoever compares two scores has to know these, so they are in every ``run.json`` and, where one is not the
default, in the summary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from typing import Literal

RESERVE_SHARE = 0.05  # of the host's memory, and at most the next: what the guard keeps free by default
RESERVE_MOST = 500 * 1024**2
TOML_KEYS = ("oom-child", "oom-mode", "retries", "memory-reserve", "allow-host-port")


@dataclass(frozen=True, slots=True)
class Policies:
    """The user's choices.

    Args:
        oom_child: what a kernel kill of another process than the agent's main one means without a pass.
        oom_mode: whether the first kernel kill ends the whole trial, as on Kubernetes.
        retries: how many more attempts an infra-error may get whose outcome is unknown.
        memory_reserve: memory that the guard keeps free on the engine's host: bytes, a share (below 1) of all
            memory, or None for the default; 0 turns the guard off.
        allow_host_port: TCP ports of the engine's host that trials with a network may reach, in order.
    """

    oom_child: Literal["infra", "fail"] = "infra"
    oom_mode: Literal["single", "group"] = "single"
    retries: int = 0
    memory_reserve: int | float | None = None
    allow_host_port: tuple[int, ...] = ()

    def reserve_of(self, memory: int) -> int:
        """Return the bytes that are kept free on a host with so much memory."""
        if self.memory_reserve is None:
            return min(int(memory * RESERVE_SHARE), RESERVE_MOST)
        if isinstance(self.memory_reserve, float):
            return int(memory * self.memory_reserve)
        return self.memory_reserve


DEFAULT_POLICIES = Policies()


def published(policies: Policies, reserve: int | None) -> dict[str, Any]:
    """Return the choices for ``run.json``; ``reserve`` in bytes, None when no guard is kept."""
    return {
        "oom_child": policies.oom_child,
        "oom_mode": policies.oom_mode,
        "retries": policies.retries,
        "memory_reserve": reserve,
        "memory_reserve_asked": policies.memory_reserve is not None,
        "allow_host_port": list(policies.allow_host_port),
    }
