"""The order of trials: every config of a task close together in time, so that drift is not taken for an effect."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from pytest_infranoise.model import TrialKey

Order = Literal["shuffled", "packed", "blocks"]

ORDERS: Mapping[Order, str] = {
    "shuffled": "shuffled inside rounds, all configs of a task close together",
    "packed": "what takes most of the machine first (floor x expected time), all configs of a task close together",
    "blocks": "one config at a time, in blocks of a few tasks, whose order is reversed from block to block",
}
# Few enough that the configs of a task stay close in time, many enough that a block fills most machines.
BLOCK_TASKS = 32


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


def packed(keys: Sequence[TrialKey], seed: int, work: Callable[[int], float]) -> list[int]:
    """Return the order to run ``keys`` in so that all of it is over early, as indices.

    ``work`` is what the trial at an index takes of the machine. Tasks go by their most demanding trial, and all
    trials of a task stay together unless others take as much as they do. Rounds are given up: a run that is
    stopped has no sample of some tasks.
    """
    largest: dict[str, float] = {}
    for index, key in enumerate(keys):
        largest[key.task] = max(largest.get(key.task, 0.0), work(index))

    def place(index: int) -> tuple[float, str, int, str]:
        key = keys[index]
        return -largest[key.task], _draw(seed, key.task), key.sample, _draw(seed, *key.to_json().values())

    return sorted(range(len(keys)), key=place)


def blocks(keys: Sequence[TrialKey], seed: int) -> list[list[int]]:
    """Return the blocks to run one after another, as indices; all trials of a block have the same config.

    The tasks of a round, shuffled, are cut into groups of at most ``BLOCK_TASKS``. A group runs config by config;
    the first group in an order drawn from ``seed``, every further one in the reverse of the one before, so that a
    steady drift falls on all configs alike and the config does not change between two groups.
    """
    order = shuffled(keys, seed)
    configs = sorted({key.config for key in keys}, key=lambda name: _draw(seed, "blocks", name))
    rounds: dict[int, dict[str, list[int]]] = {}
    for index in order:
        rounds.setdefault(keys[index].sample, {}).setdefault(keys[index].task, []).append(index)
    found = []
    for tasks in rounds.values():
        for group in _cut(list(tasks.values())):
            trials = [index for task in group for index in task]
            of_config = ([index for index in trials if keys[index].config == config] for config in configs)
            found += [block for block in of_config if block]
            configs = configs[::-1]
    return found


def _cut(tasks: Sequence[list[int]]) -> list[Sequence[list[int]]]:
    """Cut tasks into groups of nearly equal size."""
    number = math.ceil(len(tasks) / BLOCK_TASKS)
    ends = [len(tasks) * place // number for place in range(number + 1)]
    return [tasks[begin:end] for begin, end in pairwise(ends)]


def _draw(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
