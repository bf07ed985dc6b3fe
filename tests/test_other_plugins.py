"""Sessions with other people's plugins: trials stay what they are, and so do the others' reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_infranoise.host import Ledger
from pytest_infranoise.host import capacity
from pytest_infranoise.journal import Run
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import TrialKey
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.scheduler.budget import NOTHING
from tests.others import NEEDLESS
from tests.others import OTHERS
from tests.others import installed
from tests.others import without
from tests.sessions import check_nothing_left
from tests.sessions import last_run
from tests.suite import BASE_IMAGE
from tests.suite import SOLVE
from tests.suite import hold_memory
from tests.suite import make_task

pytestmark = pytest.mark.engine

WORKERS = pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
MARK = f"@pytest.mark.infranoise(image='{BASE_IMAGE}', pull='never', cpus=0.5, memory='64M', network=False)"
ONE = ["suite", "--infranoise-samples=1"]
WRONG = "echo wrong > answer.txt\n"
ENDLESS = "sleep 600\n"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x']\n", "utf-8")
    return root


@pytest.fixture(autouse=True)
def nothing_left(pytester: pytest.Pytester) -> Iterator[None]:
    yield
    check_nothing_left(pytester.path)


def only(monkeypatch: pytest.MonkeyPatch, *plugins: str) -> None:
    """Load these plugins of other people into the sessions to come, and no more of them."""
    absent = [plugin for plugin in plugins if not installed(plugin)]
    if absent:
        reason = f"NOT TESTED: plugin {', '.join(absent)} is not installed: pip install -e '.[dev]'"
        # In CI a skipped test would look like a passed one.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    monkeypatch.setenv(
        "PYTEST_ADDOPTS", without(*(plugin for plugin in OTHERS if plugin not in plugins), *NEEDLESS)
    )


def verdicts(run: Run) -> dict[str, str]:
    return {f"{record.key.task}-{record.key.sample}": record.cause or record.verdict for record in run.records}


@pytest.mark.parametrize(
    ("slow", "workers"), [("solution", []), ("solution", ["-n2"]), ("verify", []), ("setup", [])]
)
def test_timeout_ends_a_trial_as_an_infra_error(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, slow: str, workers: list[str]
) -> None:
    only(monkeypatch, "timeout")
    make_task(suite, "slow", **{slow: ENDLESS}, timeouts={"setup": 600, "agent": 600, "verifier": 600})  # type: ignore[arg-type]

    result = pytester.runpytest_subprocess(*ONE, "--timeout=6", "--infranoise-retries=2", *workers)

    run = last_run(pytester)
    [record] = run.records
    assert run.retries == ()  # its time is over
    assert record.cause == "harness-crash"
    assert record.summary == "the runner failed: timeout: the 6 s that pytest-timeout gave the test are over"
    result.stdout.fnmatch_lines(["*1 infra-error*"])
    assert "Traceback" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED


LOOK = """
import signal
import time
from types import SimpleNamespace
import pytest_infranoise.other_plugins
from pytest_infranoise.fixtures import TrialProcess

def ended(self, record, *, retried=False, look=TrialProcess.ended):
    pytest_infranoise.other_plugins.time = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000)
    signal.raise_signal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)  # it would come again in a moment
    look(self, record, retried=retried)

TrialProcess.ended = ended
"""


def test_timeout_takes_no_record_away_that_is_written(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a trial the engine is looked at, which may take half a minute."""
    only(monkeypatch, "timeout")
    make_task(suite, "quick")
    pytester.makeconftest(LOOK)

    result = pytester.runpytest_subprocess(*ONE, "--timeout=600")

    assert verdicts(last_run(pytester)) == {"quick-0": "pass"}
    result.stdout.fnmatch_lines(["*1 passed*"])
    assert result.ret == 0


AGAIN = """
import signal
import time
from types import SimpleNamespace
import pytest_infranoise.other_plugins
from pytest_infranoise.agents.protocol import AgentResult

class Failing:
    on_host = False

    def setup(self, sandbox):
        tried.append(sandbox)
        raise OSError("no mirror answers")

    def run(self, instruction, sandbox):
        return AgentResult()

tried = []

def pytest_infranoise_make_agent(context):
    if tried:
        pytest_infranoise.other_plugins.time = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000)
        signal.raise_signal(signal.SIGALRM)
    return Failing()
"""


