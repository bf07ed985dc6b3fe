"""Several runs as one: shards of machines or jobs, and the same trials again on other days.

Nothing is dropped and nothing is counted twice: every planned trial of every part is planned in the merged run, and
what was planned in several parts are different samples of it, so those of later parts get numbers after the ones
that are there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_infranoise.agent_identity import agent_words
from pytest_infranoise.agent_identity import same_agent
from pytest_infranoise.config_identity import config_words
from pytest_infranoise.config_identity import same_config
from pytest_infranoise.journal import RUN_SCHEMA
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import Started
from pytest_infranoise.journal import file_name
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import write_journal
from pytest_infranoise.journal import write_meta
from pytest_infranoise.merged_meta import merged_meta
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.run_lock import is_running


class MergeError(Exception):
    """These runs cannot be one; the message is fit to show to a user."""


@dataclass(slots=True, eq=False)
class Slot:
    """Parts that have no trial in common: the shards of one day, as it were.

    ``samples`` and ``slots`` are how many numbers its parts take up.
    """

    keys: set[TrialKey] = field(default_factory=set)
    samples: int = 0
    slots: int = 0

    def takes(self, keys: set[TrialKey]) -> bool:
        """Whether a part with these trials fits in."""
        return self.keys.isdisjoint(keys)


@dataclass(frozen=True, slots=True)
class Part:
    """A run, and where its trials are in the merged one: from this sample and this slot on."""

    run: Run
    first_sample: int
    first_slot: int

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.run.meta.get("run", self.run.path.name))

    def key(self, key: TrialKey) -> TrialKey:
        """Return what one of its trials is called in the merged run."""
        return replace(key, sample=key.sample + self.first_sample)

    def record(self, record: Record) -> Record:
        """Return one of its records as the merged run has it: with its slot, and where it comes from."""
        details = {
            **record.details,
            "slot": self.first_slot + int(record.details.get("slot", 0)),
            "source": record.details.get("source", {"run": self.id, "sample": record.key.sample}),
        }
        return replace(record, key=self.key(record.key), details=details)

    def started(self, entry: Started) -> Started:
        """Return one of its attempts that never ended as the merged run has it."""
        return replace(entry, key=self.key(entry.key))


def read_parts(paths: Sequence[Path]) -> list[Run]:
    """Read runs that are to be merged, in the order in which they began.

    Raises:
        MergeError: one is at work, of another schema, or here twice.
        RunNotFound: one cannot be read.
    """
    runs = []
    for path in paths:
        if is_running(path):
            raise MergeError(f"{path}: a session is at work on it; wait for its end")
        run = read_run(path)
        if run.meta.get("schema") != RUN_SCHEMA:
            raise MergeError(f"{path}: its schema is {run.meta.get('schema')!r}, this version reads {RUN_SCHEMA}")
        runs.append(run)
    seen: dict[str, Path] = {}
    for run in runs:
        for source in sources(run):
            if source in seen:
                raise MergeError(f"run {source} is in both {seen[source]} and {run.path}: it would count twice")
            seen[source] = run.path
    if len(runs) < 2:
        raise MergeError("nothing to merge: give two runs or more")
    return sorted(runs, key=lambda run: (str(run.meta.get("created", "")), str(run.meta.get("run", ""))))


def sources(run: Run) -> list[str]:
    """Return the ids of the runs whose trials are in a run: its own, or those that it was merged from."""
    return [part["run"] for part in run.meta.get("parts", ())] or [str(run.meta.get("run", run.path.name))]


def conflicts(runs: Sequence[Run]) -> Iterator[str]:
    """Yield why runs cannot be one, a line each: something has one name and is not one thing."""
    first: dict[tuple[str, str], tuple[Run, Any]] = {}
    for run in runs:
        for kind, name, value in _named(run.meta):
            other, before = first.setdefault((kind, name), (run, value))
            if not _same(kind, before, value):
                what = f"{kind} {name!r}" if name else kind
                yield f"{what} is {_words(kind, before)} in {other.path} and {_words(kind, value)} in {run.path}"


def _named(meta: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for entry in meta.get("configs", ()):
        yield "resource config", entry["name"], entry
    for entry in meta.get("agents", ()):
        yield "agent", entry["name"], entry
    yield "the pass threshold", "", meta.get("pass_threshold", 1.0)
    policy = {"oom_child": "infra", "oom_mode": "single", **(meta.get("policy") or {})}
    yield "the policy on kills of child processes", "", policy["oom_child"]
    yield "the policy on what a kill ends", "", policy["oom_mode"]
    for name, value in (meta.get("design") or {}).items():
        yield "the design's", name, value
    for name, value in (meta.get("defaults") or {}).items():
        if value is not None:
            yield "the default of", name, value


def _same(kind: str, one: Any, other: Any) -> bool:
    if kind == "resource config":
        return same_config(one, other)
    return same_agent(one, other) if kind == "agent" else bool(one == other)


def _words(kind: str, value: Any) -> str:
    if kind == "resource config":
        return config_words(value)
    return agent_words(value) if kind == "agent" else f"{value}"


def arrange(runs: Sequence[Run]) -> list[Part]:
    """Return where the trials of each run are in the merged one.

    A run goes into the first slot in which none of its trials is yet, so that shards of one day stay rounds of one
    slot, and the same trials of another day become samples after those.
    """
    slots: list[Slot] = []
    places = []
    for run in runs:
        keys = {*run.planned, *(record.key for record in _records(run)), *(entry.key for entry in run.unfinished)}
        slot = next((slot for slot in slots if slot.takes(keys)), None)
        if slot is None:
            slot = Slot()
            slots.append(slot)
        slot.keys |= keys
        slot.samples = max(slot.samples, max((key.sample + 1 for key in keys), default=0))
        slot.slots = max(slot.slots, 1 + max((int(one.details.get("slot", 0)) for one in _records(run)), default=0))
        places.append((run, slots.index(slot)))
    return [
        Part(
            run,
            first_sample=sum(slot.samples for slot in slots[:place]),
            first_slot=sum(slot.slots for slot in slots[:place]),
        )
        for run, place in places
    ]


def _records(run: Run) -> Iterator[Record]:
    yield from run.records
    yield from run.retries
    yield from run.set_aside


def merge(paths: Sequence[Path], target: Path, run_id: str, now: str) -> dict[str, Any]:
    """Make one run of several in the directory ``target``, all at once, and return its ``run.json``.

    Logs stay where they are.

    Raises:
        MergeError: they cannot be one, or ``target`` is in use.
        RunNotFound: one cannot be read.
    """
    runs = read_parts(paths)
    found = list(conflicts(runs))
    if found:
        raise MergeError("\n".join(found))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise MergeError(f"{target} is in use; give a directory that does not exist")
    parts = arrange(runs)
    meta = merged_meta(parts, run_id, now)
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.mkdir(parents=True)
        for part in parts:
            write_journal(
                partial / f"trials-{file_name(part.id)}.jsonl",
                (part.started(entry) for entry in part.run.unfinished),
                (part.record(record) for record in _records(part.run)),
            )
        write_meta(partial, meta)
        if target.exists():
            target.rmdir()
        partial.rename(target)
    except FileExistsError:
        raise MergeError(f"{partial} is in the way, perhaps of a merge that was killed; remove it") from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return meta
