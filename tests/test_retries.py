"""Retries: only of what has no outcome, never by reward, and in no rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.fixtures import TrialProcess
from pytest_infranoise.fixtures import waited
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Record
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.model import Verdict
from pytest_infranoise.model import Verifier
from pytest_infranoise.retries import may_retry
from pytest_infranoise.retries import pause_before
from tests.builders import key
from tests.builders import record
from tests.sessions import last_run
from tests.suite import make_task

# By cause: how many retries there may be when the user allows many. From the table of causes.
MOST = {
    Cause.RESOURCE_KILL: 0,
    Cause.RESOURCE_EXHAUSTED: 0,
    Cause.HOST_PRESSURE: 9,
    Cause.HOST_DISK_FULL: 9,
    Cause.EVICTED: 9,
    Cause.UNSCHEDULABLE: 9,
    Cause.IMAGE_PULL: 9,
    Cause.NETWORK_SETUP: 9,
    Cause.ENV_START: 2,
    Cause.DAEMON_LOST: 9,
    Cause.EXEC_LOST: 9,
    Cause.CONTAINER_LOST: 9,
    Cause.SETUP_FAILED: 2,
    Cause.VERIFIER_ERROR: 9,
    Cause.MODEL_API: 9,
    Cause.HARNESS_CRASH: 9,
    Cause.UNKNOWN: 9,
}


def failed(cause: Cause, attempt: int = 0, **fields: Any) -> Record:
    return record(key(), Verdict.INFRA_ERROR, cause=cause, attempt=attempt, **fields)


def test_every_cause_has_its_own_number_of_retries() -> None:
    found = {cause: sum(may_retry(failed(cause, attempt), 9, attempt) for attempt in range(20)) for cause in Cause}
    assert found == MOST


@given(st.sampled_from(Cause), st.integers(0, 5), st.integers(0, 5))
def test_never_more_than_the_user_allows(cause: Cause, attempt: int, retries: int) -> None:
    if may_retry(failed(cause, attempt), retries, attempt):
        assert attempt < retries


@given(st.sampled_from(Cause), st.sampled_from(Verdict), st.floats(0, 1))
def test_never_when_a_reward_is_known_whichever_it_is(cause: Cause, verdict: Verdict, reward: float) -> None:
    told = record(key(), verdict, cause=cause if verdict is Verdict.INFRA_ERROR else None, reward=reward)
    assert not may_retry(told, 9, 0)


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.FAIL])
def test_never_after_a_pass_or_a_fail(verdict: Verdict) -> None:
    assert not may_retry(record(key(), verdict), 9, 0)


@pytest.mark.parametrize(
    ("kills", "allowed"),
    [
        ({"agent": 0, "verifier": 1}, True),
        ({"agent": 1, "verifier": 1}, False),
        ({"agent": 1}, False),
        ({"agent": 0, "verifier": 0}, False),
        ({"agent": 0, "verifier": None}, False),
    ],
)
def test_a_kill_is_tried_again_once_and_only_when_it_was_the_verifiers(
    kills: Mapping[str, int | None], allowed: bool
) -> None:
    details = {"phases": {name: {"oom_kills": number} for name, number in kills.items()}}
    assert may_retry(failed(Cause.RESOURCE_KILL, details=details), 9, 0) is allowed
    assert not may_retry(failed(Cause.RESOURCE_KILL, 1, details=details), 9, 1)


def test_pauses_grow_where_there_are_any() -> None:
    assert [pause_before(failed(Cause.IMAGE_PULL, attempt), attempt) for attempt in range(3)] == [30, 60, 120]
    assert pause_before(failed(Cause.SETUP_FAILED, 3), 3) == 0


AGENT = """\
from pathlib import Path

from pytest_infranoise.agents.protocol import AgentResult

class Moody:
    def __init__(self, task):
        self.name = task.name
        self.seen = Path(task.file).parent / "seen"

    def setup(self, sandbox):
        first = not self.seen.exists()
        self.seen.touch()
        if self.name == "hopeless" or (self.name == "flaky" and first):
            raise RuntimeError("no mirror answers")

    def run(self, instruction, sandbox):
        word = "wrong" if self.name == "wrong" else "done"
        sandbox.exec(["sh", "-c", f"echo {word} > answer.txt"])
        return AgentResult(exit_code=0)