def test_timeout_ends_the_making_of_another_agent_and_leaves_the_trial_its_record(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "timeout")
    make_task(suite, "failing")
    pytester.makeconftest(AGAIN)

    result = pytester.runpytest_subprocess(*ONE, "--timeout=600", "--infranoise-retries=2")

    run = last_run(pytester)
    assert verdicts(run) == {"failing-0": "setup-failed"}
    assert run.retries == ()
    result.stdout.fnmatch_lines(["*1 infra-error*"])


@pytest.mark.parametrize("kind", ["task", "function"])
def test_timeout_counts_no_wait_for_what_others_hold(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Who asks for more waits longer, so it would be ended more often."""
    only(monkeypatch, "timeout")
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))
    if kind == "task":
        make_task(suite, "quick", solution=f"sleep 1; {SOLVE}")
    else:
        slow = "infranoise_sandbox.exec(['sleep', '1'])"
        (suite / "test_quick.py").write_text(f"import pytest\n\n{MARK}\ndef test_it(infranoise_sandbox): {slow}\n")
    with closing(DockerBackend("test")) as backend:
        engine = backend.info()
    ledger, limit, seconds = Ledger(engine.id), capacity(engine), 12
    with (
        closing(ledger.register("other", "main")) as other,
        (pytester.path / "output.txt").open("wb") as output,
    ):
        with other.reserve(Allocation(0.1, None, limit.memory, None), limit):
            command = [sys.executable, "-m", "pytest", *ONE, "--resource-config=1x", f"--timeout={seconds}"]
            session = subprocess.Popen(command, cwd=pytester.path, stdout=output, stderr=subprocess.STDOUT)
            while ledger.outside("other") == (NOTHING, False):
                assert session.poll() is None, (pytester.path / "output.txt").read_text("utf-8")
            waits_since = time.monotonic()
            while ledger.outside("other") != (NOTHING, False) and time.monotonic() < waits_since + seconds + 1:
                assert session.poll() is None, (pytester.path / "output.txt").read_text("utf-8")
                time.sleep(0.05)
            assert ledger.outside("other") != (NOTHING, False)
        session.wait(300)

    [record] = last_run(pytester).records
    assert record.verdict == "pass", record.summary
    assert record.details["admission"]["waited_seconds"] > seconds


def test_timeout_is_none_the_longer_for_a_wait(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "timeout")
    make_task(suite, "slow", solution=ENDLESS, timeouts={"setup": 600, "agent": 600, "verifier": 600})
    pytester.makeconftest(
        """
        import contextlib, time
        from pytest_infranoise.fixtures import TrialProcess

        @contextlib.contextmanager
        def slow(self, trial, admit=TrialProcess.admit):
            time.sleep(7)
            with admit(self, trial) as granted:
                yield granted

        TrialProcess.admit = slow
        """
    )

    pytester.runpytest_subprocess(*ONE, "--timeout=6")

    [record] = last_run(pytester).records
    assert record.summary == "the runner failed: timeout: the 6 s that pytest-timeout gave the test are over"
    assert "admitted" in record.details["times"]


def test_timeout_ends_a_marked_function_wherever_it_is(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "timeout")
    pytester.makepyfile(
        f"""
        import time
        import pytest

        @pytest.fixture
        def endless(infranoise_sandbox):
            infranoise_sandbox.exec(["sleep", "600"])

        {MARK}
        def test_in_its_fixture(endless): ...

        {MARK}
        def test_in_python(infranoise_sandbox):
            try:
                time.sleep(600)
            except Exception:
                pass

        {MARK}
        def test_in_the_container(infranoise_sandbox):
            assert infranoise_sandbox.exec(["sleep", "600"]).exit_code == 0
        """
    )

    result = pytester.runpytest_subprocess("--resource-config=1x", "--infranoise-samples=1", "--timeout=4")

    run = last_run(pytester)
    ends = {record.key.task.partition("::")[2]: record.cause or record.verdict for record in run.records}
    assert ends == {
        "test_in_its_fixture": "harness-crash",
        "test_in_python": "harness-crash",
        "test_in_the_container": "harness-crash",
    }
    summaries = {record.summary for record in run.records if record.cause}
    assert summaries == {"the runner failed: timeout: the 4 s that pytest-timeout gave the test are over"}
    result.stdout.fnmatch_lines(["*3 infra-error*"])


@pytest.mark.usefixtures("suite")
def test_timeout_leaves_ordinary_tests_and_fixtures_alone(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "timeout")
    make_task(suite, "quick")
    ordinary = pytester.makepyfile(
        "import time, pytest\n@pytest.mark.timeout(1)\ndef test_ordinary(): time.sleep(600)"
    )

    result = pytester.runpytest_subprocess(ordinary, *ONE, "--timeout=600")

    assert verdicts(last_run(pytester)) == {"quick-0": "pass"}
    result.stdout.fnmatch_lines(["*Failed: Timeout (>1.0s) from pytest-timeout.", "*1 failed, 1 passed*"])


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["plain", "n1"])
@pytest.mark.parametrize(
    ("arguments", "ini", "told"),
    [
        (["--timeout-method=thread"], "", "--timeout-method=thread: pytest-timeout would end"),
        ([], "timeout_method = thread", "ini value timeout_method = thread: pytest-timeout would end"),
        (["-m", "hard"], "markers = hard", "*::test_hard*: method='thread' in its timeout mark: pytest-timeout"),
    ],
    ids=["option", "ini", "mark"],
)
def test_timeout_that_ends_the_process_is_refused(
    pytester: pytest.Pytester,
    suite: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: list[str],
    arguments: list[str],
    ini: str,
    told: str,
) -> None:
    only(monkeypatch, "timeout")
    make_task(suite, "quick")
    pytester.makeini(f"[pytest]\n{ini}\n")
    hard = pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.hard
        @pytest.mark.timeout(60, method="thread")
        {MARK}
        def test_hard(infranoise_sandbox): ...
        """
    )
    paths = [str(hard)] if arguments[:1] == ["-m"] else ["suite"]

    result = pytester.runpytest_subprocess(*paths, *arguments, *workers, "--infranoise-samples=1", "-W", "ignore")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {told}*use the method signal*"])
    assert list(pytester.path.glob(".infranoise/runs/*")) == []


