"""The decision procedure as a table; what must hold for any evidence at all is in test_any_evidence.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Phase
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import EngineEvent
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import EnvStartError
from pytest_infranoise.sandboxes.protocol import ExecLost
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import HostDiskFull
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import LoggedKill
from pytest_infranoise.sandboxes.protocol import NetworkSetupError
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxState
from pytest_infranoise.trials.decision import ConfigMistake
from pytest_infranoise.trials.decision import Decision
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import KILL_PROCESSES
from pytest_infranoise.trials.evidence import REMOVE
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import Intent
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.evidence import Trouble
from pytest_infranoise.trials.verdict import judge

MIB = 1024**2
CEILING = 64 * MIB
QUIET = Counters(0, None, 10 * MIB, 12 * MIB, 8 * MIB, 0, 0.1, 20, 0, 0.0)
DEAD = Counters()


def _phase(phase: Phase | None, began: float) -> PhaseEvidence:
    return PhaseEvidence(
        phase,
        entered=True,
        ended=True,
        began=began,
        seconds=5.0,
        limit=60.0,
        exit_code=0,
        before=QUIET,
        after=QUIET,
        ceiling=CEILING,
        peak=12 * MIB,
    )


START = replace(_phase(None, 100), exit_code=None)
SETUP = _phase(Phase.SETUP, 110)
AGENT = _phase(Phase.AGENT, 120)
VERIFIER = _phase(Phase.VERIFIER, 130)
PASSED = Artefact(ArtefactStatus.COMPLETE, 1.0)
FAILED = Artefact(ArtefactStatus.COMPLETE, 0.0)
RUNNING = SandboxState(running=True, oom_killed=False)
PASS = Evidence(START, SETUP, AGENT, VERIFIER, PASSED, RUNNING, identity_intact=True, holder_is_init=True)
FAIL = replace(PASS, artefact=FAILED)
NO_VERDICT = replace(PASS, artefact=Artefact())
IN_SETUP = replace(NO_VERDICT, agent=PhaseEvidence(Phase.AGENT), verifier=PhaseEvidence(Phase.VERIFIER))
IN_AGENT = replace(NO_VERDICT, verifier=PhaseEvidence(Phase.VERIFIER), identity_intact=None)
BEFORE = replace(IN_SETUP, setup=PhaseEvidence(Phase.SETUP), identity_intact=None, state=SandboxState())

OOM = replace(QUIET, oom_kills=1)
KILLED = {"after": OOM, "peak": CEILING}
GONE = SandboxState(running=None)
TIMEOUT = {"timed_out": True, "exit_code": None}


def _trouble(error: SandboxError) -> Trouble:
    return Trouble.of(error)


def _dead(action: str | None = None, *, oom: bool = False, time: float = 124) -> SandboxState:
    actions = [*(["oom"] if oom else []), *([action] if action else []), "die"]
    return SandboxState(
        running=False,
        exit_code=137,
        oom_killed=oom,
        events=tuple(EngineEvent(time + number / 100, name) for number, name in enumerate(actions)),
    )


def _agent(base: Evidence, **changes: object) -> Evidence:
    return replace(base, agent=replace(base.agent, **changes))  # type: ignore[arg-type]


def _setup(base: Evidence, **changes: object) -> Evidence:
    return replace(base, setup=replace(base.setup, **changes))  # type: ignore[arg-type]


def _verifier(base: Evidence, **changes: object) -> Evidence:
    return replace(base, verifier=replace(base.verifier, **changes))  # type: ignore[arg-type]


def _start(error: SandboxError) -> Evidence:
    return replace(BEFORE, start=replace(START, trouble=_trouble(error), ended=False))


LOST_ENGINE = _trouble(EngineLost("exec", "connection refused"))
DIED = {"after": DEAD, "exit_code": 137, "container_ended": True, "ended": False, "peak": None}

# What verdicts.md section 2 says, one line a case: evidence, what it is, the rule that must decide.
INFRA: dict[str, tuple[Evidence, Cause, str]] = {
    "own exception": (replace(IN_AGENT, crash="Traceback\nKeyError: 'x'"), Cause.HARNESS_CRASH, "0 void"),
    "image cannot be pulled": (
        _start(ImagePullError("pull", "toomanyrequests", 429)),
        Cause.IMAGE_PULL,
        "5 engine statement",
    ),
    "no network": (_start(NetworkSetupError("start", "no pool", 404)), Cause.NETWORK_SETUP, "5 engine statement"),
    "start fails": (_start(EnvStartError("start", "shim", 500)), Cause.ENV_START, "5 engine statement"),
    "disk full at create": (_start(HostDiskFull("create", "no space left", 500)), Cause.HOST_DISK_FULL, "8 denied"),
    "engine gone at create": (_start(EngineLost("create", "refused")), Cause.DAEMON_LOST, "4 engine lost"),
    "untyped failure at create": (_start(SandboxError("create", "teapot", 418)), Cause.UNKNOWN, "14 unknown"),
    "engine gone in setup": (_setup(IN_SETUP, trouble=LOST_ENGINE), Cause.DAEMON_LOST, "4 engine lost"),
    "engine gone in the agent phase": (_agent(IN_AGENT, trouble=LOST_ENGINE), Cause.DAEMON_LOST, "4 engine lost"),
    "engine restart gives the agent a clean exit": (
        replace(_agent(IN_AGENT, engine_gap=True, container_ended=True, exit_code=7), state=_dead()),
        Cause.DAEMON_LOST,
        "4 engine lost",
    ),
    "engine gap in the agent phase, verdict below": (
        _agent(FAIL, engine_gap=True),
        Cause.DAEMON_LOST,
        "4 engine lost",
    ),
    "engine gap in the verifier phase, verdict passes": (
        _verifier(PASS, engine_gap=True),
        Cause.DAEMON_LOST,
        "4 engine lost",
    ),
    "engine slow once": (
        replace(_agent(IN_AGENT, trouble=LOST_ENGINE), engine_answers=True),
        Cause.DAEMON_LOST,
        "10 exec lost",
    ),
    "kill in setup, setup fails": (
        _setup(IN_SETUP, exit_code=1, **KILLED),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "kill in setup swallowed, verdict below": (_setup(FAIL, **KILLED), Cause.RESOURCE_KILL, "6 kernel kill"),
    "kill of the agent, verdict below": (
        _agent(FAIL, exit_code=137, **KILLED),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "kill of a grandchild, verdict below": (_agent(FAIL, **KILLED), Cause.RESOURCE_KILL, "6 kernel kill"),
    "kill of a grandchild, then timeout": (_agent(FAIL, **KILLED, **TIMEOUT), Cause.RESOURCE_KILL, "6 kernel kill"),
    "kill in the verifier, no verdict": (_verifier(NO_VERDICT, **KILLED), Cause.RESOURCE_KILL, "6 kernel kill"),
    "kill in the verifier, verdict below": (_verifier(FAIL, **KILLED), Cause.RESOURCE_KILL, "6 kernel kill"),
    "kill in the verifier after an agent timeout": (
        _verifier(_agent(NO_VERDICT, **TIMEOUT), **KILLED),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "kill well below the ceiling": (
        _agent(FAIL, after=OOM, peak=20 * MIB),
        Cause.HOST_PRESSURE,
        "6 kernel kill",
    ),
    "kill of an uncapped trial": (
        _agent(FAIL, after=OOM, peak=900 * MIB, ceiling=None),
        Cause.HOST_PRESSURE,
        "6 kernel kill",
    ),
    "cgroup v2: kill without an event of the own ceiling": (
        _agent(
            FAIL,
            before=replace(QUIET, own_ceiling_events=0),
            after=replace(OOM, own_ceiling_events=0),
            peak=CEILING,
        ),
        Cause.HOST_PRESSURE,
        "6 kernel kill",
    ),
    "cgroup v2: kill with an event of the own ceiling": (
        _agent(
            FAIL, before=replace(QUIET, own_ceiling_events=0), after=replace(OOM, own_ceiling_events=1), peak=None
        ),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "kill below the ceiling, which the log says was met": (
        _agent(FAIL, after=OOM, peak=50 * MIB, logged_kills=(LoggedKill("own", "perl"),)),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "kill at the ceiling by a limit above it": (
        _agent(FAIL, after=OOM, peak=CEILING, logged_kills=(LoggedKill("parent", "perl"),)),
        Cause.HOST_PRESSURE,
        "6 kernel kill",
    ),
    "kills at the ceiling, of which the log tells one of another limit": (
        _agent(FAIL, after=replace(OOM, oom_kills=2), peak=CEILING, logged_kills=(LoggedKill("parent", "perl"),)),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "container died of memory, by the kernel's log alone": (
        replace(_agent(IN_AGENT, **DIED, logged_kills=(LoggedKill("own", "sh"),)), state=_dead()),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "container died of the host's memory, by the kernel's log alone": (
        replace(_agent(IN_AGENT, **DIED, logged_kills=(LoggedKill("host", "sh"),)), state=_dead()),
        Cause.HOST_PRESSURE,
        "6 kernel kill",
    ),
    "container died of memory, by its oom event": (
        replace(_agent(IN_AGENT, **DIED), state=replace(_dead(oom=True), oom_killed=False)),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "container died of memory, by its state alone": (
        replace(_agent(IN_AGENT, **DIED), state=replace(_dead(), oom_killed=True)),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "setup timeout": (_setup(IN_SETUP, **TIMEOUT), Cause.SETUP_FAILED, "7 own deadline"),
    "verifier timeout": (_verifier(NO_VERDICT, **TIMEOUT), Cause.VERIFIER_ERROR, "7 own deadline"),
    "verifier timeout with a verdict below": (_verifier(FAIL, **TIMEOUT), Cause.VERIFIER_ERROR, "7 own deadline"),
    "pids denied to the agent": (
        _agent(FAIL, after=replace(QUIET, pids_denied=3)),
        Cause.RESOURCE_EXHAUSTED,
        "8 denied",
    ),
    "pids denied to the verifier": (
        _verifier(FAIL, after=replace(QUIET, pids_denied=3)),
        Cause.RESOURCE_EXHAUSTED,
        "8 denied",
    ),
    "disk full at the verifier's upload": (
        _verifier(NO_VERDICT, trouble=_trouble(HostDiskFull("put_archive", "no space left", 500))),
        Cause.HOST_DISK_FULL,
        "8 denied",
    ),
    "the engine's disk full under the agent": (
        _agent(FAIL, engine_disk_full=True),
        Cause.HOST_DISK_FULL,
        "8 denied",
    ),
    "the agent's own file system full": (
        _agent(FAIL, full_disks=("/dev/shm",)),
        Cause.RESOURCE_EXHAUSTED,
        "8 denied",
    ),
    "the verifier's own file system full, no verdict": (
        _verifier(NO_VERDICT, full_disks=("/dev/shm",)),
        Cause.RESOURCE_EXHAUSTED,
        "8 denied",
    ),
    "docker kill in the agent phase": (
        replace(_agent(IN_AGENT, **DIED), state=_dead("kill")),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "rm -f in the agent phase": (
        replace(
            _agent(IN_AGENT, **DIED, trouble=_trouble(ContainerLost("exec", "No such container", 404))), state=GONE
        ),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "process 1 killed on the host: no event": (
        replace(_agent(IN_AGENT, **DIED), state=_dead()),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "container died in setup": (
        replace(_setup(IN_SETUP, **DIED), state=_dead(time=114), holder_is_init=False),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "killed from outside with a holder that is not process 1": (
        replace(_agent(IN_AGENT, **DIED), state=_dead("kill"), holder_is_init=False),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "paused from outside, agent runs out of time": (
        replace(_agent(FAIL, **TIMEOUT), state=replace(RUNNING, events=(EngineEvent(122, "pause"),))),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "restarted under the trial, verdict passes": (
        replace(PASS, identity_intact=False),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "restarted under the trial, verdict below": (
        replace(FAIL, identity_intact=False),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "identity could not be asked": (replace(PASS, identity_intact=None), Cause.EXEC_LOST, "10 exec lost"),
    "agent's processes cannot be killed": (
        _agent(FAIL, unkillable=True, **TIMEOUT),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "agent's exit status lost": (_agent(FAIL, exec_lost="stream ended"), Cause.EXEC_LOST, "10 exec lost"),
    "no shell, and none in setup": (
        _setup(IN_SETUP, exec_started=False, exec_lost="no such file", shell_gone=True, ended=False),
        Cause.EXEC_LOST,
        "10 exec lost",
    ),
    "agent's command never started": (
        _agent(FAIL, exec_started=False, exit_code=126),
        Cause.EXEC_LOST,
        "10 exec lost",
    ),
    "exec instance gone": (
        _verifier(NO_VERDICT, trouble=_trouble(ExecLost("exec_inspect", "No such exec", 404))),
        Cause.EXEC_LOST,
        "10 exec lost",
    ),
    "setup command fails": (_setup(IN_SETUP, exit_code=2), Cause.SETUP_FAILED, "11 setup or provider"),
    "agent cannot be installed": (
        _setup(IN_SETUP, error="OSError: no mirror"),
        Cause.SETUP_FAILED,
        "11 setup or provider",
    ),
    "file missing in setup": (
        _setup(IN_SETUP, trouble=_trouble(FileMissing("get_archive", "no such file", 404))),
        Cause.SETUP_FAILED,
        "11 setup or provider",
    ),
    "provider exhausted, verdict below": (
        replace(FAIL, agent_cause=Cause.MODEL_API),
        Cause.MODEL_API,
        "11 setup or provider",
    ),
    "agent's own code raises, verdict below": (
        _agent(FAIL, error="KeyError: 'choices'", exit_code=None),
        Cause.HARNESS_CRASH,
        "11 setup or provider",
    ),
    **{
        f"verdict {status.value}": (
            replace(FAIL, artefact=Artefact(status)),
            Cause.VERIFIER_ERROR,
            "12 no verdict",
        )
        for status in ArtefactStatus
        if status is not ArtefactStatus.COMPLETE
    },
    "no verdict, verifier exits 0": (NO_VERDICT, Cause.VERIFIER_ERROR, "12 no verdict"),
    "no verdict, verifier exits 1": (_verifier(NO_VERDICT, exit_code=1), Cause.VERIFIER_ERROR, "12 no verdict"),
    "verifier's files changed on the way": (
        _verifier(NO_VERDICT, error="verify.sh is not the file that was sent"),
        Cause.VERIFIER_ERROR,
        "12 no verdict",
    ),
    "agent timeout, then no verdict": (
        _agent(NO_VERDICT, **TIMEOUT),
        Cause.VERIFIER_ERROR,
        "12 no verdict",
    ),
    "verifier killed after it wrote a 0, and nothing says by whom": (
        replace(_verifier(FAIL, exit_code=137, after=DEAD), state=SandboxState()),
        Cause.UNKNOWN,
        "14 unknown",
    ),
    "agent killed, and nothing says by whom": (
        replace(_agent(FAIL, exit_code=137, after=DEAD), state=SandboxState()),
        Cause.UNKNOWN,
        "14 unknown",
    ),
    "first abnormal thing wins: lost container, then a verifier without files": (
        replace(
            _verifier(_agent(NO_VERDICT, **DIED), trouble=_trouble(ContainerLost("upload", "not running", 409))),
            state=_dead(oom=True),
        ),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "order: engine gap, then kill": (
        _agent(FAIL, engine_gap=True, **KILLED),
        Cause.DAEMON_LOST,
        "4 engine lost",
    ),
    "order: kill, then timeout": (
        _setup(IN_SETUP, **KILLED, **TIMEOUT),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "order: timeout, then denial": (
        _setup(IN_SETUP, after=replace(QUIET, pids_denied=1), **TIMEOUT),
        Cause.SETUP_FAILED,
        "7 own deadline",
    ),
    "order: denial, then lost container": (
        _agent(IN_AGENT, container_ended=True, after=replace(QUIET, pids_denied=1)),
        Cause.RESOURCE_EXHAUSTED,
        "8 denied",
    ),
    "order: lost container, then lost command": (
        replace(_agent(IN_AGENT, **DIED, exec_lost="stream ended"), state=_dead("kill")),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "order: lost command, then setup status": (
        _setup(IN_SETUP, exec_lost="stream ended", exit_code=1),
        Cause.EXEC_LOST,
        "10 exec lost",
    ),
    "a pass beside an agent that could not be killed": (
        _agent(PASS, unkillable=True, **TIMEOUT),
        Cause.CONTAINER_LOST,
        "9 container lost",
    ),
    "a sampled peak below the ceiling proves nothing": (
        replace(
            _agent(IN_AGENT, **{**DIED, "peak": 20 * MIB}, peak_is_sampled=True),
            state=_dead(oom=True),
        ),
        Cause.RESOURCE_KILL,
        "6 kernel kill",
    ),
    "nothing known at all": (Evidence(), Cause.UNKNOWN, "14 unknown"),
}

FAILS: dict[str, tuple[Evidence, FailReason, str]] = {
    "below the threshold": (FAIL, FailReason.TESTS_FAILED, "13 below threshold"),
    "agent timeout": (_agent(FAIL, **TIMEOUT), FailReason.AGENT_TIMEOUT, "13 below threshold"),
    "agent timeout whose code then raises": (
        _agent(FAIL, error="RuntimeError", **TIMEOUT),
        FailReason.AGENT_TIMEOUT,
        "13 below threshold",
    ),
    "agent exits 1": (_agent(FAIL, exit_code=1), FailReason.AGENT_CRASH, "13 below threshold"),
    "agent kills itself": (_agent(FAIL, exit_code=137), FailReason.AGENT_CRASH, "13 below threshold"),
    "agent without an exit status": (_agent(FAIL, exit_code=None), FailReason.TESTS_FAILED, "13 below threshold"),
    "oom event, but the counter says no": (
        replace(FAIL, state=replace(RUNNING, oom_killed=True, events=(EngineEvent(124, "oom"),))),
        FailReason.TESTS_FAILED,
        "13 below threshold",
    ),
    "signal from outside that ended nothing": (
        replace(FAIL, state=replace(RUNNING, events=(EngineEvent(124, "kill"),))),
        FailReason.TESTS_FAILED,
        "13 below threshold",
    ),
    "no shell is left for the verifier": (
        _verifier(NO_VERDICT, exec_started=False, exec_lost="no such file", exit_code=127, shell_gone=True),
        FailReason.SANDBOX_BROKEN,
        "9 container lost",
    ),
    "process 1 is the image's own and ended under the agent": (
        replace(_agent(IN_AGENT, **DIED), state=_dead(), holder_is_init=False),
        FailReason.SANDBOX_BROKEN,
        "9 container lost",
    ),
}

STARVED = replace(QUIET, periods=60, throttled_periods=10)
PASSES: dict[str, tuple[Evidence, tuple[Flag, ...]]] = {
    "plain": (PASS, ()),
    "kill in setup": (_setup(PASS, **KILLED), (Flag.OOM_KILLS,)),
    "kill of the agent's grandchild": (_agent(PASS, **KILLED), (Flag.OOM_KILLS,)),
    "kill in the verifier": (_verifier(PASS, **KILLED), (Flag.OOM_KILLS,)),
    "full disks": (_agent(PASS, full_disks=("/dev/shm",), engine_disk_full=True), ()),
    "another reward file says 0": (replace(PASS, artefact=replace(PASSED, other=0.0)), (Flag.TWO_REWARDS,)),
    "pids denied": (_agent(PASS, after=replace(QUIET, pids_denied=1)), (Flag.PIDS_DENIED,)),
    "agent timeout": (_agent(PASS, **TIMEOUT), (Flag.TIMED_OUT,)),
    "verifier timeout after its verdict": (_verifier(PASS, **TIMEOUT), ()),
    "agent exits 1": (_agent(PASS, exit_code=1), ()),
    "provider exhausted after the work": (replace(PASS, agent_cause=Cause.MODEL_API), ()),
    "engine gap in the agent phase": (_agent(PASS, engine_gap=True), (Flag.ENGINE_GAP,)),
    "throttled in a quarter of its periods": (_agent(PASS, after=STARVED), (Flag.STARVED,)),
    "throttled a little": (_agent(PASS, after=replace(STARVED, throttled_periods=9)), ()),
    "throttled in hardly any periods at all": (
        _agent(PASS, after=replace(QUIET, periods=24, throttled_periods=4)),
        (),
    ),
    "own exception after the verdict": (replace(PASS, crash="OSError"), ()),
}


def _judge(evidence: Evidence, policy: Policy | None = None) -> Decision:
    decision = judge(evidence, policy or Policy())
    assert isinstance(decision, Decision)
    json.dumps(evidence.to_json())
    assert "\n" not in decision.summary
    return decision


@pytest.mark.parametrize("case", INFRA)
def test_infra(case: str) -> None:
    evidence, cause, rule = INFRA[case]
    decision = _judge(evidence)
    assert (decision.verdict, decision.cause, decision.rule) == (Verdict.INFRA_ERROR, cause, rule)
    assert decision.reason is None
    assert decision.summary


@pytest.mark.parametrize("case", FAILS)
def test_fail(case: str) -> None:
    evidence, reason, rule = FAILS[case]
    decision = _judge(evidence)
    assert (decision.verdict, decision.reason, decision.rule) == (Verdict.FAIL, reason, rule)
    assert decision.cause is None


@pytest.mark.parametrize("case", PASSES)
def test_pass(case: str) -> None:
    evidence, flags = PASSES[case]
    decision = _judge(evidence)
    assert (decision.verdict, decision.rule) == (Verdict.PASS, "2 complete pass")
    assert (decision.cause, decision.reason) == (None, None)
    assert decision.flags == flags


@pytest.mark.parametrize("phase", ["start", "setup"])
def test_config_error_is_no_verdict(phase: str) -> None:
    trouble = _trouble(ConfigError("create", "No such image: nowhere:latest", 404))
    evidence = _start(ConfigError("x", "y")) if phase == "start" else IN_SETUP
    part = evidence.start if phase == "start" else evidence.setup
    mistake = judge(replace(evidence, **{phase: replace(part, trouble=trouble)}), Policy())  # type: ignore[arg-type]
    assert mistake == ConfigMistake("create: No such image: nowhere:latest")


def test_config_error_once_the_agent_has_acted_may_be_its_doing() -> None:
    trouble = _trouble(ConfigError("put_archive", "Could not find the file /infranoise", 404))
    assert _judge(_verifier(NO_VERDICT, trouble=trouble)).cause is Cause.VERIFIER_ERROR


def test_partial_reward_is_compared_with_the_threshold() -> None:
    half = replace(PASS, artefact=Artefact(ArtefactStatus.COMPLETE, 0.5))
    assert _judge(half).verdict is Verdict.FAIL
    assert _judge(half, Policy(pass_threshold=0.5)).verdict is Verdict.PASS


def test_policy_on_a_childs_death() -> None:
    lenient = Policy(oom_child="fail")
    assert _judge(_agent(FAIL, **KILLED), lenient).verdict is Verdict.FAIL
    assert _judge(_agent(FAIL, exit_code=137, **KILLED), lenient).cause is Cause.RESOURCE_KILL
    assert _judge(_verifier(FAIL, **KILLED), lenient).cause is Cause.RESOURCE_KILL
    assert _judge(_agent(FAIL, after=replace(QUIET, pids_denied=1)), lenient).verdict is Verdict.FAIL
    assert _judge(_agent(FAIL, full_disks=("/dev",)), lenient).verdict is Verdict.FAIL
    assert _judge(_agent(FAIL, engine_disk_full=True), lenient).cause is Cause.HOST_DISK_FULL


def test_contradictions_are_written_down() -> None:
    evidence, _, _ = FAILS["oom event, but the counter says no"]
    assert _judge(evidence).contradictions == (
        "agent: the engine sent an oom event, the cgroup counter shows no kill",
        "the engine says OOMKilled, the cgroup counter shows no kill in any phase",
    )
    died, _, _ = INFRA["container died of memory, by its oom event"]
    assert _judge(died).contradictions == (
        "agent: killed for memory, but no peak could be read; taken for the own ceiling",
    )
    assert _judge(PASS).contradictions == ()


def test_the_counters_of_a_restarted_container_are_unknown() -> None:
    phase = replace(AGENT, before=OOM, after=replace(QUIET, oom_kills=0))
    assert phase.oom_kills is None


def test_the_engines_flag_says_nothing_of_the_last_phase_once_an_earlier_one_explains_it() -> None:
    died = replace(_verifier(NO_VERDICT, **DIED), state=replace(_dead(time=134), oom_killed=True))
    assert _judge(died).cause is Cause.RESOURCE_KILL
    explained = _agent(died, **KILLED)
    assert _judge(explained, Policy(oom_child="fail")).cause is Cause.CONTAINER_LOST


def test_our_own_removal_is_not_foreign() -> None:
    state = replace(RUNNING, events=(EngineEvent(140.0, "kill"), EngineEvent(141.0, "destroy")))
    intents = (Intent(KILL_PROCESSES, "agent deadline", 125.0), Intent(REMOVE, "end", 140.0))
    assert replace(PASS, state=state, intents=intents).foreign_events == ()
    assert len(replace(PASS, state=state).foreign_events) == 2
