"""Whether what was put into a container is what is there, asked of the engine and of no program in there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from pathlib import PurePosixPath

from pytest_infranoise.model import Upload
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import Inspectable
from pytest_infranoise.sandboxes.protocol import Sandbox

_ROOM = (
    64 * 1024**2
)  # bytes beside what was sent that a directory may hold before its files are asked for one by one


@dataclass(frozen=True, slots=True)
class File:
    """One file as it was sent: where to, how long, its SHA-256, and where it came from."""

    path: str
    size: int  # bytes
    digest: str
    source: Path | bytes = field(repr=False, compare=False)

    def begins_with(self, content: bytes) -> bool:
        """Whether the file begins with some bytes: what is left of it on a full disk does."""
        if isinstance(self.source, bytes):
            return self.source.startswith(content)
        with self.source.open("rb") as file:
            return file.read(len(content)) == content


class Sent:
    """Every file that was sent; of two with the same path the later one counts."""

    def __init__(self, uploads: Iterable[Upload]) -> None:
        self._directories: dict[str, None] = {}
        self._files: dict[str, File] = {}
        for upload in uploads:
            if isinstance(upload.source, Path) and upload.source.is_dir():
                self._directories[upload.target] = None
            for file in _files(upload):
                self._files[file.path] = file

    def changed(self, sandbox: Sandbox) -> list[File]:
        """Return those files that are not in the sandbox as they were sent."""
        left, found = dict(self._files), []
        for directory in self._directories if isinstance(sandbox, Inspectable) else ():
            below = {path: file for path, file in left.items() if _is_below(path, directory)}
            if len(below) < 2:
                continue
            there = self._digests(sandbox, directory, below)
            if there is not None:
                found += [
                    f for path, f in below.items() if there.get(path[len(directory) :].lstrip("/")) != f.digest
                ]
                left = {path: file for path, file in left.items() if path not in below}
        found += [file for file in left.values() if _digest(sandbox, file) != file.digest]
        return sorted(found, key=lambda file: file.path)

    def name(self, file: File) -> str:
        """Return a file's path as whoever wrote the tests knows it."""
        below = [directory for directory in self._directories if _is_below(file.path, directory)]
        return file.path[len(below[0]) :].lstrip("/") if below else file.path

    def _digests(self, sandbox: Sandbox, directory: str, files: Mapping[str, File]) -> Mapping[str, str] | None:
        limit = 2 * sum(file.size for file in files.values()) + _ROOM
        return sandbox.digests(directory, limit) if isinstance(sandbox, Inspectable) else None


def _is_below(path: str, directory: str) -> bool:
    return PurePosixPath(path).is_relative_to(directory)


def _files(upload: Upload) -> Iterator[File]:
    if isinstance(upload.source, bytes):
        yield File(upload.target, len(upload.source), hashlib.sha256(upload.source).hexdigest(), upload.source)
    elif upload.source.is_dir():
        for path in sorted(upload.source.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield _file(path, str(PurePosixPath(upload.target, path.relative_to(upload.source).as_posix())))
    else:
        yield _file(upload.source, upload.target)


def _file(path: Path, target: str) -> File:
    with path.open("rb") as file:
        return File(target, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest(), path)


def _digest(sandbox: Sandbox, file: File) -> str | None:
    if isinstance(sandbox, Inspectable):
        return sandbox.digest(file.path)
    try:
        return hashlib.sha256(sandbox.read(file.path, file.size + 1)).hexdigest()
    except FileMissing:
        return None
