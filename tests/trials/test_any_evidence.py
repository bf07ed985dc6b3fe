"""What must hold for any evidence at all, also for what no run could show.

Whether the outcome is known is asked here in words of this file's own, not by the rules: a fail must be the
agent's and nobody else's, and a pass that is proven must stay one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
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
from pytest_infranoise.sandboxes.protocol import FileUnfit
from pytest_infranoise.sandboxes.protocol import HostDiskFull
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import LoggedKill
from pytest_infranoise.sandboxes.protocol import NetworkSetupError
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxState
from pytest_infranoise.trials.decision import ConfigMistake
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import REMOVE
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.evidence import CutOff
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import Integrity
from pytest_infranoise.trials.evidence import Intent
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.evidence import Trouble
from pytest_infranoise.trials.verdict import judge

MIB = 1024**2
CEILING = 64 * MIB
SIGKILLED = 137

# Every field of the evidence has its values here, or is named as one that no verdict may depend on.

OWN, HOSTS = LoggedKill("own", "perl"), LoggedKill("host", "perl")
_count = st.none() | st.integers(0, 3)
_errors = (
    *(ConfigError, EngineLost, HostDiskFull, ImagePullError, NetworkSetupError, EnvStartError, ContainerLost),
    *(ExecLost, FileMissing, FileUnfit, SandboxError),
)
_counters = st.builds(
    Counters,
    oom_kills=_count,
    own_ceiling_events=_count,
    pids_denied=_count,
    periods=st.none() | st.integers(0, 100),
    throttled_periods=st.none() | st.integers(0, 100),
)
PHASE: dict[str, st.SearchStrategy[Any]] = {
    "entered": st.booleans(),
    "ended": st.booleans(),
    "began": st.sampled_from([0.0, 10.0, 20.0, 30.0]),
    "exit_code": st.sampled_from([None, 0, 1, 126, SIGKILLED, 143]),
    "exec_started": st.booleans(),
    "exec_lost": st.none() | st.just("lost"),
    "timed_out": st.booleans(),
    "unkillable": st.booleans(),
    "error": st.none() | st.just("error"),
    "trouble": st.none() | st.sampled_from(_errors).map(lambda kind: Trouble.of(kind("call", "text"))),
    "container_ended": st.booleans(),
    "engine_gap": st.booleans(),
    "before": _counters,
    "after": _counters,
    "ceiling": st.sampled_from([None, CEILING]),
    "peak": st.sampled_from([None, 1, CEILING]),
    "peak_is_sampled": st.booleans(),
    "full_disks": st.sampled_from([(), ("/dev/shm",)]),
    "engine_disk_full": st.booleans(),
    "shell_gone": st.booleans(),
    "logged_kills": st.sampled_from([None, (), (OWN,), (HOSTS,), (OWN, HOSTS)]),
    # As the guard ends a phase, and as the mode group does.
    "cut_off": st.sampled_from([None, None, CutOff(Cause.HOST_PRESSURE, "guard"), CutOff(None, "a kill")]),
}
PHASE_FOR_PEOPLE = {
    *("phase", "seconds", "limit", "last_line", "anonymous_peak", "host_before", "host_after", "engine_seconds"),
    *("clock_step", "commands", "commands_in_all"),
}
_events = st.builds(
    EngineEvent,
    time=st.sampled_from([5.0, 15.0, 25.0, 35.0]),
    action=st.sampled_from(["oom", "kill", "die", "destroy", "stop", "pause", "restart"]),
)
WHOLE: dict[str, st.SearchStrategy[Any]] = {
    "integrity": st.just(Integrity()),  # drawn in test_integrity, beside all of this
    "artefact": st.builds(
        Artefact,
        status=st.sampled_from(ArtefactStatus),
        stated=st.none() | st.sampled_from([0.0, 1.0]),
        reward=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
        other=st.none() | st.sampled_from([0.0, 1.0]),
    ),
    "state": st.builds(
        SandboxState,
        running=st.sampled_from([None, True, False]),
        oom_killed=st.sampled_from([None, True, False]),
        events=st.lists(_events, max_size=3).map(tuple),
    ),
    "identity_intact": st.sampled_from([None, True, False]),
    "holder_is_init": st.sampled_from([None, True, False]),
    "engine_answers": st.sampled_from([None, True, False]),
    "intents": st.sampled_from([(), (Intent(REMOVE, "the trial is over", 24.0),)]),
    "agent_cause": st.none() | st.just(Cause.MODEL_API),
    "crash": st.none() | st.just("Traceback"),
}
PHASES = ("start", "setup", "agent", "verifier")


def test_every_field_of_the_evidence_is_drawn() -> None:
    assert {field.name for field in fields(PhaseEvidence)} == set(PHASE) | PHASE_FOR_PEOPLE
    assert {field.name for field in fields(Evidence)} == set(WHOLE) | set(PHASES)


def _phase(name: str) -> Phase | None:
    return None if name == "start" else Phase(name)


def _anything() -> st.SearchStrategy[Evidence]:
    phases = {name: st.builds(PhaseEvidence, phase=st.just(_phase(name)), **PHASE) for name in PHASES}
    return st.builds(Evidence, **phases, **WHOLE)


QUIET = Counters(0, 0, 10 * MIB, 12 * MIB, 8 * MIB, 0, 0.1, 20, 0, 0.0)


def _whole_trial(reward: float) -> Evidence:
    phases: dict[str, Any] = {
        name: PhaseEvidence(
            _phase(name),
            entered=True,
            ended=True,
            began=10.0 * number,
            exit_code=None if name == "start" else 0,
            before=QUIET,
            after=QUIET,
            ceiling=CEILING,
            peak=12 * MIB,
        )
        for number, name in enumerate(PHASES)
    }
    return Evidence(
        **phases,
        artefact=Artefact(ArtefactStatus.COMPLETE, reward),
        state=SandboxState(running=True, oom_killed=False),
        identity_intact=True,
        holder_is_init=True,
    )


@st.composite
def _changed(draw: st.DrawFn) -> Evidence:
    """Return an ordinary trial in which one to four things are not as usual: what rules get wrong lies there."""
    evidence = _whole_trial(draw(st.sampled_from([0.0, 0.5, 1.0])))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.sampled_from([*PHASES, "whole"]))
        if place == "whole":
            name = draw(st.sampled_from(sorted(WHOLE)))
            evidence = replace(evidence, **{name: draw(WHOLE[name])})
        else:
            name = draw(st.sampled_from(sorted(set(PHASE) - {"began"})))
            phase = replace(getattr(evidence, place), **{name: draw(PHASE[name])})
            evidence = replace(evidence, **{place: phase})
    return evidence


_policies = st.builds(
    Policy,
    pass_threshold=st.sampled_from([0.5, 1.0]),
    oom_child=st.sampled_from(["infra", "fail"]),
    oom_mode=st.sampled_from(["single", "group"]),
)


# When is it known whether the agent solved the task?


def has_verdict(evidence: Evidence) -> bool:
    """Whether the verifier has spoken, in the agent's own container, with the engine there all along."""
    verifier = evidence.verifier
    cut_off = verifier.trouble is not None and verifier.trouble.cause is Cause.DAEMON_LOST
    return (
        verifier.entered
        and evidence.artefact.status is ArtefactStatus.COMPLETE
        and evidence.artefact.reward is not None
        and evidence.identity_intact is True
        and not verifier.engine_gap
        and not cut_off
        and not evidence.agent.unkillable  # something of the agent's may have worked on while the verifier looked
    )


