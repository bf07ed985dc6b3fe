"""Trials on a real engine, from start to record: verdicts."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Verdict
from pytest_infranoise.model import Verifier
from tests.trials.lab import MIB
from tests.trials.lab import SAY
from tests.trials.lab import VERIFY
from tests.trials.lab import WORK
from tests.trials.lab import Lab
from tests.trials.lab import beside
from tests.trials.lab import docker

pytestmark = pytest.mark.engine

# `tail` keeps a whole line in memory, and zeros are one line.
HOG = "head -c 200M /dev/zero | tail"
SOLVE_WITH_200M = f"[ $({HOG} | wc -c) = {200 * MIB} ] && echo done > answer"


def outcome(record: Record) -> tuple[Verdict, Cause | None, FailReason | None]:
    return record.verdict, record.cause, record.reason


def infra(cause: Cause) -> tuple[Verdict, Cause, None]:
    return Verdict.INFRA_ERROR, cause, None


def fail(reason: FailReason) -> tuple[Verdict, None, FailReason]:
    return Verdict.FAIL, None, reason


PASS = (Verdict.PASS, None, None)


def test_a_pass(lab: Lab) -> None:
    record = lab.do("echo thinking; cat $INFRANOISE_INSTRUCTION_FILE; echo done > answer")
    assert (*outcome(record), record.rule, record.reward, record.flags) == (*PASS, "2 complete pass", 1.0, ())
    assert lab.log("agent") == "thinking\nWrite done to the file answer.\n"


def test_a_fail(lab: Lab) -> None:
    assert outcome(lab.do("echo do not know > answer")) == fail(FailReason.TESTS_FAILED)


def test_a_nonzero_exit_alone_does_not_make_a_fail(lab: Lab) -> None:
    assert outcome(lab.do("echo done > answer; exit 3")) == PASS
    assert outcome(lab.do("exit 3", sample=1)) == fail(FailReason.AGENT_CRASH)


@pytest.mark.parametrize("swallow", ["", "; exit 0"])
def test_a_correct_solution_under_too_low_a_ceiling(lab: Lab, swallow: str) -> None:
    record = lab.do(SOLVE_WITH_200M + swallow, memory=64)
    assert outcome(record) == infra(Cause.RESOURCE_KILL)
    assert record.rule == "6 kernel kill"
    assert record.flags == (Flag.OOM_KILLS,)
    assert record.peak_memory is not None
    assert record.peak_memory >= 0.98 * 64 * MIB
    assert record.details["phases"]["agent"]["oom_kills"] >= 1
    assert record.details["phases"]["setup"]["oom_kills"] == 0


def test_the_same_solution_uncapped(lab: Lab) -> None:
    record = lab.do(SOLVE_WITH_200M, memory=None)
    assert (*outcome(record), record.flags) == (*PASS, ())
    assert record.peak_memory is not None
    assert record.peak_memory >= 200 * MIB
    assert record.details["phases"]["agent"]["anonymous_peak"] is not None


def test_a_pass_stays_one_when_a_grandchild_was_killed(lab: Lab) -> None:
    record = lab.do(f"sh -c 'sh -c \"{HOG} >/dev/null\"'; echo done > answer")
    assert (*outcome(record), record.flags) == (*PASS, (Flag.OOM_KILLS,))


def test_out_of_memory_in_setup(lab: Lab) -> None:
    record = lab.do("echo done > answer", lab.task(setup=f"{HOG} >/dev/null"))
    assert (*outcome(record), record.rule) == (*infra(Cause.RESOURCE_KILL), "6 kernel kill")
    assert list(record.details["phases"]) == ["start", "setup"]


def test_out_of_memory_in_the_verifier(lab: Lab) -> None:
    record = lab.do("echo done > answer", lab.task(verify=f"{HOG} >/dev/null || exit\n{VERIFY}"))
    assert (*outcome(record), record.rule) == (*infra(Cause.RESOURCE_KILL), "6 kernel kill")
    assert record.details["phases"]["agent"]["oom_kills"] == 0
    assert record.details["phases"]["verifier"]["oom_kills"] >= 1


# Many small processes and a process 1 that is made the likeliest victim: it goes first, and its counters with it.
KILL_PROCESS_1 = """echo 1000 >/proc/1/oom_score_adj
for number in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    (head -c 4M /dev/zero | tail | sleep 30) &
done
wait"""


def test_out_of_memory_of_process_1(lab: Lab) -> None:
    record = lab.do(KILL_PROCESS_1)
    assert (*outcome(record), record.rule) == (*infra(Cause.RESOURCE_KILL), "6 kernel kill")
    assert record.details["phases"]["agent"]["container_ended"] is True
    assert record.details["state"]["running"] is False


def test_out_of_memory_without_a_process_to_blame(lab: Lab) -> None:
    trial = lab.trial(lab.task(), command="head -c 100M /dev/zero >/dev/shm/full; echo done > answer")
    trial = replace(trial, allocation=replace(trial.allocation, shm_ceiling=200 * MIB))
    record = lab.run_trial(trial, make_builtin(AgentContext(trial.agent, trial.task, trial.key, 0)))
    assert outcome(record) == infra(Cause.RESOURCE_KILL)


def test_the_peak_of_one_phase_is_not_that_of_the_next(lab: Lab) -> None:
    record = lab.do("head -c 40M /dev/zero | tail >/dev/null; echo done > answer")
    phases = record.details["phases"]
    assert phases["agent"]["peak"] >= 40 * MIB
    assert phases["verifier"]["peak"] < 30 * MIB


# The agent's work would be done after 8 seconds, its time is 3, and the verifier waits long enough to see it.
LATE = "sleep 8; echo done > /app/answer"
WAIT = f"sleep 10\n{VERIFY}"
SHORT = Timeouts(setup=20, agent=3, verifier=30)


@pytest.mark.parametrize("command", [LATE, f"setsid sh -c '{LATE}' & sleep 60"])
def test_what_an_agent_left_behind_at_its_deadline_works_no_more(lab: Lab, command: str) -> None:
    record = lab.do(command, lab.task(verify=WAIT, timeouts=SHORT))
    assert outcome(record) == fail(FailReason.AGENT_TIMEOUT)
    assert record.flags == (Flag.TIMED_OUT,)
    assert [intent["what"] for intent in record.details["intents"]] == ["kill-processes", "remove-container"]


def test_a_timeout_after_the_work_was_done(lab: Lab) -> None:
    task = lab.task(timeouts=Timeouts(setup=20, agent=1, verifier=20))
    record = lab.do("echo done > answer; sleep 60", task)
    assert (*outcome(record), record.flags) == (*PASS, (Flag.TIMED_OUT,))


def test_a_task_may_keep_processes_beyond_the_deadline(lab: Lab) -> None:
    task = lab.task(verify=f"sleep 2\n{VERIFY}", timeouts=Timeouts(20, 1, 20), keep_processes=True)
    assert outcome(lab.do("sleep 2; echo done > answer", task)) == PASS


def test_what_an_agent_leaves_running_when_it_is_done_goes_on(lab: Lab) -> None:
    serve = "while :; do read -r line <ask; echo $line >reply; done"
    ask = 'cd "$INFRANOISE_WORKDIR"\necho hello >ask\n[ "$(cat reply)" = hello ] && reward=1\n'
    task = lab.task(verify=f"reward=0\n{ask}{SAY}")
    assert outcome(lab.do(f"mkfifo ask reply; setsid sh -c '{serve}' >/dev/null 2>&1 &", task)) == PASS


@pytest.mark.parametrize(
    ("verify", "text"),
    [
        ("exit 0", "wrote no verdict (exit status 0)"),
        ("echo boom; exit 1", "wrote no verdict (exit status 1: boom)"),
        ('echo \'{"reward": 1, "nonce": "guess"}\' > "$INFRANOISE_REWARD_FILE"', "this verifier's nonce"),
        ('printf \'{"reward": 1, "non\' > "$INFRANOISE_REWARD_FILE"', "cannot be read"),
        (f"reward=2; {SAY}", "cannot be read"),
        ("mkdir \"$INFRANOISE_REWARD_FILE\"", "wrote no verdict"),
        ("nosuchcommand", "wrote no verdict (exit status 127"),
    ],
)  # fmt: skip
def test_a_verifier_without_a_verdict(lab: Lab, verify: str, text: str) -> None:
    record = lab.do("echo done > answer", lab.task(verify=verify))
    assert (*outcome(record), record.rule) == (*infra(Cause.VERIFIER_ERROR), "12 no verdict")
    assert text in record.summary
    assert record.reward is None


def test_a_verifier_that_takes_too_long(lab: Lab) -> None:
    task = lab.task(verify="sleep 60", timeouts=Timeouts(20, 20, 1))
    record = lab.do("echo done > answer", task)
    assert (*outcome(record), record.rule) == (*infra(Cause.VERIFIER_ERROR), "7 own deadline")
    assert record.summary == "verifier timed out after 1 s"


def test_a_verdict_given_before_the_verifiers_deadline_counts(lab: Lab) -> None:
    task = lab.task(verify=f"{VERIFY}sleep 60", timeouts=Timeouts(20, 20, 1))
    assert outcome(lab.do("echo done > answer", task)) == PASS


def test_an_agent_cannot_leave_a_verdict_behind(lab: Lab) -> None:
    forge = """mkdir -p /infranoise/reward-planted /infranoise/verifier
