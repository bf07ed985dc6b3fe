"""What runs there are in a directory, how far each is and how much disk it takes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_infranoise.journal import RUN_SCHEMA
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import RunNotFound
from pytest_infranoise.journal import read_run
from pytest_infranoise.run_lock import is_running
from pytest_infranoise.units import format_memory

HEADER = ("run", "began (UTC)", "tasks x configs x samples", "recorded", "missing", "agents", "state", "disk")


@dataclass(frozen=True, slots=True)
class Listed:
    """A run's line in the list."""

    run: str
    began: str
    size: str
    recorded: int
    missing: int
    agents: str
    state: str
    disk: int  # bytes

    def cells(self) -> tuple[str, ...]:
        """Return the line's columns."""
        counts = (str(self.recorded), str(self.missing))
        return (self.run, self.began, self.size, *counts, self.agents, self.state, format_memory(self.disk))


def listed_runs(runs_dir: Path) -> Iterator[Listed]:
    """Yield every run in a directory, the oldest first; what cannot be read is said to be so."""
    for file in sorted(runs_dir.glob("*/run.json")):
        path = file.parent
        disk = disk_use(path)
        try:
            run = read_run(path)
        except RunNotFound:
            yield Listed(path.name, "", "", 0, 0, "", "unreadable", disk)
            continue
        if run.meta.get("schema") != RUN_SCHEMA:
            yield Listed(path.name, "", "", 0, 0, "", f"schema {run.meta.get('schema')}", disk)
            continue
        yield _listed(run, disk)


def _listed(run: Run, disk: int) -> Listed:
    meta, keys = run.meta, run.planned
    sizes = [len({getattr(key, name) for key in keys}) for name in ("task", "config")]
    samples = int(meta.get("samples") or 0) or max((key.sample + 1 for key in keys), default=0)
    shard = f" shard {meta['shard']}" if meta.get("shard") else ""
    agents = dict.fromkeys(f"{key.agent} ({key.model})" if key.model else key.agent for key in keys)
    missing = len(run.missing)
    return Listed(
        run=run.path.name,
        began=str(meta.get("created") or "")[:16].replace("T", " "),
        size=" x ".join(str(size) for size in (*sizes, samples)) + shard,
        recorded=len(keys) - missing,
        missing=missing,
        agents=", ".join(agents),
        state=state(run),
        disk=disk,
    )


def state(run: Run) -> str:
    """Return how a run is: running (somebody holds its lock), finished, stopped (some trials missing) or killed.

    One that was merged says that instead.
    """
    if is_running(run.path):
        return "running"
    if not run.meta.get("finished"):
        return "merged, unfinished" if run.meta.get("parts") else "killed"
    if run.meta.get("parts"):
        return "merged"
    return "stopped" if run.missing else "finished"


def disk_use(path: Path) -> int:
    """Return the bytes that a directory takes on the disk."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # it may be just being removed
                total += Path(directory, name).lstat().st_blocks * 512
    return total


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows as lines with columns below each other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
