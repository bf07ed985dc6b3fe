from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.guard import Guard
from pytest_infranoise.guard import Reading
from pytest_infranoise.guard import victim
from pytest_infranoise.host import Capacity
from pytest_infranoise.host import Ledger
from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.trials.evidence import CutOff
from pytest_infranoise.trials.watch import Look
from pytest_infranoise.trials.watch import watched

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


class _Holding:
    """What the guard asks of a sandbox: what it holds."""

    def counters(self) -> Counters:
        return Counters(anonymous=200)


def test_a_look_that_fails_is_not_the_last_one() -> None:
    answers = iter([SandboxError("counters", "no answer"), OSError("no ledger"), None, CutOff(None, "seen")])
    cut: list[CutOff] = []
    killed = threading.Event()

    def at() -> CutOff | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def accept(why: CutOff) -> bool:
        cut.append(why)
        return True

    with watched([Look(0.01, at)], accept, killed.set):
        assert killed.wait(60)
    assert cut == [CutOff(None, "seen")]


def test_a_trial_that_is_over_anyway_keeps_nobody_else_from_being_ended(tmp_path: Path) -> None:
    """Its mark in the ledger goes with the refusal, however the host's memory does meanwhile."""
    ledger = Ledger("guarded", tmp_path)
    owner, limit = ledger.register("run", "main"), Capacity(64, 10_000)
    sandbox = cast(Sandbox, _Holding())
    asked = threading.Event()

    def refuse(_why: CutOff) -> bool:
        assert ending() == {"main": True}
        asked.set()
        return False

    def ending() -> dict[str, bool]:
        found: dict[str, bool] = {}

        def amend(granted: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
            found.update({"main": any(entry.get("ending") for entry in granted.values())})
            return {}

        owner.amend(amend)
        return found

    # Short for two looks (the first one only begins to count), then never again.
    readings = itertools.chain([0, 0], itertools.repeat(5000))
    try:
        with owner.reserve(Allocation(0.1, 1.0, 50, None), limit):
            look = Guard(owner, 1000, lambda: next(readings)).look(sandbox)
            with watched([replace(look, seconds=0.01)], refuse, lambda: None):
                assert asked.wait(60)
            assert ending() == {"main": False}
    finally:
        owner.close()
