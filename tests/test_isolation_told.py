"""What a run says of how its trials were kept apart and what they were allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_infranoise.analysis import analyse
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from pytest_infranoise.reports.notes import run_notes
from pytest_infranoise.reports.terminal import render
from pytest_infranoise.sandboxes.isolation import Isolation
from pytest_infranoise.sandboxes.privileges import names_of
from tests.builders import DEMO
from tests.builders import run_of
from tests.suite import make_task

# Docker's own default, https://docs.docker.com/engine/security/#linux-kernel-capabilities
DEFAULT = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}


@pytest.mark.engine
@pytest.mark.parametrize("network", [False, True])
def test_a_run_states_its_isolation_and_what_its_containers_were_allowed(
    pytester: pytest.Pytester, network: bool
) -> None:
    suite = pytester.path / "suite"
    suite.mkdir()
    (suite / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x']\nsamples = 1\n", "utf-8")
    make_task(suite, "job", network=network)

    output = pytester.runpytest_subprocess("suite").stdout.str()

    isolation = read_run(find_run(pytester.path / ".infranoise" / "runs", None)).meta["isolation"]
    (privileges,) = isolation.pop("privileges")
    assert privileges["source"] in ("the kernel", "the engine")
    if privileges["source"] == "the kernel":
        assert set(privileges["capabilities"]) == DEFAULT
        assert privileges["seccomp"] == "filter"
    if not network:
        assert isolation == {"network": False}
        assert "could reach" not in output
    elif os.geteuid() == 0 and isolation["why"] is None:
        assert isolation == {"network": True, **Isolation(True, True, True).to_json()}
        assert "could reach" not in output
    else:
        assert "link-local metadata addresses and the host's ports" in " ".join(output.split())


def test_what_stays_reachable_is_told_once() -> None:
    reachable = Isolation(None, False, False, why="closing them takes root").to_json()
    text = " ".join(" ".join(render(analyse(run_of(DEMO, isolation={"network": True, **reachable})), 100)).split())
    told = "trials with a network could reach link-local metadata addresses and the host's ports"
    assert text.count(f"{told} (closing them takes root)") == 1


@pytest.mark.parametrize(
    "isolation", [{}, {"network": False}, {"network": True, **Isolation(True, True, True).to_json()}]
)
def test_nothing_is_told_when_all_is_closed(isolation: dict[str, object]) -> None:
    assert list(run_notes({"isolation": isolation})) == []


def test_policies_are_told_when_they_are_not_the_default() -> None:
    default = {
        "oom_child": "infra",
        "oom_mode": "single",
        "retries": 0,
        "memory_reserve": 1,
        "memory_reserve_asked": False,
    }
    assert list(run_notes({"policy": default})) == []
    changed = {
        "oom_child": "fail",
        "oom_mode": "group",
        "retries": 2,
        "memory_reserve": 0,
        "memory_reserve_asked": True,
    }
    (line,) = run_notes({"policy": changed})
    assert line.startswith("policy: ")
    for part in ("oom-child fail", "oom-mode group", "up to 2 retries", "no memory reserve"):
        assert part in line
    (line,) = run_notes({"policy": {**default, "memory_reserve": 2**30, "memory_reserve_asked": True}})
    assert line == "policy: memory reserve of the host 1 GiB"


def test_capabilities_have_names_and_newer_ones_numbers() -> None:
    assert set(names_of(0xA80425FB)) == DEFAULT
    assert names_of(1 << 45) == ["45"]
    assert names_of(0) == []
    assert names_of((1 << 41) - 1)[-1] == "CHECKPOINT_RESTORE"


def test_this_machine_knows_no_more_capabilities_than_the_list() -> None:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text("ascii"))
    if last <= 40:
        assert not names_of((1 << (last + 1)) - 1)[-1].isdecimal()


@pytest.mark.engine
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_ports_that_are_allowed_are_told(pytester: pytest.Pytester, workers: list[str]) -> None:
    suite = pytester.path / "suite"
    suite.mkdir()
    (suite / "infranoise.toml").write_text(
        "agent = 'oracle'\nresource-configs = ['1x']\nsamples = 1\nallow-host-port = [8081, 3128]\n", "utf-8"
    )
    make_task(suite, "job", network=True)

    output = " ".join(pytester.runpytest_subprocess("suite", *workers).stdout.str().split())

    run = read_run(find_run(pytester.path / ".infranoise" / "runs", None))
    assert run.meta["isolation"]["allowed_host_ports"] == [3128, 8081]
    assert "could reach ports of the engine's host, as allowed: 3128, 8081" in output
    assert [one.verdict for one in run.records] == ["pass"]
