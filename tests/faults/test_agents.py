"""How agents end by their own doing, and what they print."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Record
from pytest_infranoise.model import Timeouts
from pytest_infranoise.sandboxes.protocol import Sandbox
from tests.agents.agents import Dying
from tests.agents.agents import InProcess
from tests.agents.agents import OutOfQuota
from tests.faults.conftest import Judge
from tests.faults.injections import SOLVE
from tests.faults.injections import Inject
from tests.faults.injections import Injections
from tests.trials.lab import VERIFY
from tests.trials.lab import Lab

pytestmark = pytest.mark.engine
INJECT = Injections()


def ends_with(code: int) -> str:
    return f"kill -{code - 128} $$; sleep 60" if code > 128 else f"exit {code}"


def after(work: str, code: int) -> Inject:
    return lambda lab: lab.do(f"{work}; {ends_with(code)}")


for code in (1, 126, 127, *(128 + number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM))):
    INJECT[f"exit-{code}"] = after("true", code)
    INJECT[f"exit-{code}-solved"] = after(SOLVE, code)


def with_agent(act: Callable[[Sandbox], AgentResult]) -> Inject:
    return lambda lab: lab.run_trial(lab.trial(lab.task()), InProcess(act))


def raising(error: BaseException) -> Callable[[Sandbox], AgentResult]:
    def act(_: Sandbox) -> AgentResult:
        raise error

    return act


INJECT["agent-code-raises"] = with_agent(raising(KeyError("choices")))
INJECT["told-to-stop"] = with_agent(raising(KeyboardInterrupt()))


def on_host(agent: Any) -> Inject:
    return lambda lab: lab.run_trial(lab.trial(lab.task()), agent)


INJECT["agent-process-dies"] = on_host(Dying())
INJECT["provider-exhausted"] = on_host(OutOfQuota())

# Escape sequences that clear a screen, set its title and answer as if somebody had typed; a bell, a zero byte.
ODD = "printf '\\033[2J\\033]0;title\\007\\033[6n\\r\\b\\a\\000\\n'"
NO_UTF8 = "printf '\\377\\376 \\355\\240\\200 \\300\\257\\n'"


@INJECT("output-1-gb")
def one_gigabyte(lab: Lab) -> Record:
    record = lab.do(f"head -c 1G /dev/zero; {SOLVE}", lab.task(timeouts=Timeouts(60, 300, 60)))
    (log,) = (lab.run_dir / "artifacts").rglob("agent.log")
    assert log.stat().st_size < 9 * 1024**2
    return record


def printing(what: str) -> Inject:
    return lambda lab: lab.do(f"{what}; {SOLVE}", lab.task(verify=f"{what}; {VERIFY}"))


INJECT["output-invalid-utf8"] = printing(NO_UTF8)
INJECT["output-control-characters"] = printing(ODD)
INJECT["output-control-characters-fail"] = lambda lab: lab.do(SOLVE, lab.task(setup=f"{ODD}; exit 4"))


@pytest.mark.parametrize("fault", INJECT)
def test_agents(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
