from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_infranoise.model import Record
from pytest_infranoise.scheduler.start_times import rank_correlation
from pytest_infranoise.scheduler.start_times import start_facts
from tests.builders import key
from tests.builders import record

MIB = 1024**2


def stayed(place: int, config: str, began: float, ended: float, memory: int) -> Record:
    allocation = {"cpus_floor": 0.5, "cpus_ceiling": None, "memory_floor": memory * MIB, "memory_ceiling": None}
    times = {"queued": began - 1, "admitted": began - 0.5, "created": began, "removed": ended}
    details = {"times": times, "allocation": allocation}
    return record(key(f"t{place}", config), details=details, started=began - 1, seconds=ended - began)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_the_correlation_is_spearmans(pairs: Sequence[tuple[int, int]]) -> None:
    first, second = zip(*pairs, strict=True)

    found = rank_correlation(first, second)

    if len(set(first)) < 2 or len(set(second)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic)


def test_large_floors_that_started_late_are_remarked() -> None:
    facts = start_facts([stayed(place, "1x", place, place + 1, 64 + place) for place in range(30)])

    assert facts["trials"] == 30
    assert facts["correlation"] == {"memory": 1.0, "cpus": None}
    assert facts["remark"].startswith("trials with larger memory floors started later (rank correlation of floor")


@pytest.mark.parametrize("order", ["shuffled", "equal", "few"])
def test_an_order_that_means_nothing_is_not_remarked(order: str) -> None:
    sizes = [64] * 30 if order == "equal" else random.Random(1).sample(range(64, 512), 30)
    records = [stayed(place, ("1x", "3x")[place % 2], place, place + 1, size) for place, size in enumerate(sizes)]
    if order == "few":
        records = [stayed(place, "1x", place, place + 1, 64 + place) for place in range(10)]

    assert start_facts(records)["remark"] is None


def test_configs_that_had_the_host_at_different_times_are_remarked() -> None:
    records = [
        *(stayed(place, "1x", place, place + 1, 64) for place in range(20)),
        *(stayed(place, "3x", place, place + 1, 64) for place in range(20, 41)),
    ]

    facts = start_facts(records)

    assert facts["starts"] == {"1x": pytest.approx(0.24, abs=0.01), "3x": pytest.approx(0.75, abs=0.01)}
    assert "configs did not share the time evenly: 1x trials started after 24%" in facts["remark"]


def test_what_ran_beside_what_is_counted_by_trial() -> None:
    records = [
        stayed(0, "1x", 0, 10, 64),
        stayed(1, "uncapped", 5, 6, 64),
        stayed(2, "uncapped", 8, 20, 64),
        stayed(3, "1x", 20, 30, 64),
        stayed(4, "1x", 40, 50, 64),
    ]

    assert start_facts(records)["beside"] == {"1x": {"uncapped": 1}, "uncapped": {"1x": 2}}


def test_trials_without_a_container_say_nothing() -> None:
    assert start_facts([record(key("a"))]) == {
        "trials": 0,
        "correlation": {"memory": None, "cpus": None},
        "starts": {},
        "beside": {},
        "remark": None,
    }
