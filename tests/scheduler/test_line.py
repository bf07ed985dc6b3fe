from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.model import Allocation
from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.budget import Need
from pytest_infranoise.scheduler.budget import need_of
from pytest_infranoise.scheduler.budget import total
from pytest_infranoise.scheduler.line import LOOK_AHEAD
from pytest_infranoise.scheduler.line import MOST_OVERTAKES
from pytest_infranoise.scheduler.line import Line
from pytest_infranoise.scheduler.line import Place

CAPACITY = Capacity(cpus=4.0, memory=1000)

needs = st.builds(
    Need, st.integers(0, 40).map(lambda tenths: tenths / 10), st.one_of(st.just(0), st.integers(1, 1000))
)


@dataclass
class Sitting:
    """A line that is worked off by a number of workers in an order of ends drawn by chance."""

    line: Line
    places: Sequence[Place]
    workers: int
    started: list[int] = field(default_factory=list)
    highest: list[Need] = field(default_factory=list)
    beside: list[tuple[int, int]] = field(default_factory=list)

    def play(self, draw: random.Random) -> None:
        running: list[int] = []
        while self.line.waiting or running:
            while len(running) < self.workers and (index := self.line.next()) is not None:
                self.beside += [(index, other) for other in running]
                running.append(index)
                self.started.append(index)
                self.highest.append(self.line.reserved)
            assert sorted(running) == sorted(self.line.running)
            assert running, "nothing runs and nothing starts"
            self.line.done(running.pop(draw.randrange(len(running))))


def sitting(places: Sequence[Place], workers: int, draw: random.Random, **options: object) -> Sitting:
    found = Sitting(Line(places, CAPACITY, **options), places, workers)  # type: ignore[arg-type]
    found.play(draw)
    return found


@given(st.lists(needs, max_size=40), st.integers(1, 20), st.randoms(use_true_random=False), st.booleans())
def test_all_run_once_within_the_capacity_and_are_overtaken_five_times_at_most(
    asked: list[Need], workers: int, draw: random.Random, packed: bool
) -> None:
    places = [Place(index, need) for index, need in enumerate(asked)]

    done = sitting(places, workers, draw, overtakes=None if packed else MOST_OVERTAKES)

    assert sorted(done.started) == list(range(len(asked)))
    assert all(need.fits(CAPACITY) for need in done.highest)
    if not packed:
        for position, index in enumerate(done.started):
            overtaken = sum(other > index for other in done.started[:position])
            assert overtaken <= MOST_OVERTAKES
            assert overtaken == done.line.overtaken(index)
            assert index - position < LOOK_AHEAD


@given(
    st.lists(st.tuples(needs, st.sampled_from(["1x", "3x", "uncapped", ""])), max_size=40),
    st.integers(1, 8),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_alone_no_config_ever_runs_beside_another(
    asked: list[tuple[Need, str]], size: int, workers: int, draw: random.Random
) -> None:
    places = [Place(index, need, config, index // size) for index, (need, config) in enumerate(asked)]

    done = sitting(places, workers, draw, alone=True)

    assert sorted(done.started) == list(range(len(asked)))
    assert all(need.fits(CAPACITY) for need in done.highest)
    for one, other in done.beside:
        assert len({places[one].config, places[other].config} - {""}) <= 1
    for position, index in enumerate(done.started):
        assert all(places[other].block <= places[index].block for other in done.started[:position])


def test_the_largest_that_fits_goes_first_and_equals_go_in_order() -> None:
    line = Line([Place(index, Need(0.1, memory)) for index, memory in enumerate((100, 600, 100, 300))], CAPACITY)

    assert [line.next(), line.next(), line.next(), line.next()] == [1, 3, 0, None]


def test_one_that_was_overtaken_five_times_is_waited_for() -> None:
    places = [Place(0, Need(0.1, 600)), *(Place(index, Need(0.1, 10)) for index in range(1, 8))]
    line = Line([Place(99, Need(0.1, 500)), *places], CAPACITY)
    assert line.next() == 0
    assert line.next() == 1

    started = []
    while (index := line.next()) is not None:
        started.append(index)

    assert started == [2, 3, 4]
    line.done(0)
    assert line.next() == 99


def test_what_others_use_is_not_free() -> None:
    line = Line([Place(0, Need(1, 600))], CAPACITY)

    assert line.next(Need(0, 500)) is None
    assert line.next(Need(3.1, 0)) is None
    assert line.next(Need(3, 400)) == 0


def test_cpu_floors_fill_a_host_to_the_last_tenth() -> None:
    line = Line([Place(index, Need(0.1, 1)) for index in range(41)], CAPACITY, overtakes=None)

    started = [line.next() for _ in range(41)]

    assert started == [*range(40), None]


@pytest.mark.parametrize("alone", [False, True])
def test_one_that_is_put_back_goes_next(alone: bool) -> None:
    line = Line([Place(0, Need(1, 10), "1x", 0), Place(1, Need(1, 10), "3x", 1)], CAPACITY, alone=alone)
    assert line.next() == 0
    line.done(0)
    line.put_back(0)

    assert line.next() == 0


def test_an_emptied_line_lets_nobody_start() -> None:
    line = Line([Place(index, Need(1, 10)) for index in range(3)], CAPACITY)
    line.next()

    assert line.clear() == [1, 2]
    assert line.next() is None
    assert line.running == (0,)


@pytest.mark.parametrize(
    ("admit", "cpus", "memory", "need"),
    [
        ("floor", 2.0, 300, Need(0.5, 100)),
        ("ceiling", 2.0, 300, Need(2.0, 300)),
        ("ceiling", None, None, Need(4.0, 1000)),
        ("ceiling", 64.0, 5000, Need(4.0, 1000)),
    ],
)
def test_what_a_trial_reserves(admit: str, cpus: float | None, memory: int | None, need: Need) -> None:
    assert need_of(Allocation(0.5, cpus, 100, memory), CAPACITY, admit) == need  # type: ignore[arg-type]


@given(st.lists(needs, max_size=20))
def test_a_sum_is_that_of_its_parts(parts: list[Need]) -> None:
    assert total(parts).memory == sum(part.memory for part in parts)
    assert total(parts).cpus == pytest.approx(sum(part.cpus for part in parts))
