from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.sandboxes import cgroups
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import Limits

CONTAINER = "ae1766da73391445daba0e8738b1d3ecf135ef87bf45f383b26599d9d0ddd6ec"


def recorded(version: str) -> dict[str, str]:
    return {
        file.name: file.read_text() for file in Path(__file__).with_name("recorded").joinpath(version).iterdir()
    }


def test_counters_of_a_v1_container() -> None:
    assert cgroups.counters_v1(recorded("v1")) == Counters(
        oom_kills=1,
        own_ceiling_events=None,
        memory_usage=9523200,
        memory_peak=100663296,
        anonymous=4825088,
        pids_denied=2,
        cpu_seconds=0.165441036,
        periods=10,
        throttled_periods=4,
        throttled_seconds=0.383992511,
        ceiling_hits=90,
        pids=4,
    )


def test_counters_of_a_v2_container() -> None:
    assert cgroups.counters_v2(recorded("v2")) == Counters(
        oom_kills=2,
        own_ceiling_events=3,
        memory_usage=41234432,
        memory_peak=100663296,
        anonymous=4825088 + 20000768,
        pids_denied=2,
        cpu_seconds=0.165441,
        periods=10,
        throttled_periods=4,
        throttled_seconds=0.383992,
        oom_group_kills=0,
        ceiling_hits=214,
        pids=4,
        memory_stalled_seconds=0.125,
        cpu_stalled_seconds=4.5,
    )


def test_limits_of_a_v1_container() -> None:
    limits = cgroups.limits_v1(recorded("v1"), "here")

    assert limits == Limits(100663296, 100663296, 67108864, 0.25, 512, 50, "here")


def test_limits_of_a_v2_container() -> None:
    limits = cgroups.limits_v2(recorded("v2"), "here")

    assert limits == Limits(100663296, 100663296, 67108864, 0.25, 20, 50, "here")


def test_no_limit_is_none_in_every_spelling() -> None:
    v1 = {
        "memory.limit_in_bytes": "9223372036854771712\n",
        "memory.memsw.limit_in_bytes": "9223372036854771712\n",
        "memory.soft_limit_in_bytes": "9223372036854710272\n",  # 64 kB pages
        "cpu.cfs_quota_us": "-1\n",
        "cpu.cfs_period_us": "100000\n",
        "cpu.shares": "1024\n",
        "pids.max": "max\n",
    }
    v2 = {
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "memory.low": "0\n",
        "cpu.max": "max 100000\n",
        "cpu.weight": "100\n",
        "pids.max": "max\n",
    }

    assert cgroups.limits_v1(v1, "") == Limits(None, None, None, None, 1024, None, "")
    assert cgroups.limits_v2(v2, "") == Limits(None, None, None, None, 100, None, "")


def test_old_kernels_lack_some_v2_files() -> None:
    texts = recorded("v2")
    del texts["memory.peak"], texts["memory.events.local"]

    counters = cgroups.counters_v2(texts)

    assert (counters.memory_peak, counters.own_ceiling_events, counters.oom_kills) == (None, None, 2)


def test_a_container_that_is_gone_has_no_counters() -> None:
    assert cgroups.counters_v1({}) == cgroups.counters_v2({}) == Counters()
    assert cgroups.read_limits(cgroups.HostFiles("1", {})).source == "unreadable"


lines = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.builds(
            "{} {}".format,
            st.sampled_from(["oom_kill", "anon", "max", "total_rss", "nr_periods", "²", ""]),
            st.one_of(st.integers(), st.text(max_size=5), st.floats()),
        ),
        st.sampled_from(["max 100000", "100000 0", "0 0", "-1", "max", "٣", "1_000", "9" * 400]),
    ),
    max_size=4,
).map("\n".join)


@given(
    st.dictionaries(
        st.sampled_from([*sum(cgroups.COUNTER_FILES.values(), ()), *sum(cgroups.LIMIT_FILES.values(), ())]), lines
    )
)
def test_garbage_gives_none_and_never_an_error(texts: dict[str, str]) -> None:
    for counters in (cgroups.counters_v1(texts), cgroups.counters_v2(texts)):
        assert all(value is None or value >= 0 for value in vars_of(counters))
    for limits in (cgroups.limits_v1(texts, ""), cgroups.limits_v2(texts, "")):
        assert all(value is None or value >= 0 for value in vars_of(limits)[:-1])


def vars_of(value: Counters | Limits) -> list[float | None]:
    return [getattr(value, name) for name in value.__slots__]


@given(st.text(), st.text())
def test_garbage_is_nobodys_cgroup(membership: str, mounts: str) -> None:
    assert cgroups.directories(membership, mounts, CONTAINER) is None


V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_v1_directories_also_where_controllers_share_one() -> None:
    membership = (
        f"8:pids:/docker/{CONTAINER}\n4:memory:/docker/{CONTAINER}\n1:cpu,cpuacct:/docker/{CONTAINER}\n0::/\n"
    )

    found = cgroups.directories(membership, V1_MOUNTS, CONTAINER)

    assert found is not None
    version, directories = found
    assert version == "1"
    assert directories["memory"] == f"/sys/fs/cgroup/memory/docker/{CONTAINER}"
    assert directories["cpu"] == directories["cpuacct"] == f"/sys/fs/cgroup/cpu,cpuacct/docker/{CONTAINER}"


def test_v2_directories() -> None:
    membership = f"0::/system.slice/docker-{CONTAINER}.scope\n"

    found = cgroups.directories(membership, V2_MOUNTS, CONTAINER)

    directory = f"/sys/fs/cgroup/system.slice/docker-{CONTAINER}.scope"
    assert found == ("2", {"memory": directory, "cpu": directory, "pids": directory})


def test_a_mount_of_a_part_of_the_hierarchy() -> None:
    mounts = "35 31 0:32 /my\\040jobs /mnt/cgroup rw - cgroup2 cgroup2 rw\n"

    found = cgroups.directories(f"0::/my jobs/{CONTAINER}\n", mounts, CONTAINER)

    assert found is not None
    assert found[1]["memory"] == f"/mnt/cgroup/{CONTAINER}"


@pytest.mark.parametrize("membership", ["0::/\n", "0::/docker/" + "0" * 64, "4:memory:/\n", "", "garbage"])
def test_another_process_with_that_number_is_not_the_container(membership: str) -> None:
    assert cgroups.directories(membership, V1_MOUNTS + V2_MOUNTS, CONTAINER) is None


def test_files_printed_in_the_container() -> None:
    asked: list[str] = []

    def run(paths: Sequence[str]) -> bytes:
        asked.extend(paths)
        return (
            b"==> /sys/fs/cgroup/memory/memory.oom_control\nunder_oom 0\noom_kill 2\n==> /elsewhere\noom_kill 9\n"
        )

    files = cgroups.ContainerFiles("1", run)

    assert files.read(["memory.oom_control", "cpu.stat"]) == {"memory.oom_control": "under_oom 0\noom_kill 2\n"}
    assert asked == ["/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/cpu/cpu.stat"]
