"""Files into and out of a container, by the engine's archive calls: no command in the container is needed."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterable
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from pathlib import PurePosixPath
from typing import IO
from typing import Any
from typing import Literal
from typing import NamedTuple

import requests
import urllib3

from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.api_errors import from_exception
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import FileStat
from pytest_infranoise.sandboxes.protocol import FileUnfit
from pytest_infranoise.sandboxes.protocol import SandboxError

_IN_MEMORY = 8 * 1024**2  # bytes of an archive that are kept in memory before it goes to a temporary file
MAX_ENTRIES = 20_000  # of one archive that is looked through
_STAT_HEADER = "X-Docker-Container-Path-Stat"
# Go's file modes: the bits of directory, symlink, device, pipe, socket, character device and irregular.
_GO_DIRECTORY = 1 << 31
_GO_LINK = 1 << 27
_GO_TYPES = 1 << 31 | 1 << 27 | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class Entry(NamedTuple):
    """One member of an archive: a name relative to its root, and where its content is."""

    name: str
    mode: int
    type: bytes = tarfile.REGTYPE
    content: bytes = b""
    source: Path | None = None
    link: str = ""


def entries_of(source: Path, prefix: str) -> Iterator[Entry]:
    """Yield a file as ``prefix``, or a directory's whole content below ``prefix`` (empty: the archive's root).

    Raises:
        ConfigError: there is something that is no file, directory or symbolic link, or cannot be read.
    """
    try:
        if not source.is_dir():
            yield _entry(source, prefix)
            return
        for parent, directories, files in os.walk(source, onerror=_raise):
            for name in sorted([*directories, *files]):
                path = Path(parent, name)
                yield _entry(path, str(PurePosixPath(prefix, path.relative_to(source))))
    except OSError as error:
        raise ConfigError("archive", f"cannot read {source}: {error}") from error


def _raise(error: OSError) -> None:
    raise error


def _entry(path: Path, name: str) -> Entry:
    info = path.lstat()
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISLNK(info.st_mode):
        return Entry(name, mode, tarfile.SYMTYPE, link=str(path.readlink()))
    if stat.S_ISDIR(info.st_mode):
        return Entry(name, mode, tarfile.DIRTYPE)
    if stat.S_ISREG(info.st_mode):
        return Entry(name, mode, source=path)
    raise ConfigError("archive", f"{path} is no file, directory or symbolic link")


def pack(entries: Iterable[Entry], stream: IO[bytes]) -> None:
    """Write a tar archive in which everything belongs to root."""
    # GNU format keeps names that are no UTF-8 as they are.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.mode, info.linkname, info.mtime = entry.type, entry.mode, entry.link, int(time.time())
            if entry.source is None:
                info.size = len(entry.content)
                archive.addfile(info, io.BytesIO(entry.content))
            else:
                with entry.source.open("rb") as content:
                    info.size = os.fstat(content.fileno()).st_size
                    archive.addfile(info, content)


class Archives:
    """The files of one container."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._path = f"/containers/{container}/archive"

    def upload(self, source: Path, target: str) -> None:
        """Put a file at the path ``target``, or a directory's whole content below it."""
        if source.is_dir():
            self._put(target, entries_of(source, ""))
        else:
            place = PurePosixPath(target)
            self._put(str(place.parent), entries_of(source, place.name))

    def write(self, target: str, content: bytes, mode: int) -> None:
        """Put one file at the path ``target``."""
        place = PurePosixPath(target)
        self._put(str(place.parent), [Entry(place.name, mode, content=content)])

    def _put(self, target: str, entries: Iterable[Entry]) -> None:
        """Unpack entries below the directory ``target``, which is made if missing, as are those above it."""
        place = PurePosixPath(target)
        if not place.is_absolute() or ".." in place.parts:
            raise ConfigError("archive", f"{target!r} is no absolute path without '..'")
        existing = next(path for path in (place, *place.parents) if path == path.parent or self._exists(path))
        missing = place.relative_to(existing)
        made = [Entry(str(path), 0o755, tarfile.DIRTYPE) for path in (*reversed(missing.parents), missing)]
        below = (entry._replace(name=str(missing / entry.name)) for entry in entries)
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as archive:
            pack((entry for group in (made, below) for entry in group if entry.name != "."), archive)
            archive.seek(0)
            # Never turns a directory that is there into a file, or a file into a directory.
            params = {"path": str(existing), "noOverwriteDirNonDir": "true"}
            self._engine.request("archive", "PUT", self._path, params=params, data=archive).close()

    def _exists(self, path: PurePosixPath) -> bool:
        try:
            self._engine.request("archive", "HEAD", self._path, params={"path": str(path)}).close()
        except SandboxError as error:
            # These answers come without a text: what is wrong, the upload itself tells.
            if error.status is None:
                raise
            return error.status != 404
        return True

    def stat(self, path: str) -> FileStat | None:
        """Return what is at a path, None when nothing is; a link there is not followed, those on the way are."""
        try:
            with self._engine.request("stat", "HEAD", self._path, params={"path": path}) as response:
                data = _header(response)
        except SandboxError as error:
            # These answers come without a text. A 404 may also be the container's: what is asked next tells.
            if error.status == 404:
                return None
            if error.status is None:
                raise
            raise SandboxError("stat", f"the engine cannot look at {path}", error.status) from error
        try:
            mode, size = int(data["mode"]), int(data["size"])
            return FileStat(
                _kind(mode), size, nanoseconds(data["mtime"]), mode & 0o777, data.get("linkTarget") or ""
            )
        except (KeyError, ValueError, TypeError) as error:
            raise SandboxError("stat", f"the engine's answer has no usable {_STAT_HEADER}") from error

    def digest(self, path: str) -> str | None:
        """Return the SHA-256 of a regular file's content, whatever its size, None when there is no such file."""
        try:
            with self._engine.request("read", "GET", self._path, params={"path": path}) as response:
                if _stat(response)[0] & _GO_TYPES:
                    return None
                with engine_call("read"):
                    return _first_digest(response, path)
        except FileMissing:
            return None

    def digests(self, path: str, limit: int) -> dict[str, str] | None:
        """Return the SHA-256 of every regular file below a directory, by the path relative to it.

        Nothing is unpacked: names, links, devices and sparse files can do nothing here but be counted.

        Returns:
            None where there is no directory, or one with more than ``limit`` bytes or ``MAX_ENTRIES`` entries.
        """
        try:
            with self._engine.request("read", "GET", self._path, params={"path": path}) as response:
                if not _stat(response)[0] & _GO_DIRECTORY:
                    return None
                with engine_call("read"):
                    return tree_digests(response.raw, limit)
        except FileMissing:
            return None
        except (tarfile.TarError, urllib3.exceptions.HTTPError) as error:
            raise from_exception("read", requests.ConnectionError(f"{path} came incomplete: {error}")) from error

    def read(self, path: str, limit: int) -> bytes:
        """Return the content of a regular file of at most ``limit`` bytes."""
        with self._engine.request("read", "GET", self._path, params={"path": path}) as response:
            mode, size = _stat(response)
            if mode & _GO_TYPES:
                raise FileUnfit("read", f"{path} is not a regular file")
            if size > limit:
                raise FileUnfit("read", f"{path} has {size} bytes, more than {limit}")
            with engine_call("read"):
                return _first_file(response, path, limit)


