"""What the engine itself knows of a container's inside: files that differ from the image, processes that run."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import re
import stat
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import requests
import urllib3

from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.api_errors import from_exception
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.overlay import Layers
from pytest_infranoise.sandboxes.overlay import has_no_content
from pytest_infranoise.sandboxes.overlay import hides
from pytest_infranoise.sandboxes.overlay import is_whiteout
from pytest_infranoise.sandboxes.protocol import Change
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.shell import HOLDER_ARGV
from pytest_infranoise.sandboxes.shell import HOLDERS_SLEEP

_BLOCK = 256 * 1024
_HOLDERS_BEGINNING = " ".join(HOLDER_ARGV[:3]).partition("\n")[0]
# One entry; keys come in either order. A path has at most 4096 bytes, each at most six characters here.
_ENTRY = re.compile(r'\{[^{}"]*"(?:[^"\\]|\\.)*"[^{}"]*:(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_LONGEST_ENTRY = 32 * 1024
_MOST_FILES = 2_000_000  # that are looked at where the engine keeps them
_KINDS: Mapping[object, Change] = MappingProxyType({0: "modified", 1: "added", 2: "deleted"})


def overlay_changes(layers: Mapping[str, str], wanted: Callable[[str], object]) -> dict[str, Change] | None:
    """Return the same from the directory in which the overlay2 driver keeps a container's own files.

    In the place of a directory that is gone stands what was in it.

    Args:
        layers: the driver's data of the container, as the engine's inspect call has it.
        wanted: which paths are.

    Returns:
        None where this process may not read that directory, or there is too much in it.
    """
    upper, lowers = layers.get("UpperDir"), layers.get("LowerDir", "").split(":")
    if not upper or not all(os.access(layer, os.R_OK | os.X_OK) for layer in (upper, *lowers)):
        return None
    try:
        return dict(_own_files(upper, Layers(lowers), wanted))
    except OSError:
        return None


def _own_files(upper: str, image: Layers, wanted: Callable[[str], object]) -> Iterator[tuple[str, Change]]:
    left, seen = [("", False)], 0
    while left:
        below, hidden = left.pop()
        directories = image.directories(below)
        try:
            entries = os.scandir(upper + below)
        except FileNotFoundError:  # removed meanwhile
            continue
        with entries:
            for entry in entries:
                path = f"{below}/{entry.name}"
                is_directory = entry.is_dir(follow_symlinks=False)
                hides_it = entry.name in directories and (not is_directory or hides(entry.path, path))
                for lost, lost_directory in image.below(path) if hides_it else ():
                    seen = _counted(seen)
                    # What is a directory here has its own entries; a link in there is another entry to come.
                    if not lost_directory and wanted(lost) and not (is_directory and os.path.lexists(upper + lost)):
                        yield lost, "deleted"
                if wanted(path) and (change := _change(entry, path, image, hidden)) is not None:
                    yield path, change
                if is_directory:
                    left.append((path, hidden or hides_it))
                seen = _counted(seen)


def _counted(seen: int) -> int:
    if seen >= _MOST_FILES:
        raise OSError(errno.EOVERFLOW, "more files than are looked at")
    return seen + 1


def _change(entry: os.DirEntry[str], path: str, image: Layers, hidden: bool) -> Change | None:
    """Return what became of a file; None for a directory that is gone, in whose place its content is told."""
    try:
        info = entry.stat(follow_symlinks=False)
        of_image = image.find(path)
        if is_whiteout(info):
            gone = of_image is not None and stat.S_ISDIR(Path(of_image).lstat().st_mode)
            return None if gone else "deleted"
        if of_image is None:
            return "added"
        if not hidden and has_no_content(entry.path, path):
            return "touched"
        return "touched" if _is_same(entry.path, info, of_image) else "modified"
    except FileNotFoundError:  # removed meanwhile
        return None


def _is_same(path: str, info: os.stat_result, of_image: str) -> bool:
    """Whether a file of the container is the image's in all but owner, mode and time."""
    before = Path(of_image).lstat()
    if stat.S_IFMT(before.st_mode) != stat.S_IFMT(info.st_mode):
        return False
    if stat.S_ISLNK(info.st_mode):
        return Path(path).readlink() == Path(of_image).readlink()
    return (
        stat.S_ISREG(info.st_mode) and before.st_size == info.st_size and filecmp.cmp(path, of_image, shallow=False)
    )


def read_changes(engine: Engine, container: str, wanted: Callable[[str], object]) -> dict[str, Change]:
    """Return those paths that differ from the container's image and are wanted.

    The list is read as it comes: an agent that makes millions of files costs time and no memory.
    """
    found: dict[str, Change] = {}
    with engine.request("changes", "GET", f"/containers/{container}/changes") as response:
        for entry in entries(_blocks(response)):
            path, kind = entry.get("Path"), _KINDS.get(entry.get("Kind"))
            if isinstance(path, str) and kind is not None and wanted(path):
                found[path] = kind
    return found


def _blocks(response: requests.Response) -> Iterator[bytes]:
    try:
        with engine_call("changes"):
            yield from response.iter_content(_BLOCK)
    except urllib3.exceptions.HTTPError as error:
        raise from_exception("changes", requests.ConnectionError(str(error))) from error


def entries(blocks: Iterable[bytes]) -> Iterator[dict[str, object]]:
    """Yield the objects of a JSON list of flat objects that comes in pieces.

    Raises:
        SandboxError: it is something else.
    """
    rest = b""
    for block in blocks:
        text = (rest + block).decode("latin-1")
        end = 0
        for match in _ENTRY.finditer(text):
            if text[end : match.start()].strip(" ,[\n"):
                raise SandboxError("changes", "the engine's list of changes cannot be read")
            end = match.end()
            try:
                yield json.loads(match[0].encode("latin-1"))
            except ValueError as error:
                raise SandboxError("changes", "the engine's list of changes cannot be read") from error
        rest = text[end:].encode("latin-1")
        if len(rest) > _LONGEST_ENTRY:
            raise SandboxError("changes", "the engine's list of changes cannot be read")
    if rest.strip() not in (b"]", b"[]", b"null"):
        raise SandboxError("changes", "the engine's list of changes breaks off")


def list_processes(engine: Engine, container: str, init: int) -> dict[str, str]:
    """Return what runs in a container beside our holder, by PID and start; command lines only.

    Args:
        engine: where the container is.
        container: its id.
        init: the PID of its first process, as the engine counts.
    """
    with engine_call("top"):
        answer = engine.client.top(container, ps_args="-eo pid,ppid,sess,lstart,args")
    rows = []
    for row in answer.get("Processes") or ():
        # The engine splits a line at the first blanks, however many columns there are.
        pid, parent, session, *when, command = (" ".join(row).split(None, 8) + [""] * 9)[:9]
        rows.append((pid, parent, session, " ".join(when), command.strip()))
    # A command line says what its process likes; a session is one that it was born in, and each command that the
    # engine starts in a container has its own.
    home = next((session for pid, _, session, _, _ in rows if pid == str(init)), None)
    holders = {
        pid for pid, _, session, _, command in rows if session == home and command.startswith(_HOLDERS_BEGINNING)
    }
    found = {}
    own = False
    for pid, parent, session, start, command in rows:
        if pid == str(init) or (pid in holders and parent not in holders):
            continue
        if not own and session == home and parent in holders and (command == HOLDERS_SLEEP or pid in holders):
            own = True  # it has one at a time
            continue
        if command and not command.endswith("<defunct>"):
            found[f"{pid}:{start}"] = command
    return found
