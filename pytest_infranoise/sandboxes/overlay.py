"""The directories in which the overlay2 driver keeps files: a container's own, and the layers of its image."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterable
from collections.abc import Iterator

_MOST_LINKS = 8  # that lead to one another
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_REDIRECT = ("trusted.overlay.redirect", "user.overlay.redirect")
# Not the one of the user's namespace: where the kernel does not take it for its own, a container can set it.
_METACOPY = "trusted.overlay.metacopy"


class Layers:
    """What the layers of an image have at a path: what its containers see there before they change anything.

    Args:
        directories: where the layers are, the uppermost first.
    """

    def __init__(self, directories: Iterable[str]) -> None:
        self._known: dict[str, tuple[str, ...]] = {"": tuple(directories)}

    def find(self, path: str) -> str | None:
        """Return where the image has what it has at a path, None when it has nothing."""
        parent, _, name = path.rpartition("/")
        for place in self._places(parent):
            info = _look(f"{place}/{name}")
            if info is not None:
                return None if is_whiteout(info) else f"{place}/{name}"
        return None

    def directories(self, directory: str) -> frozenset[str]:
        """Return the names of the directories in a directory."""
        return frozenset(entry.name for entry in self._entries(directory) if entry.is_dir(follow_symlinks=False))

    def below(self, directory: str) -> Iterator[tuple[str, bool]]:
        """Yield everything below a directory, and whether it is a directory itself."""
        left = [directory]
        while left:
            here = left.pop()
            for entry in self._entries(here):
                is_directory = entry.is_dir(follow_symlinks=False)
                yield f"{here}/{entry.name}", is_directory
                if is_directory:
                    left.append(f"{here}/{entry.name}")

    def _entries(self, directory: str) -> Iterator[os.DirEntry[str]]:
        seen = set[str]()
        for place in self._places(directory):
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name not in seen:
                        seen.add(entry.name)
                        if not _is_whiteout_entry(entry):
                            yield entry

    def _places(self, directory: str, links: int = 0) -> tuple[str, ...]:
        """Return the directories of which one consists: a link on the way never leads out of the layers."""
        if directory not in self._known:
            self._known[directory] = self._find_places(directory, links)
        return self._known[directory]

    def _find_places(self, directory: str, links: int) -> tuple[str, ...]:
        parent, _, name = directory.rpartition("/")
        found: list[str] = []
        for place in self._places(parent, links):
            here = f"{place}/{name}"
            info = _look(here)
            if info is None:
                continue
            if stat.S_ISLNK(info.st_mode) and not found and links < _MOST_LINKS:
                target = posixpath.normpath(posixpath.join(parent or "/", os.readlink(here)))  # noqa: PTH115
                return self._places("" if target == "/" else target, links + 1)
            if not stat.S_ISDIR(info.st_mode):
                break
            found.append(here)
            if hides(here, directory):
                break
        return tuple(found)


def is_whiteout(info: os.stat_result) -> bool:
    """Whether this stands for a file that the layers below have, and the container has not."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def hides(place: str, path: str) -> bool:
    """Whether a directory is not put together with those of the layers below that have the same path.

    Args:
        place: where it is kept.
        path: what it is in the container.
    """
    return any(_mark(place, name) == b"y" for name in _OPAQUE) or _is_moved(place, path)


def has_no_content(place: str, path: str) -> bool:
    """Whether a file has only an owner, mode and time of its own, and the content of the file below."""
    return _mark(place, _METACOPY) is not None and not _is_moved(place, path)


def digest(upper: str, path: str, limit: int) -> str | None:
    """Return the SHA-256 of a regular file among a container's own.

    Nothing in there is trusted: no link is followed, and no device opened.

    Args:
        upper: where the container's own files are.
        path: the file in the container.
        limit: the most bytes that are read.

    Returns:
        None where there is no such file, or a larger one, or its content is elsewhere.
    """
    parent, _, name = path.rpartition("/")
    directory = os.path.realpath(upper) + parent
    if os.path.realpath(directory) != directory:
        return None
    try:
        seen = os.open(f"{directory}/{name}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            info = os.fstat(seen)
            place = f"/proc/self/fd/{seen}"
            if not stat.S_ISREG(info.st_mode) or info.st_size > limit or _mark(place, _METACOPY, True) is not None:
                return None
            with open(place, "rb") as content:  # noqa: PTH123
                return hashlib.file_digest(content, "sha256").hexdigest()
        finally:
            os.close(seen)
    except OSError:
        return None


def _is_moved(place: str, path: str) -> bool:
    # Relative to its directory, or from the root.
    own = (path.encode(errors="surrogateescape"), path.rpartition("/")[2].encode(errors="surrogateescape"))
    return any((mark := _mark(place, name)) is not None and mark not in own for name in _REDIRECT)


def _mark(place: str, name: str, follow: bool = False) -> bytes | None:
    try:
        return os.getxattr(place, name, follow_symlinks=follow)
    except OSError:
        return None


def _look(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_whiteout_entry(entry: os.DirEntry[str]) -> bool:
    plain = entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink()
    return not plain and is_whiteout(entry.stat(follow_symlinks=False))