def _stat(response: requests.Response) -> tuple[int, int]:
    try:
        data = _header(response)
        return int(data["mode"]), int(data["size"])
    except (KeyError, ValueError, TypeError) as error:
        raise SandboxError("read", f"the engine's answer has no usable {_STAT_HEADER}") from error


def _header(response: requests.Response) -> dict[str, Any]:
    try:
        data = json.loads(base64.b64decode(response.headers[_STAT_HEADER]))
    except (KeyError, ValueError) as error:
        raise SandboxError("read", f"the engine's answer has no usable {_STAT_HEADER}") from error
    return data if isinstance(data, dict) else {}


def _kind(mode: int) -> Literal["file", "directory", "link", "other"]:
    if mode & _GO_DIRECTORY:
        return "directory"
    if mode & _GO_LINK:
        return "link"
    return "other" if mode & _GO_TYPES else "file"


def nanoseconds(time: str) -> int:
    """Return nanoseconds since the epoch of a time as Go writes it (RFC 3339 with up to nine decimals).

    Raises:
        ValueError: it is no such time.
    """
    match = _TIME.fullmatch(time)
    if match is None:
        raise ValueError(f"{time!r} is no time")
    whole = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
    return int(whole.timestamp()) * 10**9 + int((match[2] or "0").ljust(9, "0"))


def tree_digests(stream: Any, limit: int) -> dict[str, str] | None:
    """Return the digests of a directory's archive; None when it holds more than ``limit`` bytes or too much else.

    Raises:
        tarfile.TarError: it is no archive, or breaks off.
    """
    found: dict[str, str] = {}
    size = entries = 0
    with tarfile.open(fileobj=stream, mode="r|", errors="surrogateescape") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # which would else grow with every entry
            entries += 1
            size += member.size
            if entries > MAX_ENTRIES or size > limit:
                return None
            # The first part is the directory's own name.
            name = member.name.partition("/")[2]
            if member.isreg():
                found[name] = _digest(archive, member)
            elif member.islnk() and (linked := found.get(member.linkname.partition("/")[2])) is not None:
                found[name] = linked  # the same file under a second name
    return found


def _digest(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    digest = hashlib.sha256()
    content = archive.extractfile(member)
    while content is not None and (block := content.read(1024**2)):
        digest.update(block)
    return digest.hexdigest()


def _first_digest(response: requests.Response, path: str) -> str | None:
    try:
        with tarfile.open(fileobj=response.raw, mode="r|") as archive:
            member = archive.next()
            return _digest(archive, member) if member is not None and member.isreg() else None
    except (tarfile.TarError, urllib3.exceptions.HTTPError) as error:
        raise from_exception("read", requests.ConnectionError(f"{path} came incomplete: {error}")) from error


def _first_file(response: requests.Response, path: str, limit: int) -> bytes:
    try:
        with tarfile.open(fileobj=response.raw, mode="r|") as archive:
            member = archive.next()
            content = archive.extractfile(member) if member is not None and member.isreg() else None
            if member is None or content is None or member.size > limit:
                raise FileUnfit("read", f"{path} is not a regular file of at most {limit} bytes")
            return content.read()
    except (tarfile.TarError, urllib3.exceptions.HTTPError) as error:
        raise from_exception("read", requests.ConnectionError(f"{path} came incomplete: {error}")) from error
