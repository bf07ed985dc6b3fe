"""Policies on a real engine: what a kernel kill ends, and who has to go when the host runs short."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.guard import Guard
from pytest_infranoise.host import Capacity
from pytest_infranoise.host import Ledger
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Trial
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.trials.runner import run_trial
from tests.trials.lab import MIB
from tests.trials.lab import VERIFY
from tests.trials.lab import Lab
from tests.trials.lab import containers_of

pytestmark = pytest.mark.engine

_attempts = itertools.count()
GREEDY_CHILD = "perl -e '$x = \"x\" x (200 * 1048576)' || true\n"
SURVIVES = f"{GREEDY_CHILD}echo done > answer\n"
WORKS_ON = f"{GREEDY_CHILD}sleep 15; echo done > answer\n"


def judged(lab: Lab, trial: Trial, **policy: Any) -> Record:
    agent = make_builtin(AgentContext(trial.agent, trial.task, trial.key, lab.seed))
    return run_trial(trial, agent, lab.context(**policy), next(_attempts))


def test_a_child_killed_without_a_pass_is_infra_or_left_to_the_verifier(lab: Lab) -> None:
    """And with a pass it is a pass, flagged, whatever the policy."""
    survived, gave_up = (
        lab.trial(lab.task(), command=command) for command in (SURVIVES, f"{GREEDY_CHILD}echo wrong > answer\n")
    )
    ends = {
        (name, policy): judged(lab, trial, oom_child=policy)
        for name, trial in (("survived", survived), ("gave up", gave_up))
        for policy in ("infra", "fail")
    }

    assert {place: record.cause or record.reason or record.verdict for place, record in ends.items()} == {
        ("survived", "infra"): Verdict.PASS,
        ("survived", "fail"): Verdict.PASS,
        ("gave up", "infra"): Cause.RESOURCE_KILL,
        ("gave up", "fail"): "tests-failed",
    }
    assert all(record.flags == (Flag.OOM_KILLS,) for record in ends.values())


@pytest.mark.parametrize("policy", ["infra", "fail"])
def test_in_the_mode_group_the_first_kill_ends_the_trial(lab: Lab, policy: str) -> None:
    """Also the kill of a child that the agent survives, and although everything was solved."""
    trial = lab.trial(lab.task(), command=WORKS_ON)

    record = judged(lab, trial, oom_mode="group", oom_child=policy)

    assert (record.verdict, record.cause, record.rule) == (
        Verdict.INFRA_ERROR,
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    )
    agent = record.details["phases"]["agent"]
    assert agent["cut_off"]["text"] == "the kernel killed a process for memory"
    assert not agent["timed_out"]
    assert agent["seconds"] < 15  # what it slept: the phase ended with the kill, not with the agent
    assert "verifier" not in record.details["phases"]
    assert record.reward is None


def test_a_kill_at_the_very_end_of_a_phase_ends_the_trial_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch looks ten times a second; what it cannot see any more is in the counters at the border."""
    monkeypatch.setattr("pytest_infranoise.trials.watch.KERNEL_SECONDS", 60.0)

    record = judged(lab, lab.trial(lab.task(), command=SURVIVES), oom_mode="group")

    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.RESOURCE_KILL)
    assert "verifier" not in record.details["phases"]


@pytest.mark.parametrize("seconds", [0.1, 60.0])
def test_a_kill_in_the_verifier_ends_the_trial_in_the_mode_group_only(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("pytest_infranoise.trials.watch.KERNEL_SECONDS", seconds)
    task = lab.task(verify=f"{VERIFY}{GREEDY_CHILD}sleep 2\n")
    trial = lab.trial(task, command="echo done > answer")

    single, group = judged(lab, trial), judged(lab, trial, oom_mode="group")

    assert (single.verdict, single.flags) == (Verdict.PASS, (Flag.OOM_KILLS,))
    assert (group.verdict, group.cause) == (Verdict.INFRA_ERROR, Cause.RESOURCE_KILL)
    assert "verifier phase" in group.summary


class Stubborn:
    """Works on the host, has a child killed, and takes no refusal for an answer."""

    on_host = True

    def setup(self, sandbox: Sandbox) -> None:
        """Need nothing."""

    def run(self, instruction: str, sandbox: Sandbox) -> AgentResult:
        """Never end by itself."""
        sandbox.exec(["sh", "-c", GREEDY_CHILD])
        while True:
            try:
                sandbox.exec(["sleep", "0.1"])
            except DeadlineExceeded:
                continue


def test_an_agent_on_the_host_ends_with_the_first_kill(lab: Lab) -> None:
    record = lab.run_trial(lab.trial(lab.task()), Stubborn(), oom_mode="group")

    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.RESOURCE_KILL)
    assert not record.details["phases"]["agent"]["timed_out"]


