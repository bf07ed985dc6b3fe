from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import TrialKey
from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.order import BLOCK_TASKS
from pytest_infranoise.scheduler.order import Order
from pytest_infranoise.scheduler.order import blocks
from pytest_infranoise.scheduler.order import packed
from pytest_infranoise.scheduler.order import shuffled
from pytest_infranoise.scheduler.plan import Estimates
from pytest_infranoise.scheduler.plan import Policy
from pytest_infranoise.scheduler.plan import make_line
from pytest_infranoise.scheduler.plan import order_of

KEYS = [
    TrialKey("scripted", "", task, config, sample)
    for task in ("a", "b", "c", "d", "e")
    for config in ("1x", "3x", "uncapped")
    for sample in range(4)
]


@given(st.integers(), st.permutations(KEYS))
def test_every_trial_once_and_the_same_order_however_they_were_collected(seed: int, keys: list[TrialKey]) -> None:
    order = shuffled(keys, seed)

    assert sorted(order) == list(range(len(keys)))
    assert [keys[index] for index in order] == [KEYS[index] for index in shuffled(KEYS, seed)]


@given(st.integers())
def test_rounds_follow_each_other_and_configs_of_a_task_stand_together(seed: int) -> None:
    order = [KEYS[index] for index in shuffled(KEYS, seed)]

    assert [key.sample for key in order] == sorted(key.sample for key in order)
    for first in range(0, len(order), 3):
        assert len({key.task for key in order[first : first + 3]}) == 1


def test_configs_take_turns_at_going_first() -> None:
    firsts = {KEYS[shuffled(KEYS, seed)[0]].config for seed in range(40)}

    assert firsts == {"1x", "3x", "uncapped"}


@given(st.integers(), st.sets(st.sampled_from(KEYS)))
def test_a_selection_keeps_the_order_of_the_full_run(seed: int, chosen: set[TrialKey]) -> None:
    selection = [key for key in KEYS if key in chosen]
    full = [KEYS[index] for index in shuffled(KEYS, seed)]

    assert [selection[index] for index in shuffled(selection, seed)] == [key for key in full if key in chosen]


@given(st.integers(), st.sampled_from([1, 5, BLOCK_TASKS, BLOCK_TASKS + 1, 89]))
def test_blocks_have_one_config_each_and_drift_falls_on_all_alike(seed: int, tasks: int) -> None:
    keys = [
        TrialKey("scripted", "", f"task-{number}", config, sample)
        for number in range(tasks)
        for config in ("1x", "3x", "uncapped")
        for sample in range(2)
    ]

    found = blocks(keys, seed)

    assert sorted(index for block in found for index in block) == list(range(len(keys)))
    configs = []
    for block in found:
        assert len({keys[index].config for index in block}) == 1
        assert len({keys[index].sample for index in block}) == 1
        assert len(block) <= BLOCK_TASKS
        configs.append(keys[block[0]].config)
    for begin in range(0, len(found), 3):
        assert set(configs[begin : begin + 3]) == {"1x", "3x", "uncapped"}
        group = [{keys[index].task for index in block} for block in found[begin : begin + 3]]
        assert group[0] == group[1] == group[2]
        if begin:
            assert configs[begin : begin + 3] == configs[begin - 3 : begin][::-1]


def test_blocks_do_not_always_begin_with_the_same_config() -> None:
    assert {KEYS[blocks(KEYS, seed)[0][0]].config for seed in range(40)} == {"1x", "3x", "uncapped"}


@given(st.integers(), st.lists(st.floats(0.01, 100), min_size=5, max_size=5))
def test_packed_begins_with_what_takes_most_and_keeps_tasks_together(seed: int, sizes: list[float]) -> None:
    work = dict(zip("abcde", sizes, strict=True))

    order = [KEYS[index] for index in packed(KEYS, seed, lambda index: work[KEYS[index].task])]

    assert sorted(order) == sorted(KEYS)
    assert [work[key.task] for key in order] == sorted((work[key.task] for key in order), reverse=True)
    tasks = [key.task for key in order]
    assert sum(one != other for one, other in pairwise(tasks)) == 4


ALLOCATIONS = [Allocation(0.1, None, size * 1024**2, None) for size in (64, 512, 128)]
TASKS = [TrialKey("oracle", "", name, "1x", 0) for name in "abc"]
SIZES = Capacity(4, 1024**3)


@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        ({}, "bca"),
        ({"a::oracle()": 100.0, "b::oracle()": 2.0, "c::oracle()": 20.0}, "acb"),
        ({"a::oracle()-1x": 100.0, "a::oracle()": 0.1, "b::oracle()": 1.0, "c::oracle()": 1.0}, "abc"),
        ({"b::oracle()": 1.0, "c::oracle()": 9.0}, "cba"),
    ],
)
def test_packed_knows_the_long_ones_from_earlier_runs(seconds: dict[str, float], order: str) -> None:
    policy = Policy("packed", "floor", 1, SIZES, Estimates(seconds))

    [found] = order_of(list(zip(TASKS, ALLOCATIONS, strict=True)), policy)

    assert "".join(TASKS[index].task for index in found) == order


@pytest.mark.parametrize("order", ["shuffled", "packed", "blocks"])
def test_ordinary_tests_take_nothing_and_go_first(order: Order) -> None:
    ids = ["t.py::one", "a", "t.py::two", "b", "c"]
    trials = {key.task: (key, allocation) for key, allocation in zip(TASKS, ALLOCATIONS, strict=True)}
    line = make_line(ids, trials, Policy(order, "floor", 1, SIZES))

    started = [line.next() for _ in ids]

    assert started[:2] == [0, 2]
    assert set(started[2:]) == {1, 3, 4}
    assert line.reserved.memory == (64 + 512 + 128) * 1024**2


def test_what_the_user_wants_to_see_first_stays_first() -> None:
    trials = list(zip(TASKS, ALLOCATIONS, strict=True))
    for seed in range(10):
        policy = Policy("shuffled", "floor", seed, SIZES, as_collected=True)

        assert order_of(trials, policy) == [[0, 1, 2]]
