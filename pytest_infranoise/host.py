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
from collections import Counter
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import NamedTuple

from filelock import FileLock
from filelock import Timeout

from pytest_infranoise.host_limits import Limits
from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes.protocol import EngineInfo
from pytest_infranoise.scheduler.budget import NOTHING
from pytest_infranoise.scheduler.budget import Admit
from pytest_infranoise.scheduler.budget import Capacity as Capacity
from pytest_infranoise.scheduler.budget import Need
from pytest_infranoise.scheduler.budget import need_of
from pytest_infranoise.scheduler.budget import total
from pytest_infranoise.units import format_memory

# The engine, the harness and the kernel need memory too; CPU floors may fill the host entirely.
MEMORY_RESERVE = 0.05
# The same for every session of a host: a TMPDIR of a job's own would hide its floors from the others.
STATE_DIR = "/tmp/infranoise"
_POLL_SECONDS = 0.1
_PARTIAL = ".partial"
# How long a dead process's floor is kept at most for its controller to remove the container, however that goes.
_LEFT_SECONDS = 60.0


def capacity(
    engine: EngineInfo, around: Limits | None = None, *, cpus: float | None = None, memory: int | None = None
) -> Capacity:
    """Return what the engine's host can give to trials.

    Args:
        engine: the engine.
        around: limits of a container that the engine itself runs in.
        cpus: what the user says that floors may add up to in cores, instead.
        memory: the same in bytes; nothing is kept back of it.

    Raises:
        ValueError: the user gives more than the host has.
    """
    if cpus is not None and cpus > engine.cpus:
        raise ValueError(f"--infranoise-host-cpus: {cpus:g} is more than the {engine.cpus:g} CPUs of the host")
    if memory is not None and memory > engine.memory:
        raise ValueError(
            f"--infranoise-host-memory: {format_memory(memory)} is more than the {format_memory(engine.memory)} "
            "of the host"
        )
    around = around or Limits()
    found = capacity_of(
        min(engine.cpus, around.cpus or engine.cpus), min(engine.memory, around.memory or engine.memory)
    )
    return Capacity(found.cpus if cpus is None else cpus, found.memory if memory is None else memory)


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


class RunAlive(Exception):
    """A process that lives owns the run already."""


class LedgerError(OSError):
    """The ledger cannot be read, so nobody knows what is free; the message names the file and the remedy."""


def _put(file: Path, text: str) -> None:
    """Write a file whole or not at all, for every user of this host to read whatever the umask is."""
    partial = file.with_name(f"{file.name}{_PARTIAL}")
    partial.unlink(missing_ok=True)  # one that was killed may have left another user's
    with partial.open("x", encoding="ascii") as opened:
        os.fchmod(opened.fileno(), 0o666)
        opened.write(text)
    partial.replace(file)


def _entry(file: Path) -> dict[str, Any] | None:
    """Return a reservation; None when there is none.

    Raises:
        LedgerError: there is one, and it cannot be read.
    """
    try:
        found = dict(json.loads(file.read_text("ascii")))
        kinds = {"asked": float, "cpus": float, "memory": int, "granted": bool}
        return {"memory_ceiling": None, **found, **{key: kind(found[key]) for key, kind in kinds.items()}}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not what this version writes"
        raise LedgerError(
            f"{file} cannot be read ({why}). It says what run {_run_of(file.stem)}, which is alive, holds of this "
            "host, and without it nobody knows what is free. All sessions that share a ledger need one version of "
            "pytest-infranoise, and files that all their users can read: end that run or let it end, then go on"
        ) from None


class _Reservations(NamedTuple):
    """What is reserved, by owner: by living ones, by dead ones whose containers run on, and what is unreadable."""

    living: Mapping[str, Mapping[str, Any]]
    dead: Mapping[str, Mapping[str, Any]]
    unreadable: Mapping[str, LedgerError]

    @property
    def readable(self) -> dict[str, Mapping[str, Any]]:
        """Return what living and dead owners hold or wait for."""
        return {**self.dead, **self.living}


