from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result

from pytest_infranoise import __version__
from pytest_infranoise.analysis import analyse
from pytest_infranoise.cli import main
from pytest_infranoise.doctor import Status
from pytest_infranoise.doctor import capacity
from pytest_infranoise.doctor import cgroup_version
from pytest_infranoise.doctor import disk
from pytest_infranoise.doctor import engine_version
from pytest_infranoise.doctor import limits
from pytest_infranoise.journal import Journal
from pytest_infranoise.reports.terminal import render
from pytest_infranoise.sandboxes.protocol import EngineInfo
from tests.builders import DEMO
from tests.builders import RUN
from tests.builders import key
from tests.builders import run_of
from tests.builders import write_run

INFO = EngineInfo(
    id="ABCD",
    version="20.10.24",
    cgroup_version="1",
    kernel="6.18",
    storage_driver="overlay2",
    host="box",
    cpus=2.0,
    memory=8 * 1024**3,
    unsupported=(),
)


def infranoise(*args: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, args)


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one run at the default place."""
    monkeypatch.chdir(tmp_path)
    runs = Path(".infranoise/runs")
    write_run(run_of(DEMO, gates=["infra-rate[3x] <= 9%", "missing <= 0"]), runs)
    return runs


class TestReport:
    def test_the_newest_run_at_the_default_place(self, runs_dir: Path) -> None:
        write_run(run_of({"old": {"1x": {"t": (1,)}}}, run="20250101-000000-aaaaaa"), runs_dir)
        result = infranoise("report", COLUMNS="90")
        assert result.exit_code == 0
        assert result.stdout.splitlines()[: len(expected(90))] == expected(90)

    def test_the_run_s_gates_are_judged_again(self, runs_dir: Path) -> None:
        lines = infranoise("report", COLUMNS="200").stdout.splitlines()
        assert lines[-2:] == [
            "gate infra-rate[3x] <= 9% holds: 3x 8.3% [0.2, 38.5]; 12 trials cannot show 9%: if none is an "
            "infra-error, at most 24.3%",
            "gate missing <= 0 holds: 0 of 36 planned trials missing",
        ]

    def test_a_gate_that_does_not_hold_changes_no_exit_status(self, runs_dir: Path) -> None:
        write_run(run_of(DEMO, gates=["infra-rate <= 1%"]), runs_dir)
        result = infranoise("report")
        assert result.exit_code == 0
        assert "gate infra-rate <= 1% does not hold" in result.stdout

    @pytest.mark.parametrize("args", [[RUN], [f".infranoise/runs/{RUN}"], [".infranoise/runs"]])
    def test_a_run_by_id_or_path(self, runs_dir: Path, args: list[str]) -> None:
        assert infranoise("report", *args, COLUMNS="90").stdout.splitlines()[: len(expected(90))] == expected(90)

    def test_another_directory(self, runs_dir: Path) -> None:
        runs_dir.rename("elsewhere")
        assert "= 36 trials" in infranoise("report", "--run-dir", "elsewhere").stdout
        assert "= 36 trials" in infranoise("report", RUN, "--run-dir", "elsewhere").stdout

    def test_a_run_that_is_still_going_on(self, runs_dir: Path) -> None:
        run_dir = write_run(
            run_of({"scripted": {"1x": {"t": (1, 0, 0, 2)}}}, run="20270101-000000-aaaaaa"), runs_dir
        )
        Journal(run_dir, "main").started(key("t", sample=1), 0)
        with (run_dir / "trials-main.jsonl").open("a") as file:
            file.write('{"event": "finished", "ag')
        text = infranoise("report").stdout
        assert "planned 3 = recorded 1 + missing 2" in text
        assert "1 attempt began and never ended" in text
        assert "1 journal line could not be read" in text

    @pytest.mark.parametrize(
        ("args", "complaint"),
        [
            (["nosuch"], "no run 'nosuch'"),
            (["--run-dir", "nosuch"], "no run in nosuch yet"),
            ([".infranoise/runs/empty"], "no run in .infranoise/runs/empty yet"),
            ([".infranoise/runs/broken"], "no run.json that can be read"),
            ([".infranoise/runs/list"], "no run.json that can be read"),
            ([".infranoise/runs/future"], "its schema is 99, this version reads 1"),
        ],
    )
    def test_one_clear_line_and_status_2(self, runs_dir: Path, args: list[str], complaint: str) -> None:
        for name, content in (("broken", "{"), ("list", "[]"), ("future", '{"schema": 99}')):
            (runs_dir / name).mkdir()
            (runs_dir / name / "run.json").write_text(content)
        (runs_dir / "empty").mkdir()
        result = infranoise("report", *args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert complaint in result.stderr
        assert result.stderr.count("\n") == 1


def expected(width: int) -> list[str]:
    return render(analyse(run_of(DEMO)), width)


class TestCommand:
    def test_version(self) -> None:
        assert infranoise("--version").stdout == f"infranoise, version {__version__}\n"

    def test_help_names_the_commands(self) -> None:
        result = infranoise("--help")
        assert result.exit_code == 0
        assert re.findall(r"^  (\w+)  ", result.stdout, re.MULTILINE) == [
            "calibrate",
            "clean",
            "compare",
            "doctor",
            "lint",
            "list",
            "merge",
            "plan",
            "report",
            "schema",
        ]

    def test_schema_is_json_about_task_files(self) -> None:
        result = infranoise("schema")
        assert result.exit_code == 0
        assert {"infranoise", "resources", "verifier"} <= json.loads(result.stdout)["properties"].keys()

    def test_help_loads_nothing_heavy(self) -> None:
        code = (
            "import sys; from pytest_infranoise.cli import main; main(['--help'], standalone_mode=False); "
            "sys.exit(str({'numpy', 'scipy', 'docker', 'pydantic', 'pytest', 'yaml'} & sys.modules.keys()))"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert ended.stderr.strip() == "set()"


class TestDoctor:
    def test_no_engine_is_a_failed_check_with_a_remedy(self) -> None:
        # In a process of its own: the docker SDK leaves the socket that it could not connect to the collector.
        ended = subprocess.run(
            [sys.executable, "-c", "from pytest_infranoise.cli import main; main()", "doctor"],
            env={**os.environ, "DOCKER_HOST": "unix:///nonexistent/docker.sock"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ended.returncode, ended.stderr) == (1, "")
        assert ended.stdout.startswith("FAIL  no Docker Engine answers at unix:///nonexistent/docker.sock")
        assert "bench_tasks/prepare" in ended.stdout
        assert ended.stdout.count("\n") == 1

    @pytest.mark.engine
    def test_the_engine_here_is_fit(self) -> None:
        result = infranoise("doctor")
        assert result.exit_code == 0, result.stdout
        for start in ("ok    Docker Engine ", "ok    cgroup v", "ok    limits: ", "ok    host: ", "ok    image "):
            assert re.search(f"^{start}", result.stdout, re.MULTILINE)
        assert "FAIL" not in result.stdout
        assert re.search(r"^(ok|warn)  +disk: ", result.stdout, re.MULTILINE)

    @pytest.mark.engine
    def test_it_changes_nothing(self, tmp_path: Path) -> None:
        with recorded_engine(tmp_path / "docker.sock") as requests:
            assert infranoise("doctor", DOCKER_HOST=f"unix://{tmp_path}/docker.sock").exit_code == 0
        assert len(requests) >= 3
        assert {request.split()[0] for request in requests} <= {"GET", "HEAD"}

    def test_an_engine_that_cannot_enforce_a_limit_fails(self) -> None:
        checks = list(limits(replace_info(unsupported=("a swap limit",), warnings=("No blkio support",))))
        assert [check.status for check in checks] == [Status.FAIL, Status.WARN]
        assert "cannot enforce a swap limit" in str(checks[0])
        assert "No blkio support" in str(checks[1])

    @pytest.mark.parametrize(
        ("version", "status"),
        [("20.10.24", Status.OK), ("27.0.1", Status.OK), ("19.03.1", Status.WARN), ("dev", Status.OK)],
    )
    def test_versions(self, version: str, status: Status) -> None:
        assert engine_version(replace_info(version=version)).status is status

    @pytest.mark.parametrize(("version", "status"), [("1", Status.OK), ("2", Status.OK), ("", Status.FAIL)])
    def test_cgroup_versions(self, version: str, status: Status) -> None:
        assert cgroup_version(replace_info(cgroup_version=version)).status is status

    def test_capacity(self) -> None:
        assert str(capacity(INFO)) == "ok    host: 2 CPUs and 7.6 GiB for all floors together"

    def test_disk(self, tmp_path: Path) -> None:
        assert re.fullmatch(rf"disk: [\d.]+ [KMG]iB free at {re.escape(str(tmp_path))}", disk(tmp_path).text)
        assert disk(None).status is Status.WARN


def replace_info(**changes: Any) -> EngineInfo:
    return replace(INFO, **changes)


@contextmanager
def recorded_engine(address: Path) -> Iterator[list[str]]:
    """Stand between a client and the engine, and give the first line of every request that goes through."""
    requests: list[str] = []
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as upstream:
                upstream.connect(engine)
                answers = threading.Thread(target=copy, args=(upstream, self.request, None))
                answers.start()
                copy(self.request, upstream, requests)
                answers.join()

    with socketserver.ThreadingUnixStreamServer(str(address), Relay) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield requests
        server.shutdown()
        thread.join()


def copy(source: socket.socket, target: socket.socket, requests: list[str] | None) -> None:
    while data := source.recv(65536):
        if requests is not None:
            requests += re.findall(r"(?m)^([A-Z]+ /.*) HTTP/1", data.decode("latin-1"))
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
