"""Whether this machine can run trials: checks, and what to do where one fails. Changes nothing."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_infranoise.units import format_memory

if TYPE_CHECKING:
    from pytest_infranoise.sandboxes.engine import Engine
    from pytest_infranoise.sandboxes.protocol import Backend
    from pytest_infranoise.sandboxes.protocol import EngineInfo

BASE_IMAGE = "infranoise/base:bookworm"
OLDEST_TESTED = (20, 10)
# A benchmark's images and containers soon take this much.
LITTLE_DISK = 5 * 1024**3
VERY_LITTLE_DISK = 512 * 1024**2


class Status(StrEnum):
    """How a check came out; only ``FAIL`` means that trials cannot be run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``remedy`` says what to do where it is not ok."""

    status: Status
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.status:<4}  {self.text}"
        return f"{line}; {self.remedy}" if self.remedy else line


def examine(backend: Backend, engine: Engine) -> Iterator[Check]:
    """Check an engine, given as what trials use and as a bare connection."""
    from pytest_infranoise.sandboxes.protocol import SandboxError

    try:
        info = backend.info()
    except SandboxError as error:
        yield Check(Status.FAIL, error.text, "on Debian or Ubuntu, bench_tasks/prepare installs and starts one")
        return
    yield engine_version(info)
    yield cgroup_version(info)
    yield from limits(info)
    yield capacity(info)
    yield base_image(backend)
    yield disk(_local_data_root(engine, info))


def engine_version(info: EngineInfo) -> Check:
    """Check that the engine is one whose behaviour is known."""
    text = f"Docker Engine {info.version} on {info.host}, kernel {info.kernel}, storage {info.storage_driver}"
    numbers = re.match(r"(\d+)\.(\d+)", info.version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_TESTED:
        oldest = ".".join(map(str, OLDEST_TESTED))
        return Check(Status.WARN, text, f"update it: nothing older than {oldest} was tested")
    return Check(Status.OK, text)


def cgroup_version(info: EngineInfo) -> Check:
    """Check that kills and throttling can be read from cgroup files."""
    if info.cgroup_version in ("1", "2"):
        return Check(Status.OK, f"cgroup v{info.cgroup_version}")
    return Check(
        Status.FAIL,
        f"cgroup version {info.cgroup_version or 'unknown'}",
        "kernel evidence is read from cgroup v1 or v2; use an engine on a Linux host with one of them",
    )


def limits(info: EngineInfo) -> Iterator[Check]:
    """Check that floors and ceilings can be enforced."""
    if not info.unsupported:
        yield Check(Status.OK, "limits: memory, swap, CPU and pids ceilings can be enforced")
    for limit in info.unsupported:
        yield Check(
            Status.FAIL,
            f"limits: the engine cannot enforce {limit}",
            "enable that cgroup controller on the engine's host (on Debian and Ubuntu: the kernel options "
            "cgroup_enable=memory swapaccount=1)",
        )
    for warning in info.warnings:
        yield Check(Status.WARN, f"the engine warns: {warning}", "look whether your tasks need what it lacks")


def capacity(info: EngineInfo) -> Check:
    """Say what floors are shared out of."""
    from pytest_infranoise.host import capacity as to_give
    from pytest_infranoise.host_limits import limits_around
    from pytest_infranoise.sandboxes.engine import engine_address

    limit = to_give(info, limits_around(engine_address()))
    return Check(Status.OK, f"host: {limit.cpus:g} CPUs and {format_memory(limit.memory)} for all floors together")


def base_image(backend: Backend) -> Check:
    """Check for the image that the tasks in ``bench_tasks`` start from."""
    from pytest_infranoise.sandboxes.protocol import SandboxError

    try:
        backend.image(BASE_IMAGE, None, "never")
    except SandboxError:
        return Check(
            Status.WARN,
            f"image {BASE_IMAGE} is not there",
            "run bench_tasks/prepare to make it; tasks with images of their own do without",
        )
    return Check(Status.OK, f"image {BASE_IMAGE}")


def _local_data_root(engine: Engine, info: EngineInfo) -> Path | None:
    if not engine.on_unix_socket or info.host != platform.node():
        return None
    root = Path(str(engine.client.info().get("DockerRootDir", "")))
    return root if root.is_absolute() and root.is_dir() else None


def disk(data_root: Path | None) -> Check:
    """Check the free space where the engine stores images and containers; None: not on this machine."""
    if data_root is None:
        return Check(Status.WARN, "disk: the engine stores on another machine", "look there whether it has room")
    free = shutil.disk_usage(data_root).free
    text = f"disk: {format_memory(free)} free at {data_root}"
    remedy = "free some: `docker system df` shows what takes it"
    if free < VERY_LITTLE_DISK:
        return Check(Status.FAIL, text, remedy)
    return Check(Status.WARN, text, remedy) if free < LITTLE_DISK else Check(Status.OK, text)