def pytest_infranoise_make_agent(context):
    return Moody(context.task) if context.choice.kind == "moody" else None
"""


@pytest.mark.engine
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_attempts_are_all_kept_and_rates_are_of_the_first(pytester: pytest.Pytester, workers: list[str]) -> None:
    suite = pytester.path / "suite"
    suite.mkdir()
    pytester.makepyfile(**{"suite/moody": AGENT})
    pytester.makeconftest("pytest_plugins = ['suite.moody']")
    (suite / "infranoise.toml").write_text("agent = 'moody'\nresource-configs = ['1x']\nsamples = 1\n", "utf-8")
    for name in ("flaky", "hopeless", "wrong", "fine"):
        make_task(suite, name)

    result = pytester.runpytest_subprocess("suite", "--infranoise-retries", "5", *workers)

    run = last_run(pytester)
    first = {entry.key.task: (entry.attempt, entry.cause or entry.verdict) for entry in run.records}
    assert first == {
        "flaky": (0, "setup-failed"),
        "hopeless": (0, "setup-failed"),
        "wrong": (0, "fail"),
        "fine": (0, "pass"),
    }
    later = sorted((entry.key.task, entry.attempt, entry.cause or entry.verdict) for entry in run.retries)
    # Setup is tried again twice at most, whatever the user allows.
    assert later == [("flaky", 1, "pass"), ("hopeless", 1, "setup-failed"), ("hopeless", 2, "setup-failed")]
    assert run.meta["policy"]["retries"] == 5
    assert run.missing == ()
    output = " ".join(result.stdout.str().split())
    assert "retries: 1 of 3 later attempts passed; rates are of first attempts" in output
    assert "up to 5 retries of infra-errors whose outcome is unknown" in output
    assert "1 failed, 1 passed, 2 infra-error" in output
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    places = sorted(path.name for path in (run.path / "artifacts" / "hopeless").iterdir())
    assert [name.rpartition("-")[2] for name in places] == ["0", "1", "2"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("raise OSError('no more today')", "OSError: no more today"),
        ("pytest.skip('no more today')", "Skipped: no more today"),
        ("pytest.fail('no more today')", "Failed: no more today"),
        ("pytest.importorskip('no_such_module')", "Skipped: could not import 'no_such_module'"),
    ],
    ids=["error", "skip", "fail", "importorskip"],
)
def test_an_agent_that_cannot_be_made_again_leaves_the_first_attempt(
    pytester: pytest.Pytester, way: str, told: str
) -> None:
    output = do_once_and_no_more(pytester, way)
    assert f"is not tried again: its agent could not be made: {told}" in output


@pytest.mark.engine
def test_a_warning_that_is_an_error_costs_no_trial_its_record(pytester: pytest.Pytester) -> None:
    do_once_and_no_more(pytester, "raise OSError('no more today')", "-W", "error::UserWarning")


def do_once_and_no_more(pytester: pytest.Pytester, way: str, *arguments: str) -> str:
    """Run a trial whose agent is not made a second time; what it had come to by then is told everywhere."""
    suite = pytester.path / "suite"
    suite.mkdir()
    seen = f'    if (Path(context.task.file).parent / "seen").exists():\n        {way}\n'
    agent = "import pytest\n" + AGENT.replace("    return Moody", f"{seen}    return Moody")
    pytester.makepyfile(**{"suite/moody": agent})
    pytester.makeconftest("pytest_plugins = ['suite.moody']")
    (suite / "infranoise.toml").write_text("agent = 'moody'\nresource-configs = ['1x']\nsamples = 1\n", "utf-8")
    make_task(suite, "hopeless")

    result = pytester.runpytest_subprocess(
        "suite", "--infranoise-retries", "5", "--junit-xml=junit.xml", *arguments
    )

    run = last_run(pytester)
    assert [record.cause for record in run.records] == ["setup-failed"]
    assert (run.retries, run.missing) == ((), ())
    assert '<property name="cause" value="setup-failed"' in (pytester.path / "junit.xml").read_text("utf-8")
    output = " ".join(result.stdout.str().split())
    assert "1 infra-error" in output
    return output


@pytest.mark.engine
def test_nothing_is_retried_unless_asked(pytester: pytest.Pytester) -> None:
    suite = pytester.path / "suite"
    suite.mkdir()
    (suite / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x']\nsamples = 1\n", "utf-8")
    make_task(suite, "hopeless", setup="exit 1")

    output = pytester.runpytest_subprocess("suite").stdout.str()

    assert last_run(pytester).retries == ()
    assert last_run(pytester).meta["policy"]["retries"] == 0
    assert "policy:" not in output
    assert "retries" not in output


def lab_task(path: Path) -> Task:
    verifier = Verifier("true", path)
    return Task("job", path / "task.yaml", "Do it.\n", "image", None, Spec(1, 2**26), verifier, "c0ffee")


# What the verifier stated, waiting, and what breakers count


@pytest.mark.parametrize("stated", [0.0, 1.0])
def test_never_when_the_verifier_stated_a_number_that_is_no_verdict(stated: float) -> None:
    told = failed(Cause.VERIFIER_ERROR, details={"artefact": {"status": "no-tests", "stated": stated}})
    assert not may_retry(told, 9, 0)
    assert may_retry(failed(Cause.VERIFIER_ERROR, details={"artefact": {"stated": None}}), 9, 0)
    # Nor when nobody can say any more what it stated.
    assert not may_retry(failed(Cause.VERIFIER_ERROR, details={"details_lost": "Traceback"}), 9, 0)


@given(st.sampled_from(Cause), st.integers(0, 10))
def test_no_pause_is_longer_than_five_minutes(cause: Cause, made: int) -> None:
    assert 0 <= pause_before(failed(cause), made) <= 300


def test_a_run_that_is_stopped_waits_for_no_retry(tmp_path: Path) -> None:
    process = TrialProcess("run", tmp_path, "main")
    stopper = threading.Timer(0.1, TrialProcess("run", tmp_path, "gw1").stop, ["the engine is gone"])
    stopper.start()
    # Would it not be noticed, this would take an hour.
    assert not waited(process, lab_task(tmp_path), 3600)
    stopper.join()
    assert not waited(process, lab_task(tmp_path), 0)


def test_a_pause_that_nothing_stops_ends_with_a_retry(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert waited(TrialProcess("run", tmp_path, "main"), lab_task(tmp_path), 0.2)
    assert time.monotonic() - begun >= 0.2


@pytest.mark.parametrize(("cause", "most"), [(Cause.ENV_START, 5), (Cause.CONTAINER_LOST, 3)])
def test_breakers_count_trials_and_not_their_attempts(tmp_path: Path, cause: Cause, most: int) -> None:
    process = TrialProcess("run", tmp_path, "main")
    task = lab_task(tmp_path)
    for number in range(1, most + 1):
        assert process.stopped(task) is None, number
        process.ended(failed(cause))
        if number < most:
            for attempt in range(1, 10):
                process.ended(failed(cause, attempt), retried=True)
    assert process.stopped(task) is not None


DOOMED = """\
import subprocess