def test_timeout_by_thread_is_nobodys_business_without_trials(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "timeout")
    pytester.makepyfile("def test_ordinary(): ...")

    pytester.runpytest_subprocess("--timeout-method=thread", "--timeout=60").assert_outcomes(passed=1)


@WORKERS
def test_timeout_of_the_session_is_never_green(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    only(monkeypatch, "timeout")
    make_task(suite, "quick", solution=f"sleep 1; {SOLVE}")

    result = pytester.runpytest_subprocess("suite", "--infranoise-samples=6", "--session-timeout=1", *workers)

    run = last_run(pytester)
    assert result.ret != 0
    assert run.records
    assert run.missing
    assert "not an estimate: session-timeout" in result.stdout.str()


@WORKERS
def test_rerunfailures_makes_no_second_try_of_a_trial(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    only(monkeypatch, "rerunfailures")
    make_task(suite, "wrong", solution=WRONG)
    make_task(suite, "hungry", solution="set -e\n" + hold_memory(150) + SOLVE)
    bench = pytester.makepyfile(
        f"""
        import pathlib
        import pytest

        {MARK}
        def test_plain(infranoise_sandbox):
            assert 0

        @pytest.mark.flaky(reruns=2)
        {MARK}
        def test_flaky(infranoise_sandbox):
            assert 0

        def test_ordinary():
            again = pathlib.Path("again").exists()
            pathlib.Path("again").touch()
            assert again
        """
    )

    result = pytester.runpytest_subprocess(str(bench), *ONE, "--resource-config=1x", "--reruns=2", *workers)

    run = last_run(pytester)
    assert len(run.records) == 4
    assert run.retries == ()
    assert {record.verdict.value for record in run.records} == {"fail", "infra-error"}
    # The ordinary test alone was run again.
    assert {"failed": 3, "passed": 1, "rerun": 1}.items() <= result.parseoutcomes().items()


def test_rerunfailures_starts_no_trial_again_whose_worker_died(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "rerunfailures")
    make_task(suite, "deadly")
    pytester.makeconftest(
        """
        import os
        from pytest_infranoise.journal import Journal

        Journal.finished = lambda self, record, write=Journal.finished: (
            os._exit(1) if self.process.startswith("gw") else write(self, record)
        )
        """
    )

    result = pytester.runpytest_subprocess(*ONE, "--reruns=2", "-n1")

    run = last_run(pytester)
    assert verdicts(run) == {"deadly-0": "harness-crash"}
    assert run.retries == ()
    result.stdout.fnmatch_lines(["*1 infra-error*"])
    assert "rerun" not in result.outlines[-1]


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["plain", "n1"])
@pytest.mark.parametrize("arguments", [["--force-reruns=1"], ["--reruns=1", "--reruns-mode=append"]])
def test_rerunfailures_that_cannot_be_kept_from_trials_is_refused(
    pytester: pytest.Pytester,
    suite: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: list[str],
    arguments: list[str],
) -> None:
    only(monkeypatch, "rerunfailures")
    make_task(suite, "wrong", solution=WRONG)

    result = pytester.runpytest_subprocess(*ONE, *arguments, *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {arguments[-1].rstrip('=1')}* would run failed trials again*"])
    assert list(pytester.path.glob(".infranoise/runs/*")) == []


def test_randomly_changes_neither_order_nor_results(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        half = {"right": (0.5, SOLVE), "wrong": (0.5, WRONG)}
        make_task(suite, name, strategies=half)
    # One at a time, so that what starts when is nothing but the order.
    arguments = [*ONE, "--infranoise-agent=scripted", "--infranoise-seed=7", "--infranoise-host-memory=100M"]

    def results(*more: str) -> list[tuple[TrialKey, str]]:
        # Under xdist the plugin has its say in every process.
        pytester.runpytest_subprocess(*arguments, "-n2", *more)
        records = sorted(last_run(pytester).records, key=lambda record: record.details["times"]["created"])
        return [(record.key, record.verdict.value) for record in records]

    without_it = results()
    only(monkeypatch, "randomly")
    assert results("-p", "randomly", "--randomly-seed=1") == without_it
    assert results("--randomly-seed=2") == without_it
    assert len(without_it) == 4


@pytest.mark.usefixtures("suite")
def test_randomly_gives_every_run_another_seed(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "randomly")
    make_task(suite, "quick")
    seeds = []
    for _ in range(2):
        pytester.runpytest_subprocess(*ONE, "--randomly-seed=1")
        seeds.append(last_run(pytester).meta["seed"])
    assert seeds[0] != seeds[1]


@pytest.fixture
def mixed(suite: Path) -> Path:
    make_task(suite, "wrong", solution=WRONG)
    make_task(suite, "right")
    make_task(suite, "hungry", solution="set -e\n" + hold_memory(150) + SOLVE)
    return suite


MIXED = {"wrong-0": "fail", "right-0": "pass", "hungry-0": "resource-kill"}


@WORKERS
@pytest.mark.usefixtures("mixed")
def test_html_has_infra_errors_as_errors(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    only(monkeypatch, "html", "html_fixtures", "metadata")

    result = pytester.runpytest_subprocess(
        *ONE, "--html=report.html", "--self-contained-html", *workers, "-W", "ignore"
    )

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdicts(last_run(pytester)) == MIXED
    page = (pytester.path / "report.html").read_text("utf-8")
    counts = {name: int(number) for number, name in re.findall(r"(\d+) (Failed|Passed|Errors?)\b", page)}
    assert (counts["Failed"], counts["Passed"], counts.get("Error", counts.get("Errors"))) == (1, 1, 1)
    assert "hungry/task.yaml" in page
    assert "resource-kill" in page


@WORKERS
@pytest.mark.usefixtures("mixed")
def test_cov_measures_what_runs_on_the_host(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    only(monkeypatch, "pytest_cov")
    (pytester.path / "helper.py").write_text("def half():\n    return 1\n\ndef other():\n    return 2\n", "utf-8")
    ordinary = pytester.makepyfile("import helper\ndef test_ordinary(): assert helper.half()")
    arguments = [str(ordinary), *ONE, "--cov=helper", "--cov-report=term", *workers]

    result = pytester.runpytest_subprocess(*arguments)

    assert verdicts(last_run(pytester)) == MIXED
    result.stdout.fnmatch_lines(["helper.py * 75%", "*1 failed, 2 passed, 1 infra-error*"])
    gate = ["-k", "right or ordinary", "--infranoise-gate=missing <= 0"]
    assert pytester.runpytest_subprocess(*arguments, *gate).ret == 0
    assert pytester.runpytest_subprocess(*arguments, *gate, "--cov-fail-under=90").ret != 0


@WORKERS
@pytest.mark.usefixtures("mixed")
def test_reportlog_has_every_record(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    only(monkeypatch, "pytest_reportlog")

    pytester.runpytest_subprocess(*ONE, "--report-log=log.jsonl", *workers)

    lines = [json.loads(line) for line in (pytester.path / "log.jsonl").read_text("utf-8").splitlines()]
    records = [json.loads(line["infranoise"]) for line in lines if "infranoise" in line]
    assert {
        f"{record['task']}-{record['sample']}": record["cause"] or record["verdict"] for record in records
    } == MIXED
