"""Whole sessions on a real engine: records, exit status, crashes, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import docker
import pytest

from pytest_infranoise.journal import Run
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from tests.sandboxes.proxy import Wire
from tests.sessions import IMPATIENT
from tests.sessions import check_nothing_left
from tests.sessions import last_run
from tests.suite import SOLVE
from tests.suite import hold_memory
from tests.suite import make_task

pytestmark = pytest.mark.engine

SLEEP_1 = "sleep 1; echo done > answer.txt\n"
ONE_SAMPLE = ["suite", "--infranoise-samples", "1"]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x', 'uncapped']\n", "utf-8")
    return root


@pytest.fixture(autouse=True)
def nothing_left(pytester: pytest.Pytester) -> Iterator[None]:
    yield
    check_nothing_left(pytester.path)


def verdicts(run: Run) -> dict[str, str]:
    return {str(record.key): record.cause or record.verdict for record in run.records}


@pytest.fixture
def mixed(suite: Path) -> Path:
    """One task that needs more than its spec, one that fails, one that passes."""
    make_task(suite, "hungry", solution="set -e\n" + hold_memory(150) + SOLVE)
    make_task(suite, "wrong", solution="echo wrong > answer.txt\n")
    make_task(suite, "right")
    return suite


MIXED = {
    "hungry::oracle-1x-0": "resource-kill",
    "hungry::oracle-uncapped-0": "pass",
    "wrong::oracle-1x-0": "fail",
    "wrong::oracle-uncapped-0": "fail",
    "right::oracle-1x-0": "pass",
    "right::oracle-uncapped-0": "pass",
}


@pytest.mark.usefixtures("mixed")
def test_plain_and_distributed_give_the_same_records_and_letters(pytester: pytest.Pytester) -> None:
    results = []
    for workers in ([], ["-n2"]):
        result = pytester.runpytest_subprocess(*ONE_SAMPLE, *workers)

        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["*2 failed, 3 passed, 1 infra-error*"])
        result.stdout.fnmatch_lines(["*suite/hungry/task.yaml::1x-0*resource-kill*"])
        results.append(verdicts(last_run(pytester)))
        assert last_run(pytester).missing == ()
    assert results == [MIXED, MIXED]


@pytest.mark.usefixtures("mixed")
def test_the_summary_is_printed_and_can_be_printed_again(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    options = ["--infranoise-margin", "2", "--infranoise-alpha", "0.1", "--infranoise-min-cut", "0.8"]
    options += ["--infranoise-target", "population", "--infranoise-baseline", "uncapped"]
    options += ["--infranoise-gate", "delta(1x,uncapped) >= -3pp"]
    printed = pytester.runpytest_subprocess(*ONE_SAMPLE, "-n2", *options).outlines
    start = next(index for index, line in enumerate(printed) if re.fullmatch("=+ infranoise =+", line))

    again = pytester.run(Path(sys.executable).with_name("infranoise"), "report").outlines

    assert again
    assert printed[start + 1 : start + 1 + len(again)] == again
    assert any("planned 6 = recorded 6 + missing 0" in line for line in again)
    meta = last_run(pytester).meta
    assert meta["design"] == {"margin": 0.02, "alpha": 0.1, "min_cut": 0.8, "target": "population"}
    assert meta["baseline"] == "uncapped"
    assert any("Margin +-2pp, fixed before the run." in line for line in again)
    assert any(line.startswith("gate delta(1x,uncapped) >= -3pp does not hold: -33.3, 90% CI") for line in again)


@pytest.mark.usefixtures("mixed")
def test_gates_decide_the_exit_status(pytester: pytest.Pytester) -> None:
    holds = pytester.runpytest_subprocess(
        *ONE_SAMPLE, "-k", "right", "--infranoise-gate", "infra-rate[uncapped] <= 5%"
    )
    fails = pytester.runpytest_subprocess(*ONE_SAMPLE, "-k", "1x", "--infranoise-gate", "infra-rate[1x] <= 5%")

    assert holds.ret == 0
    assert fails.ret == 20
    assert sum("infra-rate[1x] <= 5%" in line and "33.3" in line for line in fails.outlines) == 1


@pytest.mark.usefixtures("mixed")
def test_a_failing_ordinary_test_beside_trials_gives_1(pytester: pytest.Pytester) -> None:
    ordinary = pytester.makepyfile("def test_ordinary(): assert False")
    gate = ["--infranoise-gate", "missing <= 0"]

    result = pytester.runpytest_subprocess(ordinary, *ONE_SAMPLE, "-k", "right or ordinary", *gate, "-n2")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(last_run(pytester).records) == 2


@pytest.mark.usefixtures("mixed")
def test_junit_tells_failures_from_errors(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess(*ONE_SAMPLE, "-n2", "--junitxml=junit.xml")
    cases = {}
    for case in ET.parse(pytester.path / "junit.xml").iter("testcase"):
        properties = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
        kinds = [kind for kind in ("failure", "error") if case.find(kind) is not None]
        cases[f"{properties['task']}-{properties['config']}"] = (kinds, properties)

    assert {name: kinds for name, (kinds, _) in cases.items()} == {
        "hungry-1x": ["error"],
        "hungry-uncapped": [],
        "wrong-1x": ["failure"],
        "wrong-uncapped": ["failure"],
        "right-1x": [],
        "right-uncapped": [],
    }
    assert cases["hungry-1x"][1]["cause"] == "resource-kill"
    assert cases["hungry-1x"][1]["verdict"] == "infra-error"
    assert cases["wrong-1x"][1]["sample"] == "0"


def test_lf_runs_failures_and_infra_errors_again_and_says_it_is_no_estimate(
    pytester: pytest.Pytester, mixed: Path
) -> None:
    pytester.runpytest_subprocess(*ONE_SAMPLE)

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "--lf")

    assert set(verdicts(last_run(pytester))) == {name for name, verdict in MIXED.items() if verdict != "pass"}
    assert "not an estimate" in result.stdout.str()


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_stopping_at_the_first_failure_is_never_green(pytester: pytest.Pytester, workers: list[str]) -> None:
    gate = ["--infranoise-gate", "infra-rate <= 100%"]

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "-x", *gate, *workers)

    run = last_run(pytester)
    assert result.ret in (pytest.ExitCode.INTERRUPTED, 20)
    assert run.missing
    assert len(run.records) + len(run.missing) == 6
    output = result.stdout.str()
    assert "not an estimate" in output
    assert "is refused: not an estimate" in output


def started(run_dir: Path, worker: str) -> list[dict[str, object]]:
    try:
        lines = (run_dir / f"trials-{worker}.jsonl").read_text("ascii").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def wait_for_trial(pytester: pytest.Pytester, session: subprocess.Popen[bytes], worker: str) -> int:
    """Return the pid of a process that has finished a trial and is in the middle of another."""
    while session.poll() is None:
        for run_dir in pytester.path.glob(".infranoise/runs/*"):
            events = started(run_dir, worker)
            running = events and events[-1]["event"] == "started" and len(events) > 2
            if running and docker_containers(run_dir.name):
                return int(str(events[-1]["pid"]))
        time.sleep(0.02)
    pytest.fail("the session ended before a trial could be caught running")


def docker_containers(run: str) -> list[str]:
    client = docker.from_env()
    try:
        return [
            one.id
            for one in client.containers.list(filters={"label": f"infranoise.run={run}"}, ignore_removed=True)
            if one.id
        ]
    finally:
        client.close()


def start_session(pytester: pytest.Pytester, *arguments: str) -> subprocess.Popen[bytes]:
    # A shell's background job, as a test run in CI may be, hands an ignored SIGINT down.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "pytest", *arguments]
    with (pytester.path / "output.txt").open("wb") as output:
        return subprocess.Popen(
            command, cwd=pytester.path, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def test_a_killed_worker_loses_no_finished_trial_and_leaves_no_container(
    pytester: pytest.Pytester, suite: Path
) -> None:
    for name in ("a", "b", "c"):
        make_task(suite, name, solution=SLEEP_1)
    session = start_session(pytester, "suite", "--infranoise-samples", "2", "-n2")

    os.kill(wait_for_trial(pytester, session, "gw0"), signal.SIGKILL)

    session.wait()
    run = last_run(pytester)
    assert run.missing == ()
    assert sorted(verdicts(run).values()) == ["harness-crash", *["pass"] * 11]
    output = (pytester.path / "output.txt").read_text("utf-8")
    assert "11 passed" in output
    assert "1 infra-error" in output
    assert session.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_session_keeps_what_finished_and_counts_the_rest_as_missing(
    pytester: pytest.Pytester, suite: Path, number: signal.Signals, workers: list[str]
) -> None:
    make_task(suite, "slow", solution="sleep 2; echo done > answer.txt\n")
    session = start_session(pytester, "suite", "--infranoise-samples", "4", *workers)

    wait_for_trial(pytester, session, "gw0" if workers else "main")
    os.killpg(session.pid, number)

    session.wait()
    run = last_run(pytester)
    assert session.returncode == pytest.ExitCode.INTERRUPTED
    assert run.records
    assert run.missing
    assert len(run.records) + len(run.missing) == 8
    output = (pytester.path / "output.txt").read_text("utf-8")
    assert f"planned 8 = recorded {len(run.records)} + missing" in output
    assert "workers died" not in output


def test_leftovers_of_a_killed_session_go_with_the_next_one(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a ledger of their own, so that no other session on the engine is the next one.
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))
    make_task(suite, "slow", solution="sleep 2; echo done > answer.txt\n")
    session = start_session(pytester, "suite", "--infranoise-samples", "4")
    wait_for_trial(pytester, session, "main")
    dead_run = find_run(pytester.path / ".infranoise" / "runs", None).name

    os.killpg(session.pid, signal.SIGKILL)
    session.wait()
    assert docker_containers(dead_run)

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "-k", "1x")
    result.stdout.fnmatch_lines([f"*removed * leftovers of run {dead_run}*"])
    assert docker_containers(dead_run) == []


def test_a_living_session_is_never_swept(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "slow", solution="sleep 2; echo done > answer.txt\n")
    first = start_session(pytester, "suite", "--infranoise-samples", "2")
    wait_for_trial(pytester, first, "main")

    pytester.runpytest_subprocess(*ONE_SAMPLE, "-k", "1x", "--infranoise-run-dir", "other")

    assert first.wait() == 0
    assert set(verdicts(last_run(pytester)).values()) == {"pass"}


def test_two_sessions_on_one_engine_stay_within_the_host(pytester: pytest.Pytester, suite: Path) -> None:
    memory = docker.from_env().info()["MemTotal"]
    # Two of these do not fit on the engine at once.
    make_task(suite, "large", resources={"cpus": 0.5, "memory": int(memory * 0.6)}, solution=SLEEP_1)
    sessions = [start_session(pytester, *ONE_SAMPLE, "-n2", "--infranoise-run-dir", name) for name in "ab"]
    assert [session.wait() for session in sessions] == [0, 0]

    spans = []
    for name in "ab":
        for record in read_run(find_run(pytester.path / name, None)).records:
            times = record.details["times"]
            spans.append((times["created"], times["removed"]))
    spans.sort()
    assert len(spans) == 4
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_a_floor_above_the_host_is_one_clear_error(pytester: pytest.Pytester, suite: Path) -> None:
    engine = docker.from_env().info()
    make_task(suite, "huge", resources={"cpus": 0.5, "memory": engine["MemTotal"]})
    make_task(suite, "wide", resources={"cpus": engine["NCPU"] + 1, "memory": "64M"})

    for workers in ([], ["-n2"]):
        result = pytester.runpytest_subprocess(*ONE_SAMPLE, *workers)

        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines_random(
            [
                "*task 'huge' under configs * has a memory floor of * more than the *",
                "*task 'wide' under configs * has a CPU floor of *, more than the *",
            ]
        )
    assert list(pytester.path.glob(".infranoise/runs/*")) == []


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_one_task_without_its_image_is_a_config_error_and_the_others_run(
    pytester: pytest.Pytester, suite: Path, workers: list[str]
) -> None:
    make_task(suite, "fine")
    make_task(suite, "imageless", image="infranoise/nowhere:1")

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, *workers, "-v")

    assert result.ret == 20
    result.stdout.fnmatch_lines(["*CONFIG-ERROR*", "*2 passed, 1 skipped, 1 error*"])
    assert "infranoise/nowhere:1" in result.stdout.str()
    run = last_run(pytester)
    assert {key.task for key in run.missing} == {"imageless"}
    assert len(run.missing) == 2


def test_no_task_with_an_image_is_one_clear_error(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "imageless", image="infranoise/nowhere:1")

    result = pytester.runpytest_subprocess(*ONE_SAMPLE)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *imageless/task.yaml: image: *infranoise/nowhere:1*"])


def test_an_image_that_cannot_be_fetched_now_is_an_infra_error(pytester: pytest.Pytester, suite: Path) -> None:
    # Nobody listens there: a valid reference, refused for a reason that may pass.
    make_task(suite, "unreachable", image="127.0.0.1:1/some/image:1", pull="missing")

    result = pytester.runpytest_subprocess(*ONE_SAMPLE)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert set(verdicts(last_run(pytester)).values()) == {"image-pull"}


def test_an_agent_from_a_conftest_runs_as_the_built_in_ones(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")
    pytester.makeconftest(
        """
        from pytest_infranoise.agents.protocol import AgentResult

        class Typist:
            on_host = False

            def setup(self, sandbox):
                pass

            def run(self, instruction, sandbox):
                assert "done" in instruction
                result = sandbox.exec(["sh", "-c", "echo done > answer.txt"])
                return AgentResult(exit_code=result.exit_code)

        def pytest_infranoise_make_agent(context):
            return Typist() if context.choice.name == "typist" else None
        """
    )

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "--infranoise-agent", "typist", "-n2")

    assert result.ret == 0
    assert verdicts(last_run(pytester)) == {f"hello::typist-{config}-0": "pass" for config in ("1x", "uncapped")}


def test_a_failure_beside_a_passing_trial_is_never_green(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def breaks_at_its_end():
            yield
            raise RuntimeError("in teardown")
        """
    )

    for workers in ([], ["-n2"]):
        result = pytester.runpytest_subprocess(
            *ONE_SAMPLE, "-k", "1x", "--infranoise-gate", "missing <= 0", *workers
        )

        assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_failures_that_come_without_a_report_count_too(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")
    pytester.makeconftest(
        """
        def pytest_runtestloop(session):
            session.testsfailed += 1  # as a coverage threshold does
        """
    )

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "-k", "1x", "--infranoise-gate", "missing <= 0")

    assert result.ret != 0


