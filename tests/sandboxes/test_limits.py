from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes.limits import check_limits
from pytest_infranoise.sandboxes.limits import cpu_shares
from pytest_infranoise.sandboxes.limits import host_options
from pytest_infranoise.sandboxes.limits import limit_warnings
from pytest_infranoise.sandboxes.limits import unsupported_limits
from pytest_infranoise.sandboxes.protocol import Limits

MIB = 1024**2
ASKED = Allocation(cpus_floor=1.0, cpus_ceiling=1.5, memory_floor=64 * MIB, memory_ceiling=192 * MIB)
UNCAPPED = replace(ASKED, cpus_ceiling=None, memory_ceiling=None)
GOT = Limits(192 * MIB, 192 * MIB, 64 * MIB, 1.5, 1024, 4096, "cgroup v1 files on the host")
GOT_UNCAPPED = replace(GOT, memory=None, memory_and_swap=None, cpus=None)


def test_same_limits_are_no_finding() -> None:
    assert check_limits(ASKED, GOT) == []
    assert check_limits(UNCAPPED, GOT_UNCAPPED) == []


def test_the_kernel_rounds() -> None:
    odd = replace(ASKED, memory_ceiling=100_000_001, memory_floor=10_000_001, cpus_ceiling=0.333)
    rounded = replace(GOT, memory=99_999_744, memory_and_swap=99_999_744, memory_floor=9_998_336, cpus=0.34)

    assert check_limits(odd, rounded) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"memory": None}, "memory ceiling: asked 201326592 bytes, is none"),
        ({"memory": 192 * MIB - 4096}, "memory ceiling: asked 201326592 bytes, is 201322496 bytes"),
        ({"memory_and_swap": None}, "memory and swap ceiling: asked 201326592 bytes, is none"),
        ({"memory_and_swap": 384 * MIB}, "memory and swap ceiling: asked 201326592 bytes, is 402653184 bytes"),
        ({"memory_floor": None}, "memory floor: asked 67108864 bytes, is none"),
        ({"cpus": None}, "CPU ceiling: asked 1.5 cores, is none"),
        ({"cpus": 1.0}, "CPU ceiling: asked 1.5 cores, is 1 cores"),
        ({"cpu_weight": 2}, "CPU floor: asked 1024 shares, is 2"),
        ({"pids": None}, "pids ceiling: asked 4096, is none"),
    ],
)
def test_each_mismatch_is_told(change: dict[str, int | float | None], finding: str) -> None:
    assert check_limits(ASKED, replace(GOT, **change)) == [finding]  # type: ignore[arg-type]


def test_a_limit_that_nobody_asked_for_is_a_mismatch_too() -> None:
    assert len(check_limits(UNCAPPED, GOT)) == 3


def test_nothing_readable_is_no_enforcement() -> None:
    assert len(check_limits(ASKED, Limits(None, None, None, None, None, None, "unreadable"))) == 6


def test_without_any_swap_its_limit_is_not_missed() -> None:
    assert check_limits(ASKED, replace(GOT, memory_and_swap=None), swapless=True) == []
    assert check_limits(ASKED, replace(GOT, memory_and_swap=384 * MIB), swapless=True)


def test_weights_of_v2_depend_on_the_runtime() -> None:
    assert check_limits(ASKED, replace(GOT, cpu_weight=39, source="cgroup v2 files on the host")) == []


def test_swap_is_no_way_around_the_ceiling_and_uncapped_means_none() -> None:
    options = host_options(ASKED)

    assert options["mem_limit"] == options["memswap_limit"] == 192 * MIB
    assert (options["cpu_quota"], options["cpu_period"]) == (150_000, 100_000)
    assert not {"mem_limit", "memswap_limit", "cpu_quota", "nano_cpus"} & host_options(UNCAPPED).keys()
    assert host_options(UNCAPPED)["oom_score_adj"] > 0


@pytest.mark.parametrize(("cpus", "shares"), [(1, 1024), (0.5, 512), (0.0001, 2), (1000, 262_144)])
def test_shares_stay_within_what_the_kernel_takes(cpus: float, shares: int) -> None:
    assert cpu_shares(cpus) == shares


ABLE = {
    "MemoryLimit": True,
    "SwapLimit": True,
    "CpuCfsPeriod": True,
    "CpuCfsQuota": True,
    "CPUShares": True,
    "PidsLimit": True,
    "OSType": "linux",
}


def test_an_engine_that_can_do_everything() -> None:
    assert unsupported_limits(ABLE, swapless=False) == ()
    assert unsupported_limits({}, swapless=False) == ()  # an older engine that does not say: the read-back tells


@pytest.mark.parametrize(
    ("field", "limit"), [("MemoryLimit", "memory limit"), ("CpuCfsQuota", "CPU quota"), ("PidsLimit", "pids limit")]
)
def test_what_an_engine_cannot_do(field: str, limit: str) -> None:
    assert unsupported_limits({**ABLE, field: False}, swapless=True) == (limit,)


def test_a_missing_swap_limit_matters_only_with_swap() -> None:
    assert unsupported_limits({**ABLE, "SwapLimit": False}, swapless=False) == ("swap limit",)
    assert unsupported_limits({**ABLE, "SwapLimit": False}, swapless=True) == ()
    assert unsupported_limits({**ABLE, "OSType": "windows"}, swapless=True) == ("Linux containers",)


def test_warnings_that_take_a_limit_back() -> None:
    memory = (
        "Your kernel does not support memory limit capabilities or the cgroup is not mounted. Limitation discarded."
    )
    swap = (
        "Your kernel does not support swap limit capabilities or the cgroup is not mounted. "
        "Memory limited without swap."
    )
    platform = (
        "The requested image's platform (linux/arm64) does not match the detected host platform (linux/amd64)"
    )

    assert limit_warnings([memory, swap, platform], swapless=False) == [memory, swap]
    assert limit_warnings([swap], swapless=True) == []
    assert limit_warnings([memory], swapless=True) == [memory]
