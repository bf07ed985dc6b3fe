"""What a Dockerfile needs that not every builder has, found by reading it: before a build fails half-way.

The classic builder ignores much of what it does not know (a platform variable is just empty), so its own errors
come late or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*")
# BuildKit takes a word of a RUN, COPY or ADD line that begins like this for a here-document.
_HEREDOC = re.compile(r"""(?:^|\s)\d*<<(-?)(["']?)([A-Za-z_][\w.-]*)\2(?=\s|$)""")
_QUOTED = re.compile(r"""(?<!<<)(?<!<<-)("(?:\\.|[^"\\])*"|'[^']*')""", re.DOTALL)
_FLAG = re.compile(r"--([a-z-]+)(?:=\S*)?(?:\s+|$)")
_OFFICIAL = re.compile(r"(?:docker\.io/)?docker/dockerfile(?::.*)?")
_PLATFORM_NAMES = frozenset(
    f"{side}{part}" for side in ("TARGET", "BUILD") for part in ("PLATFORM", "OS", "ARCH", "VARIANT")
)
_FLAGS = {
    "RUN": ("mount", "network", "security", "device"),
    "COPY": ("chmod", "link", "parents", "exclude"),
    "ADD": ("chmod", "link", "checksum", "keep-git-dir", "exclude", "unpack"),
}
# The first Engine whose own BuildKit knows it without a `# syntax=` line.
_SINCE = {"a here-document": (23, 0), "--link": (23, 0)}
_BUILDKIT = (20, 10)


class Instruction(NamedTuple):
    """One instruction: the line it begins on, its word in capitals, the rest in one line."""

    line: int
    word: str
    rest: str
    heredoc: bool


@dataclass(frozen=True, slots=True)
class Need:
    """Something that only BuildKit can do; ``since`` is the first Engine whose BuildKit does without help."""

    line: int
    what: str
    since: tuple[int, int] = _BUILDKIT


@dataclass(frozen=True, slots=True)
class Needs:
    """Everything of that kind in one Dockerfile, and the front end that it names itself (``# syntax=``)."""

    needs: tuple[Need, ...]
    syntax: str | None

    def beyond(self, engine: Sequence[int]) -> Need | None:
        """Return the first need that the BuildKit of an Engine of this version does not meet by itself."""
        if self.syntax is not None:
            return None
        return next((need for need in self.needs if tuple(engine) < need.since), None)


def read_needs(text: str) -> Needs:
    """Return what a Dockerfile needs of its builder; mistakes in it are the builder's to tell."""
    lines = text.splitlines()
    directives = dict(_directives(lines))
    syntax, place = directives.get("syntax", (None, 0))
    escape = directives.get("escape", ("\\", 0))[0]
    found = [Need(place, f"`# syntax={syntax}`")] if syntax and not _OFFICIAL.fullmatch(syntax) else []
    for instruction in instructions(lines, "`" if escape == "`" else "\\"):
        found += _needs_of(instruction)
    return Needs(tuple(sorted(found, key=lambda need: need.line)), syntax)


def _directives(lines: Sequence[str]) -> Iterator[tuple[str, tuple[str, int]]]:
    for number, line in enumerate(lines, start=1):
        match = _DIRECTIVE.fullmatch(line.strip().lstrip("\ufeff"))
        if match is None:
            return
        yield match[1].lower(), (match[2], number)


def instructions(lines: Sequence[str], escape: str = "\\") -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile, comments and the bodies of here-documents left out."""
    place = 0
    while place < len(lines):
        first = place
        parts: list[str] = []
        while place < len(lines):
            line = lines[place].strip()
            place += 1
            if line.startswith("#") or (not line and parts):
                continue
            parts.append(line.removesuffix(escape))
            if not line.endswith(escape):
                break
        if not parts:
            continue
        word, _, rest = " ".join(parts).strip().partition(" ")
        word = word.upper()
        after = _after_heredocs(lines, place, rest) if word in _FLAGS else None
        if word:
            yield Instruction(_first_line(lines, first), word, rest.strip(), after is not None)
        place = place if after is None else after


def _first_line(lines: Sequence[str], start: int) -> int:
    """Return the number of the first line from ``start`` on that says something."""
    for place in range(start, len(lines)):
        line = lines[place].strip()
        if line and not line.startswith("#"):
            return place + 1
    return start + 1


def _after_heredocs(lines: Sequence[str], place: int, rest: str) -> int | None:
    """Return the place after the here-documents that ``rest`` opens; None when there are none that end."""
    opened = _HEREDOC.findall(_QUOTED.sub('""', rest))
    for dash, _, name in opened:
        for number in range(place, len(lines)):
            if (lines[number].lstrip("\t") if dash else lines[number]) == name:
                place = number + 1
                break
        else:
            return None
    return place if opened else None


def _needs_of(instruction: Instruction) -> Iterator[Need]:
    line, word, rest, heredoc = instruction
    flags = rest
    while match := _FLAG.match(flags):
        if match[1] in _FLAGS.get(word, ()):
            yield Need(line, f"{word} --{match[1]}", _SINCE.get(f"--{match[1]}", _BUILDKIT))
        flags = flags[match.end() :]
    if heredoc:
        yield Need(line, f"a here-document in {word}", _SINCE["a here-document"])
    if word == "ARG":
        for name in rest.split():
            if name in _PLATFORM_NAMES:
                yield Need(line, f"ARG {name}, which only BuildKit fills in")
    if word == "FROM":
        for name in re.findall(r"\$\{?(\w+)", rest):
            if name in _PLATFORM_NAMES:
                yield Need(line, f"${name}, which only BuildKit fills in")
