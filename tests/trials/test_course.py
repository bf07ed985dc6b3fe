"""What a phase's border takes in, without an engine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pytest_infranoise.agents.logs import PhaseLog
from pytest_infranoise.agents.secrets import Masker
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Phase
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import LoggedKill
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxState
from pytest_infranoise.trials.course import Course
from pytest_infranoise.trials.decision import Decision
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import UNREAD
from pytest_infranoise.trials.evidence import CutOff
from pytest_infranoise.trials.verdict import judge
from pytest_infranoise.trials.watch import Look
from tests.agents.sandbox import MemorySandbox

HOSTS, OWN = LoggedKill("host", "perl"), LoggedKill("own", "perl")


class Logged(MemorySandbox):
    """One whose machine's log tells of kills, each of them once; its counters go with its processes."""

    def __init__(self, *kills: tuple[LoggedKill, ...] | None, vanishes: bool) -> None:
        super().__init__()
        self.kills = list(kills)
        self.vanishes = vanishes
        self.running = True

    def logged_kills(self) -> tuple[LoggedKill, ...] | None:
        return self.kills.pop(0) if self.kills else ()

    def counters(self) -> Counters:
        return Counters(oom_kills=0, memory_usage=1) if self.running or not self.vanishes else UNREAD

    def state(self) -> SandboxState:
        return SandboxState(running=self.running or not self.vanishes, exit_code=137)


def cut_off(box: Logged, path: Path) -> Course:
    """Go through an agent phase that is cut off when its container ends, or seems to."""

    def guard(sandbox: Sandbox) -> Look:
        return Look(0.01, lambda: CutOff(None, "the kernel killed a process for memory"))

    course = Course(
        lambda seconds: True,
        lambda phase: PhaseLog(path / phase.value, Masker([])),
        None,
        oom_group=True,
        guard=guard,
    )
    course.attach(box)
    box.running = False
    with course.phase(Phase.AGENT, 60) as run:
        while run.box.remaining():
            time.sleep(0.01)
    return course


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ((HOSTS,), (), (HOSTS,)),
        ((HOSTS,), (OWN,), (HOSTS, OWN)),
        ((), (HOSTS,), (HOSTS,)),
        ((HOSTS,), None, (HOSTS,)),
        (None, (HOSTS,), (HOSTS,)),
        (None, None, None),
    ],
)
def test_what_the_log_told_before_a_cut_is_not_lost_with_the_counters(
    tmp_path: Path,
    first: tuple[LoggedKill, ...] | None,
    second: tuple[LoggedKill, ...] | None,
    told: tuple[LoggedKill, ...] | None,
) -> None:
    """The log is read where a phase is cut off and at its border, and tells everything once."""
    course = cut_off(Logged((), first, second, vanishes=True), tmp_path)
    assert course.evidence.agent.logged_kills == told
    decision = judge(course.evidence, Policy(oom_mode="group"))
    assert isinstance(decision, Decision)
    if told == (HOSTS,):
        assert decision.cause is Cause.HOST_PRESSURE, decision.summary


def test_what_is_logged_after_counters_were_read_is_of_our_own_kill(tmp_path: Path) -> None:
    course = cut_off(Logged((), (HOSTS,), (OWN,), vanishes=False), tmp_path)
    assert course.evidence.agent.logged_kills == (HOSTS,)
