"""Breakers: when the host or the engine is at fault, no further trial starts, and what was recorded stays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.breakers import End
from pytest_infranoise.breakers import has_room
from pytest_infranoise.breakers import note_end
from pytest_infranoise.breakers import tripped
from pytest_infranoise.host import Ledger
from pytest_infranoise.host import capacity
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import stop_file
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.docker import DockerBackend
from tests.builders import key
from tests.builders import record
from tests.sessions import IMPATIENT
from tests.sessions import last_run
from tests.suite import make_task
from tests.trials.lab import BASE
from tests.trials.second_engine import SecondEngine
from tests.trials.second_engine import second_engine
from tests.trials.second_engine import unavailable

FUNCTION = f"""
import pytest

@pytest.mark.infranoise(image={BASE!r}, cpus=0.1, memory="16M")
def test_it(infranoise_sandbox): ...
"""
START, LOST = Cause.ENV_START.value, Cause.CONTAINER_LOST.value


@pytest.mark.parametrize(
    ("causes", "times", "reason"),
    [
        ([START] * 5, [0, 100, 200, 300, 400], "5 trials in a row could not be started"),
        ([None, *[START] * 5], [0] * 6, "5 trials in a row could not be started"),
        ([START] * 4, [0] * 4, None),
        ([*[START] * 4, None], [0] * 5, None),
        ([START, START, "setup-failed", START, START, START], [0] * 6, None),
        ([LOST] * 3, [0, 5, 10], "3 containers were lost within 10 s"),
        ([LOST, None, LOST, START, LOST], [0, 1, 2, 3, 4], "3 containers were lost within 10 s"),
        ([LOST] * 3, [0, 5, 10.5], None),
        ([LOST] * 2, [0, 0], None),
        ([], [], None),
    ],
)
def test_what_trips_a_breaker(causes: Sequence[str | None], times: Sequence[float], reason: str | None) -> None:
    found = tripped([End(cause, moment) for cause, moment in zip(causes, times, strict=True)])
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)


@given(st.lists(st.sampled_from([None, START, LOST, "setup-failed", "resource-kill"]), max_size=8))
def test_trials_that_ended_well_never_trip_one(causes: list[str | None]) -> None:
    """Nor do infra-errors that are no fault of the host's."""
    ends = [End(cause, float(second)) for second, cause in enumerate(causes)]
    if tripped(ends) is not None:
        assert causes[-5:] == [START] * 5 or causes.count(LOST) >= 3


