"""How verdicts are read, one way for each kind of verifier."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from types import MappingProxyType
from typing import Any

from pytest_infranoise.model import Reads
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.trials import pytest_summary
from pytest_infranoise.trials import reward_files
from pytest_infranoise.trials import swebench
from pytest_infranoise.trials.artefact import MAX_BYTES
from pytest_infranoise.trials.artefact import parse_artefact
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus


@dataclass(frozen=True, slots=True)
class Reading:
    """What there is to read when a verifier's command has ended by itself.

    Args:
        sandbox: the container, for files in it.
        nonce: what only this run of this verifier was told.
        file: where our own artefact is written.
        output: what the command printed; only its end when ``cut`` says so.
        cut: whether the output was longer than what is kept.
        options: ``Verifier.options`` of the task.
        seen: what was read so far, by file name.
    """

    sandbox: Sandbox
    nonce: str
    file: str
    output: bytes = b""
    cut: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    seen: dict[str, bytes] = field(default_factory=dict)

    def read(self, path: str, limit: int) -> bytes:
        """Return a file of the container, which is kept with the record.

        Raises:
            FileMissing: there is no such file.
            FileUnfit: it is not a regular file, or it is longer than ``limit`` bytes.
        """
        content = self.sandbox.read(path, limit)
        self.seen[path.rpartition("/")[2]] = content
        return content

    def text(self) -> str:
        """Return the output as text."""
        return self.output.decode("utf-8", "replace")


def read_nonce(reading: Reading) -> Artefact:
    """Return the verdict in our own artefact."""
    try:
        content = reading.read(reading.file, MAX_BYTES)
        return parse_artefact(content, reading.nonce, pytest_summary.errors_met(reading.text()))
    except FileMissing as error:
        return Artefact(text=error.text)


def _whole(read: Callable[[Reading], Artefact]) -> Callable[[Reading], Artefact]:
    """Let nothing be read from an output of which the beginning is not known."""

    def checked(reading: Reading) -> Artefact:
        if reading.cut:
            return Artefact(ArtefactStatus.MALFORMED, text="the verifier printed more than is kept")
        return read(reading)

    return checked


READERS: Mapping[Reads, Callable[[Reading], Artefact]] = MappingProxyType(
    {
        Reads.NONCE: read_nonce,
        Reads.REWARD_FILES: reward_files.read,
        Reads.PYTEST_SUMMARY: pytest_summary.read,
        Reads.SWEBENCH: _whole(swebench.read),
    }
)