echo 'echo nothing' > /infranoise/verifier/verify.sh
for place in /infranoise/reward-planted /infranoise/verifier; do echo '{"reward": 1}' > $place/reward.json; done"""
    verify = f'ls /infranoise/ /infranoise/verifier "$(dirname "$INFRANOISE_REWARD_FILE")"\n{VERIFY}'
    record = lab.do(forge, lab.task(verify=verify))
    assert outcome(record) == fail(FailReason.TESTS_FAILED)
    seen = lab.log("verifier")
    assert "reward-planted" not in seen
    assert seen.count("verify.sh") == 1
    assert "reward.json" not in seen


def test_setup_fails(lab: Lab) -> None:
    record = lab.do("echo done > answer", lab.task(setup="echo no mirror answers >&2; exit 4"))
    assert (*outcome(record), record.rule) == (*infra(Cause.SETUP_FAILED), "11 setup or provider")
    assert record.summary == "the setup command ended with exit status 4: no mirror answers"


def test_setup_takes_too_long(lab: Lab) -> None:
    record = lab.do("echo done > answer", lab.task(setup="sleep 60", timeouts=Timeouts(1, 20, 20)))
    assert (*outcome(record), record.rule) == (*infra(Cause.SETUP_FAILED), "7 own deadline")


@pytest.mark.parametrize(
    "argv", [["kill"], ["stop", "--time", "1"], ["rm", "--force"], ["restart", "--time", "1"]]
)  # fmt: skip
def test_somebody_ends_the_container(lab: Lab, argv: list[str]) -> None:
    with beside(lab, lambda container: docker(*argv, container)):
        record = lab.do(WORK)
    assert (*outcome(record), record.rule) == (*infra(Cause.CONTAINER_LOST), "9 container lost")
    assert "from outside in the agent phase" in record.summary


def test_somebody_sends_a_signal_that_ends_nothing(lab: Lab) -> None:
    with beside(lab, lambda container: docker("kill", "--signal", "TERM", container)):
        record = lab.do(WORK, lab.task(timeouts=Timeouts(20, 3, 20)))
    assert outcome(record) == fail(FailReason.AGENT_TIMEOUT)


def test_somebody_pauses_the_container(lab: Lab) -> None:
    with beside(lab, lambda container: docker("pause", container)):
        record = lab.do(WORK, lab.task(timeouts=Timeouts(20, 3, 20)))
    assert outcome(record) == infra(Cause.CONTAINER_LOST)


def test_process_1_is_killed_on_the_host(lab: Lab) -> None:
    def kill(container: str) -> None:
        subprocess.run(["kill", "-9", docker("inspect", "--format", "{{.State.Pid}}", container)], check=True)

    with beside(lab, kill):
        record = lab.do(WORK)
    assert (*outcome(record), record.rule) == (*infra(Cause.CONTAINER_LOST), "9 container lost")


def test_a_verifier_of_another_user(lab: Lab) -> None:
    task = lab.task(verify=f"[ $(id -u) = 65534 ] || exit\n{VERIFY}")
    verifier = Verifier("sh verify.sh", task.verifier.files, user="nobody")
    assert outcome(lab.do("echo done > answer", lab.task(verifier=verifier))) == PASS


def test_an_agent_that_is_not_root_can_work(lab: Lab) -> None:
    files = lab.path / "files"
    files.mkdir()
    (files / "given").write_text("old")
    task = lab.task(user="nobody", workdir="/srv/work", files=files)
    record = lab.do("[ $(id -u) = 65534 ] && [ $PWD = /srv/work ] && echo done > given && mv given answer", task)
    assert outcome(record) == PASS


def test_pids_denied(lab: Lab) -> None:
    record = lab.do("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 20 & done; echo done > answer", pids=8)
    assert Flag.PIDS_DENIED in record.flags
    assert outcome(record) == infra(Cause.RESOURCE_EXHAUSTED)


def test_starved_of_cpu(lab: Lab) -> None:
    spin = "end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do :; done"
    record = lab.do(f"({spin}) & ({spin}) & wait; echo done > answer", cpus=0.2)
    assert (*outcome(record), record.flags) == (*PASS, (Flag.STARVED,))