def test_what_containers_write_reaches_the_terminal_as_text(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "loud", setup="printf '\\033]0;title\\007\\n'; exit 3")

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "-n2", "-k", "1x")

    assert set(verdicts(last_run(pytester)).values()) == {"setup-failed"}
    assert "\033]0;" not in result.stdout.str()
    assert r"\x1b]0;title\x07" in result.stdout.str()


def test_a_lone_surrogate_in_an_agents_error_stops_nobody(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")
    pytester.makeconftest(
        r"""
        class Odd:
            on_host = False

            def setup(self, sandbox):
                raise RuntimeError("x\udcff")

            def run(self, instruction, sandbox):
                raise AssertionError

        def pytest_infranoise_make_agent(context):
            return Odd() if context.choice.name == "odd" else None
        """
    )

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "-n2", "--infranoise-agent", "odd")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert last_run(pytester).missing == ()


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_an_agent_whose_provider_refuses_its_key_stops_the_run(
    pytester: pytest.Pytester, suite: Path, workers: list[str]
) -> None:
    """Every further trial would cost its setup, and count as what it is not."""
    make_task(suite, "hello")
    pytester.makeconftest(
        """
        from pytest_infranoise.agents.protocol import AgentConfigError

        class Refused:
            on_host = False

            def setup(self, sandbox):
                raise AgentConfigError("401: no such key; set MY_API_KEY")

            def run(self, instruction, sandbox):
                raise AssertionError

        def pytest_infranoise_make_agent(context):
            return Refused() if context.choice.name == "mine" else None
        """
    )

    result = pytester.runpytest_subprocess(
        "suite", "--infranoise-samples=3", *workers, "--infranoise-agent", "mine"
    )

    assert result.ret == 20
    output = " ".join(result.stdout.str().split())
    assert "CONFIG-ERROR" in output
    assert "the run was stopped: the agent 'mine' cannot work: 401: no such key; set MY_API_KEY" in output
    run = last_run(pytester)
    assert run.records == ()
    assert "1 error" in output  # whichever worker is first tells it


