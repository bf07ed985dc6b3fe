"""Locks between the processes of this machine that use one engine: xdist workers, several pytest sessions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from filelock import Timeout

from pytest_infranoise.sandboxes.protocol import EnvStartError


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
def locked(name: str, seconds: float) -> Iterator[None]:
    """Hold a lock that only one process at a time has, after waiting for it up to ``seconds``.

    Raises:
        EnvStartError: it was not to be had in time.
    """
    lock = FileLock(lock_directory() / f"{name}.lock")
    try:
        with lock.acquire(timeout=seconds):
            yield
    except Timeout as error:
        raise EnvStartError("lock", f"{lock.lock_file} was held for {seconds:.0f} s") from error
