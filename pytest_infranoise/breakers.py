"""Circuit breakers: when what goes wrong is the host or the engine, more trials would only go wrong as well.

All processes of a run write how each trial ended into one short file, and whichever sees a breaker's condition
met stops the run for all. What was recorded stays; trials that never started are missing.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pytest_infranoise.model import Cause
from pytest_infranoise.model import Record

EQUAL_STARTS = 5
LOST_AT_ONCE = 3
AT_ONCE = 10.0  # seconds
FULL_BELOW = 64 * 1024**2  # bytes that are left on a disk that no trial can work with
_KEPT = 8


@dataclass(frozen=True, slots=True)
class End:
    """How one trial ended, and when (seconds since the epoch); ``cause`` is None without an infra-error."""

    cause: str | None
    time: float


def tripped(ends: Sequence[End]) -> str | None:
    """Return why no further trial should start, from the last trials' ends in order; None when they may."""
    last = [end.cause for end in ends[-EQUAL_STARTS:]]
    if last == [Cause.ENV_START] * EQUAL_STARTS:
        return f"{EQUAL_STARTS} trials in a row could not be started (env-start)"
    lost = [end.time for end in ends if end.cause == Cause.CONTAINER_LOST][-LOST_AT_ONCE:]
    if len(lost) == LOST_AT_ONCE and lost[-1] - lost[0] <= AT_ONCE:
        return f"{LOST_AT_ONCE} containers were lost within {AT_ONCE:.0f} s: something stops or removes them"
    return None


def recent_ends(run_dir: Path) -> Path:
    """Return the file with the last trials' ends."""
    return run_dir / "recent.json"


def note_end(run_dir: Path, record: Record) -> str | None:
    """Write down how a trial ended, for all processes of the run; returns why the run should stop.

    Raises:
        OSError: the run directory cannot be written to.
    """
    path = recent_ends(run_dir)
    with FileLock(run_dir / "recent.lock"):
        ends = _read(path)
        ends.append(End(record.cause and record.cause.value, time.time()))
        path.write_text(json.dumps([[end.cause, end.time] for end in ends[-_KEPT:]]), "ascii")
    return tripped(ends)


def _read(path: Path) -> list[End]:
    with suppress(OSError, ValueError):
        return [End(cause, moment) for cause, moment in json.loads(path.read_text("ascii"))]
    return []


def has_room(data_root: str, *, here: bool) -> bool | None:
    """Return whether the engine's disk has room again; None when it is on another machine."""
    if not here or not data_root:
        return None
    try:
        return shutil.disk_usage(data_root).free >= FULL_BELOW
    except OSError:
        return None