class Ledger:
    """The floors in use on one engine, shared by every process of every session on this host."""

    def __init__(self, engine_id: str, state_dir: Path | None = None) -> None:
        safe = "".join(letter if letter.isalnum() else "-" for letter in engine_id) or "unknown"
        base = state_dir or Path(os.environ.get("INFRANOISE_STATE_DIR", STATE_DIR))
        self.path = base / safe
        self.owners = self.path / "owners"
        for directory in (base, self.path, self.owners):
            _shared_directory(directory)
        # Who holds both takes the entrance first. It may be closed for as long as an engine takes to remove things,
        # while those who are inside go on.
        self._entrance = FileLock(self.path / "entrance.lock", mode=0o666)
        self._transaction = FileLock(self.path / "ledger.lock", mode=0o666)

    @property
    def place(self) -> str:
        """What tells the containers of sessions that share this ledger from all others: ``HOST#TOKEN``.

        The token is the ledger's. The host's name is for people: sessions in containers share a ledger, and each
        has a name of its own. A session that keeps its ledger elsewhere holds its locks where this one cannot see
        them.
        """
        file = self.path / "id"
        with self._transaction:
            token = file.read_text("ascii") if file.exists() else ""
            if not token:
                token = secrets.token_hex(8)
                _put(file, token)
        return f"{platform.node()}#{token}"

    def register(self, run: str, process: str, controller: str | None = None) -> Owner:
        """Return the owner that a process is from now on, until it closes it or ends.

        ``controller`` is the process of the run, if any, that removes what this one leaves behind when it dies, and
        calls ``drop`` then.
        """
        led_by = None if controller is None else f"{run}--{controller}"
        with self._entrance, self._transaction:
            return self._register(run, process, led_by)

    def register_first(self, run: str, process: str, seconds: float = 0.0) -> Owner:
        """Return the owner that a process is from now on: the first of its run.

        Args:
            run: the run.
            process: the process.
            seconds: how long to wait for owners that are about to end.

        Raises:
            RunAlive: another process still owns the run.
        """
        give_up = time.monotonic() + seconds
        while True:
            with self._entrance, self._transaction:
                if run not in {_run_of(name) for name in self._owners()[0]}:
                    return self._register(run, process)
            if time.monotonic() >= give_up:
                raise RunAlive(run)
            time.sleep(_POLL_SECONDS)

    def _register(self, run: str, process: str, led_by: str | None = None) -> Owner:
        lock = FileLock(self.owners / f"{run}--{process}.lock", mode=0o666)
        lock.acquire(timeout=0)
        reservation = self.owners / f"{run}--{process}.json"
        reservation.unlink(missing_ok=True)  # a dead namesake's
        return Owner(self, lock, reservation, run, led_by)

    def drop(self, run: str, process: str) -> None:
        """Give back what a dead process held: there is no more to be done about its container."""
        with self._transaction:
            (self.owners / f"{run}--{process}.json").unlink(missing_ok=True)

    def living_runs(self) -> set[str]:
        """Return the runs that at least one living process owns; forgets the dead ones."""
        with self._transaction:
            return {_run_of(name) for name in self._owners()[0]}

    def outside(self, run: str) -> tuple[Need, bool]:
        """Return what other runs hold or wait for, and whether a trial of this run waits for them.

        What cannot be read is left out here: no trial is admitted beside it, and the first that asks says why.
        """
        names = [path.stem for path in self.owners.glob("*.json")]
        if all(_run_of(name) == run for name in names):
            return NOTHING, False  # nobody else; the ordinary case, and cheap to find out
        with self._transaction:
            reservations = self._reservations().readable
        others = [entry for name, entry in reservations.items() if _run_of(name) != run]
        mine = [entry for name, entry in reservations.items() if _run_of(name) == run]
        held = total(Need(entry["cpus"], entry["memory"]) for entry in others)
        return held, bool(others) and not all(entry["granted"] for entry in mine)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Let no owner come; those who are there reserve and go as they like."""
        with self._entrance:
            yield

    def held_images(self) -> tuple[set[str], set[str]]:
        """Return the ids of images that living runs hold, and the living runs of which nobody knows that yet."""
        held: set[str] = set()
        known: set[str] = set()
        with self._transaction:
            living, _ = self._owners()
            for name in living:
                # One that cannot be read is as good as not there yet: nobody knows, so every image stays.
                with contextlib.suppress(OSError, ValueError, TypeError):
                    held.update(json.loads((self.owners / f"{name}.images").read_text("ascii")))
                    known.add(name.rpartition("--")[0])
        return held, {name.rpartition("--")[0] for name in living} - known

    def _owners(self) -> tuple[list[str], dict[str, Mapping[str, Any]]]:
        """Return the living owners, and what dead ones still hold; forgets the dead ones that hold nothing."""
        living: list[str] = []
        dead: dict[str, FileLock] = {}
        for path in sorted(self.owners.glob("*.lock")):
            lock = FileLock(path, mode=0o666)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                living.append(path.stem)
            else:
                dead[path.stem] = lock
        left: dict[str, Mapping[str, Any]] = {}
        for name, lock in dead.items():
            entry = self._left_by(name, living)
            if entry is None:
                self._forget(name)
            else:
                left[name] = entry
            lock.release()
        return living, left

    def _left_by(self, name: str, living: Collection[str]) -> Mapping[str, Any] | None:
        """Return what a dead owner holds until its controller has removed its container; None when that is nothing.

        It ends with the controller, and soon in any case: nobody may wait for good for one that missed a death.
        """
        file, now = self.owners / f"{name}.json", time.time()
        with contextlib.suppress(OSError):
            entry = _entry(file)
            if entry is None or not entry["granted"] or entry.get("led_by") not in living:
                return None
            if "dead_since" not in entry:
                entry["dead_since"] = now
                _put(file, json.dumps(entry))
            return entry if 0 <= now - entry["dead_since"] < _LEFT_SECONDS else None
        return None

    def _forget(self, name: str) -> None:
        """Remove an owner's files, the lock last; it must be held."""
        for suffix in (".json", ".images"):
            for end in ("", _PARTIAL):
                (self.owners / f"{name}{suffix}{end}").unlink(missing_ok=True)
        (self.owners / f"{name}.lock").unlink(missing_ok=True)

    def _reservations(self) -> _Reservations:
        owners, dead = self._owners()
        living: dict[str, Mapping[str, Any]] = {}
        unreadable: dict[str, LedgerError] = {}
        for name in owners:
            try:
                entry = _entry(self.owners / f"{name}.json")
            except LedgerError as error:
                unreadable[name] = error
            else:
                if entry is not None:
                    living[name] = entry
        return _Reservations(living, dead, unreadable)


