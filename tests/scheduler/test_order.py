from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.model import TrialKey
from pytest_infranoise.scheduler.order import shuffled

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
