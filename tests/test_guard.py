from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.guard import Reading
from pytest_infranoise.guard import victim

_readings = st.lists(
    st.builds(
        Reading,
        name=st.uuids().map(str),
        floor=st.integers(0, 100),
        usage=st.none() | st.integers(0, 300),
        ending=st.sampled_from([False, False, False, True]),
    ),
    max_size=6,
    unique_by=lambda reading: reading.name,
)


def test_the_one_furthest_above_its_floor_goes() -> None:
    readings = [
        Reading("large", 500, 600),
        Reading("far", 10, 200),
        Reading("within", 300, 290),
        Reading("new", 0, None),
    ]
    chosen = victim(readings, available=10, reserve=100)
    assert chosen is not None
    assert chosen.name == "far"


def test_nobody_goes_while_memory_suffices() -> None:
    assert victim([Reading("far", 10, 200)], available=100, reserve=100) is None


@given(_readings, st.integers(0, 200), st.integers(0, 200))
def test_whoever_goes_is_above_its_floor_and_nobody_is_further(
    readings: list[Reading], available: int, reserve: int
) -> None:
    chosen = victim(readings, available, reserve)
    if chosen is None:
        # Memory suffices, somebody is going already, or nobody holds more than was promised.
        assert (
            available >= reserve
            or any(reading.ending or (reading.usage or 0) <= reading.floor for reading in readings)
            or not readings
        )
        return
    assert available < reserve
    assert not any(reading.ending for reading in readings)
    assert chosen.usage is not None
    assert chosen.usage > chosen.floor
    assert all((reading.usage or 0) - reading.floor <= chosen.usage - chosen.floor for reading in readings)


@given(_readings, st.integers(0, 99))
def test_everybody_comes_to_the_same_answer(readings: list[Reading], available: int) -> None:
    assert victim(readings, available, 100) == victim(readings[::-1], available, 100)
