"""Deadlines of ours."""

from __future__ import annotations

import pytest

from pytest_infranoise.model import Timeouts
from tests.faults.conftest import Judge
from tests.faults.injections import ENOUGH
from tests.faults.injections import SHORT
from tests.faults.injections import SOLVE
from tests.faults.injections import Injections
from tests.trials.lab import VERIFY
from tests.trials.lab import Lab

pytestmark = pytest.mark.engine
INJECT = Injections()

# It would be done after the deadline, and long before the verifier looks.
DETACHED = "setsid sh -c 'sleep 2; echo done > /app/answer' & sleep 60"

INJECT["agent-timeout"] = lambda lab: lab.do("sleep 60", lab.task(timeouts=SHORT))
INJECT["agent-timeout-solved"] = lambda lab: lab.do(f"{SOLVE}; sleep 60", lab.task(timeouts=ENOUGH))
INJECT["agent-timeout-detached"] = lambda lab: lab.do(
    DETACHED, lab.task(verify=f"sleep 3\n{VERIFY}", timeouts=SHORT)
)
INJECT["agent-timeout-no-verdict"] = lambda lab: lab.do("sleep 60", lab.task(verify="exit 0", timeouts=SHORT))
INJECT["setup-timeout"] = lambda lab: lab.do(SOLVE, lab.task(setup="sleep 60", timeouts=Timeouts(1, 20, 20)))
INJECT["verifier-timeout"] = lambda lab: lab.do(SOLVE, lab.task(verify="sleep 60", timeouts=Timeouts(20, 20, 1)))
INJECT["verifier-timeout-late"] = lambda lab: lab.do(
    SOLVE, lab.task(verify=f"{VERIFY}sleep 60", timeouts=Timeouts(60, 60, 4))
)


@pytest.mark.parametrize("fault", INJECT)
def test_time(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
