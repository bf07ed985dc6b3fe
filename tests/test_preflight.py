"""Sessions with ``--infranoise-preflight`` on a real engine, with and without xdist."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest

from pytest_infranoise.journal import Run
from pytest_infranoise.settings import read_settings
from tests.sessions import check_nothing_left
from tests.sessions import last_run
from tests.suite import BASE_IMAGE
from tests.suite import SOLVE
from tests.suite import VERIFY
from tests.suite import hold_memory
from tests.suite import make_task

engine = pytest.mark.engine
PREFLIGHT = ["suite", "--infranoise-preflight", "-rs"]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text(
        "agent = 'oracle'\nresource-configs = ['1x', '3x']\nsamples = 1\n", "utf-8"
    )
    return root


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, pytester: pytest.Pytester) -> Iterator[None]:
    yield
    if request.node.get_closest_marker("engine") is None:
        return
    check_nothing_left(pytester.path)


def problems(run: Run) -> dict[str, Any]:
    return {name: fitness["problem"] for name, fitness in run.meta["preflight"]["tasks"].items()}


@pytest.fixture
def unfit(suite: Path) -> Path:
    """One task that is fit, and one for each way not to be."""
    make_task(suite, "good")
    make_task(suite, "hungry", solution="set -e\n" + hold_memory(60) + SOLVE)
    make_task(suite, "wrong", solution="echo wrong > answer.txt\n")
    make_task(suite, "lax", verify=VERIFY.replace("reward=0", "reward=1"))
    return suite


@engine
@pytest.mark.usefixtures("unfit")
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "distributed"])
def test_what_is_not_fit_is_quarantined_by_name_and_enters_no_rate(
    pytester: pytest.Pytester, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    gate = ["--infranoise-gate", "pass-rate >= 100%"]
    result = pytester.runpytest_subprocess(*PREFLIGHT, *workers, *gate)
    run = last_run(pytester)

    assert result.ret == 20
    result.assert_outcomes(passed=2, skipped=6)
    assert {key.task for key in run.planned} == {record.key.task for record in run.records} == {"good"}
    assert run.missing == ()
    found = problems(run)
    assert found["good"] is None
    assert found["hungry"].startswith("oracle needs ")
    assert "killed for memory under 1x" in found["hungry"]
    assert found["wrong"].startswith("the oracle does not pass under 1x: tests-failed")
    assert found["lax"].startswith("nop passes")
    needs = run.meta["preflight"]["tasks"]["hungry"]["needs_memory"]
    assert 60 * 1024**2 <= needs < 300 * 1024**2
    assert run.meta["tasks"]["skipped"]["wrong"] == f"quarantined by preflight: {found['wrong']}"
    result.stdout.fnmatch_lines(
        [
            "infranoise: preflight: oracle and nop of 4 tasks under 1x",
            "infranoise: preflight: 1 of 4 tasks are fit, in * s",
            "infranoise: 2 trials of 1 task, run *",
            "*planned 2 = recorded 2 + missing 0*",
            "*1 of 4 tasks measured; skipped: *quarantined by preflight: *",
            "preflight under 1x: 1 of 4 tasks fit; 3 tasks quarantined*",
        ]
    )
    result.stdout.fnmatch_lines(["SKIPPED *not run: quarantined by preflight: nop passes*"])
    again = pytester.run(Path(sys.executable).with_name("infranoise"), "report").outlines
    assert any(line.startswith("preflight under 1x: 1 of 4 tasks fit") for line in again)


@engine
def test_fit_tasks_are_measured_as_ever_and_preflight_trials_are_kept_apart(
    pytester: pytest.Pytester, suite: Path
) -> None:
    make_task(suite, "one")
    make_task(suite, "two")
    (suite / "infranoise.toml").write_text((suite / "infranoise.toml").read_text() + "preflight = true\n")

    result = pytester.runpytest_subprocess("suite", "-k", "3x")
    run = last_run(pytester)

    assert result.ret == 0
    assert problems(run) == {"one": None, "two": None}
    assert sorted((record.key.task, record.key.config) for record in run.records) == [("one", "3x"), ("two", "3x")]
    kept = [path.read_text() for path in (run.path / "preflight").glob("trials-*.jsonl")]
    assert sum(text.count('"finished"') for text in kept) == 4
    trials = run.meta["preflight"]["tasks"]["one"]["trials"]
    assert [(trial["agent"], trial["config"], trial["verdict"]) for trial in trials] == [
        ("oracle", "1x", "pass"),
        ("nop", "1x", "fail"),
    ]


@engine
def test_without_an_oracle_only_nop_is_run_and_that_is_said(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "bare", oracle=None)

    result = pytester.runpytest_subprocess(*PREFLIGHT, "--infranoise-agent", "command:echo done > answer.txt")
    fitness = last_run(pytester).meta["preflight"]["tasks"]["bare"]

    assert result.ret == 0
    assert [trial["agent"] for trial in fitness["trials"]] == ["nop"]
    result.stdout.fnmatch_lines(["infranoise: preflight: bare: only nop was run: *has no oracle*"])
    result.stdout.fnmatch_lines(["*with less than oracle and nop: bare*"])


@engine
def test_a_nop_without_a_verdict_is_told_and_quarantines_nothing(pytester: pytest.Pytester, suite: Path) -> None:
    """Its verifier says nothing at all where there is no answer."""
    make_task(suite, "mute", verify='[ -e "$INFRANOISE_WORKDIR/answer.txt" ] || exit 3\n' + VERIFY)

    result = pytester.runpytest_subprocess(*PREFLIGHT)

    assert result.ret == 0
    assert problems(last_run(pytester)) == {"mute": None}
    result.stdout.fnmatch_lines(
        ["infranoise: preflight: mute: nop did not show that doing nothing does not pass: verifier-error: *"]
    )
    result.stdout.fnmatch_lines(["*with less than oracle and nop: mute*"])


@engine
def test_when_no_task_is_fit_nothing_is_measured_and_that_is_not_green(
    pytester: pytest.Pytester, suite: Path
) -> None:
    make_task(suite, "wrong", solution="exit 1\n")

    result = pytester.runpytest_subprocess(*PREFLIGHT)

    assert result.ret == 20
    result.assert_outcomes(skipped=2)
    assert last_run(pytester).planned == ()
    result.stdout.fnmatch_lines(["no trial was planned"])


@engine
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "distributed"])
def test_a_failed_build_is_one_error_of_its_task(
    pytester: pytest.Pytester, suite: Path, workers: list[str]
) -> None:
    make_task(suite, "good")
    root = make_task(suite, "broken", image=None, pull=None, build="env")
    (root / "env").mkdir()
    (root / "env" / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nRUN echo last words {uuid4().hex}; exit 3\n")

    result = pytester.runpytest_subprocess(*PREFLIGHT, *workers)
    run = last_run(pytester)

    assert result.ret == 20
    result.assert_outcomes(passed=2, skipped=1, errors=1)
    result.stdout.fnmatch_lines(["*last words*", "*1 of 2 tasks measured*without a record: broken*"])
    assert run.meta["preflight"]["unchecked"] == ["broken"]
    assert {key.task for key in run.missing} == {"broken"}


@engine
def test_an_interrupted_preflight_leaves_nothing(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "slow", solution="sleep 60\n")
    make_task(suite, "slower", solution="sleep 60\n", resources={"cpus": 2, "memory": "64M"})
    output = (pytester.path / "output").open("wb")
    # A shell's background job, as a test run in CI may be, hands an ignored SIGINT down.
    argv = ["env", "--default-signal=INT", sys.executable, "-m", "pytest", "suite", "--infranoise-preflight"]
    with subprocess.Popen(argv, cwd=pytester.path, stdout=output, stderr=output) as process:
        _await_container(pytester.path)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    output.close()

    assert not list(pytester.path.glob(".infranoise/runs/*/run.json"))


def _await_container(path: Path) -> None:
    give_up = time.monotonic() + 60
    client = docker.from_env()
    while True:
        assert time.monotonic() < give_up
        for run_dir in path.glob(".infranoise/runs/*"):
            label: dict[str, str | list[str] | bool] = {"label": f"infranoise.run={run_dir.name}"}
            if client.containers.list(filters=label, ignore_removed=True):
                client.close()
                return
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("ini", "option", "expected"),
    [("", [], False), ("true", [], True), ("false", [], False), ("False", ["--infranoise-preflight"], True)],
)
def test_option_and_ini_twin(pytester: pytest.Pytester, ini: str, option: list[str], expected: bool) -> None:
    pytester.makeini(f"[pytest]\ninfranoise_preflight = {ini}\n")

    assert read_settings(pytester.parseconfig(*option)).preflight is expected


def test_an_ini_value_that_is_neither(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ninfranoise_preflight = perhaps\n")

    result = pytester.runpytest_inprocess()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*infranoise_preflight: 'perhaps' is neither true nor false*"])


def test_a_mistake_in_the_settings_file(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "one")
    (suite / "infranoise.toml").write_text("agent = 'nop'\npreflight = 'yes'\n")

    result = pytester.runpytest_inprocess("suite")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*infranoise.toml: preflight: 'yes' is not true or false*"])
    assert not list(pytester.path.glob(".infranoise/runs/*"))
