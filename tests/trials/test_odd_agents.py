"""Agents that say or raise what no agent should, in trials on a real engine: each still ends as a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.protocol import Sandbox
from tests.agents.agents import InProcess
from tests.trials.lab import Lab

pytestmark = pytest.mark.engine


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def cyclic() -> dict[str, Any]:
    details: dict[str, Any] = {}
    details["d"] = details
    return details


def solve(sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "echo done > answer"])


@pytest.mark.parametrize(
    ("details", "why"),
    [
        (cyclic(), "Circular reference"),
        ({"object": Unspeakable()}, "no words"),
        (["a list"], "details"),
    ],
    ids=["cyclic", "unspeakable", "list"],
)
def test_details_that_no_record_can_hold_cost_only_the_details(lab: Lab, details: Any, why: str) -> None:
    def run(sandbox: Sandbox) -> AgentResult:
        solve(sandbox)
        return AgentResult(details=details)

    record = lab.run_trial(lab.trial(lab.task()), InProcess(run))
    assert (record.verdict, record.rule, record.reward) == (Verdict.PASS, "2 complete pass", 1.0)
    assert list(record.details) == ["details_lost"]
    assert why in record.details["details_lost"]


@pytest.mark.parametrize("returned", [None, 0, {"exit_code": 0}], ids=["none", "number", "dict"])
def test_a_result_that_is_none_is_named(lab: Lab, returned: Any) -> None:
    def run(sandbox: Sandbox) -> Any:
        return returned

    record = lab.run_trial(lab.trial(lab.task()), InProcess(run))
    assert record.cause is Cause.HARNESS_CRASH
    assert f"the agent returned {type(returned).__name__}, not an AgentResult" in record.summary


def test_a_pass_stands_without_a_result(lab: Lab) -> None:
    def run(sandbox: Sandbox) -> Any:
        solve(sandbox)

    record = lab.run_trial(lab.trial(lab.task()), InProcess(run))
    assert (record.verdict, record.rule) == (Verdict.PASS, "2 complete pass")
    assert "the agent returned NoneType" in record.details["agent"]["traceback"]


class InSetup(InProcess):
    """Raises before the agent phase."""

    def setup(self, sandbox: Sandbox) -> None:
        self._run(sandbox)


class Unusual(BaseException):
    """No Exception, like what some libraries leave a test by."""


def leave(error: BaseException) -> Callable[[Sandbox], AgentResult]:
    def run(sandbox: Sandbox) -> AgentResult:
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [
        SystemExit("bye"),
        GeneratorExit("bye"),
        pytest.fail.Exception("bye"),
        pytest.skip.Exception("bye"),
        Unusual("bye"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    ("kind", "cause"), [(InProcess, Cause.HARNESS_CRASH), (InSetup, Cause.SETUP_FAILED)], ids=["run", "setup"]
)
def test_what_is_no_exception_is_still_the_agents_own_error(
    lab: Lab, error: BaseException, kind: type[InProcess], cause: Cause
) -> None:
    record = lab.run_trial(lab.trial(lab.task()), kind(leave(error)))
    assert record.cause is cause
    assert f"{type(error).__name__}: bye" in record.summary
    assert "in run" in record.details["agent"]["traceback"]
    assert lab.do("echo done > answer", sample=1).verdict is Verdict.PASS
    assert lab.read().unfinished == ()
