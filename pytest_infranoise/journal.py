"""The run directory: what runs trials writes it, what reports reads it, and nothing else passes between them.

A run directory holds ``run.json`` (what a reader needs to judge the numbers), one ``trials-PROCESS.jsonl`` for
each process that ran trials, and ``artifacts/``. A journal is append-only: a ``started`` line before an attempt,
a ``finished`` line with its record after it, each flushed to disk before the process goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey

RUN_SCHEMA = 1


class RunNotFound(Exception):
    """No such run; the message is fit to show to a user."""


def new_run_id(now: datetime) -> str:
    """Return a run id that sorts by start time and is unique, e.g. ``20260131-235959-1f9a3c``."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt that began."""

    key: TrialKey
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read back from its directory.

    ``records`` has the first attempt of every trial that has a record, in no particular order; ``retries`` the
    later ones. ``unfinished`` are attempts that began and have no record. ``damaged`` counts journal lines that
    could not be read (a line cut by a SIGKILL, or a record of an unknown schema). ``set_aside`` are records of
    tasks as they were before they were changed: another task's, as far as any rate is concerned.
    """

    path: Path
    meta: Mapping[str, Any]
    planned: tuple[TrialKey, ...]
    records: tuple[Record, ...]
    retries: tuple[Record, ...]
    unfinished: tuple[Started, ...]
    damaged: int
    set_aside: tuple[Record, ...] = ()

    @property
    def missing(self) -> tuple[TrialKey, ...]:
        """The planned trials without a record."""
        recorded = {record.key for record in self.records}
        return tuple(key for key in self.planned if key not in recorded)


class Journal:
    """One process's append-only part of a run's records."""

    def __init__(self, run_dir: Path, process: str) -> None:
        self.path = run_dir / f"trials-{process}.jsonl"
        self.process = process

    def started(self, key: TrialKey, attempt: int) -> None:
        """Write down that an attempt begins."""
        entry = {"attempt": attempt, "worker": self.process, "pid": os.getpid(), "time": time.time()}
        self._append({"event": "started", **key.to_json(), **entry})

    def finished(self, record: Record) -> None:
        """Write down how an attempt ended."""
        self._append({"event": "finished", **record.to_json()})

    def intended(self, key: TrialKey, attempt: int, intent: Mapping[str, Any]) -> None:
        """Write down what is about to be done to an attempt's container, beside the journal.

        Nothing is counted by it: it tells whoever finds a container gone that it was this process.
        """
        line = json.dumps({**key.to_json(), "attempt": attempt, **intent}) + "\n"
        with self.path.with_name(f"intents-{self.process}.jsonl").open("a", encoding="ascii") as file:
            file.write(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line) + "\n"
        # One write of a whole line under O_APPEND: a kill leaves at most one cut line, at the end.
        with self.path.open("a", encoding="ascii") as file:
            if file.tell() and not _ends_with_newline(self.path):
                data = "\n" + data
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def write_journal(path: Path, began: Iterable[Started], records: Iterable[Record]) -> None:
    """Write a whole journal at once, of attempts that never ended and of those that have a record."""
    with path.open("x", encoding="ascii") as file:
        for entry in began:
            line = {"event": "started", **entry.key.to_json(), "attempt": entry.attempt, "worker": entry.worker}
            file.write(json.dumps(line) + "\n")
        for record in records:
            file.write(json.dumps({"event": "finished", **record.to_json()}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def write_meta(run_dir: Path, meta: Mapping[str, Any]) -> None:
    """Write ``run.json`` so that a reader sees the old or the new one, never half of it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    partial = run_dir / "run.json.partial"
    with partial.open("w", encoding="ascii") as file:
        json.dump({"schema": RUN_SCHEMA, **meta}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(run_dir / "run.json")


def artifacts_dir(run_dir: Path, key: TrialKey, attempt: int) -> Path:
    """Return (and make) the directory for the logs of one attempt, no other trial's whatever the names are."""
    agent = "-".join(file_name(part) for part in (key.agent, key.model) if part)
    name = f"{agent}-{file_name(key.config)}-{key.sample}-{attempt}"
    if key.model or any(file_name(part) != part for part in (key.agent, key.task, key.config)):
        # Another key may read the same as this one.
        name += f"-{hashlib.sha256(json.dumps(key.to_json()).encode()).hexdigest()[:8]}"
    path = run_dir / "artifacts" / file_name(key.task) / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def stop_file(run_dir: Path) -> Path:
    """Return the file that says why no further trial may start; it is there only when that is so."""
    return run_dir / "stopped"


def ending_file(run_dir: Path) -> Path:
    """Return the file that a session's controller leaves when nothing is to start any more; it says why.

    Unlike with ``stop_file``, it was the user or pytest that ended the session, and nothing is wrong with the run.
    """
    return run_dir / "ending"


def shown(path: Path) -> Path:
    """Return a path as the user would type it: relative to the working directory where it is below that."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def file_name(text: str) -> str:
    """Return a name for a file that is safe whatever ``text`` is, and equal to it where that is safe already."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in text).lstrip(".") or "_"


def read_run(run_dir: Path) -> Run:
    """Read a run directory, also one that is still being written to.

    Raises:
        RunNotFound: there is no readable ``run.json`` in it.
    """
    try:
        meta = json.loads((run_dir / "run.json").read_text("ascii"))
        planned = tuple(TrialKey(*key) for key in meta.get("planned", ()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunNotFound(f"{run_dir}: no run.json that can be read ({error})") from None
    finished, began, damaged = _read_journals(sorted(run_dir.glob("trials-*.jsonl")))
    records = {(record.key, record.attempt): record for record in reversed(finished)}
    started = {(entry.key, entry.attempt): entry for entry in began}
    hashes = _task_hashes(meta)
    first: dict[TrialKey, Record] = {}
    retries = []
    set_aside = []
    for (key, _), record in sorted(records.items(), key=lambda item: item[0]):
        if record.task_hash and record.task_hash != hashes.get(key.task, record.task_hash):
            set_aside.append(record)
        elif key in first:
            retries.append(record)
        else:
            first[key] = record
    return Run(
        path=run_dir,
        meta=meta,
        planned=planned,
        records=tuple(first.values()),
        retries=tuple(retries),
        unfinished=tuple(entry for place, entry in started.items() if place not in records),
        damaged=damaged,
        set_aside=tuple(set_aside),
    )


def _task_hashes(meta: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the content hash of every task as the run has it now; none of what an older version wrote."""
    hashes = meta.get("task_hashes")
    return hashes if isinstance(hashes, dict) else {}


def read_journal(run_dir: Path, process: str) -> tuple[list[Record], list[Started]]:
    """Return the records and the begun attempts of one process, in order; none when it wrote nothing."""
    path = run_dir / f"trials-{process}.jsonl"
    finished, started, _ = _read_journals([path] if path.exists() else [])
    return finished, started


def _read_journals(paths: Iterable[Path]) -> tuple[list[Record], list[Started], int]:
    finished: list[Record] = []
    started: list[Started] = []
    damaged = 0
    for line in _lines(paths):
        try:
            data = json.loads(line)
            if data["event"] == "finished":
                finished.append(Record.from_json(data))
            else:
                started.append(Started(TrialKey.from_json(data), data["attempt"], data["worker"]))
        except (ValueError, KeyError, TypeError):
            damaged += 1
    return finished, started, damaged


def _lines(paths: Iterable[Path]) -> Iterable[str]:
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from (line for line in file if line.strip())


def find_run(runs_dir: Path, name: str | None) -> Path:
    """Return the directory of a run given by path or by id; of the newest run when ``name`` is None.

    Raises:
        RunNotFound: nothing fits; the message says where was looked.
    """
    if name is not None:
        for candidate in (Path(name), runs_dir / name):
            if (candidate / "run.json").is_file():
                return candidate
        if not Path(name).is_dir():
            raise RunNotFound(f"no run {name!r}: neither a run directory nor an id in {runs_dir}")
        runs_dir = Path(name)
    runs = sorted(path.parent for path in runs_dir.glob("*/run.json"))
    if not runs:
        raise RunNotFound(f"no run in {runs_dir} yet; `pytest --infranoise-run-dir` says where runs are kept")
    return runs[-1]