from pytest_infranoise.agents.protocol import AgentResult

class Doomed:
    def __init__(self, task):
        self.name = task.name

    def setup(self, sandbox):
        pass

    def run(self, instruction, sandbox):
        if self.name == "a-doomed":
            container = sandbox.exec(["cat", "/etc/hostname"]).output.decode().strip()
            subprocess.run(["docker", "kill", container], check=True, capture_output=True)
        sandbox.exec(["sh", "-c", "echo done > answer.txt"])
        return AgentResult(exit_code=0)

def pytest_infranoise_make_agent(context):
    return Doomed(context.task) if context.choice.kind == "doomed" else None
"""


@pytest.mark.engine
def test_one_trial_that_loses_every_container_does_not_stop_the_run(pytester: pytest.Pytester) -> None:
    suite = pytester.path / "suite"
    suite.mkdir()
    pytester.makepyfile(**{"suite/doomed": DOOMED})
    pytester.makeconftest("pytest_plugins = ['suite.doomed']")
    (suite / "infranoise.toml").write_text("agent = 'doomed'\nresource-configs = ['1x']\nsamples = 1\n", "utf-8")
    for name in ("a-doomed", "b-fine"):
        make_task(suite, name)

    pytester.runpytest_subprocess("suite", "--infranoise-retries", "3")

    run = last_run(pytester)
    assert {one.key.task: one.cause or one.verdict for one in run.records} == {
        "a-doomed": "container-lost",
        "b-fine": "pass",
    }
    assert [one.cause for one in run.retries] == ["container-lost"] * 3
    assert run.missing == ()
    assert run.meta["cut_short"] is None
