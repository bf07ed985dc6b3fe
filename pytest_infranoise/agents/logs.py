"""The log of one phase: the output of all its commands, one after the other, capped and without secrets."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_infranoise.agents.secrets import Masker

LOG_CAP = 8 * 1024**2  # bytes
_PART_CAP = 5 * 1024**2


class PhaseLog:
    """Gives each command a file to write to and adds what it wrote to the phase's log.

    A command's own file lies beside the log, where it can be watched. When there are secrets to mask it has no
    name in any directory, so that even a SIGKILL of this process leaves nothing of it behind.
    """

    def __init__(self, path: Path, masker: Masker) -> None:
        self.path = path
        self._masker = masker
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._size = 0
        self._full = False

    @contextmanager
    def part(self) -> Iterator[Path]:
        """Give the file for one command; what is in it afterwards is added to the log."""
        if self._masker:
            with tempfile.TemporaryFile() as file:
                try:
                    yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
                finally:
                    self._add(file.read(_PART_CAP))
            return
        part = self.path.with_name(f"{self.path.name}.{next(self._numbers)}")
        try:
            yield part
        finally:
            if part.exists():
                with part.open("rb") as file:
                    self._add(file.read(_PART_CAP))
                part.unlink()

    def _add(self, content: bytes) -> None:
        content = self._masker.data(content)
        with self._lock:
            if self._full or not content:
                return
            if self._size + len(content) > LOG_CAP:
                content = content[: LOG_CAP - self._size] + b"\n[the rest of this phase was not kept]\n"
                self._full = True
            with self.path.open("ab") as file:
                file.write(content)
            self._size += len(content)
