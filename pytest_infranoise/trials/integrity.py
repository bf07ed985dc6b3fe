"""Looks from outside, between setup and verdict, for a trial that decides its own verdict.

An agent is root in the container that its verifier runs in, so nothing in there can be asked: whatever is said
here is said by the engine and the kernel. What cannot be seen is written down as that, and decides nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeVar

from pytest_infranoise.model import Task
from pytest_infranoise.sandboxes.protocol import DISGUISED
from pytest_infranoise.sandboxes.protocol import Change
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import FileStat
from pytest_infranoise.sandboxes.protocol import Inspectable
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import Integrity
from pytest_infranoise.trials.sent import File
from pytest_infranoise.trials.tools import is_of_interest
from pytest_infranoise.trials.tools import judge_tools
from pytest_infranoise.trials.tools import search_path
from pytest_infranoise.trials.tools import to_remember

_MOST = 20  # phrases of a kind that are kept
_LONGEST = 300  # characters of one
_ROOM = 1024**2  # bytes by which a changed file that is looked into may have grown
_MOST_STATS = 300  # files that are remembered
_MOST_DIGESTED = 512 * 1024**2  # bytes of theirs that are read

_IN_NAMES = r"\w.~+@%-"
_ROUNDABOUT = re.compile(r"/(?:\./|/)+")
_BY_PROCESS = re.compile(r"/proc/\w+/(?:task/\w+/)?(?:root|cwd)/")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was there when setup was over: changed files of interest as they were then, and what ran."""

    changes: Mapping[str, Change] | None = None
    stats: Mapping[str, FileStat | None] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    processes: frozenset[str] | None = None
    directories: tuple[str, ...] = ()  # where programs are looked for


