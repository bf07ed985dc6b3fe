"""Whole sessions under xdist on a real engine: who ran beside whom, in which order, and what is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from pytest_infranoise.model import Record
from tests.sessions import check_nothing_left
from tests.sessions import last_run
from tests.suite import make_task

pytestmark = pytest.mark.engine

MIB = 1024**2
SLEEP = "sleep 0.5; echo done > answer.txt\n"
SMALL = {"cpus": 0.1, "memory": "64M"}


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A ledger of its own: what other sessions hold on this engine would change who runs beside whom.
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x', 'uncapped']\n", "utf-8")
    return root


@pytest.fixture(autouse=True)
def nothing_left(pytester: pytest.Pytester) -> Iterator[None]:
    yield
    check_nothing_left(pytester.path)


def stay(record: Record) -> tuple[float, float]:
    return record.details["times"]["created"], record.details["times"]["removed"]


def beside(records: Sequence[Record]) -> Iterator[tuple[Record, list[Record]]]:
    """Yield each trial with those that ran when it began."""
    for record in records:
        began = stay(record)[0]
        yield record, [other for other in records if stay(other)[0] <= began < stay(other)[1]]


def test_floors_stay_within_what_the_user_gives_and_ordinary_tests_run_too(
    pytester: pytest.Pytester, suite: Path
) -> None:
    for name, size in {"large": 192, "middle": 128, "small": 64}.items():
        make_task(suite, name, resources={"cpus": 0.1, "memory": size * MIB}, solution=SLEEP)
    ordinary = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_ordinary(number):
            assert number < 4
        """
    )

    result = pytester.runpytest_subprocess(
        "suite", ordinary, "-n3", "--infranoise-samples=1", "--infranoise-host-memory=260M", "-v"
    )

    result.assert_outcomes(passed=10)
    result.stdout.fnmatch_lines(["scheduling tests via TrialScheduling", "*within * CPUs and 260 MiB*"])
    run = last_run(pytester)
    assert run.missing == ()
    assert run.meta["capacity"]["memory"] == 260 * MIB
    shared = 0
    for record, running in beside(run.records):
        floors = [other.details["allocation"]["memory_floor"] for other in running]
        assert sum(floors) <= 260 * MIB
        shared += len(running) > 1
        admission = record.details["admission"]
        assert admission["memory_reserved"] <= 260 * MIB
        assert sum(admission["beside"].values()) == admission["running_beside"]
        # Nobody is sent to the ledger only to wait there.
        assert admission["waited_seconds"] < 2
    assert shared
    assert run.meta["schedule"]["trials"] == 6
    assert set(run.meta["schedule"]["starts"]) == {"1x", "uncapped"}
    assert set(run.meta["schedule"]["correlation"]) == {"memory", "cpus"}


def test_in_blocks_no_config_runs_beside_another(pytester: pytest.Pytester, suite: Path) -> None:
    for name in "abc":
        make_task(suite, name, resources=SMALL, solution=SLEEP)

    result = pytester.runpytest_subprocess("suite", "-n3", "--infranoise-samples=2", "--infranoise-order=blocks")

    assert result.ret == 0
    run = last_run(pytester)
    assert len(run.records) == 12
    for record, running in beside(run.records):
        assert {other.key.config for other in running} == {record.key.config}
    assert run.meta["schedule"]["order"] == "blocks"
    assert {config: set(others) for config, others in run.meta["schedule"]["beside"].items()} == {
        "1x": {"1x"},
        "uncapped": {"uncapped"},
    }


def test_with_ceilings_reserved_an_uncapped_trial_runs_alone(pytester: pytest.Pytester, suite: Path) -> None:
    for name in "ab":
        make_task(suite, name, resources=SMALL, solution=SLEEP)

    result = pytester.runpytest_subprocess("suite", "-n3", "--infranoise-samples=1", "--infranoise-admit=ceiling")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*ceilings reserved by*"])
    run = last_run(pytester)
    for record, running in beside(run.records):
        if any(other.key.config == "uncapped" for other in running):
            assert running == [record]
    assert {record.details["admission"]["admit"] for record in run.records} == {"ceiling"}


@pytest.mark.parametrize("workers", [["-n2"], ["-p", "no:xdist"]], ids=["n2", "plain"])
def test_packed_begins_with_the_large_ones_and_remembers_the_long_ones(
    pytester: pytest.Pytester, suite: Path, workers: list[str]
) -> None:
    # No two fit at once, so that what starts when is nothing but the order.
    for name, size in {"a": 110, "b": 110, "c": 130, "d": 190}.items():
        make_task(suite, name, resources={"cpus": 0.1, "memory": size * MIB})
    packed = ["--infranoise-order=packed", "--infranoise-host-memory=200M"]
    arguments = ["suite", "-k1x", "--infranoise-samples=1", *packed, *workers]

    def started() -> list[str]:
        assert pytester.runpytest_subprocess(*arguments).ret == 0
        return [record.key.task for record in sorted(last_run(pytester).records, key=stay)]

    assert started()[:2] == ["d", "c"]
    kept = pytester.path / ".pytest_cache" / "v" / "infranoise" / "seconds"
    seconds = json.loads(kept.read_text("utf-8"))
    assert {f"{task}::oracle()" for task in "abcd"} < set(seconds)
    assert all(value > 0 for value in seconds.values())
    kept.write_text(json.dumps({**seconds, "a::oracle()-1x": 10_000}), "utf-8")
    assert started()[0] == "a"