def _grew(phase: PhaseEvidence, counter: str) -> int | None:
    before, after = getattr(phase.before, counter), getattr(phase.after, counter)
    return None if before is None or after is None or after < before else after - before


def _window(evidence: Evidence, phase: PhaseEvidence) -> Iterator[EngineEvent]:
    entered = [getattr(evidence, name) for name in PHASES if getattr(evidence, name).entered]
    place = entered.index(phase)
    begin = phase.began if place else float("-inf")
    end = entered[place + 1].began if place + 1 < len(entered) else float("inf")
    return (event for event in evidence.state.events if begin <= event.time < end)


def _was_killed_for_memory(evidence: Evidence, phase: PhaseEvidence) -> bool:
    counted = _grew(phase, "oom_kills")
    if counted is None and phase.logged_kills:
        return True
    return counted > 0 if counted is not None else any(e.action == "oom" for e in _window(evidence, phase))


def ended_with_its_first_kill(evidence: Evidence, policy: Policy) -> bool:
    """Whether nothing that came later counts, because all of a trial dies with what the kernel kills first."""
    entered = [getattr(evidence, name) for name in PHASES if getattr(evidence, name).entered]
    seen = any(
        _was_killed_for_memory(evidence, phase) or phase.cut_off == CutOff(None, "a kill") for phase in entered
    )
    # Without a counter of the last phase, the engine's own word for it has to do.
    told = bool(entered) and bool(evidence.state.oom_killed) and _grew(entered[-1], "oom_kills") is None
    return policy.oom_mode == "group" and (seen or told)


