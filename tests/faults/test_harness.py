"""Whole sessions whose own process dies, or whose disk is full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from pytest_infranoise.model import Record
from tests.faults.conftest import Judge
from tests.faults.expected import MISSING
from tests.suite import make_task
from tests.trials.second_engine import unavailable

pytestmark = pytest.mark.engine

_DIES = """
import os
import signal
from pytest_infranoise.journal import Journal

write = Journal.finished

def finished(self, record):
    if {after}:
        write(self, record)
    if self.process.startswith("gw"):
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, record)

Journal.finished = finished
"""
_FILLS_UP = """
import subprocess
from pytest_infranoise.journal import Journal

write = Journal.started

def started(self, key, attempt):
    write(self, key, attempt)
    subprocess.run(["dd", "if=/dev/zero", "of=small/filler", "bs=4k"], capture_output=True)

Journal.started = started
"""


def session(pytester: pytest.Pytester, conftest: str, *arguments: str, runs: str) -> Record | str:
    """Run one trial in a session with this conftest, and return what is on record of it."""
    suite = pytester.mkdir("suite")
    make_task(suite, "job")
    pytester.makeconftest(conftest)
    options = ["--infranoise-agent", "oracle", "--resource-config", "1x", "--infranoise-samples", "1"]
    pytester.runpytest_subprocess("suite", *options, *arguments)
    read = read_run(find_run(pytester.path / runs, None))
    assert len(read.planned) == 1
    return read.records[0] if read.records else MISSING


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(autouse=True)
def ledger_of_its_own(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_worker_killed(when: str, pytester: pytest.Pytester, judge: Judge) -> None:
    runs = ".infranoise/runs"
    conftest = _DIES.format(after=when == "after")
    judge(
        f"worker-killed-{when}",
        lambda: session(pytester, conftest, "-n1", runs=runs),
        lambda: find_run(pytester.path / runs, None).name,
    )


def test_disk_full(pytester: pytest.Pytester, judge: Judge) -> None:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with small_disk(pytester.path / "small"):
        judge(
            "runner-disk-full",
            lambda: session(pytester, _FILLS_UP, "--infranoise-run-dir", "small/runs", runs="small/runs"),
            lambda: find_run(pytester.path / "small/runs", None).name,
        )


INJECT = ("worker-killed-before", "worker-killed-after", "runner-disk-full")