def test_no_workers_left_is_told_and_never_green(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "deadly", resources=SMALL)
    pytester.makeconftest(
        """
        import os
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(item):
            if "uncapped" in item.nodeid:
                os._exit(1)
        """
    )

    gate = ["--infranoise-gate", "infra-rate <= 100%"]
    result = pytester.runpytest_subprocess(
        "suite", "-n2", "--infranoise-samples=5", "--max-worker-restart=1", *gate
    )

    run = last_run(pytester)
    assert run.missing
    assert len(run.records) + len(run.missing) == 10
    assert result.ret == 20
    output = result.stdout.str()
    assert f"planned 10 = recorded {len(run.records)} + missing {len(run.missing)}" in output
    assert "not an estimate: workers died" in output
    assert "INTERNALERROR" not in output


def test_workers_that_die_are_replaced_and_every_trial_has_one_record(
    pytester: pytest.Pytester, suite: Path
) -> None:
    make_task(suite, "deadly", resources=SMALL)
    pytester.makeconftest(
        """
        import os
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(item):
            if "uncapped" in item.nodeid:
                os._exit(1)
        """
    )

    pytester.runpytest_subprocess("suite", "-n2", "--infranoise-samples=3")

    run = last_run(pytester)
    assert run.missing == ()
    ends = {(record.key.config, record.cause or record.verdict.value) for record in run.records}
    assert ends == {("1x", "pass"), ("uncapped", "harness-crash")}
    assert len(run.records) == 6


@pytest.mark.parametrize("stop", ["-x", "--maxfail=2"])
def test_stopping_at_failures_starts_nothing_more(pytester: pytest.Pytester, suite: Path, stop: str) -> None:
    make_task(suite, "wrong", resources=SMALL, solution="echo wrong > answer.txt\n")

    result = pytester.runpytest_subprocess("suite", "-n2", "--infranoise-samples=6", stop)

    run = last_run(pytester)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert len(run.records) <= 4
    assert len(run.records) + len(run.missing) == 12
    assert "INTERNALERROR" not in result.stdout.str()


def test_only_failures_again_and_collecting_only(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "wrong", resources=SMALL, solution="echo wrong > answer.txt\n")
    make_task(suite, "right", resources=SMALL)
    arguments = ["suite", "-n2", "--infranoise-samples=1"]
    pytester.runpytest_subprocess(*arguments)

    pytester.runpytest_subprocess(*arguments, "--lf").assert_outcomes(failed=2)
    assert {record.key.task for record in last_run(pytester).records} == {"wrong"}
    collected = pytester.runpytest_subprocess(*arguments, "--co", "-q")
    assert sum("task.yaml::" in line for line in collected.outlines) == 4


def test_auto_means_what_the_floors_allow(pytester: pytest.Pytester, suite: Path) -> None:
    for name in "abc":
        make_task(suite, name, resources={"cpus": 0.1, "memory": "100M"})

    result = pytester.runpytest_subprocess(
        "suite", "-nauto", "--infranoise-samples=1", "-k1x", "--infranoise-host-memory=250M"
    )

    assert result.ret == 0
    assert last_run(pytester).meta["workers"] == 2


def test_without_tasks_auto_and_dist_are_what_they_were(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "3")
    pytester.makepyfile("def test_one(worker_id): pass\ndef test_two(worker_id): pass")

    for dist, scheduler in (("worksteal", "WorkStealingScheduling"), ("loadfile", "LoadFileScheduling")):
        result = pytester.runpytest_subprocess("-nauto", "--dist", dist, "-v")

        result.assert_outcomes(passed=2)
        result.stdout.fnmatch_lines(["created: 3/3 workers", f"scheduling tests via {scheduler}"])


def test_another_dist_is_told_not_to_be_used(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello", resources=SMALL)

    result = pytester.runpytest_subprocess(
        "suite", "-n2", "--dist=loadfile", "--infranoise-samples=1", "-v", "-k1x"
    )

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*--dist loadfile is not used", "scheduling tests via TrialScheduling"])


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["plain", "n1"])
def test_more_than_the_host_has_is_one_clear_error(
    pytester: pytest.Pytester, suite: Path, workers: list[str]
) -> None:
    make_task(suite, "hello", resources=SMALL)

    result = pytester.runpytest_subprocess("suite", "--infranoise-host-memory=900T", *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --infranoise-host-memory: *is more than the * of the host"])


def test_sessions_side_by_side_share_the_host_and_both_end(pytester: pytest.Pytester, suite: Path) -> None:
    for name in "ab":
        make_task(suite, name, resources={"cpus": 0.1, "memory": "100M"}, solution=SLEEP)
    arguments = ["suite", "-n2", "--infranoise-samples=1", "--infranoise-host-memory=250M"]
    sessions = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments, f"--infranoise-run-dir={name}"],
            cwd=pytester.path,
            stdout=subprocess.DEVNULL,
        )
        for name in ("one", "two")
    ]
    assert [session.wait() for session in sessions] == [0, 0]

    records = [
        record for name in ("one", "two") for record in read_run(find_run(pytester.path / name, None)).records
    ]
    assert len(records) == 8
    for _, running in beside(records):
        assert len(running) <= 2


def test_run_json_says_how_trials_were_put_in_order(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello", resources=SMALL)

    pytester.runpytest_subprocess("suite", "--infranoise-samples=1", "-k1x")

    [run_json] = pytester.path.glob(".infranoise/runs/*/run.json")
    meta: dict[str, Any] = json.loads(run_json.read_text("ascii"))
    assert meta["order"].startswith("shuffled inside rounds")
    assert meta["schedule"]["admit"] == "floor"
    assert meta["schedule"]["remark"] is None