def disturbed(evidence: Evidence, policy: Policy) -> str | None:
    """Return what kept the trial from being the agent's own doing, None when nothing did."""
    for name in PHASES:
        phase = getattr(evidence, name)
        if not phase.entered:
            continue
        is_agents = name == "agent"
        own_fault = is_agents and policy.oom_child == "fail"
        if phase.engine_gap:
            return f"{name}: the engine was away"
        if phase.cut_off is not None:
            return f"{name}: we ended it before its time"
        harmless = name in ("agent", "verifier") and phase.trouble is not None and _is_harmless(phase.trouble)
        if phase.trouble is not None and not harmless:
            return f"{name}: an engine call failed"
        survivable = own_fault and phase.exit_code != SIGKILLED and policy.oom_mode == "single"
        if _was_killed_for_memory(evidence, phase) and not survivable:
            return f"{name}: the kernel killed for memory"
        if (_grew(phase, "pids_denied") or phase.full_disks) and not own_fault:
            return f"{name}: a ceiling denied something"
        if phase.shell_gone:
            return f"{name}: no command can run"
        if phase.engine_disk_full or phase.unkillable or phase.exec_lost or not phase.exec_started:
            return f"{name}: something was lost"
        if phase.container_ended or any(e.action in ("pause", "restart") for e in _foreign(evidence, phase)):
            return f"{name}: the container was not there all the time"
        if phase.timed_out and not is_agents:
            return f"{name}: no time"
        if name == "setup" and (phase.exit_code or phase.error):
            return "setup: failed"
        if is_agents and (evidence.agent_cause or (phase.error and not phase.timed_out)):
            return "agent: its code or its provider failed"
        nobody_counts = _grew(phase, "oom_kills") is None and not phase.logged_kills
        nobody_knows = nobody_counts and evidence.state.oom_killed is None
        if name in ("agent", "verifier") and phase.exit_code == SIGKILLED and nobody_knows:
            return f"{name}: killed, and nothing says by whom"
    return None


def _is_harmless(trouble: Trouble) -> bool:
    """Whether a failed call says no more than that what the agent asked for could not be done."""
    return trouble.cause is Cause.UNKNOWN


def _foreign(evidence: Evidence, phase: PhaseEvidence) -> Iterator[EngineEvent]:
    removed = min((intent.time for intent in evidence.intents if intent.what == REMOVE), default=float("inf"))
    return (event for event in _window(evidence, phase) if event.time < removed)


def broke_its_sandbox(evidence: Evidence) -> bool:
    """Whether the agent ended its container, or left no shell in it; by all that is known, nobody else did."""
    if evidence.agent.entered and evidence.agent.cut_off is not None:
        return False  # we did
    shell_removed = evidence.setup.ended and any(
        phase.entered and phase.shell_gone for phase in (evidence.agent, evidence.verifier)
    )
    return shell_removed or (
        evidence.agent.entered
        and evidence.holder_is_init is False
        and not _was_killed_for_memory(evidence, evidence.agent)
        and not any(
            event.action in ("kill", "stop", "destroy", "pause", "restart")
            for event in _foreign(evidence, evidence.agent)
        )
    )


_many = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_many
@given(_anything() | _changed(), _policies)
def test_nothing_unknown_is_ever_a_fail(evidence: Evidence, policy: Policy) -> None:
    decision = judge(evidence, policy)
    if isinstance(decision, ConfigMistake) or decision.verdict is not Verdict.FAIL:
        return
    if decision.reason is FailReason.SANDBOX_BROKEN:
        assert broke_its_sandbox(evidence)
        return
    assert has_verdict(evidence)
    assert evidence.artefact.reward is not None
    assert evidence.artefact.reward < policy.pass_threshold
    assert disturbed(evidence, policy) is None
    assert evidence.crash is None or has_verdict(evidence)


@_many
@given(_anything() | _changed(), _policies)
def test_a_proven_pass_is_never_anything_else(evidence: Evidence, policy: Policy) -> None:
    reward = evidence.artefact.reward
    reached = has_verdict(evidence) and reward is not None and reward >= policy.pass_threshold
    proven = reached and not ended_with_its_first_kill(evidence, policy)
    decision = judge(evidence, policy)
    passed = not isinstance(decision, ConfigMistake) and decision.verdict is Verdict.PASS
    assert passed == proven


@_many
@given(_changed(), _policies)
def test_what_is_known_and_undisturbed_is_no_infra_error(evidence: Evidence, policy: Policy) -> None:
    entered = all(getattr(evidence, name).entered for name in PHASES)
    quiet = evidence.crash is None and not any(getattr(evidence, name).trouble for name in PHASES)
    if not (entered and quiet and has_verdict(evidence)) or disturbed(evidence, policy) is not None:
        return
    if evidence.state.oom_killed and _grew(evidence.verifier, "oom_kills") is None:
        return  # the engine's word, which may mean the verifier
    decision = judge(evidence, policy)
    assert not isinstance(decision, ConfigMistake)
    assert decision.verdict is not Verdict.INFRA_ERROR


@_many
@given(_anything() | _changed(), _policies)
def test_every_decision_is_whole(evidence: Evidence, policy: Policy) -> None:
    decision = judge(evidence, policy)
    if isinstance(decision, ConfigMistake):
        assert not evidence.agent.entered
        return
    assert (decision.cause is not None) == (decision.verdict is Verdict.INFRA_ERROR)
    assert (decision.reason is not None) == (decision.verdict is Verdict.FAIL)
    assert int(decision.rule.split()[0]) in range(15)
    assert decision.summary
    assert "\n" not in decision.summary
