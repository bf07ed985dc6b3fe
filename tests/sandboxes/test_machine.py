from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_infranoise.sandboxes import machine
from pytest_infranoise.sandboxes.protocol import ENGINE_DISK
from pytest_infranoise.sandboxes.protocol import HostFacts
from tests.trials.second_engine import unavailable


def recorded(proc: Path) -> Path:
    """Write down what the kernel of a machine said."""
    (proc / "pressure").mkdir()
    (proc / "vmstat").write_text("nr_free_pages 1\noom_kill 3\nzone_reclaim_success 0\n")
    (proc / "meminfo").write_text("MemTotal:       24684032 kB\nMemAvailable:   23181312 kB\n")
    (proc / "loadavg").write_text("2.91 1.74 0.94 5/214 9370\n")
    (proc / "stat").write_text("cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    for name, total in (("memory", 2000), ("io", 5000), ("cpu", 7000)):
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total * 10}\nfull avg10=0.00 total={total}\n"
        (proc / "pressure" / name).write_text(text)
    return proc


def test_facts_of_a_machine(tmp_path: Path) -> None:
    assert machine.host_facts(recorded(tmp_path)) == HostFacts(
        oom_kills=3,
        memory_available=23181312 * 1024,
        load=2.91,
        stolen_seconds=250 / os.sysconf("SC_CLK_TCK"),
        memory_stalled_seconds=0.002,
        io_stalled_seconds=0.005,
        cpu_stalled_seconds=0.07,
    )


@pytest.mark.parametrize("name", ["vmstat", "meminfo", "loadavg", "stat", "pressure/memory"])
@pytest.mark.parametrize("content", [None, "", "\n", "cpu\noom_kill\nMemAvailable: much\nfull total=x\n\xff"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, name: str, content: str | None) -> None:
    place = recorded(tmp_path) / name
    place.unlink()
    if content is not None:
        place.write_text(content)

    missing = [value for value in map(machine.host_facts(tmp_path).__getattribute__, HostFacts.__slots__)]

    assert missing.count(None) == 1


def test_this_machine_says_something() -> None:
    assert machine.host_facts().memory_available


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_disk_is_full_when_nothing_is_left_on_it(small_disk: Path) -> None:
    assert list(machine.full_disks(os.getpid(), str(small_disk))) == []
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(bytes(2 * 1024**2))

    assert list(machine.full_disks(os.getpid(), str(small_disk))) == [ENGINE_DISK]
    assert list(machine.full_disks(os.getpid(), "")) == []


def test_disks_of_what_is_gone_are_not_full() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert list(machine.full_disks(child.pid, "/no/such/place")) == []