class Witness:
    """Watches one container from the end of its setup on; ``found`` is what it has seen.

    Args:
        sandbox: the container.
        mask: takes secrets out of a text, which has to be done before anything is cut off it.
    """

    def __init__(self, sandbox: Sandbox, mask: Callable[[str], str] = str) -> None:
        self.found = Integrity()
        self._mask = mask
        self._box = sandbox
        self._sandbox = sandbox if isinstance(sandbox, Inspectable) else None
        self._baseline = Baseline()
        self._left: Mapping[str, str] = {}  # what the agent left running, by a name that no later process has
        self._places: tuple[str, ...] = ()

    def setup_is_over(self, task: Task) -> None:
        """Remember what the agent begins with."""
        sandbox = self._sandbox
        if sandbox is None:
            return
        directories = _search_path(sandbox, task)
        changes = self._ask("files changed by setup", lambda: _changes(sandbox, directories))
        # Only what setup itself changed needs more than a look at whether it was changed.
        ranked = sorted(rank for path in changes or () if (rank := to_remember(path, directories)) is not None)
        paths = [path for *_, path in ranked[:_MOST_STATS]]
        if len(ranked) > len(paths):
            self._not_seen("files changed by setup", f"only {len(paths)} of {len(ranked)} are remembered")
        stats = self._ask("files changed by setup", lambda: {path: sandbox.stat(path) for path in paths})
        processes = self._ask("processes after setup", lambda: frozenset(sandbox.processes()))
        self._baseline = Baseline(changes, stats or {}, _digests(sandbox, stats or {}), processes, directories)

    def verifier_comes(self, task: Task, places: Iterable[str]) -> None:
        """Look at what the agent leaves to the verifier.

        Args:
            task: the task that is verified.
            places: directories in which only the verifier has business.
        """
        sandbox = self._sandbox
        if sandbox is None:
            return
        self._places = tuple(places)
        running = self._ask("processes of the agent", sandbox.processes)
        if running is not None and self._baseline.processes is not None:
            self._left = {name: text for name, text in running.items() if name not in self._baseline.processes}
            self._take_others(self._left.values())
        directories = self._baseline.directories
        changes = self._ask("files changed by the agent", lambda: _changes(sandbox, directories))
        if changes is not None and self._baseline.changes is not None:
            self._look_at_tools(sandbox, task, changes)

    def _take_others(self, texts: Iterable[str]) -> None:
        """Take in what runs beside the verifier and is the agent's."""
        texts = list(texts)
        self.found = replace(self.found, others=self._cut([*(self.found.others or ()), *texts]))
        for text in texts:
            place = next((place for place in self._places if names(text, place)), None)
            if DISGUISED in text:
                self._add(doubts=[f"a process that the agent left running passes itself off as ours: {text}"])
            if place is not None:
                self._add(doubts=[f"a process that the agent left running knows {place}: {text}"])

    def _look_before_the_start(self) -> None:
        """Take in what has begun, or become another, since the first look: nothing of the verifier runs yet."""
        sandbox, known = self._sandbox, self._baseline.processes
        running = None if sandbox is None else self._ask("processes before the verifier", sandbox.processes)
        if running is None or known is None:
            return
        new = {name: text for name, text in running.items() if name not in known and text != self._left.get(name)}
        self._left = {**self._left, **new}
        self._take_others(new.values())

    def _look_again(self) -> None:
        """Look at what the agent left running once more: a process may have become another."""
        sandbox = self._sandbox
        running = None if sandbox is None else self._ask("processes beside the verifier", sandbox.processes)
        for name, text in (running or {}).items():
            # What else is new may be the verifier's own.
            if text != self._left.get(name, text) or (name not in self._left and DISGUISED in text):
                self._take_others([text])

    def _look_at_tools(self, sandbox: Inspectable, task: Task, changes: Mapping[str, Change]) -> None:
        before = self._baseline.changes or {}

        def stat(path: str) -> FileStat | None:
            try:
                return sandbox.stat(path)
            except SandboxError as error:
                if error.status is None:
                    raise
                # A file where a directory was, or a loop of links: one path must not hide all others.
                self._not_seen(path, str(error))
                return None

        def kind(path: str) -> Change | None:
            if path not in before:
                return changes[path]
            # What setup had added is no change any more when it is gone.
            if changes.get(path, "deleted") == "deleted":
                was = self._baseline.stats.get(path)
                # Of a directory that is gone and not named, what was in it is.
                known = path not in changes and was is not None and was.kind == "directory"
                return None if before[path] == "deleted" or known else "deleted"
            return "added" if before[path] == "deleted" else self._since_setup(sandbox, path, stat)

        def look() -> None:
            new = {path: change for path in {**before, **changes} if (change := kind(path)) is not None}
            tools = judge_tools(
                new,
                target=task.verifier.target,
                workdir=task.workdir or sandbox.workdir,
                stat=stat,
                directories=self._baseline.directories,
            )
            self._add(doubts=tools.doubts, notes=tools.notes)

        self._ask("files changed by the agent", look)

    def _since_setup(
        self, sandbox: Inspectable, path: str, stat: Callable[[str], FileStat | None]
    ) -> Change | None:
        """Return what became of a file that setup had changed and that is still there."""
        if path not in self._baseline.stats:
            return None
        before, now = self._baseline.stats[path], stat(path)
        known = self._baseline.digests.get(path)
        found = None if known is None or before is None else sandbox.digest_at_hand(path, before.size)
        if now == before and found in (None, known):
            return None
        if found is None:
            same = before is not None and now is not None and replace(now, mode=before.mode) == before
        else:
            same = found == known
        return "touched" if same else "modified"

    def verifier_starts(self, removed: Iterable[str]) -> bool:
        """Return whether nothing is where the verdict will be, right before the verifier starts.

        Args:
            removed: paths that were removed, or made where nothing was, a moment ago.
        """
        for path in removed:
            if self._stat(path) is not None:
                self._add(forged=[f"{path} was there again after its removal, before the verifier started"])
        self._look_before_the_start()
        return not self.found.forged

    def not_as_sent(self, files: Iterable[File], name: Callable[[File], str]) -> None:
        """Take in files that are not what was sent to their places a moment ago.

        A full disk cuts files off. Other content, with somebody there who can write it, is a forgery.
        """
        self._look_before_the_start()
        for file in files if self.found.others else ():
            content = self._ask(file.path, lambda file=file: self._content(file))  # type: ignore[misc]
            if content is not None and not file.begins_with(content):
                self._add(forged=[f"{name(file)} was changed between its upload and the verifier's start"])

    def verdict_is_read(self, artefact: Artefact) -> None:
        """Compare the verdict with what the test tool says; a verifier that was alone is taken at its word."""
        if artefact.failed and artefact.reward is not None and artefact.reward >= 1 and self.found.others:
            text = f"reward {artefact.reward:g}, but {artefact.failed} tests failed by the test tool's report"
            self._add(doubts=[f"{text}, and the verifier was not alone"])

    def _content(self, file: File) -> bytes | None:
        try:
            return self._box.read(file.path, 2 * file.size + _ROOM)
        except FileMissing:
            return None

    def verifier_is_stopped(self) -> None:
        """Look at what runs beside a verifier whose time is over, before all of it is killed."""
        if self._left:
            self._look_again()

    def verifier_is_over(self, changed: Callable[[], Iterable[str]], verdicts: Iterable[str], end: str) -> None:
        """Look at what became of tests and verdict while the verifier ran.

        Args:
            changed: returns the files that were as they had been sent before, and are not any more.
            verdicts: paths where a verdict may be.
            end: a file that was written when the verifier's command had ended, if it was not alone. It is missing
                where the command was stopped, and then nothing was left that could have written anything later.
        """
        if self._left:
            self._look_again()
        # A verifier may change its own files; where it was alone, nobody else did.
        for path in (self._ask("the verifier's files", changed) or ()) if self.found.others else ():
            self._add(doubts=[f"{path} was changed while the verifier ran, and it was not alone"])
        ended = self._stat(end)
        for path in verdicts:
            stat = self._stat(path)
            # A file system that knows only whole seconds says nothing here.
            if stat is None or ended is None or ended.kind != "file" or not ended.modified % 10**9:
                continue
            if stat.modified <= ended.modified:
                continue
            self._add(forged=[f"{PurePosixPath(path).name} was written after the verifier had ended"])

    def _stat(self, path: str) -> FileStat | None:
        sandbox = self._sandbox
        return None if sandbox is None else self._ask(path, lambda: sandbox.stat(path))

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        """Return an answer, None when there is none: then the next call that matters will find out why."""
        try:
            return question()
        except SandboxError as error:
            self._not_seen(what, str(error))
            return None

    def _not_seen(self, what: str, why: str) -> None:
        self.found = replace(self.found, unseen=self._cut([*self.found.unseen, f"{what}: {why}"]))

    def _add(self, *, forged: Iterable[str] = (), doubts: Iterable[str] = (), notes: Iterable[str] = ()) -> None:
        self.found = replace(
            self.found,
            forged=self._cut([*self.found.forged, *forged]),
            doubts=self._cut([*self.found.doubts, *doubts]),
            notes=self._cut([*self.found.notes, *notes]),
        )

    def _cut(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._mask(text)[:_LONGEST] for text in list(dict.fromkeys(texts))[:_MOST])