def test_processes_of_a_run_count_together(tmp_path: Path) -> None:
    failed = record(key(), Verdict.INFRA_ERROR, cause=Cause.ENV_START)
    found = []

    def one() -> None:
        found.append(note_end(tmp_path, failed))

    threads = [threading.Thread(target=one) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [reason is not None for reason in found].count(True) == 1
    assert note_end(tmp_path, record(key())) is None


def test_room_is_known_of_this_machine_only(tmp_path: Path) -> None:
    assert has_room(str(tmp_path), here=True) is True
    assert has_room(str(tmp_path), here=False) is None
    assert has_room("/nowhere/at/all", here=True) is None
    assert has_room("", here=True) is None


# Whole sessions


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x']\n", "utf-8")
    return root


def causes(run: Run) -> list[str]:
    ordered = sorted(run.records, key=lambda one: one.started)
    return [one.cause or one.verdict for one in ordered]


@contextlib.contextmanager
def broken_runtime(engine: SecondEngine, runtime: Path) -> Iterator[None]:
    (runtime / "broken").touch()
    try:
        yield
    finally:
        (runtime / "broken").unlink()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a container runtime that fails as long as there is a file "broken" beside it."""
    directory = tmp_path_factory.mktemp("runtime")
    script = directory / "runc"
    real = shutil.which("runc")
    script.write_text(
        f"#!/bin/sh\nif [ -e {directory}/broken ]; then case \" $* \" in *' create '*)\n"
        f"echo 'runc create failed: no luck today' >&2; exit 1;; esac; fi\nexec {real} \"$@\"\n"
    )
    script.chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def second(runtime: Path) -> Iterator[SecondEngine]:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{runtime}:{os.environ['PATH']}")
        with second_engine() as engine:
            yield engine


@pytest.mark.engine
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_five_failures_to_start_in_a_row_stop_the_run(
    pytester: pytest.Pytester, suite: Path, second: SecondEngine, runtime: Path, workers: list[str]
) -> None:
    make_task(suite, "job")
    with broken_runtime(second, runtime), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", second.address)
        result = pytester.runpytest_subprocess("suite", "--infranoise-samples", "12", *workers)

    run = last_run(pytester)
    assert set(causes(run)) == {"env-start"}, [one.summary for one in run.records]
    # The other worker may have been in the middle of one.
    assert 5 <= len(run.records) <= (6 if workers else 5)
    assert len(run.records) + len(run.missing) == 12
    assert result.ret == 20
    output = " ".join(result.stdout.str().split())
    assert "not an estimate: the run was stopped: 5 trials in a row could not be started (env-start)" in output
    assert f"planned 12 = recorded {len(run.records)} + missing {len(run.missing)}" in output
    assert run.meta["cut_short"].startswith("the run was stopped: ")


@pytest.mark.engine
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_three_lost_containers_at_once_stop_the_run(
    pytester: pytest.Pytester, suite: Path, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # "At once" is a matter of ten seconds, and machines that run tests may be slow.
    pytester.makeconftest("import pytest_infranoise.breakers as b\nb.AT_ONCE = 1000.0")
    make_task(suite, "job", solution="sleep 60\n", timeouts={"setup": 60, "agent": 120, "verifier": 60})
    command = [sys.executable, "-m", "pytest", "suite", "--infranoise-samples", "9", *workers]
    with (pytester.path / "output.txt").open("wb") as output:
        session = subprocess.Popen(command, cwd=pytester.path, stdout=output, stderr=subprocess.STDOUT)
    while session.poll() is None:
        for run_dir in pytester.path.glob(".infranoise/runs/*"):
            remove_at_work(run_dir.name)
        time.sleep(0.1)

    run = last_run(pytester)
    assert set(causes(run)) == {"container-lost"}
    assert 3 <= len(run.records) <= (4 if workers else 3)
    assert len(run.records) + len(run.missing) == 9
    assert session.returncode == 20
    output_text = " ".join((pytester.path / "output.txt").read_text("utf-8").split())
    assert "not an estimate: the run was stopped: 3 containers were lost within" in output_text


def remove_at_work(run: str) -> None:
    """Remove those containers of a run in which an agent is at work."""
    listed = subprocess.run(
        ["docker", "ps", "--quiet", "--filter", f"label=infranoise.run={run}"], capture_output=True, text=True
    )
    for container in listed.stdout.split():
        top = subprocess.run(["docker", "top", container], capture_output=True)
        if b"sleep 60" in top.stdout:
            subprocess.run(["docker", "rm", "-f", container], capture_output=True)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system with room for an engine and one image, and hardly more."""
    place = Path(tempfile.mkdtemp(prefix="infranoise-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


@pytest.mark.engine
@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_a_full_disk_of_the_engine_stops_the_run_and_room_again_does_not(
    pytester: pytest.Pytester, suite: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    make_task(suite, "job")
    with second_engine() as engine:
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        fine = pytester.runpytest_subprocess("suite", "--infranoise-samples", "1")
        fill(small_disk)
        full = pytester.runpytest_subprocess("suite", "--infranoise-samples", "4")
        run = last_run(pytester)

    assert fine.ret == 0
    assert full.ret == 20
    assert causes(run) == ["host-disk-full"]
    assert len(run.missing) == 3
    assert "the run was stopped: the engine's disk is full" in " ".join(full.stdout.str().split())


def fill(place: Path) -> None:
    with contextlib.suppress(OSError), (place / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)


@pytest.mark.engine
def test_an_engine_that_is_gone_stops_the_run(pytester: pytest.Pytester, suite: Path, second: SecondEngine) -> None:
    """All workers of it: none of them takes another trial."""
    pytester.makeconftest(IMPATIENT)
    make_task(suite, "job", solution="sleep 20; echo done > answer.txt\n")
    command = [sys.executable, "-m", "pytest", "suite", "--infranoise-samples", "8", "-n2"]
    with pytest.MonkeyPatch.context() as patch, (pytester.path / "output.txt").open("wb") as output:
        patch.setenv("DOCKER_HOST", second.address)
        session = subprocess.Popen(command, cwd=pytester.path, stdout=output, stderr=subprocess.STDOUT)
        while session.poll() is None and len(second.docker("ps", "--quiet").stdout.split()) < 2:
            time.sleep(0.1)
        second.signal(signal.SIGKILL)
        try:
            assert session.wait(300) == 20
        finally:
            second.start()
            for container in second.docker("ps", "--all", "--quiet").stdout.split():
                second.docker("rm", "--force", container.decode())

    run = last_run(pytester)
    assert set(causes(run)) == {"daemon-lost"}, [one.summary for one in run.records]
    assert 1 <= len(run.records) <= 2
    assert len(run.records) + len(run.missing) == 8
    text = " ".join((pytester.path / "output.txt").read_text("utf-8").split())
    assert "the run was stopped: the engine is gone and did not come back within" in text


def make_trial(suite: Path, kind: str) -> None:
    if kind == "task":
        make_task(suite, "job")
    else:
        (suite / "test_job.py").write_text(FUNCTION, "utf-8")


@contextlib.contextmanager
def nothing_left_for_others() -> Iterator[Ledger]:
    """Hold all of the host's memory, as another session may."""
    with closing(DockerBackend("test")) as backend:
        engine = backend.info()
    ledger, limit = Ledger(engine.id), capacity(engine)
    whole = Allocation(0.1, None, limit.memory, None)
    with closing(ledger.register("other", "main")) as other, other.reserve(whole, limit):
        yield ledger


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["task", "function"])
def test_a_trial_that_waits_for_its_floor_when_the_run_is_stopped_does_not_start(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its container would be the next thing to go wrong, and the wait may be for hours."""
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))
    make_trial(suite, kind)
    with nothing_left_for_others() as ledger, (pytester.path / "output.txt").open("wb") as output:
        command = [sys.executable, "-m", "pytest", "suite", "--resource-config=1x", "--infranoise-samples=2"]
        session = subprocess.Popen(command, cwd=pytester.path, stdout=output, stderr=subprocess.STDOUT)
        while not [path for path in ledger.owners.glob("*--main.json") if not path.name.startswith("other")]:
            assert session.poll() is None, (pytester.path / "output.txt").read_text("utf-8")
            time.sleep(0.05)
        (run_dir,) = pytester.path.glob(".infranoise/runs/*")
        stop_file(run_dir).write_text("enough", "utf-8")
        assert session.wait(300) == 20

    run = last_run(pytester)
    assert run.records == ()
    assert len(run.missing) == 2
    text = " ".join((pytester.path / "output.txt").read_text("utf-8").split())
    assert "2 skipped" in text
    assert "not an estimate: the run was stopped: enough" in text


# Fails as soon as a worker waits for a floor.
FAILS_LATE = """
import os
import time
from pathlib import Path

def test_fails():
    owners = Path(os.environ["INFRANOISE_STATE_DIR"])
    while not list(owners.glob("*/owners/*--gw*.json")):
        time.sleep(0.02)
    assert False
"""


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["task", "function"])
def test_a_trial_that_waits_for_its_floor_when_the_session_ends_at_a_failure_does_not_start(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))
    make_trial(suite, kind)
    pytester.makepyfile(test_late=FAILS_LATE)
    with nothing_left_for_others():
        result = pytester.runpytest_subprocess(
            "test_late.py", "suite", "--resource-config=1x", "--infranoise-samples=2", "-x", "-n2", timeout=300
        )

    run = last_run(pytester)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert run.records == ()
    assert len(run.missing) == 2
    assert run.meta["cut_short"] == "stopping after 1 failures"
    result.stdout.fnmatch_lines(["not an estimate: stopping after 1 failures"])

    # What ended that session is nothing to the next one.
    assert pytester.runpytest_subprocess("suite", "--infranoise-resume=last", "-n2").ret == 0


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["task", "function", "preflight"])
def test_what_another_session_holds_and_nobody_can_read_stops_the_run(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """No floor can be promised beside it; as many infra-errors as there are trials would say less."""
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))
    if kind == "function":
        (suite / "test_job.py").write_text(FUNCTION, "utf-8")
    else:
        make_task(suite, "job")
    with closing(DockerBackend("test")) as backend:
        ledger = Ledger(backend.info().id)
    arguments = ["suite", "--resource-config=1x", "--infranoise-samples=2"]
    with closing(ledger.register("other", "main")):
        (ledger.owners / "other--main.json").write_bytes(b"")
        if kind == "preflight":
            result = pytester.runpytest_subprocess(*arguments, "--infranoise-preflight")
            assert result.ret == pytest.ExitCode.USAGE_ERROR
            result.stderr.fnmatch_lines(
                ["ERROR: preflight: the ledger of floors *other--main.json cannot be read*"]
            )
            return
        result = pytester.runpytest_subprocess(*arguments)

    run = last_run(pytester)
    assert result.ret == 20
    assert run.records == ()
    assert len(run.missing) == 2
    text = " ".join(result.stdout.str().split())
    assert "other--main.json cannot be read" in text
    assert "not an estimate: the run was stopped: the ledger of floors" in text


class _Busy(BaseHTTPRequestHandler):
    """A registry that has had enough."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = json.dumps({"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}).encode()
        self.send_response(200 if self.path == "/v2/" else 429)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.mark.engine
def test_a_registry_that_limits_its_rate_is_left_alone(pytester: pytest.Pytester, suite: Path) -> None:
    """Those tasks are infra-errors, the others run."""
    _Busy.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for number in range(12):
            image = f"127.0.0.1:{server.server_port}/benchmark/task{number}:1"
            make_task(suite, f"remote{number}", image=image, pull="missing")
        make_task(suite, "local")
        result = pytester.runpytest_subprocess("suite", "--infranoise-samples", "1")
    finally:
        server.shutdown()
        server.server_close()

    run = last_run(pytester)
    assert sorted(causes(run)) == [*["image-pull"] * 12, "pass"]
    assert run.missing == ()
    refused = {path.split("/manifests/")[0] for path in _Busy.asked if "/manifests/" in path}
    assert 1 <= len(refused) <= 4  # as many as are pulled at a time
    assert "limits its rate (429); run again later" in result.stdout.str()
