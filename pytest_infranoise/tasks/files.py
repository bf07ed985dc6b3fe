"""What task loaders need to know of files: paths that stay inside the task, readable text, a content hash."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from pathlib import PurePosixPath

from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show

MAX_TEXT = 1024**2  # bytes

# What tools leave behind; it is no part of a task, and differs from machine to machine.
IGNORED = frozenset({"__pycache__", ".git", ".pytest_cache", ".infranoise"})


def file_inside(root: Path, name: str) -> Path:
    """Return the real path of a regular, non-empty file that a task names.

    Raises:
        Problem: there is none, or it is not inside ``root``.
    """
    path = _inside(root, name)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Problem(f"{show(name)} is not a regular file but {_kind(status.st_mode)}", "name a file")
    if status.st_size == 0:
        raise Problem(f"{show(name)} is an empty file", "write what belongs in it")
    if not os.access(path, os.R_OK):
        raise Problem(f"{show(name)} cannot be read", "change its permissions")
    return path


def directory_inside(root: Path, name: str) -> Path:
    """Return the real path of a directory that a task names, after a look at everything in it.

    Raises:
        Problem: there is none, it is not inside ``root``, or what it holds cannot be uploaded faithfully:
            a link that leads out of it or nowhere, something that is no file, link or directory.
    """
    path = _inside(root, name)
    if not path.is_dir():
        raise Problem(f"{show(name)} is not a directory", "name a directory")
    try:
        for entry in _walk(path):
            _check_entry(path, entry)
    except OSError as error:
        raise Problem(f"{show(name)} cannot be read: {error}", "change the permissions") from error
    return path


def read_text(path: Path) -> str:
    """Return the text of a file of at most 1 MiB.

    Raises:
        Problem: it is no such text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise Problem(f"{show(path.name)} cannot be read: {error.strerror}", "change its permissions") from error
    except UnicodeDecodeError as error:
        raise Problem(f"{show(path.name)} is not UTF-8 text", "save it as UTF-8") from error
    if len(content) > MAX_TEXT:
        raise Problem(f"{show(path.name)} is larger than 1 MiB", "shorten it")
    return text


def content_hash(root: Path) -> str:
    """Return the SHA-256 of everything in a task's directory, as hex digits; equal on every machine.

    Paths, contents, link targets and whether a file is executable count; times, owners, other permissions and
    what tools leave behind (``IGNORED``) do not, nor do empty directories, which git would not keep.

    Raises:
        TaskError: something in it cannot be read, or is no file, link or directory.
    """
    digest = hashlib.sha256()
    try:
        names = sorted(os.fsencode(path.relative_to(root).as_posix()) for path in _walk(root, IGNORED))
        for name in names:
            for part in (name, *_fingerprint(root / os.fsdecode(name))):
                digest.update(len(part).to_bytes(8, "big") + part)
    except Problem as error:
        raise TaskError(root, "", error.problem, error.remedy) from error
    except OSError as error:
        raise TaskError(root, "", f"cannot be read: {error}", "change the permissions") from error
    return digest.hexdigest()


def _fingerprint(path: Path) -> tuple[bytes, bytes]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return b"link", os.fsencode(path.readlink())
    if not stat.S_ISREG(mode):
        raise Problem(f"{show(path.name)} is {_kind(mode)}", "remove it")
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").digest()
    return (b"executable" if mode & stat.S_IXUSR else b"file"), content


def _inside(root: Path, name: str) -> Path:
    remedy = "write a path relative to the task's directory, e.g. solution.sh"
    if not name.strip() or not name.isprintable():
        raise Problem(f"{show(name)} is not a path", remedy)
    if name.startswith("/"):
        raise Problem(f"{show(name)} is an absolute path", remedy)
    if ".." in PurePosixPath(name).parts:
        raise Problem(f"{show(name)} leads out of the task's directory with '..'", remedy)
    try:
        path = (root / name).resolve(strict=True)
    except FileNotFoundError as error:
        raise Problem(f"{show(name)} does not exist", "make it, or correct the path") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        raise Problem(f"{show(name)} cannot be reached", "correct the path") from error
    if not path.is_relative_to(root.resolve()):
        raise Problem(f"{show(name)} is a link that leads out of the task's directory", "copy the file there")
    return path


def _check_entry(top: Path, path: Path) -> None:
    name = show(f"{top.name}/{path.relative_to(top).as_posix()}")
    mode = path.lstat().st_mode
    if not stat.S_ISLNK(mode):
        if not stat.S_ISREG(mode):
            raise Problem(f"{name} is {_kind(mode)}", "remove it; files, links and directories can be uploaded")
        if not os.access(path, os.R_OK):
            raise Problem(f"{name} cannot be read", "change its permissions")
        return
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise Problem(f"{name} is a link that leads nowhere", "remove it or put its target there") from error
    if not target.is_relative_to(top):
        raise Problem(f"{name} is a link that leads out of {show(top.name)}", "copy its target there")


def _walk(top: Path, ignored: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield everything below ``top`` but directories; links are yielded, not followed."""
    waiting = [top]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name in ignored:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    yield Path(entry.path)


def _kind(mode: int) -> str:
    names = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return names.get(stat.S_IFMT(mode), "something else")