def test_every_trial_on_every_worker_is_refused(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "--tx", "2*popen", "--dist", "each")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --dist each would run every trial once per worker*"])


def test_a_session_with_another_ledger_is_left_alone(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task(suite, "slow", solution="sleep 2; echo done > answer.txt\n")
    first = start_session(pytester, "suite", "--infranoise-samples", "2")
    wait_for_trial(pytester, first, "main")
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "elsewhere"))

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "-k", "1x", "--infranoise-run-dir", "other")

    assert "leftovers" not in result.stdout.str()
    assert first.wait() == 0


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_an_engine_that_is_gone_ends_in_a_summary_and_is_never_green(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    pytester.makeconftest(IMPATIENT)
    make_task(suite, "slow", solution="sleep 2; echo done > answer.txt\n")
    with closing(Wire()) as wire:
        monkeypatch.setenv("DOCKER_HOST", wire.address)
        session = start_session(pytester, "suite", "--infranoise-samples", "3", *workers)
        wait_for_trial(pytester, session, "gw0" if workers else "main")
        wire.cut()
        status = session.wait()
        monkeypatch.delenv("DOCKER_HOST")
    output = (pytester.path / "output.txt").read_text("utf-8")
    run = last_run(pytester)

    assert status == 20
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert f"planned 6 = recorded {len(run.records)} + missing {len(run.missing)}" in output
    assert run.missing
    assert "daemon-lost" in verdicts(run).values()
    # The engine itself lives on behind the wire: what was left there is for the next session to remove.
    pytester.runpytest_subprocess(*ONE_SAMPLE, "-k", "1x", "--infranoise-run-dir", "other")


def test_verbose_lines_name_trials_by_ids_that_can_be_pasted_back(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")

    result = pytester.runpytest_subprocess(*ONE_SAMPLE, "-v", "-k", "1x")

    result.stdout.fnmatch_lines(["suite/hello/task.yaml::1x-0 PASSED*"])
