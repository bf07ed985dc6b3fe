"""Verifiers that give no verdict, or two."""

from __future__ import annotations

import pytest

from pytest_infranoise.model import Record
from tests.faults.conftest import Judge
from tests.faults.injections import REWARDS
from tests.faults.injections import SOLVE
from tests.faults.injections import Inject
from tests.faults.injections import Injections
from tests.faults.injections import grade
from tests.trials.lab import Lab

pytestmark = pytest.mark.engine
INJECT = Injections()

OURS = '"$INFRANOISE_REWARD_FILE"'
JSON, TXT = f"{REWARDS}/reward.json", f"{REWARDS}/reward.txt"
NONCE = '"nonce": "\'$INFRANOISE_NONCE\'"'

INJECT["verifier-crash"] = lambda lab: lab.do(SOLVE, lab.task(verify="kill -SEGV $$"))
INJECT["verifier-kills-itself"] = lambda lab: lab.do(SOLVE, lab.task(verify="kill -KILL $$"))
INJECT["nonce-wrong"] = lambda lab: lab.do(
    SOLVE, lab.task(verify=f'echo \'{{"reward": 1, "nonce": "00"}}\' >{OURS}')
)
INJECT["no-tests"] = lambda lab: lab.do(
    SOLVE, lab.task(verify=f'echo \'{{"reward": 0, "tests": 0, {NONCE}}}\' >{OURS}')
)
INJECT["no-report"] = lambda lab: lab.do(SOLVE, grade(lab, f"echo 0 >{TXT}", options={"writes_ctrf": True}))


def leaves(script: str) -> tuple[Inject, Inject]:
    """Return two faults: a verifier leaves something odd as our artefact, and as a reward file."""

    def nonce(lab: Lab) -> Record:
        return lab.do(
            SOLVE, lab.task(verify=f"file={OURS}; reward() {{ echo '{{\"reward\": '$1', {NONCE}}}'; }}\n{script}")
        )

    def files(lab: Lab) -> Record:
        return lab.do(SOLVE, grade(lab, f"file={TXT}; reward() {{ echo $1; }}\n{script}"))

    return nonce, files


for name, script in {
    "none": "exit 0",
    "empty": ': >"$file"',
    "nan": 'reward NaN >"$file"',
    "huge-number": 'reward 1e999 >"$file"',
    "huge-file": '{ reward 1; head -c 8M /dev/zero | tr "\\0" " "; } >"$file"',
    "binary": 'head -c 4000 /dev/urandom >"$file"',
    "directory": 'mkdir "$file"',
}.items():
    INJECT[f"nonce-{name}"], INJECT[f"files-{name}"] = leaves(script)

INJECT["files-huge-json"] = lambda lab: lab.do(
    SOLVE,
    grade(lab, f"{{ echo '{{\"reward\": 0}}'; head -c 8M /dev/zero | tr '\\0' ' '; }} >{JSON}; echo 1 >{TXT}"),
)


def two(first: int, second: int) -> Inject:
    return lambda lab: lab.do(SOLVE, grade(lab, f"echo '{{\"reward\": {first}}}' >{JSON}; echo {second} >{TXT}"))


INJECT["two-rewards-pass"] = two(1, 0)
INJECT["two-rewards-fail"] = two(0, 1)


@pytest.mark.parametrize("fault", INJECT)
def test_verifier(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
