"""The order of trials: every config of a task close together in time, so that drift is not taken for an effect."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pytest_infranoise.model import TrialKey


def shuffled(keys: Sequence[TrialKey], seed: int) -> list[int]:
    """Return the order to run ``keys`` in, as indices.

    Round after round (one sample of every task in every config and agent); tasks shuffled inside each round,
    and the configs of one task shuffled inside its place, all from ``seed``. The order of what is left after a
    selection is the same as in the full run.
    """

    def place(index: int) -> tuple[int, str, str]:
        key = keys[index]
        return key.sample, _draw(seed, key.sample, key.task), _draw(seed, *key.to_json().values())

    return sorted(range(len(keys)), key=place)


def _draw(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
