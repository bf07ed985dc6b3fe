"""Limits of the container that this process runs in, where the engine runs inside the same one.

An engine inside a container reports all of the machine's memory and CPUs, but its containers share what that
container may use. An engine outside, reached through a mounted socket, starts its containers beside this one, and
then its limits say nothing about them.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_CGROUPS = Path("/sys/fs/cgroup")
_SOCKET_SECONDS = 5.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Limits(NamedTuple):
    """Cores and bytes; None where there is no limit."""

    cpus: float | None = None
    memory: int | None = None


def limits_around(address: str) -> Limits:
    """Return the limits that this process shares with the engine at an address; none if it is elsewhere."""
    return read_limits(_CGROUPS) if is_beside(address) else Limits()


def is_beside(address: str) -> bool:
    """Whether whoever listens at a Unix socket's address runs in the same container as this process."""
    if not address.startswith(("unix://", "http+unix://", "/")):
        return False
    try:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(_SOCKET_SECONDS)
            knock.connect("/" + address.rpartition("://")[2].lstrip("/"))
            pid, _, _ = _CREDENTIALS.unpack(
                knock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
    except OSError:
        return False
    # A process of another pid namespace has no pid here. One that can be seen may still live elsewhere, when this
    # container was started with the host's pids.
    return pid > 0 and _mounts(pid) in (None, _mounts(os.getpid()))


def _mounts(pid: int) -> str | None:
    """Return what tells a process's view of the file system; None when we may not know."""
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return None


def read_limits(root: Path) -> Limits:
    """Return the limits at the root of a cgroup tree: of the container, or none on a host of its own."""
    quota, period = _words(root / "cpu.max", 2)
    memory = _words(root / "memory.max", 1)[0]
    if not memory and not quota:
        quota, period = (_words(root / "cpu" / f"cpu.cfs_{name}_us", 1)[0] for name in ("quota", "period"))
        memory = _words(root / "memory" / "memory.limit_in_bytes", 1)[0]
    cpus = int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None
    return Limits(cpus, int(memory) if memory.isdigit() else None)


def _words(file: Path, number: int) -> list[str]:
    """Return so many words of a file, empty where there are none."""
    try:
        words = file.read_text("ascii").split()
    except OSError:
        words = []
    return (words + [""] * number)[:number]
