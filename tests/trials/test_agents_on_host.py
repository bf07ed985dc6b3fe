"""Agents whose own code works on the host, in trials on a real engine."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest

from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.trials.runner import TrialConfigError
from tests.agents import agents
from tests.trials.lab import MIB
from tests.trials.lab import VERIFY
from tests.trials.lab import Lab
from tests.trials.lab import containers_of

pytestmark = pytest.mark.engine


def do(lab: Lab, agent: Any, verify: str = VERIFY, **changes: Any) -> Record:
    return lab.run_trial(lab.trial(lab.task(verify=verify, **changes)), agent)


def test_setup_and_run_in_one_child(lab: Lab) -> None:
    record = do(lab, agents.HostAgent())
    assert record.verdict is Verdict.PASS
    said = record.details["agent"]["details"]
    assert said["said"] == "/app"
    assert said["parent"] == psutil.Process().pid
    assert not psutil.pid_exists(said["pid"])
    assert lab.log("agent-host") == "solving: Write done to the file answer.\n"


def test_the_whole_sandbox_over_the_pipe(lab: Lab) -> None:
    record = do(lab, agents.Asking())
    assert record.verdict is Verdict.PASS, record.details["agent"]
    said = record.details["agent"]["details"]
    assert said["content"] == [0, 255]
    assert said["memory"] == 64 * MIB
    assert (said["same"], said["running"], said["kills"], said["killed"]) == (True, True, 0, True)
    assert "only the runner" in said["refused"]


def test_one_that_sleeps_past_its_deadline_writes_no_more(lab: Lab) -> None:
    verify = f'cat "$INFRANOISE_WORKDIR/children"; sleep 5\n{VERIFY}'
    record = do(lab, agents.Sleeper({"seconds": 4}), verify, timeouts=Timeouts(20, 2, 20))
    assert (record.verdict, record.reason) == (Verdict.FAIL, FailReason.AGENT_TIMEOUT)
    assert record.flags == (Flag.TIMED_OUT,)
    for pid in map(int, lab.log("verifier").split()):
        assert not psutil.pid_exists(pid)


def test_one_that_swallows_every_refusal(lab: Lab) -> None:
    record = do(lab, agents.Stubborn(), timeouts=Timeouts(20, 2, 20))
    assert (record.verdict, record.reason) == (Verdict.FAIL, FailReason.AGENT_TIMEOUT)


def test_in_process_one_that_swallows_every_refusal(lab: Lab) -> None:
    refused = []

    def run(sandbox: Sandbox) -> AgentResult:
        for _ in range(3):
            try:
                sandbox.exec(["sleep", "600"])
            except DeadlineExceeded:
                refused.append(time.monotonic())
        return AgentResult()

    record = do(lab, agents.InProcess(run), timeouts=Timeouts(20, 1, 20))
    assert len(refused) == 3
    assert (record.verdict, record.reason) == (Verdict.FAIL, FailReason.AGENT_TIMEOUT)


def test_an_exception_is_never_the_models_fail(lab: Lab) -> None:
    record = do(lab, agents.Raising())
    assert (record.cause, record.rule) == (Cause.HARNESS_CRASH, "11 setup or provider")
    assert "KeyError: 'choices'" in record.summary
    assert "in run" in record.details["agent"]["traceback"]


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("error", ["DeadlineExceeded", "AgentConfigError", "ConfigError"])
def test_an_exception_of_others_that_is_called_like_one_of_ours(lab: Lab, error: str, on_host: bool) -> None:
    made: Any = agents.Throwing({"error": error})
    made.on_host = on_host
    record = do(lab, made)
    assert (record.cause, record.rule) == (Cause.HARNESS_CRASH, "11 setup or provider")
    assert f"{error}: 504: no answer" in record.summary
    assert "in run" in record.details["agent"]["traceback"]
    assert Flag.TIMED_OUT not in record.flags


def test_an_exception_in_setup(lab: Lab) -> None:
    record = do(lab, agents.RaisingInSetup())
    assert record.cause is Cause.SETUP_FAILED
    assert "OSError: no mirror answers" in record.summary


def test_a_child_that_dies(lab: Lab) -> None:
    record = do(lab, agents.Dying())
    assert record.cause is Cause.HARNESS_CRASH
    assert "exit status 5" in record.summary


def test_a_provider_that_fails(lab: Lab) -> None:
    assert do(lab, agents.OutOfQuota()).cause is Cause.MODEL_API


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize(
    ("agent", "text"), [(agents.Refused, "401: no such key"), (agents.RefusedInSetup, "404: no such model")]
)
def test_one_that_can_never_work_is_a_mistake_and_no_trial(lab: Lab, agent: Any, text: str, on_host: bool) -> None:
    made = agent()
    made.on_host = on_host
    with pytest.raises(TrialConfigError, match=f"the agent '.*' cannot work: {text}") as raised:
        do(lab, made)
    assert raised.value.stops_run
    assert lab.records() == []
    assert containers_of(lab.run) == []


def test_one_that_cannot_be_sent_to_a_child(lab: Lab) -> None:
    with pytest.raises(TrialConfigError, match=r"NotPicklable runs on the host.*must be picklable"):
        do(lab, agents.NotPicklable())
    assert lab.records() == []
