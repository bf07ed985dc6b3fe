from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.fitness import PASSING
from pytest_infranoise.fitness import Outcome
from pytest_infranoise.fitness import judge
from pytest_infranoise.fitness import outcome_of
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Verdict
from tests.builders import key
from tests.builders import record

MIB = 1024**2
PASSED = Outcome("oracle", "1x", "pass", "reward 1")
FAILED = Outcome("oracle", "1x", "fail", "tests-failed: reward 0")
KILLED = Outcome("oracle", "1x", "infra-error", "resource-kill: killed", "resource-kill", killed=True)
LOST = Outcome("oracle", "1x", "infra-error", "exec-lost: gone", "exec-lost")
MISTAKE = Outcome("oracle", "1x", None, "no such user")
FREE = replace(PASSED, config="1x-memory-uncapped", peak_memory=200 * MIB + 1, anonymous_peak=150 * MIB)


@pytest.mark.parametrize(
    ("oracle", "uncapped", "nop", "problem"),
    [
        (PASSED, None, FAILED, None),
        (None, None, FAILED, None),
        (PASSED, None, KILLED, None),
        (PASSED, None, LOST, None),
        (PASSED, None, PASSED, "nop passes: the verifier under 1x is content when nothing was done"),
        (None, None, PASSED, "nop passes: the verifier under 1x is content when nothing was done"),
        (FAILED, None, FAILED, "the oracle does not pass under 1x: tests-failed: reward 0"),
        (LOST, None, FAILED, "the oracle could not be checked, twice: exec-lost: gone"),
        (MISTAKE, None, MISTAKE, "CONFIG-ERROR: no such user"),
        (
            KILLED,
            FREE,
            FAILED,
            "oracle needs 201 MiB (its peak without a memory ceiling, at least 150 MiB of it no page cache); "
            "it was killed for memory under 1x",
        ),
        (
            KILLED,
            replace(FREE, anonymous_peak=None),
            FAILED,
            "oracle needs 201 MiB (its peak without a memory ceiling); it was killed for memory under 1x",
        ),
        (
            KILLED,
            replace(FREE, peak_memory=None),
            FAILED,
            "the oracle was killed for memory under 1x, and without a memory ceiling it passes",
        ),
        (
            KILLED,
            FAILED,
            FAILED,
            "the oracle was killed for memory under 1x, and without a memory ceiling it does not pass either: "
            "tests-failed: reward 0",
        ),
    ],
)
def test_what_is_said_of_a_task(
    oracle: Outcome | None, uncapped: Outcome | None, nop: Outcome, problem: str | None
) -> None:
    fitness = judge("a", oracle, uncapped, nop)

    assert fitness.problem == problem
    assert fitness.to_json()["fit"] == (problem is None)
    assert fitness.needs_memory == (201 * MIB if problem and "needs" in problem else None)


@pytest.mark.parametrize("cause", Cause)
def test_a_nop_without_a_verdict_is_noted(cause: Cause) -> None:
    ended = Outcome("nop", "1x", "infra-error", f"{cause.value}: gone", cause.value)
    fitness = judge("a", PASSED, None, ended)
    assert fitness.problem is None
    assert fitness.notes == (f"nop did not show that doing nothing does not pass: {cause.value}: gone",)


def test_a_nop_that_was_a_mistake_is_told_once() -> None:
    assert judge("a", PASSED, None, MISTAKE).notes == (
        "nop did not show that doing nothing does not pass: no such user",
    )
    assert judge("a", MISTAKE, None, MISTAKE).notes == ()


@pytest.mark.parametrize("nop", [PASSED, FAILED])
def test_a_nop_with_a_verdict_needs_no_note(nop: Outcome) -> None:
    assert judge("a", PASSED, None, nop).notes == ()


OUTCOMES = st.builds(
    Outcome,
    agent=st.just("oracle"),
    config=st.just("1x"),
    verdict=st.sampled_from([None, *(verdict.value for verdict in Verdict)]),
    text=st.text(max_size=20),
    cause=st.none() | st.sampled_from([cause.value for cause in Cause]),
    killed=st.booleans(),
    peak_memory=st.none() | st.integers(0, 2**40),
    anonymous_peak=st.none() | st.integers(0, 2**40),
)


@given(oracle=st.none() | OUTCOMES, uncapped=st.none() | OUTCOMES, nop=OUTCOMES)
def test_fit_is_what_passes_with_the_oracle_and_not_without(
    oracle: Outcome | None, uncapped: Outcome | None, nop: Outcome
) -> None:
    fitness = judge("a", oracle, uncapped, nop)

    assert (fitness.problem is None) == ((oracle is None or oracle.passed) and not nop.passed)
    if fitness.needs_memory is not None:
        assert uncapped is not None
        assert uncapped.peak_memory is not None
        assert 0 <= fitness.needs_memory - uncapped.peak_memory < MIB


@given(cause=st.sampled_from(Cause), kills=st.booleans())
def test_an_outcome_is_its_record_in_short(cause: Cause, kills: bool) -> None:
    details = {"phases": {"setup": {"anonymous_peak": None}, "agent": {"anonymous_peak": 5}, "start": {}}}
    made = record(
        key(agent="oracle"),
        Verdict.INFRA_ERROR,
        cause=cause,
        flags=(Flag.OOM_KILLS,) if kills else (),
        peak_memory=7,
        details=details,
    )
    outcome = outcome_of(made)

    assert outcome.killed == (kills or cause is Cause.RESOURCE_KILL)
    assert outcome.inconclusive == (cause in PASSING)
    assert (outcome.peak_memory, outcome.anonymous_peak) == (7, 5)
    assert outcome.text == f"{cause}: made up"


def test_a_fail_says_its_reason() -> None:
    made = record(key(agent="oracle"), Verdict.FAIL, reason=FailReason.AGENT_TIMEOUT)

    assert outcome_of(made).text == "agent-timeout: made up"
    assert not outcome_of(made).inconclusive