# The memory guard

HOLD = 'perl -e \'$x = "x" x (%d * 1048576); $0 = "has" . "-it"; sleep 12\'; echo done > answer'


@contextmanager
def guarded(lab: Lab, ledger: Ledger, name: str, available: Callable[[], int]) -> Iterator[dict[str, Any]]:
    """Give what a process gives to its trials: its place in the ledger, and its part in the guard."""
    owner = ledger.register(lab.run, name)
    guard = Guard(owner, reserve=1000 * MIB, available=available)
    limit = Capacity(64, 10_000 * MIB)
    try:
        yield {"guard": guard.look, "admit": lambda trial: owner.reserve(trial.allocation, limit), "worker": name}
    finally:
        owner.close()


def _holds(container: str) -> bool:
    return b"has-it" in subprocess.run(["docker", "top", container], capture_output=True, timeout=60).stdout


def test_the_guard_ends_the_trial_furthest_above_its_floor_and_no_other(lab: Lab, tmp_path: Path) -> None:
    """Three trials on one host that stays short: one far above its floor, one a little above, one within it."""
    ledger = Ledger("guarded", tmp_path / "state")
    task = lab.task(timeouts=Timeouts(60, 120, 60))
    floors = {"within": (400, 100), "little": (50, 60), "far": (50, 200)}  # floor and use in MiB
    records: dict[str, Record] = {}
    all_hold = threading.Event()

    def available() -> int:
        return (999 if all_hold.is_set() else 5000) * MIB

    def one(place: int, name: str, floor: int, held: int) -> None:
        trial = lab.trial(task, command=HOLD % held, sample=place, memory=None)
        allocation = Allocation(0.1, 2.0, floor * MIB, None)
        trial = replace(trial, allocation=allocation)
        agent = make_builtin(AgentContext(trial.agent, trial.task, trial.key, lab.seed))
        with guarded(lab, ledger, name, available=available) as changes:
            records[name] = run_trial(trial, agent, lab.context(**changes))

    threads = [
        threading.Thread(target=one, args=(i, name, *sizes)) for i, (name, sizes) in enumerate(floors.items())
    ]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + 30
    while sum(_holds(container) for container in containers_of(lab.run)) < len(floors):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    all_hold.set()
    for thread in threads:
        thread.join()

    ends = {name: (record.verdict, record.cause) for name, record in records.items()}
    assert ends["far"] == (Verdict.INFRA_ERROR, Cause.HOST_PRESSURE)
    assert ends["within"] == (Verdict.PASS, None)
    assert records["far"].rule == "6 memory guard"
    assert "999 MiB available on the host, below the reserve of 1000 MiB" in records["far"].summary
    assert records["far"].reward is None
    assert "verifier" not in records["far"].details["phases"]
    # The host stays short, so the next one goes as well, but only when the first has gone.
    assert ends["little"] == (Verdict.INFRA_ERROR, Cause.HOST_PRESSURE)
    assert records["little"].details["times"]["removed"] > records["far"].details["times"]["removed"]


def test_the_guard_does_nothing_while_memory_suffices(lab: Lab, tmp_path: Path) -> None:
    ledger = Ledger("guarded", tmp_path / "state")
    trial = lab.trial(lab.task(), command=HOLD.replace("12", "3") % 100, memory=None)
    with guarded(lab, ledger, "main", available=lambda: 1000 * MIB) as changes:
        record = judged(lab, trial, **changes)
    assert record.verdict is Verdict.PASS


def test_what_the_guard_kills_is_on_record_as_our_own_doing(lab: Lab, tmp_path: Path) -> None:
    ledger = Ledger("guarded", tmp_path / "state")
    trial = lab.trial(lab.task(), command=HOLD % 100)
    with guarded(lab, ledger, "main", available=lambda: 0) as changes:
        record = judged(lab, replace(trial, allocation=replace(trial.allocation, memory_ceiling=None)), **changes)
    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.HOST_PRESSURE)
    killed = [intent for intent in record.details["intents"] if intent["what"] == "kill-processes"]
    assert [intent["why"].startswith("ended by the memory guard") for intent in killed] == [True]
