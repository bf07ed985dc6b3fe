"""Dividing a run's trials between machines or jobs that know nothing of each other."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from pytest_infranoise.model import TrialKey

MOST_SHARDS = 1000
_SHARD = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``number`` (from 1) of ``count``.

    Whose a trial is follows from its task's name and its sample alone: the same on every machine, whatever else is
    selected there and however the run grows. All configs and agents of a task's sample are in one shard, so deltas
    stay paired, and the samples of a task go round all shards.
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, key: TrialKey) -> bool:
        """Whether a trial belongs to this shard."""
        offset = int.from_bytes(hashlib.sha256(key.task.encode("utf-8", "surrogateescape")).digest()[:8])
        return (offset + key.sample) % self.count == self.number - 1


def parse_shard(text: str) -> Shard:
    """Return the shard that ``I/N`` names.

    Raises:
        ValueError: it names none; the message is fit to show to a user.
    """
    match = _SHARD.fullmatch(text.strip())
    if match is not None and 1 <= int(match[1]) <= int(match[2]) <= MOST_SHARDS:
        return Shard(int(match[1]), int(match[2]))
    raise ValueError(f"{text!r} is no shard; write I/N with I from 1 to N and N at most {MOST_SHARDS}, e.g. 1/4")
