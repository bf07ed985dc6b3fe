from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_infranoise.run_lock import is_running
from pytest_infranoise.run_lock import session_lock
from pytest_infranoise.run_lock import take_over
from pytest_infranoise.run_lock import worker_lock


@contextmanager
def another_process(run_dir: Path, kind: str, shared: bool) -> Iterator[subprocess.Popen[str]]:
    """Hold a lock in another process, which is killed in the end."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        f"from pytest_infranoise.run_lock import {kind}\n"
        f"print({kind}(Path(sys.argv[1])).acquire(shared={shared}), flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(run_dir)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_nobody_is_at_work_on_a_run_that_was_never_locked(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "shared"), [("session_lock", False), ("worker_lock", True)])
def test_a_run_is_taken_until_its_process_is_gone_however_it_ends(tmp_path: Path, kind: str, shared: bool) -> None:
    with another_process(tmp_path, kind, shared) as process:
        assert is_running(tmp_path)
        assert take_over(tmp_path, seconds=0) is None
        # Whoever was refused holds nothing back.
        session = session_lock(tmp_path)
        assert session.acquire() is (kind == "worker_lock")
        session.release()
        process.kill()
        process.wait()

    lock = take_over(tmp_path, seconds=0)
    assert lock is not None
    assert is_running(tmp_path)
    lock.release()
    assert not is_running(tmp_path)


def test_workers_share_what_a_session_has_alone(tmp_path: Path) -> None:
    session = take_over(tmp_path, seconds=0)
    assert session is not None
    workers = [worker_lock(tmp_path) for _ in range(2)]

    assert all(worker.acquire(shared=True) for worker in workers)
    assert not session_lock(tmp_path).acquire()

    session.release()
    assert is_running(tmp_path)
    for worker in workers:
        worker.release()
    assert not is_running(tmp_path)
