"""What the engine's host can give, and the ledger that keeps several pytest sessions within it.

The engine guarantees no floor, so admission does: a trial starts only when its floor fits beside the floors of
everything that runs on the same engine. The ledger is a directory per engine with one lock file per process
that runs trials. An owner is alive for as long as it holds its lock; the kernel lets go of it however the
process ends, which a pid in a file would not tell (and pids mean nothing between containers that share an
engine).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import time
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from filelock import Timeout

from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes.protocol import EngineInfo

# The engine, the harness and the kernel need memory too; CPU floors may fill the host entirely.
MEMORY_RESERVE = 0.05
# The same for every session of a host: a TMPDIR of a job's own would hide its floors from the others.
STATE_DIR = "/tmp/infranoise"
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Capacity:
    """Cores and bytes that floors may add up to."""

    cpus: float
    memory: int


def capacity(engine: EngineInfo) -> Capacity:
    """Return what the engine's host can give to trials."""
    return capacity_of(engine.cpus, engine.memory)


def capacity_of(cpus: float, memory: int) -> Capacity:
    """Return what a host with so many cores and bytes can give to trials."""
    return Capacity(cpus, int(memory * (1 - MEMORY_RESERVE)))


def boot_id() -> str:
    """Return what tells this boot of this host from any other; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _shared_directory(path: Path) -> None:
    """Make a directory for every user of this host; never touch what somebody else put in its place.

    Raises:
        OSError: it cannot be made, or is no directory.
    """
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if path.is_symlink() or not path.is_dir():
            raise NotADirectoryError(f"{path} is no directory of ours") from None
        return
    path.chmod(0o777)


class Ledger:
    """The floors in use on one engine, shared by every process of every session on this host."""

    def __init__(self, engine_id: str, state_dir: Path | None = None) -> None:
        safe = "".join(letter if letter.isalnum() else "-" for letter in engine_id) or "unknown"
        base = state_dir or Path(os.environ.get("INFRANOISE_STATE_DIR", STATE_DIR))
        self.path = base / safe
        self.owners = self.path / "owners"
        for directory in (base, self.path, self.owners):
            _shared_directory(directory)
        self._transaction = FileLock(self.path / "ledger.lock", mode=0o666)

    @property
    def place(self) -> str:
        """What tells the containers of sessions that share this ledger from all others on the engine.

        A session that keeps its ledger elsewhere holds its locks where this one cannot see them.
        """
        file = self.path / "id"
        with self._transaction:
            if not file.exists():
                file.write_text(secrets.token_hex(8), "ascii")
            return f"{platform.node()}#{file.read_text('ascii')}"

    def register(self, run: str, process: str) -> Owner:
        """Return the owner that a process is from now on, until it closes it or ends."""
        with self._transaction:
            lock = FileLock(self.owners / f"{run}--{process}.lock", mode=0o666)
            lock.acquire(timeout=0)
        return Owner(self, lock, self.owners / f"{run}--{process}.json", run)

    def living_runs(self) -> set[str]:
        """Return the runs that at least one living process owns; forgets the dead ones."""
        with self._transaction:
            return {name.rpartition("--")[0] for name in self._living()}

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Let no owner come, go, or reserve anything."""
        with self._transaction:
            yield

    def held_images(self) -> tuple[set[str], set[str]]:
        """Return the ids of images that living runs hold, and the living runs of which nobody knows that yet."""
        held: set[str] = set()
        known: set[str] = set()
        with self._transaction:
            living = self._living()
            for name in living:
                with contextlib.suppress(OSError, ValueError):
                    held.update(json.loads((self.owners / f"{name}.images").read_text("ascii")))
                    known.add(name.rpartition("--")[0])
        return held, {name.rpartition("--")[0] for name in living} - known

    def _living(self) -> list[str]:
        living = []
        for path in sorted(self.owners.glob("*.lock")):
            lock = FileLock(path, mode=0o666)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                living.append(path.stem)
                continue
            path.with_suffix(".json").unlink(missing_ok=True)
            path.with_suffix(".images").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            lock.release()
        return living

    def _reservations(self) -> dict[str, Mapping[str, Any]]:
        reservations = {}
        for name in self._living():
            with contextlib.suppress(OSError, ValueError):
                reservations[name] = json.loads((self.owners / f"{name}.json").read_text("ascii"))
        return reservations


class Owner:
    """One process's place in the ledger: at most one reservation at a time."""

    def __init__(self, ledger: Ledger, lock: FileLock, path: Path, run: str) -> None:
        self._ledger = ledger
        self._lock = lock
        self._path = path
        self.run = run

    @contextlib.contextmanager
    def reserve(self, allocation: Allocation, limit: Capacity) -> Iterator[dict[str, Any]]:
        """Hold a floor, waiting until it fits; yields what was there when it was granted.

        Those who wait are served in the order they came: nobody overtakes, so a large floor is never starved.
        """
        asked = time.time()
        try:
            while (granted := self._try(allocation, limit, asked)) is None:
                time.sleep(_POLL_SECONDS)
            yield granted
        finally:
            self._path.unlink(missing_ok=True)

    def _try(self, allocation: Allocation, limit: Capacity, asked: float) -> dict[str, Any] | None:
        mine = {
            "asked": asked,
            "cpus": allocation.cpus_floor,
            "memory": allocation.memory_floor,
            "memory_ceiling": allocation.memory_ceiling,
            "granted": False,
        }
        with self._ledger._transaction:
            others = self._ledger._reservations()
            others.pop(self._path.stem, None)
            running = [other for other in others.values() if other["granted"]]
            first = all(other["granted"] or other["asked"] >= asked for other in others.values())
            fits = (
                sum(other["cpus"] for other in running) + allocation.cpus_floor <= limit.cpus + 1e-9
                and sum(other["memory"] for other in running) + allocation.memory_floor <= limit.memory
            )
            granted = first and fits
            self._path.write_text(json.dumps({**mine, "granted": granted}), "ascii")
        if not granted:
            return None
        return {
            "waited_seconds": round(time.time() - asked, 3),
            "running_beside": len(running),
            "cpus_reserved": allocation.cpus_floor + sum(other["cpus"] for other in running),
            "memory_reserved": allocation.memory_floor + sum(other["memory"] for other in running),
            "memory_overcommit": _overcommit([mine, *running], limit.memory),
        }

    def hold_images(self, images: Iterable[str]) -> None:
        """Say which images this owner's run needs, by id."""
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(sorted(set(images))), "ascii")
        partial.replace(self._path.with_suffix(".images"))

    def close(self) -> None:
        """Leave the ledger."""
        self._path.unlink(missing_ok=True)
        self._path.with_suffix(".images").unlink(missing_ok=True)
        with self._ledger._transaction:
            self._path.with_suffix(".lock").unlink(missing_ok=True)
            self._lock.release()


def _overcommit(reservations: list[Mapping[str, Any]], memory: int) -> float | None:
    """Return the sum of memory ceilings over what the host can give; None when one of them has no ceiling."""
    ceilings = [reservation["memory_ceiling"] for reservation in reservations]
    if any(ceiling is None for ceiling in ceilings):
        return None
    return round(float(sum(ceilings)) / memory, 4)
