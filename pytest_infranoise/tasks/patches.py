"""Unified diffs, as far as it must be known which files one touches and whether it is complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import show

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_WHOLE = ("new file mode", "deleted file mode", "old mode", "GIT binary patch", "Binary files ")
_NOWHERE = "/dev/null"
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "a": b"\a", "b": b"\b", "f": b"\f", "v": b"\v"}
_ESCAPE = re.compile(r"\\([0-7]{3}|.)|([^\\]+)")


@dataclass(frozen=True, slots=True)
class Touched:
    """Paths in a repository that a patch changes or removes, and those that it makes."""

    changed: tuple[str, ...]
    made: tuple[str, ...]


def touched(patch: str) -> Touched:
    """Return the files that a patch touches.

    Raises:
        Problem: it is no patch, ends in the middle, or leads out of the repository.
    """
    changed: dict[str, None] = {}
    made: dict[str, None] = {}
    for old, new in _files(patch):
        for path in (old, new):
            if path is not None and (path.startswith("/") or ".." in PurePosixPath(path).parts):
                raise Problem(f"the path {show(path)} leads out of the repository", "correct it")
        if old is not None:
            changed[old] = None
        if new is not None and new != old:
            made[new] = None
    if not changed and not made:
        raise Problem("is no patch: it names no file", "write what `git diff` prints")
    return Touched(tuple(changed), tuple(path for path in made if path not in changed))


def _files(patch: str) -> Iterator[tuple[str | None, str | None]]:
    """Yield the path before and after, None where there is none, of each file; some are yielded twice."""
    before: str | None = None
    whole: str | None = None  # the path in a header of git's, until it is known what becomes of it
    left = [0, 0]  # lines of the hunk that are still to come, of the old and the new file
    for line in patch.split("\n"):
        if left != [0, 0]:
            _count(line, left)
            continue
        hunk = _HUNK.match(line)
        if hunk is not None:
            left = [int(number) if number is not None else 1 for number in hunk.groups()]
        elif line.startswith("diff --git "):
            before, whole = None, _same_path(line.removeprefix("diff --git ").rstrip("\r"))
        elif line.startswith(_WHOLE) and whole is not None:
            # An empty or binary file has no lines with its names.
            yield _whole(line, whole)
            whole = None
        elif line.startswith(("--- ", "rename from ", "copy from ")):
            before = line if line.startswith("--- ") else f"--- a/{line.partition(' from ')[2]}"
        elif line.startswith(("+++ ", "rename to ", "copy to ")) and before is not None:
            after = line[4:] if line.startswith("+++ ") else f"b/{line.partition(' to ')[2]}"
            yield _path(before[4:]), _path(after)
            before = None
    if left != [0, 0]:
        raise Problem("the patch ends within a hunk", "give the whole patch")


def _same_path(header: str) -> str | None:
    """Return the path in ``a/path b/path``; None when they differ, as then other lines name them."""
    middle = len(header) // 2
    old, new = _path(header[:middle]), _path(header[middle + 1 :])
    return new if header[middle : middle + 1] == " " and old == new else None


def _whole(line: str, path: str) -> tuple[str | None, str | None]:
    if line.startswith("new"):
        return None, path
    return path, None if line.startswith("deleted") else path


def _count(line: str, left: list[int]) -> None:
    kind = line[:1]
    if kind == "\\":
        return
    if kind not in ("", " ", "\t", "+", "-"):
        raise Problem(f"the patch has the line {show(line)} in a hunk that is not complete", "give the whole patch")
    left[0] -= kind != "+"
    left[1] -= kind != "-"
    if min(left) < 0:
        raise Problem("the patch has a hunk with more lines than its header says", "give what `git diff` prints")


def _path(text: str) -> str | None:
    text = text.rstrip("\r")
    if text.startswith('"') and text.count('"') > 1:
        path = _unquoted(text[1 : text.rindex('"')])
    else:
        path = text.partition("\t")[0]
    return None if path == _NOWHERE else path.partition("/")[2] or path


def _unquoted(text: str) -> str:
    """Return a path that git has quoted as in C."""
    parts = []
    for match in _ESCAPE.finditer(text):
        escape, plain = match.groups()
        if plain is not None:
            parts.append(plain.encode())
        elif escape.isdecimal():
            parts.append(bytes([int(escape, 8) & 0xFF]))
        else:
            parts.append(_ESCAPES.get(escape, escape.encode()))
    return b"".join(parts).decode("utf-8", "replace")
