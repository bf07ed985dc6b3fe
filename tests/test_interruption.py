"""Sessions that are ended from outside in every way there is: nothing finished is lost, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from pytest_infranoise.sandboxes.docker import DockerBackend
from tests.sessions import check_nothing_left
from tests.sessions import last_run
from tests.suite import make_task
from tests.test_session import docker_containers
from tests.test_session import start_session
from tests.test_session import wait_for_trial

pytestmark = pytest.mark.engine

SLOW = "sleep 2; echo done > answer.txt\n"
PLANNED = 8


@pytest.fixture(autouse=True)
def ledger_of_its_own(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that no other session on the engine sweeps what a killed one has left.
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))


@pytest.fixture(autouse=True)
def nothing_left(pytester: pytest.Pytester) -> Iterator[None]:
    yield
    check_nothing_left(pytester.path)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x']\n", "utf-8")
    make_task(root, "slow", solution=SLOW)
    return root


def output_of(pytester: pytest.Pytester) -> str:
    return (pytester.path / "output.txt").read_text("utf-8")


def start(pytester: pytest.Pytester, *workers: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a session, and return it with the pid of who is in the middle of a trial and has finished another."""
    session = start_session(pytester, "suite", f"--infranoise-samples={PLANNED}", *workers)
    return session, wait_for_trial(pytester, session, "gw0" if workers else "main")


def check_interrupted(pytester: pytest.Pytester, session: subprocess.Popen[bytes]) -> None:
    status = session.wait()
    run, output = last_run(pytester), output_of(pytester)
    assert status == pytest.ExitCode.INTERRUPTED, output
    assert run.records
    assert run.missing
    assert len(run.records) + len(run.missing) == PLANNED
    assert {record.cause or record.verdict.value for record in run.records} == {"pass"}
    assert f"planned {PLANNED} = recorded {len(run.records)} + missing {len(run.missing)}" in output
    assert "not an estimate" in output
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output


TWICE = """
import time
from pathlib import Path

def pytest_keyboard_interrupt():
    Path("stopping").touch()
    while not Path("again").exists():
        time.sleep(0.01)
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_ctrl_c_twice_ends_as_cleanly_as_once(pytester: pytest.Pytester, suite: Path, workers: list[str]) -> None:
    pytester.makeconftest(TWICE)
    session, _ = start(pytester, *workers)

    os.killpg(session.pid, signal.SIGINT)
    while not (pytester.path / "stopping").exists():
        assert session.poll() is None
        time.sleep(0.02)
    os.killpg(session.pid, signal.SIGINT)
    (pytester.path / "again").touch()

    check_interrupted(pytester, session)
    assert "infranoise: stopping already" in output_of(pytester)


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("who", ["controller", "worker"])
def test_a_signal_to_one_process_of_several_ends_them_all(
    pytester: pytest.Pytester, who: str, number: signal.Signals
) -> None:
    session, worker = start(pytester, "-n2")

    os.kill(session.pid if who == "controller" else worker, number)

    check_interrupted(pytester, session)
    if who == "worker":
        assert "1 interrupted" in output_of(pytester)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"


def kill_controller(session: subprocess.Popen[bytes]) -> None:
    session.kill()


def kill_everything(session: subprocess.Popen[bytes]) -> None:
    os.killpg(session.pid, signal.SIGKILL)


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("kill", [kill_controller, kill_everything])
def test_what_was_killed_is_accounted_for_and_swept_by_the_next_run(
    pytester: pytest.Pytester, kill: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    session, worker = start(pytester, "-n2")
    dead = find_run(pytester.path / ".infranoise" / "runs", None)

    kill(session)

    assert session.wait() == -signal.SIGKILL
    while not is_gone(worker):  # a worker ends by itself when its controller is gone
        time.sleep(0.05)
    run = read_run(dead)
    assert run.records
    assert len(run.records) + len(run.missing) == PLANNED
    assert {record.cause or record.verdict.value for record in run.records} == {"pass"}
    report = pytester.run(Path(sys.executable).with_name("infranoise"), "report", str(dead))
    report.stdout.fnmatch_lines([f"planned {PLANNED} = recorded {len(run.records)} + missing {len(run.missing)}*"])

    assert pytester.runpytest_subprocess("suite", "--infranoise-samples=1").ret == 0
    assert docker_containers(dead.name) == []


DIES = """
import os
import signal
from pytest_infranoise.journal import Journal

write = Journal.finished

def finished(self, record):
    dies = self.process.startswith("gw") and record.key.sample == 0
    if {after} or not dies:
        write(self, record)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)

