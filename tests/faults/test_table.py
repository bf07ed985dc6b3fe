"""The table itself: every fault in it is injected, and every outcome in it is one that there is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.expected import FAULTS
from tests.faults.outcomes import Got


def test_every_fault_of_the_table_is_injected_once() -> None:
    from tests.faults import injected

    assert sorted(injected.INJECTED) == sorted(FAULTS)


def test_every_fault_is_told_apart_from_every_other_outcome() -> None:
    for name, fault in FAULTS.items():
        got = Got.parse(str(Got.of(fault)))
        assert not got.differs_from(fault), name
        other = (
            Got.parse("infra-error: unknown by rule 14") if got.outcome != "anything but a pass" else Got("pass")
        )
        assert other.differs_from(fault), name


def test_names_can_be_typed() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in FAULTS)
    assert Path(__file__).parent.name == "faults"