def _search_path(sandbox: Inspectable, task: Task) -> tuple[str, ...]:
    """Return where the verifier finds its programs: by the names of the directories, and where their links lead."""
    own = task.verifier.environment.get("PATH")
    places = (own if isinstance(own, str) else sandbox.search_path).split(":")
    real = [name for place in places for name in (place, _real(sandbox, place))]
    return search_path(":".join(real), task.workdir or sandbox.workdir)


def _real(sandbox: Inspectable, place: str) -> str:
    here = "/" if place.startswith("/") else ""
    for part in PurePosixPath(place).parts[1:] if here else ():
        here = posixpath.normpath(posixpath.join(here, part))
        try:
            stat = sandbox.stat(here)
        except SandboxError:
            return place
        if stat is not None and stat.kind == "link":
            here = posixpath.normpath(posixpath.join(posixpath.dirname(here), stat.link))
    return here


def _changes(sandbox: Inspectable, directories: tuple[str, ...]) -> Mapping[str, Change]:
    return sandbox.changes(lambda path: is_of_interest(path, directories))


def _digests(sandbox: Inspectable, stats: Mapping[str, FileStat | None]) -> dict[str, str]:
    """Return the digests of files, where they cost little."""
    found: dict[str, str] = {}
    room = _MOST_DIGESTED
    for path, stat in stats.items():
        if stat is None or stat.kind != "file" or stat.size > room:
            continue
        if (digest := sandbox.digest_at_hand(path, stat.size)) is not None:
            found[path] = digest
            room -= stat.size
    return found


def names(text: str, place: str) -> bool:
    """Whether a place is in a text as a path or the beginning of one: not as part of another path or name.

    A place that ends in a dash or the like is the beginning of a name.
    """
    plain = _ROUNDABOUT.sub("/", _BY_PROCESS.sub("/", text))
    end = rf"(?![{_IN_NAMES}])" if place[-1:].isalnum() else ""
    return re.search(rf"(?<![{_IN_NAMES}]){re.escape(place)}{end}", plain) is not None
