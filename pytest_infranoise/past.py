"""What a run had when a session went on with it, so that nothing is run twice and nothing is left out.

Frozen at the session's start and written down: every worker, also one that replaces a dead one, has to collect the
same trials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from pytest_infranoise.journal import Run
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict


class Seen(NamedTuple):
    """An attempt that has a record; a ``task_hash`` of "" is not known."""

    attempt: int
    task_hash: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Past:
    """The attempts of earlier sessions.

    Args:
        seen: attempts with a record, by trial.
        next_attempt: the number that a trial's next attempt gets, where that is not 0.
        rerun_infra: whether trials whose last record is an infra-error are to be run again.
    """

    seen: Mapping[TrialKey, tuple[Seen, ...]] = field(default_factory=dict)
    next_attempt: Mapping[TrialKey, int] = field(default_factory=dict)
    rerun_infra: bool = False

    def wants(self, key: TrialKey, task_hash: str) -> bool:
        """Whether a trial has to be run: it has no record of the task as it is now, or is to be run again."""
        counted = [attempt for attempt in self.seen.get(key, ()) if attempt.task_hash in ("", task_hash)]
        if not counted:
            return True
        return self.rerun_infra and max(counted).verdict == Verdict.INFRA_ERROR

    def reruns(self, key: TrialKey, task_hash: str) -> bool:
        """Whether a trial that is wanted has a record already."""
        return any(attempt.task_hash in ("", task_hash) for attempt in self.seen.get(key, ()))

    def attempt(self, key: TrialKey) -> int:
        """Return the number of a trial's next attempt: no earlier one's, also of those that never ended."""
        return self.next_attempt.get(key, 0)

    def write(self, path: Path) -> None:
        """Write it for the workers, all at once."""
        keys = {*self.seen, *self.next_attempt}
        trials = [[key.to_json(), self.attempt(key), self.seen.get(key, ())] for key in sorted(keys)]
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"rerun_infra": self.rerun_infra, "trials": trials}), "ascii")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Past:
        """Read what ``write`` wrote."""
        data = json.loads(path.read_text("ascii"))
        trials = [(TrialKey.from_json(key), number, seen) for key, number, seen in data["trials"]]
        return cls(
            seen={key: tuple(Seen(*attempt) for attempt in seen) for key, _, seen in trials if seen},
            next_attempt={key: number for key, number, _ in trials if number},
            rerun_infra=data["rerun_infra"],
        )


NO_PAST = Past()


def past_of(run: Run, *, rerun_infra: bool = False) -> Past:
    """Return what a run has, records of changed tasks included."""
    seen: dict[TrialKey, list[Seen]] = {}
    following: dict[TrialKey, int] = {}
    for record in (*run.records, *run.retries, *run.set_aside):
        seen.setdefault(record.key, []).append(Seen(record.attempt, record.task_hash, record.verdict.value))
        following[record.key] = max(following.get(record.key, 0), record.attempt + 1)
    for entry in run.unfinished:
        following[entry.key] = max(following.get(entry.key, 0), entry.attempt + 1)
    return Past({key: tuple(sorted(attempts)) for key, attempts in seen.items()}, following, rerun_infra)


def past_file(run_dir: Path, session: int) -> Path:
    """Return where a session's processes find what came before it."""
    return run_dir / f"past-{session}.json"