def _run_of(name: str) -> str:
    """Return the run that an owner is part of."""
    return name.rpartition("--")[0]


class Owner:
    """One process's place in the ledger: at most one reservation at a time."""

    def __init__(self, ledger: Ledger, lock: FileLock, path: Path, run: str, led_by: str | None = None) -> None:
        self._ledger = ledger
        self._lock = lock
        self._path = path
        self._led_by = led_by
        self.run = run

    @property
    def name(self) -> str:
        """What this owner is called among the reservations."""
        return self._path.stem

    @contextlib.contextmanager
    def reserve(
        self,
        allocation: Allocation,
        limit: Capacity,
        admit: Admit = "floor",
        config: str = "",
        still: Callable[[], None] = lambda: None,
    ) -> Iterator[dict[str, Any]]:
        """Hold a floor (or ceiling), waiting until it fits; yields what was there when it was granted.

        ``config`` is told to those that start beside this one. Those who wait are served in the order they came:
        nobody overtakes, so a large floor is never starved. ``still`` is called while waiting and when it is
        granted, and raises when it is not wanted any more.

        Raises:
            LedgerError: what somebody else holds cannot be read.
        """
        asked = time.time()
        try:
            while (granted := self._try(allocation, limit, asked, admit, config)) is None:
                still()
                time.sleep(_POLL_SECONDS)
            still()
            yield granted
        finally:
            self._path.unlink(missing_ok=True)

    def _try(
        self, allocation: Allocation, limit: Capacity, asked: float, admit: Admit = "floor", config: str = ""
    ) -> dict[str, Any] | None:
        need = need_of(allocation, limit, admit)
        mine = {
            "asked": asked,
            "cpus": need.cpus,
            "memory": need.memory,
            "config": config,
            "memory_ceiling": allocation.memory_ceiling,
            "led_by": self._led_by,
            "granted": False,
        }
        with self._ledger._transaction:
            found = self._ledger._reservations()
            for name, error in found.unreadable.items():
                if name != self.name:
                    raise error
            others = {name: entry for name, entry in found.readable.items() if name != self.name}
            running = [other for other in others.values() if other["granted"]]
            first = all(other["granted"] or other["asked"] >= asked for other in others.values())
            reserved = need + total(Need(other["cpus"], other["memory"]) for other in running)
            granted = first and reserved.fits(limit)
            _put(self._path, json.dumps({**mine, "granted": granted}))
        if not granted:
            return None
        return {
            "waited_seconds": round(time.time() - asked, 3),
            "running_beside": len(running),
            "beside": dict(Counter(other.get("config", "") for other in running)),
            "admit": admit,
            "cpus_reserved": reserved.cpus,
            "memory_reserved": reserved.memory,
            "memory_overcommit": _overcommit([mine, *running], limit.memory),
        }

    def amend(self, amendment: Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Any]]) -> None:
        """Add to this owner's reservation what follows from all that are granted, while nobody else changes any.

        ``amendment`` is told of none that is a dead process's. Of one that cannot be read it is told no more than
        that it is there, with a memory of 0.
        """
        with self._ledger._transaction:
            found = self._ledger._reservations()
            granted = {name: entry for name, entry in found.living.items() if entry["granted"]}
            mine = granted.get(self.name)
            if mine is not None:
                unknown = {name: {"memory": 0} for name in found.unreadable}
                _put(self._path, json.dumps({**mine, **amendment({**unknown, **granted})}))

    def hold_images(self, images: Iterable[str]) -> None:
        """Say which images this owner's run needs, by id."""
        _put(self._path.with_suffix(".images"), json.dumps(sorted(set(images))))

    def close(self) -> None:
        """Leave the ledger."""
        with self._ledger._transaction:
            self._ledger._forget(self.name)
            self._lock.release()


def _overcommit(reservations: list[Mapping[str, Any]], memory: int) -> float | None:
    """Return the sum of memory ceilings over what the host can give; None when one of them has no ceiling."""
    ceilings = [reservation["memory_ceiling"] for reservation in reservations]
    if any(ceiling is None for ceiling in ceilings):
        return None
    return round(float(sum(ceilings)) / memory, 4)
