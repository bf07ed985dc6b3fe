"""A container's kernel counters and limits, read from cgroup files of version 1 and 2.

Parsing is pure (texts in, values out, never an exception: a file that is missing or odd gives None). Where the
files are is decided once per container: on the host when the engine runs here, else inside the container.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from typing import Protocol

from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import Limits

# cgroup v1 says "no limit" as the largest number of whole pages, which differs between architectures.
_NO_LIMIT = 2**62
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6

COUNTER_FILES = {
    "1": (
        "memory.oom_control",
        "memory.usage_in_bytes",
        "memory.max_usage_in_bytes",
        "memory.stat",
        "pids.events",
        "cpuacct.usage",
        "cpu.stat",
        "memory.failcnt",
        "pids.current",
    ),
    "2": (
        "memory.events",
        "memory.events.local",
        "memory.current",
        "memory.peak",
        "memory.stat",
        "pids.events",
        "cpu.stat",
        "pids.current",
        "memory.pressure",
        "cpu.pressure",
    ),
}
LIMIT_FILES = {
    "1": (
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.soft_limit_in_bytes",
        "cpu.cfs_quota_us",
        "cpu.cfs_period_us",
        "cpu.shares",
        "pids.max",
    ),
    "2": ("memory.max", "memory.swap.max", "memory.low", "cpu.max", "cpu.weight", "pids.max"),
}
PEAK_FILE_V1 = "memory.max_usage_in_bytes"

Texts = Mapping[str, str]


def _number(text: str | None) -> int | None:
    digits = (text or "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None


def _limit(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None or number >= _NO_LIMIT else number


def _table(text: str | None) -> dict[str, str]:
    """Return the lines ``name number`` of a flat keyed file."""
    return {name: value for name, _, value in (line.partition(" ") for line in (text or "").splitlines())}


def _seconds(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def stalled(text: str | None, line: str) -> float | None:
    """Return the total seconds in one line ("some" or "full") of a pressure file."""
    totals = re.findall(rf"^{line} .*total=(\d+)$", text or "", re.MULTILINE)
    return _seconds(_number(totals[0]), _MICROSECONDS) if totals else None


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def counters_v1(texts: Texts) -> Counters:
    """Return the counters in cgroup v1 files, given as file name to content."""
    stat = _table(texts.get("memory.stat"))
    cpu = _table(texts.get("cpu.stat"))
    return Counters(
        oom_kills=_number(_table(texts.get("memory.oom_control")).get("oom_kill")),
        memory_usage=_number(texts.get("memory.usage_in_bytes")),
        memory_peak=_number(texts.get(PEAK_FILE_V1)),
        anonymous=_sum(_number(stat.get("total_rss")), _number(stat.get("total_shmem"))),
        pids_denied=_number(_table(texts.get("pids.events")).get("max")),
        cpu_seconds=_seconds(_number(texts.get("cpuacct.usage")), _NANOSECONDS),
        periods=_number(cpu.get("nr_periods")),
        throttled_periods=_number(cpu.get("nr_throttled")),
        throttled_seconds=_seconds(_number(cpu.get("throttled_time")), _NANOSECONDS),
        ceiling_hits=_number(texts.get("memory.failcnt")),
        pids=_number(texts.get("pids.current")),
    )


def counters_v2(texts: Texts) -> Counters:
    """Return the counters in cgroup v2 files, given as file name to content."""
    stat = _table(texts.get("memory.stat"))
    cpu = _table(texts.get("cpu.stat"))
    events, local = _table(texts.get("memory.events")), _table(texts.get("memory.events.local"))
    return Counters(
        oom_kills=_number(events.get("oom_kill")),
        own_ceiling_events=_number(local.get("oom")),
        memory_usage=_number(texts.get("memory.current")),
        memory_peak=_number(texts.get("memory.peak")),
        anonymous=_sum(_number(stat.get("anon")), _number(stat.get("shmem"))),
        pids_denied=_number(_table(texts.get("pids.events")).get("max")),
        cpu_seconds=_seconds(_number(cpu.get("usage_usec")), _MICROSECONDS),
        periods=_number(cpu.get("nr_periods")),
        throttled_periods=_number(cpu.get("nr_throttled")),
        throttled_seconds=_seconds(_number(cpu.get("throttled_usec")), _MICROSECONDS),
        oom_group_kills=_number(events.get("oom_group_kill")),
        ceiling_hits=_number(local.get("max")),
        pids=_number(texts.get("pids.current")),
        memory_stalled_seconds=stalled(texts.get("memory.pressure"), "full"),
        cpu_stalled_seconds=stalled(texts.get("cpu.pressure"), "some"),
    )


def limits_v1(texts: Texts, source: str) -> Limits:
    """Return the limits in cgroup v1 files."""
    quota = _number(texts.get("cpu.cfs_quota_us"))  # -1 when there is none
    period = _number(texts.get("cpu.cfs_period_us"))
    return Limits(
        memory=_limit(texts.get("memory.limit_in_bytes")),
        memory_and_swap=_limit(texts.get("memory.memsw.limit_in_bytes")),
        memory_floor=_limit(texts.get("memory.soft_limit_in_bytes")),
        cpus=quota / period if quota and period else None,
        cpu_weight=_number(texts.get("cpu.shares")),
        pids=_limit(texts.get("pids.max")),
        source=source,
    )


def limits_v2(texts: Texts, source: str) -> Limits:
    """Return the limits in cgroup v2 files; ``memory_and_swap`` adds up what v2 limits apart."""
    quota, _, period = texts.get("cpu.max", "").strip().partition(" ")
    quota_us, period_us = _number(quota), _number(period)
    memory = _limit(texts.get("memory.max"))
    return Limits(
        memory=memory,
        memory_and_swap=_sum(memory, _limit(texts.get("memory.swap.max"))),
        memory_floor=_limit(texts.get("memory.low")) or None,
        cpus=quota_us / period_us if quota_us and period_us else None,
        cpu_weight=_number(texts.get("cpu.weight")),
        pids=_limit(texts.get("pids.max")),
        source=source,
    )


class Files(Protocol):
    """Where one container's cgroup files can be read."""

    @property
    def version(self) -> str:
        """The cgroup version, "1" or "2"."""

    @property
    def where(self) -> str:
        """From where they are read: "on the host" or "in the container"."""

    def read(self, names: Sequence[str]) -> Texts:
        """Return the content of those files that can be read."""


