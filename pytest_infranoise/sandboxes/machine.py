"""What the engine's machine says of itself, and which of a container's disks are full, when it is this machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_infranoise.sandboxes.cgroups import stalled
from pytest_infranoise.sandboxes.protocol import ENGINE_DISK
from pytest_infranoise.sandboxes.protocol import HostFacts

# Every container has these file systems of its own in memory. Both are mount points all the way down, so nobody in
# there can put a link to something else in their place.
OWN_MOUNTS = ("/dev", "/dev/shm")

_KIB = 1024
_STEAL = 8  # place in the first line of /proc/stat
# A large file system keeps a few blocks for itself, so that it never comes to exactly nothing.
_LARGE = 1024**3  # bytes
_NEARLY_NOTHING = 256 * 1024


def host_facts(proc: Path = Path("/proc")) -> HostFacts:
    """Return what this machine's kernel says now."""
    texts = {name: _read(proc / name) for name in ("vmstat", "meminfo", "loadavg", "stat")}
    pressure = {name: _read(proc / "pressure" / name) for name in ("memory", "io", "cpu")}
    load = re.match(r"\d+\.\d+ ", texts["loadavg"])
    stat = texts["stat"].partition("\n")[0].split()
    steal = stat[_STEAL] if len(stat) > _STEAL else ""
    available = _field(texts["meminfo"], "MemAvailable:")
    return HostFacts(
        oom_kills=_field(texts["vmstat"], "oom_kill"),
        memory_available=None if available is None else available * _KIB,
        load=float(load[0]) if load else None,
        stolen_seconds=int(steal) / os.sysconf("SC_CLK_TCK") if steal.isdigit() else None,
        memory_stalled_seconds=stalled(pressure["memory"], "full"),
        io_stalled_seconds=stalled(pressure["io"], "full"),
        cpu_stalled_seconds=stalled(pressure["cpu"], "some"),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def full_disks(pid: int, root: str) -> Iterator[str]:
    """Yield those disks of a container on which nothing can be written any more.

    Args:
        pid: its process 1, as this machine counts it.
        root: the engine's data root; empty when unknown.
    """
    with contextlib.suppress(OSError):
        if root and _is_full(root):
            yield ENGINE_DISK
    with contextlib.suppress(OSError):
        outside = Path(f"/proc/{pid}/root").stat().st_dev
        for mount in OWN_MOUNTS:
            place = f"/proc/{pid}/root{mount}"
            if Path(place).stat().st_dev != outside and _is_full(place):
                yield mount


def _is_full(path: str) -> bool:
    found = os.statvfs(path)
    left = found.f_bavail * found.f_frsize
    return left == 0 or (left < _NEARLY_NOTHING and found.f_blocks * found.f_frsize > _LARGE)
