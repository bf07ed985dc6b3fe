"""Trials on a real engine: what is recorded, what is left behind, what happens when the runner is in trouble."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Strategy
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Trial
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.kernel_log import DEVICE
from pytest_infranoise.sandboxes.kernel_log import KernelLog
from pytest_infranoise.sandboxes.protocol import Backend
from pytest_infranoise.sandboxes.protocol import EnforcementError
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxRequest
from pytest_infranoise.trials.runner import TrialConfigError
from tests.agents.agents import InProcess
from tests.trials.lab import MIB
from tests.trials.lab import SAY
from tests.trials.lab import VERIFY
from tests.trials.lab import Lab
from tests.trials.lab import containers_of
from tests.trials.lab import docker

pytestmark = pytest.mark.engine


def done(sandbox: Sandbox) -> AgentResult:
    sandbox.write("/app/answer", b"done")
    return AgentResult()


def test_what_a_record_holds(lab: Lab) -> None:
    record = lab.do("echo done > answer")
    details = record.details
    assert list(details["phases"]) == ["start", "setup", "agent", "verifier"]
    agent = details["phases"]["agent"]
    assert (agent["exit_code"], agent["ended"], agent["limit"]) == (0, True, 20)
    assert (agent["oom_kills"], agent["pids_denied"]) == (0, 0)
    assert agent["ceiling"] == 64 * MIB
    assert agent["commands_in_all"] == len(agent["commands"]) == 1
    (command,) = agent["commands"]
    assert (command["exit_code"], command["started"], command["truncated"]) == (0, True, False)
    assert command["pid"] > 0
    assert command["output_bytes"] == 0
    assert (agent["full_disks"], agent["engine_disk_full"]) == ([], False)
    assert agent["host_oom_kills"] is not None
    assert agent["host_after"]["memory_available"] > 0
    assert agent["host_before"] == details["phases"]["setup"]["host_after"]
    assert 0 <= agent["engine_seconds"] < agent["seconds"] + 5
    assert abs(agent["clock_step"]) < 1
    assert details["state"]["status"] == "running"
    assert details["state"]["started_at"] > "20"
    assert details["allocation"]["memory_floor"] == 64 * MIB
    assert details["limits"]["memory"] == 64 * MIB
    assert details["limits"]["cpus"] == pytest.approx(2.0)
    assert details["artefact"]["status"] == "complete"
    assert details["image"].startswith("sha256:")
    assert details["holder_is_init"] is True
    assert details["identity_intact"] is True
    assert details["admission"] == {"waited_seconds": 0.0}
    assert details["contradictions"] == []
    assert details["state"]["running"] is True
    assert [event["action"] for event in details["state"]["events"]] == ["create", "start"]
    times = details["times"]
    assert record.started == times["queued"] <= times["admitted"] <= times["created"] <= times["removed"]
    assert record.seconds > 0
    assert record.task_hash == "c0ffee"
    assert len(json.dumps(record.to_json())) < 16 * 1024


def test_what_is_done_to_a_container_is_written_down_before(lab: Lab) -> None:
    written: list[str] = []

    def remove() -> bool:
        written.append((lab.run_dir / "intents-main.jsonl").read_text("ascii"))
        return lab.backend.remove_labelled({"infranoise.run": lab.run}) == 1

    backend = FaultyBackend(lab.backend, "remove", remove)
    trial = lab.trial(lab.task(timeouts=Timeouts(20, 1, 20)), command="sleep 60")
    record = lab.run_trial(
        trial, make_builtin(AgentContext(trial.agent, trial.task, trial.key, 0)), backend=backend
    )
    intents = [json.loads(line) for line in written[0].splitlines()]
    assert [intent["what"] for intent in intents] == ["kill-processes", "remove-container"]
    assert [intent["what"] for intent in record.details["intents"]] == [intent["what"] for intent in intents]
    assert {intent["task"] for intent in intents} == {"job"}
    assert lab.read().damaged == 0


def test_only_the_first_and_last_commands_of_many_are_kept(lab: Lab) -> None:
    def run(sandbox: Sandbox) -> AgentResult:
        for number in range(25):
            sandbox.exec(["sh", "-c", f"exit {number}"])
        return done(sandbox)

    agent = lab.run_trial(lab.trial(lab.task()), InProcess(run)).details["phases"]["agent"]
    assert agent["commands_in_all"] == 25
    assert [command["exit_code"] for command in agent["commands"]] == [*range(10), *range(15, 25)]


def test_labels_and_name_are_safe_whatever_the_task_is_called(lab: Lab) -> None:
    seen: dict[str, Any] = {}

    def run(sandbox: Sandbox) -> AgentResult:
        (inspected,) = json.loads(docker("inspect", sandbox.id))
        seen.update(inspected["Config"]["Labels"], name=inspected["Name"])
        return done(sandbox)

    task = lab.task(name='../$(reboot) "\u00e4\n; rm -rf')
    record = lab.run_trial(lab.trial(task, sample=3), InProcess(run))
    assert record.verdict is Verdict.PASS
    assert seen["infranoise.trial"] == str(record.key)
    expected = {"run": lab.run, "worker": "main", "attempt": "0", "host": "here"}
    assert {name: seen[f"infranoise.{name}"] for name in expected} == expected
    assert len(seen["infranoise.boot"]) == 36
    assert seen["name"].startswith(f"/infranoise-{lab.run}-")
    assert all(path.is_relative_to(lab.run_dir) for path in lab.run_dir.resolve().rglob("*"))


def test_the_floor_is_held_from_before_the_container_until_after_its_removal(lab: Lab) -> None:
    at_admission = []

    @contextlib.contextmanager
    def admit(trial: Trial) -> Iterator[Mapping[str, Any]]:
        at_admission.append(containers_of(lab.run))
        yield {"overcommit": 1.5}
        at_admission.append(containers_of(lab.run))

    record = lab.run_trial(lab.trial(lab.task()), InProcess(done), admit=admit)
    assert at_admission == [[], []]
    assert record.details["admission"] == {"overcommit": 1.5}


def test_environment_user_and_files_of_the_task(lab: Lab) -> None:
    files = lab.path / "files"
    (files / "sub").mkdir(parents=True)
    (files / "sub" / "word").write_text("done")
    task = lab.task(
        workdir="/srv/deep/er",
        files=files,
        environment={"WORD": "a b"},
        setup='[ "$WORD" = "a b" ] && [ $(id -u) = 0 ] && mv sub/word given',
        verify=f'[ "$WORD" = "a b" ] || exit 1\n{VERIFY}',
    )
    record = lab.do('[ "$WORD" = "a b" ] && [ $(pwd) = /srv/deep/er ] && cp given answer', task)
    assert record.verdict is Verdict.PASS, record.summary


def test_while_the_agent_works_its_container_holds_nothing_of_ours_but_the_task(lab: Lab) -> None:
    record = lab.do("find /infranoise -type f; echo done > answer")
    assert record.verdict is Verdict.PASS
    assert lab.log("agent").split() == ["/infranoise/instruction.md"]


def test_oracle_and_scripted_agents(lab: Lab) -> None:
    right, wrong = lab.path / "right.sh", lab.path / "wrong.sh"
    right.write_text("find /infranoise -type f | sort; echo done > answer\n")
    wrong.write_text("echo do not know > answer\n")
    task = lab.task(oracle=right, strategies=(Strategy("look it up", right, 0.5), Strategy("guess", wrong, 0.5)))

    def do(kind: str, sample: int) -> tuple[Verdict, str | None]:
        trial = lab.trial(task, sample=sample)
        context = AgentContext(AgentChoice(kind, kind), task, trial.key, seed=7)
        record = lab.run_trial(trial, make_builtin(context))
        return record.verdict, record.details["agent"]["details"].get("strategy")

    assert do("oracle", 0) == (Verdict.PASS, None)
    assert lab.log("agent").split() == ["/infranoise/agent/right.sh", "/infranoise/instruction.md"]
    assert do("nop", 1) == (Verdict.FAIL, None)
    scripted = {do("scripted", sample) for sample in range(2, 8)}
    assert scripted == {(Verdict.PASS, "look it up"), (Verdict.FAIL, "guess")}


def test_a_strategy_that_times_out_is_still_on_record(lab: Lab) -> None:
    slow = lab.path / "slow.sh"
    slow.write_text("sleep 60")
    task = lab.task(strategies=(Strategy("brute force", slow, 1.0),), timeouts=Timeouts(20, 1, 20))
    trial = lab.trial(task)
    agent = make_builtin(AgentContext(AgentChoice("scripted", "scripted"), task, trial.key, seed=7))
    record = lab.run_trial(trial, agent)
    assert record.details["agent"]["details"] == {"strategy": "brute force"}


def test_passed_variables_never_reach_the_disk(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, key = "tr0ub4dor&3", "-----BEGIN KEY-----\nc2VjcmV0IGtleQ==\n-----END KEY-----"
    monkeypatch.setenv("TOKEN", secret)
    monkeypatch.setenv("KEY", key)
    verify = f'cat "$INFRANOISE_WORKDIR/note"; {VERIFY}'
    record = lab.do(
        'echo "$TOKEN" "$KEY"; echo "$TOKEN" > note; echo "$KEY" | sed -n 2p; echo done > answer; exit 1',
        lab.task(verify=verify),
        env=["TOKEN", "KEY"],
    )
    assert record.verdict is Verdict.PASS, record.summary
    assert "***" in lab.log("agent")
    written = [path for path in lab.run_dir.rglob("*") if path.is_file()]
    assert any(path.name == "verifier.log" for path in written)
    for path in written:
        content = path.read_text()
        assert secret not in content
        assert "c2VjcmV0" not in content


def test_logs_are_capped(lab: Lab) -> None:
    record = lab.do("yes 0123456789abcdef | head -c 30M; echo done > answer", memory=256)
    assert record.verdict is Verdict.PASS
    assert len(lab.log("agent")) < 9 * MIB


def test_a_record_is_small_whatever_agent_and_verifier_say(lab: Lab) -> None:
    def run(sandbox: Sandbox) -> AgentResult:
        done(sandbox)
        huge = {str(number): "x" * 1000 for number in range(500)}
        return AgentResult(summary="s" * 10**6, details={"huge": huge, "odd": {1: float("nan"), "o": object()}})

    task = lab.task(verify=VERIFY.replace(SAY, SAY.replace('"nonce"', '"why": "%060000d", "nonce"').replace(
        '"$reward"', '"$reward" 0'
    )))  # fmt: skip
    record = lab.run_trial(lab.trial(task), InProcess(run))
    assert record.verdict is Verdict.PASS, record.summary
    assert len(json.dumps(record.to_json())) < 64 * 1024
    assert record.details["left_out"] == ["agent"]


def test_a_missing_image_is_the_users_mistake(lab: Lab) -> None:
    with pytest.raises(TrialConfigError, match="no-such-image") as caught:
        lab.do("true", lab.task(image="infranoise/no-such-image:1", pull="never"))
    assert caught.value.task.pull == "never"
    read = lab.read()
    assert read.records == ()
    assert len(read.unfinished) == 1
    assert lab.admissions == []


def test_an_image_that_could_not_be_pulled(lab: Lab) -> None:
    def image(task: Task) -> str:
        raise ImagePullError("pull", "toomanyrequests: slow down", 429)

    record = lab.run_trial(lab.trial(lab.task()), InProcess(done), image=image)
    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.IMAGE_PULL)
    assert record.rule == "5 engine statement"
    assert lab.admissions == []


def test_an_unknown_user_is_the_users_mistake(lab: Lab) -> None:
    with pytest.raises(TrialConfigError, match="nosuchuser"):
        lab.do("true", lab.task(user="nosuchuser"))
    assert lab.records() == []
    assert lab.admissions == ["granted", "released with 0 containers"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt])
def test_told_to_stop(lab: Lab, stop: type[BaseException]) -> None:
    def run(sandbox: Sandbox) -> AgentResult:
        raise stop

    with pytest.raises(stop):
        lab.run_trial(lab.trial(lab.task()), InProcess(run))
    assert containers_of(lab.run) == []
    read = lab.read()
    assert (read.records, len(read.unfinished)) == ((), 1)


class Faulty:
    """A real sandbox, one of whose methods fails."""

    def __init__(self, sandbox: Sandbox, name: str, act: Callable[..., Any]) -> None:
        self._sandbox = sandbox
        self._name = name
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return self._act if name == self._name else getattr(self._sandbox, name)


class FaultyBackend:
    """A real engine whose sandboxes have a fault."""

    def __init__(self, backend: Backend, name: str, act: Callable[..., Any]) -> None:
        self._backend = backend
        self._fault = name, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def create(self, request: SandboxRequest) -> Any:
        return Faulty(self._backend.create(request), *self._fault)


def test_a_bug_of_ours_is_a_harness_crash(lab: Lab) -> None:
    def counters() -> None:
        raise ZeroDivisionError("a bug")

    backend = FaultyBackend(lab.backend, "state", counters)
    record = lab.run_trial(lab.trial(lab.task()), InProcess(done), backend=backend)
    assert (record.verdict, record.cause, record.rule) == (Verdict.INFRA_ERROR, Cause.HARNESS_CRASH, "0 void")
    assert "ZeroDivisionError: a bug" in record.summary
    assert "in counters" in record.details["crash"]
    assert containers_of(lab.run) == []


def test_a_container_that_cannot_be_removed_is_a_flag(lab: Lab) -> None:
    backend = FaultyBackend(lab.backend, "remove", lambda: False)
    record = lab.run_trial(lab.trial(lab.task()), InProcess(done), backend=backend)
    assert (record.verdict, record.flags) == (Verdict.PASS, (Flag.LEAKED,))
    assert len(containers_of(lab.run)) == 1
    lab.backend.remove_labelled({"infranoise.run": lab.run})


def test_told_to_stop_while_removing(lab: Lab) -> None:
    calls = []

    def remove() -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return lab.backend.remove_labelled({"infranoise.run": lab.run}) == 1

    backend = FaultyBackend(lab.backend, "remove", remove)
    with pytest.raises(KeyboardInterrupt):
        lab.run_trial(lab.trial(lab.task()), InProcess(done), backend=backend)
    assert containers_of(lab.run) == []
    assert lab.records() == []


def test_processes_that_cannot_be_killed_make_no_verdict(lab: Lab) -> None:
    backend = FaultyBackend(lab.backend, "kill_processes", lambda: False)
    trial = lab.trial(lab.task(timeouts=Timeouts(20, 1, 20)), command="echo done > answer; sleep 60")
    agent = make_builtin(AgentContext(trial.agent, trial.task, trial.key, 0))
    record = lab.run_trial(trial, agent, backend=backend)
    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.CONTAINER_LOST)
    assert "verifier" not in record.details["phases"]


def test_verifier_files_that_are_not_what_was_sent(lab: Lab) -> None:
    backend = FaultyBackend(lab.backend, "digest", lambda path: "another")
    record = lab.run_trial(lab.trial(lab.task()), InProcess(done), backend=backend)
    assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.VERIFIER_ERROR)
    assert record.summary == "not what was sent: verify.sh"


def test_large_verifier_files_are_checked_too(lab: Lab) -> None:
    task = lab.task()
    assert task.verifier.files is not None
    (task.verifier.files / "large").write_bytes(os.urandom(5 * MIB))
    assert lab.do("echo done > answer", task).verdict is Verdict.PASS


def test_limits_that_are_not_enforced_stop_everything(lab: Lab) -> None:
    def create(request: SandboxRequest) -> Sandbox:
        raise EnforcementError("no memory limit")

    backend = FaultyBackend(lab.backend, "", create)
    backend.create = create  # type: ignore[method-assign]
    with pytest.raises(EnforcementError):
        lab.run_trial(lab.trial(lab.task()), InProcess(done), backend=backend)
    assert lab.records() == []
    assert lab.admissions == ["granted"]


def test_the_kernels_log_tells_whose_limit_a_trial_met(lab: Lab) -> None:
    try:
        KernelLog().close()
    except OSError as error:
        pytest.skip(f"{DEVICE} cannot be read here: {error}")
    record = lab.do("perl -e '$x = \"x\" x (256 * 1024 * 1024)'; echo survived")
    assert record.cause is Cause.RESOURCE_KILL, record.summary
    phases = record.details["phases"]
    assert {"limit": "own", "process": "perl"} in phases["agent"]["logged_kills"]
    assert [phases[name]["logged_kills"] for name in ("setup", "verifier")] == [[], []]