def read_counters(files: Files) -> Counters:
    """Return the counters now; all None when the container is gone."""
    texts = files.read(COUNTER_FILES[files.version])
    return counters_v1(texts) if files.version == "1" else counters_v2(texts)


def read_limits(files: Files) -> Limits:
    """Return the limits as the kernel has them."""
    texts = files.read(LIMIT_FILES[files.version])
    source = f"cgroup v{files.version} files {files.where}" if texts else "unreadable"
    return limits_v1(texts, source) if files.version == "1" else limits_v2(texts, source)


@dataclass(frozen=True, slots=True)
class HostFiles:
    """A container's cgroup files on this machine, one directory per controller."""

    version: str
    directories: Mapping[str, str]
    where: str = "on the host"

    def read(self, names: Sequence[str]) -> Texts:
        """Return the content of those files that can be read."""
        texts = {}
        for name in names:
            text = self._read(name)
            if text is not None:
                texts[name] = text
        return texts

    def processes(self) -> list[int]:
        """Return the PIDs, as this machine counts them, of all that runs in the container."""
        return [int(line) for line in (self._read("memory.", "cgroup.procs") or "").split()]

    def reset_peak(self) -> bool:
        """Start the peak of memory anew; whether the kernel and our rights allow it (cgroup v1, as root)."""
        if self.version != "1":
            return False
        try:
            Path(self.directories["memory"], PEAK_FILE_V1).write_text("0")
        except (OSError, KeyError):
            return False
        return True

    def _read(self, name: str, file: str | None = None) -> str | None:
        directory = self.directories.get(name.partition(".")[0])
        if directory is None:
            return None
        try:
            # Read ten times a second while a trial runs, so no more layers than it takes.
            with open(f"{directory}/{file or name}", "rb") as stream:  # noqa: PTH123
                return stream.read().decode(errors="replace")
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """A container's cgroup files as it sees them itself, read by a command that ``run`` runs in it."""

    version: str
    run: Callable[[Sequence[str]], bytes]
    where: str = "in the container"

    def read(self, names: Sequence[str]) -> Texts:
        """Return the content of those files that can be read."""
        paths = {self._path(name): name for name in names}
        texts: dict[str, str] = {}
        name = None
        for line in self.run(list(paths)).decode(errors="replace").splitlines():
            if line.startswith("==> "):
                name = paths.get(line.removeprefix("==> "))
            elif name is not None:
                texts[name] = texts.get(name, "") + line + "\n"
        return texts

    def _path(self, name: str) -> str:
        controller = f"{name.partition('.')[0]}/" if self.version == "1" else ""
        return f"/sys/fs/cgroup/{controller}{name}"


class Mount(NamedTuple):
    """One mounted cgroup hierarchy; v2 has no controllers here."""

    root: str
    point: str
    version: str
    controllers: frozenset[str]


def parse_mounts(text: str) -> list[Mount]:
    """Return the cgroup hierarchies in the text of ``/proc/self/mountinfo``."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
            continue
        version = "2" if tail[0] == "cgroup2" else "1"
        controllers = frozenset(tail[2].split(",")) if version == "1" else frozenset[str]()
        mounts.append(Mount(_unescape(fields[3]), _unescape(fields[4]), version, controllers))
    return mounts


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def parse_membership(text: str) -> dict[str, str]:
    """Return controller to path in the text of ``/proc/PID/cgroup``; v2's controller is the empty string."""
    paths = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths.update({controller: fields[2] for controller in fields[1].split(",")})
    return paths


def directories(membership: str, mounts: str, container: str) -> tuple[str, dict[str, str]] | None:
    """Return the cgroup version and the directory of each controller, None when they are not this container's.

    Args:
        membership: the text of ``/proc/PID/cgroup`` of a process in the container.
        mounts: the text of ``/proc/self/mountinfo``.
        container: the container's id, which its directory's name must hold.
    """
    paths = parse_membership(membership)
    version = "1" if "memory" in paths else "2"
    found: dict[str, str] = {}
    for mount in parse_mounts(mounts):
        if mount.version != version:
            continue
        for controller in mount.controllers if version == "1" else ("",):
            path = paths.get(controller)
            if path is None or container not in path:
                continue
            inside = path.removeprefix(mount.root.rstrip("/"))
            found.setdefault(controller, mount.point.rstrip("/") + inside)
    if version == "2" and found:
        found = dict.fromkeys(("memory", "cpu", "pids"), found[""])
    return (version, found) if "memory" in found else None


def locate(pid: int, container: str, proc: Path = Path("/proc")) -> HostFiles | None:
    """Return the cgroup files of a container whose process ``pid`` runs on this machine, None elsewhere."""
    try:
        membership = (proc / str(pid) / "cgroup").read_text(errors="replace")
        mounts = (proc / "self" / "mountinfo").read_text(errors="replace")
    except OSError:
        return None
    place = directories(membership, mounts, container)
    if place is None or not Path(place[1]["memory"]).is_dir():
        return None
    return HostFiles(*place)
