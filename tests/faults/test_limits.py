"""Ceilings that deny instead of killing."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Judge
from tests.faults.injections import SOLVE
from tests.faults.injections import Injections
from tests.trials.lab import VERIFY
from tests.trials.lab import Lab

pytestmark = pytest.mark.engine
INJECT = Injections()

# More than the runtime itself needs for a moment to start a command: on a busy machine its threads are up to ten.
PIDS = 32
MANY = "for i in $(seq 40); do sleep 20 & done"
FILL = "head -c 200M /dev/zero >/dev/shm/full"
FILL_DEV = "head -c 200M /dev/zero >/dev/full-of-it"

# Needs no further process, and ends when process 1 has taken note of the end of all: until then they count.
SWEEP = """exec perl -e 'sub all { grep { $_ > 1 && $_ != $$ } map { /(\\d+)$/ } glob "/proc/[0-9]*" }
kill 9, all(); select undef, undef, undef, 0.02 while 1 < (my @left = all())'"""

INJECT["pids"] = lambda lab: lab.do(f"{MANY}; {SOLVE}; exit 0", pids=PIDS)
INJECT["pids-solved"] = lambda lab: lab.do(f"{SOLVE}; ({MANY}); {SWEEP}", pids=PIDS)
INJECT["pids-verifier"] = lambda lab: lab.do(SOLVE, lab.task(verify=f"{MANY}\n{VERIFY}"), pids=PIDS)
INJECT["full-shm"] = lambda lab: lab.do(f"{FILL}; exit 0", memory=256)
INJECT["full-shm-solved"] = lambda lab: lab.do(f"{FILL}; {SOLVE}", memory=256)
INJECT["full-shm-verifier"] = lambda lab: lab.do(SOLVE, lab.task(verify=f"{FILL} || exit\n{VERIFY}"), memory=256)
INJECT["full-tmpfs"] = lambda lab: lab.do(f"{FILL_DEV}; exit 0", memory=256)


@pytest.mark.parametrize("fault", INJECT)
def test_limits(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
