"""Who is at work on a run: told by locks in its directory, which the kernel lets go of however a process ends.

A session holds one alone, its workers share another: a worker may outlive the session that started it by some
seconds, and until then nobody else may go on with the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

_POLL_SECONDS = 0.1
# Whoever only looks holds the lock for a moment.
_LOOK_SECONDS = 1.0


class RunLock:
    """A lock on a file of a run directory, held until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self, seconds: float = 0.0, *, shared: bool = False) -> bool:
        """Take the lock, waiting for it up to ``seconds``; whether it is held now.

        Raises:
            OSError: there can be no lock in this place.
        """
        if self._file is not None:
            return True
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + seconds
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                    self._file = file
                    return True
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_SECONDS)
        finally:
            if self._file is None:
                os.close(file)

    def release(self) -> None:
        """Let go of it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def session_lock(run_dir: Path) -> RunLock:
    """Return the lock that one session at a time has on a run."""
    return RunLock(run_dir / "session.lock")


def worker_lock(run_dir: Path) -> RunLock:
    """Return the lock that the workers of one session share."""
    return RunLock(run_dir / "workers.lock")


def take_over(run_dir: Path, seconds: float) -> RunLock | None:
    """Return the lock of a session that may go on with a run; None when somebody else is at work on it.

    Args:
        run_dir: the run's directory.
        seconds: how long to wait for workers that outlive the session that started them.

    Raises:
        OSError: there can be no lock in this place.
    """
    session = session_lock(run_dir)
    if not session.acquire(_LOOK_SECONDS):
        return None
    workers = worker_lock(run_dir)
    if not workers.acquire(seconds):
        session.release()
        return None
    workers.release()
    return session


def is_running(run_dir: Path) -> bool:
    """Whether a living session, or a worker of one, is at work on a run; looking changes nothing."""
    return any(_is_held(run_dir / name) for name in ("session.lock", "workers.lock"))


def _is_held(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # nobody ever held it
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
