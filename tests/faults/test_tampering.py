"""Agents that are root in their container and try to be their own verifier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_infranoise.model import Record
from tests.faults.conftest import Judge
from tests.faults.injections import REWARDS
from tests.faults.injections import Injections
from tests.faults.injections import grade
from tests.faults.injections import image_with
from tests.trials.lab import Lab
from tests.trials.tampering import INTERPRETER
from tests.trials.tampering import SAME_SIZE
from tests.trials.tampering import disguised
from tests.trials.tampering import fake

pytestmark = pytest.mark.engine
INJECT = Injections()

JSON, TXT = f"{REWARDS}/reward.json", f"{REWARDS}/reward.txt"
TELL = f'reward=0; [ "$(cat /app/answer 2>/dev/null)" = done ] && reward=1; echo $reward >{TXT}\n'
PERL = f'reward=0; [ "$(perl -e 1)" = done ] && reward=1; echo $reward >{TXT}\n'
SLOW = f"{TELL}while [ ! -e /tmp/did ]; do sleep 0.05; done\n"


def _disguised_late(lab: Lab) -> Record:
    work = 'sleep 1 while not -e "/app/go"; open F, ">", "/app/answer"; print F "done\\n"; close F; sleep 300'
    wait = "touch /app/go; for round in $(seq 100); do [ -e /app/answer ] && break; sleep 0.05; done\n"
    task = grade(lab, wait + TELL)
    task = replace(task, timeouts=replace(task.timeouts, agent=3))
    return lab.do(f"{disguised(work)}; sleep 60", task)


def _where_the_image_looks(lab: Lab) -> Record:
    with image_with("ENV PATH=/opt/tools:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") as image:
        return lab.do(f"mkdir -p /opt/tools; {fake('/opt/tools/cat')}", grade(lab, TELL, image=image))


# Perl, because it can wait without another process.
REWRITE = f"""for (1..2000) {{ last if -s "{TXT}"; select undef, undef, undef, 0.02 }}
open F, ">", "{TXT}"; print F "1\\n"; close F; open F, ">", "/tmp/did"; close F; sleep 300"""

SPOKEN = f"while [ ! -s {TXT} ]; do sleep 0.02; done"


def background(script: str) -> str:
    """Return a command that leaves a process behind, which goes to work as soon as the verifier has spoken."""
    waiting = f"while [ ! -s {TXT} ]; do sleep 0.02; done; {script}; touch /tmp/did"
    return f"setsid sh -c '{waiting}' >/dev/null 2>&1 & echo wrong >answer"


INJECT["tamper-planted"] = lambda lab: lab.do(f"echo 1 >{TXT}; echo '{{\"reward\": 1}}' >{JSON}", grade(lab, TELL))
INJECT["tamper-rewritten"] = lambda lab: lab.do(background(f"echo 1 >{TXT}"), grade(lab, SLOW))
INJECT["tamper-link"] = lambda lab: lab.do(background(f"echo 1 >/tmp/one; ln -sf /tmp/one {TXT}"), grade(lab, SLOW))
INJECT["tamper-second-reward"] = lambda lab: lab.do(
    background(f'echo "{{\\"reward\\": 1}}" >{JSON}'), grade(lab, SLOW)
)
INJECT["tamper-tests"] = lambda lab: lab.do(
    f"mkdir -p /tests; echo 'echo 1 >{TXT}' >/tests/verify.sh; chmod 444 /tests/verify.sh; chmod 555 /tests; true",
    grade(lab, TELL),
)
INJECT["tamper-interpreter"] = lambda lab: lab.do(
    "printf '#!/bin/sh\\necho done\\n' >/usr/local/bin/cat; chmod 755 /usr/local/bin/cat", grade(lab, TELL)
)


INJECT["tamper-interpreter-replaced"] = lambda lab: lab.do(
    "rm /usr/bin/perl; printf '#!/bin/sh\\necho done\\n' >/usr/bin/perl; chmod 755 /usr/bin/perl",
    grade(lab, PERL),
)
INJECT["tamper-moved"] = lambda lab: lab.do(
    "rm /usr/bin/cat; printf '#!/bin/sh\\necho done\\n' >/usr/local/bin/cat; chmod 755 /usr/local/bin/cat",
    grade(lab, TELL),
)
INJECT["tamper-directory"] = lambda lab: lab.do(INTERPRETER["a directory made anew"], grade(lab, PERL))
INJECT["tamper-touched-record"] = lambda lab: lab.do(
    INTERPRETER["a record that was only touched"], grade(lab, TELL)
)
INJECT["tamper-image-path"] = _where_the_image_looks
INJECT["tamper-same-size"] = lambda lab: lab.do(
    SAME_SIZE,
    grade(
        lab,
        f'reward=0; [ "$(echo wrong | tr a a)" = done ] && reward=1; echo $reward >{TXT}\n',
        setup="cp /usr/bin/tr /usr/local/bin/tr",
    ),
)
INJECT["tamper-link-to-own"] = lambda lab: lab.do(
    "printf '#!/bin/sh\\necho done\\n' >/usr/local/bin/gcc; chmod 755 /usr/local/bin/gcc; "
    "ln -sf /usr/local/bin/gcc /usr/bin/cat",
    grade(lab, TELL),
)
INJECT["tamper-disguised"] = lambda lab: lab.do(disguised(REWRITE), grade(lab, SLOW))
INJECT["tamper-disguised-later"] = lambda lab: lab.do(disguised(REWRITE, SPOKEN), grade(lab, SLOW))
INJECT["tamper-disguised-late"] = _disguised_late


@pytest.mark.parametrize("fault", INJECT)
def test_tampering(fault: str, lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](lab), lab.run)
