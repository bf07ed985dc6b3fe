from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_infranoise.host_limits import Limits
from pytest_infranoise.host_limits import is_beside
from pytest_infranoise.host_limits import limits_around
from pytest_infranoise.host_limits import read_limits

NO_LIMIT_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({}, Limits()),
        ({"memory.max": "1073741824\n", "cpu.max": "150000 100000\n"}, Limits(1.5, 1024**3)),
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, Limits()),
        ({"memory.max": "1073741824\n", "cpu.max": "max 100000\n"}, Limits(None, 1024**3)),
        (
            {
                "memory/memory.limit_in_bytes": "1073741824\n",
                "cpu/cpu.cfs_quota_us": "50000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            Limits(0.5, 1024**3),
        ),
        (
            {
                "memory/memory.limit_in_bytes": f"{NO_LIMIT_V1}\n",
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            Limits(None, int(NO_LIMIT_V1)),
        ),
    ],
)
def test_limits_of_a_container_are_read_from_both_cgroup_versions(
    tmp_path: Path, files: Mapping[str, str], limits: Limits
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "ascii")

    assert read_limits(tmp_path) == limits


def test_who_listens_beside_this_process_is_recognised(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        assert is_beside(f"unix://{tmp_path}/s")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:2375", "ssh://user@host", "unix:///nobody/listens/here"])
def test_limits_here_say_nothing_of_an_engine_elsewhere(address: str) -> None:
    assert not is_beside(address)
    assert limits_around(address) == Limits()