Journal.finished = finished
"""


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize(("after", "verdict"), [(False, "harness-crash"), (True, "pass")])
def test_a_worker_killed_before_or_after_its_journal_line_leaves_one_record(
    pytester: pytest.Pytester, after: bool, verdict: str
) -> None:
    pytester.makeconftest(DIES.format(after=after))

    result = pytester.runpytest_subprocess("suite", "--infranoise-samples=3", "-n2")

    run = last_run(pytester)
    assert run.missing == ()
    assert run.retries == ()
    ends = {record.key.sample: record.cause or record.verdict.value for record in run.records}
    assert ends == {0: verdict, 1: "pass", 2: "pass"}
    assert result.ret == (pytest.ExitCode.OK if after else pytest.ExitCode.TESTS_FAILED)


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_an_interrupted_preflight_leaves_no_container(pytester: pytest.Pytester, workers: list[str]) -> None:
    make_task(pytester.path / "suite", "endless", solution="sleep 600\n", timeouts={"agent": 600})
    session = start_session(pytester, "suite", "--infranoise-samples=1", "--infranoise-preflight", *workers)
    run = ""
    while not (run and docker_containers(run)):
        assert session.poll() is None, output_of(pytester)
        run = next((path.name for path in pytester.path.glob(".infranoise/runs/*")), "")
        time.sleep(0.05)

    os.killpg(session.pid, signal.SIGINT)

    assert session.wait() == pytest.ExitCode.INTERRUPTED
    assert docker_containers(run) == []
    assert "INTERNALERROR" not in output_of(pytester)


BETWEEN = """
from contextlib import closing
from pathlib import Path

import pytest_infranoise.config_notes
from pytest_infranoise.sandboxes.docker import DockerBackend

def interrupted(*arguments):
    (run,) = Path(".infranoise/runs").iterdir()
    with closing(DockerBackend("test")) as backend:
        Path("made").write_text(f"{run.name} {len(backend.labelled(f'infranoise.run={run.name}'))}")
    raise KeyboardInterrupt

pytest_infranoise.config_notes.config_notes = interrupted
"""


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["plain", "n1"])
def test_interrupted_before_the_run_is_written_down_nothing_of_it_stays(
    pytester: pytest.Pytester, suite: Path, workers: list[str]
) -> None:
    make_task(suite, "connected", network=True)
    pytester.makeconftest(BETWEEN)

    result = pytester.runpytest_subprocess("suite", *workers)

    assert result.ret == pytest.ExitCode.INTERRUPTED
    run, made = (pytester.path / "made").read_text("utf-8").split()
    assert made == "1"  # the run's network
    with closing(DockerBackend("test")) as backend:
        assert backend.labelled(f"infranoise.run={run}") == {}
    assert list((pytester.path / ".infranoise" / "runs").iterdir()) == []


# Somebody else's container in the run's network, which therefore cannot be removed.
OCCUPIES = """
from pathlib import Path

import docker

def pytest_runtest_logfinish():
    (run,) = Path(".infranoise/runs").iterdir()
    client = docker.from_env()
    client.containers.run(
        "infranoise/base:bookworm", ["sleep", "600"], name=f"occupies-{run.name}", network=f"infranoise-{run.name}",
        detach=True,
    )
    client.close()
"""


def test_what_cannot_be_removed_is_told(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "connected", network=True)
    pytester.makeconftest(OCCUPIES)

    result = pytester.runpytest_subprocess("suite", "-k", "connected", "--infranoise-samples=1")

    (run,) = (path.name for path in pytester.path.glob(".infranoise/runs/*"))
    client = docker.from_env()
    client.containers.get(f"occupies-{run}").remove(force=True)
    for network in client.networks.list(filters={"label": f"infranoise.run={run}"}):
        network.remove()
    client.close()
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["1 of this run's containers and networks could not be removed; *`infranoise clean`"]
    )


DIES_IN_A_CONTAINER = """
import json
import os
import signal
from pathlib import Path

from pytest_infranoise.controller import Controller
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.trials.runner import Attempt


def numbers(outside):
    need, waits = outside
    return [need.cpus, need.memory, waits]


def die(self, stack):
    os.kill(os.getpid(), signal.SIGKILL)


def worker_died(self, worker, died=Controller.worker_died):
    remove = self._backend.remove_labelled

    def removing(labels):
        Path("held").write_text(json.dumps(numbers(self._ledger.outside("another"))))
        self._backend.remove_labelled = remove
        if FAILS:
            raise SandboxError("remove", "no answer")
        return remove(labels)

    self._backend.remove_labelled = removing
    died(self, worker)
    Path("after").write_text(json.dumps(numbers(self._ledger.outside("another"))))


Attempt._run_phases = die
Controller.worker_died = worker_died
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_dead_worker_s_floor_is_free_once_its_container_is_removed_or_cannot_be(
    pytester: pytest.Pytester, suite: Path, fails: bool
) -> None:
    pytester.makeconftest(DIES_IN_A_CONTAINER.replace("FAILS", str(fails)))

    pytester.runpytest_subprocess("suite", "--infranoise-samples=1", "-n1", "--max-worker-restart=0")

    assert [record.cause for record in last_run(pytester).records] == ["harness-crash"]
    held, after = (json.loads((pytester.path / name).read_text("ascii")) for name in ("held", "after"))
    assert held == [0.5, 64 * 1024**2, False]
    assert after == [0, 0, False]
