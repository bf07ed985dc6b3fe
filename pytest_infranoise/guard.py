"""The memory guard of the engine's host: who has to go when it runs short, before the kernel picks somebody.

Ceilings above floors overcommit the host by design. When less than a reserve is available, the trial that is
furthest above its floor is ended, which is what kubelets do; a trial within its floor was promised that memory
and is never touched. Every process looks for its own trial, and the ledger, which all sessions of a host share,
holds what each one uses: so all of them come to the same answer, and one trial at a time is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from pytest_infranoise.host import Owner
from pytest_infranoise.model import Cause
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.trials.evidence import CutOff
from pytest_infranoise.trials.watch import Look
from pytest_infranoise.units import format_memory

_SECONDS = 1.0  # between looks
_PATIENCE = 5.0  # seconds for every other process to tell what its trial holds; one that starts a trial does not


@dataclass(frozen=True, slots=True)
class Reading:
    """What one running trial holds in memory that cannot be dropped, in bytes; ``usage`` is None if unknown."""

    name: str
    floor: int
    usage: int | None
    ending: bool = False

    @property
    def excess(self) -> int:
        """Return how far it is above its floor; 0 within it."""
        return max(0, (self.usage or 0) - self.floor)


def victim(readings: Iterable[Reading], available: int, reserve: int) -> Reading | None:
    """Return the trial to end: the one furthest above its floor.

    Nobody is ended while memory suffices, while another one is ending already, or when all are within their
    floors: then others than trials hold the memory.

    Args:
        readings: all trials that run on the host.
        available: bytes that the host can still give.
        reserve: bytes that it should be able to give.
    """
    found = list(readings)
    if available >= reserve or any(reading.ending for reading in found):
        return None
    above = [reading for reading in found if reading.excess]
    return max(above, key=lambda reading: (reading.excess, reading.name), default=None)


def available_memory() -> int:
    """Return the bytes that this machine can still give without swapping."""
    return int(psutil.virtual_memory().available)


class Guard:
    """One process's part in guarding its host.

    Args:
        owner: the process in the ledger, with the reservation of its trial.
        reserve: bytes to keep available.
        available: asks the host.
    """

    def __init__(self, owner: Owner, reserve: int, available: Callable[[], int] = available_memory) -> None:
        self._owner = owner
        self._reserve = reserve
        self._available = available
        self._short_since: float | None = None  # seconds since the epoch

    def look(self, sandbox: Sandbox) -> Look:
        """Return the look at the host on behalf of one trial."""
        return Look(_SECONDS, lambda: self._look(sandbox), self._spared)

    def _spared(self) -> None:
        """Take back that the trial is ending: as long as that stands, nobody else on the host is ended."""
        self._owner.amend(lambda _granted: {"ending": False})

    def _look(self, sandbox: Sandbox) -> CutOff | None:
        available, now = self._available(), time.time()
        if available >= self._reserve:
            self._short_since = None
            return None
        since = self._short_since = self._short_since or now
        usage = sandbox.counters().anonymous
        if usage is None:
            return None
        chosen: list[Reading] = []

        def amend(granted: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
            others = {name: entry for name, entry in granted.items() if name != self._owner.name}
            mine = Reading(self._owner.name, granted[self._owner.name]["memory"], usage)
            told = now > since and all(entry.get("usage_at", 0.0) >= since for entry in others.values())
            if told or now - since >= _PATIENCE:
                readings = [_reading(name, entry) for name, entry in others.items()]
                if victim([*readings, mine], available, self._reserve) is mine:
                    chosen.append(mine)
            return {"usage": usage, "usage_at": now, "ending": bool(chosen)}

        self._owner.amend(amend)
        return self._why(chosen[0], available) if chosen else None

    def _why(self, mine: Reading, available: int) -> CutOff:
        return CutOff(
            Cause.HOST_PRESSURE,
            f"ended by the memory guard: {format_memory(available)} available on the host, below the reserve of "
            f"{format_memory(self._reserve)}; no trial was further above its floor of {format_memory(mine.floor)}: "
            f"it held {format_memory(mine.usage or 0)}",
        )


def _reading(name: str, entry: Mapping[str, Any]) -> Reading:
    return Reading(name, entry["memory"], entry.get("usage"), entry.get("ending", False))
