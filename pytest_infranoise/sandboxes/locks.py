"""Locks between the processes of this machine that use one engine: xdist workers, several pytest sessions."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from filelock import Timeout

from pytest_infranoise.sandboxes.protocol import EnvStartError

_SLICE = 0.5  # seconds after which a waiting process looks whether it should still wait


def lock_directory() -> Path:
    """Return this user's directory of lock files, made if missing.

    Raises:
        EnvStartError: it is somebody else's.
    """
    directory = Path(tempfile.gettempdir(), f"infranoise-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.lstat().st_uid != os.getuid() or directory.is_symlink():
        raise EnvStartError("lock", f"{directory} is not this user's own; remove it")
    return directory


@contextmanager
def locked(name: str, seconds: float, stopped: threading.Event | None = None) -> Iterator[None]:
    """Hold a lock that only one process at a time has, after waiting for it up to ``seconds``.

    Raises:
        EnvStartError: it was not to be had in time, or before ``stopped`` was set.
    """
    lock = FileLock(lock_directory() / f"{name}.lock")
    _acquire(lock, seconds, stopped or threading.Event())
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, seconds: float, stopped: threading.Event) -> None:
    deadline = time.monotonic() + seconds
    while not stopped.is_set():
        left = deadline - time.monotonic()
        try:
            lock.acquire(timeout=max(0.0, min(_SLICE, left)))
            return
        except Timeout as error:
            if left <= _SLICE:
                raise EnvStartError("lock", f"{lock.lock_file} was held for {seconds:.0f} s") from error
    raise EnvStartError("lock", f"{lock.lock_file} is not wanted any more")
