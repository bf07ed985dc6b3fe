"""How a trial is judged: ordered rules over its evidence; the first that applies decides, and is named.

The order is the method. Rules 0 to 2 look at the whole trial. Rule 3 says where to look next: at the phase in
which the first abnormal thing happened, because what comes later (no such container, a missing reward) is a
consequence of it. So rules 4 to 11 are asked phase by phase, and 12 to 14 of what is left.

Nothing unknown becomes a fail, and a sound pass is never anything else: what the infrastructure did beside it
becomes a flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Verdict
from pytest_infranoise.trials.decision import ConfigMistake
from pytest_infranoise.trials.decision import Decision
from pytest_infranoise.trials.decision import Finding
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import KILLED
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.kernel import contradictions
from pytest_infranoise.trials.kernel import kills_in
from pytest_infranoise.trials.phase_rules import PHASE_RULES
from pytest_infranoise.trials.phase_rules import ended_by_a_kill

MIN_PERIODS = 10  # one second of CPU periods at the usual 100 ms: below that a share says nothing


def judge(evidence: Evidence, policy: Policy) -> Decision | ConfigMistake:
    """Return what the evidence says, or the mistake that kept the trial from being one."""
    crashed = crash(evidence)
    if crashed is not None:
        return _decision(evidence, policy, crashed, "0 void")
    mistake = config_error(evidence)
    if mistake is not None:
        return mistake
    passed = None if _killed_as_group(evidence, policy) else complete_pass(evidence, policy)
    if passed is not None:
        return _decision(evidence, policy, passed, "2 complete pass")
    forgery = forged(evidence)
    if forgery is not None:
        return _decision(evidence, policy, forgery, "2 forged")
    finding, rule = _first_abnormal(evidence, policy) or _rest(evidence, policy)
    doubt = doubted_pass(evidence, policy)
    if doubt is not None and isinstance(finding.outcome, FailReason):
        # Without the doubt it would have been a pass, and a doubt alone makes no fail.
        finding, rule = doubt, "12 no verdict"
    return _decision(evidence, policy, finding, rule)


def _killed_as_group(evidence: Evidence, policy: Policy) -> bool:
    """Whether the policy has the trial end with a kernel kill: what passed after it would not have been there."""
    return policy.oom_mode == "group" and any(
        kills_in(evidence, phase) or ended_by_a_kill(phase) for phase in evidence.phases
    )


def _first_abnormal(evidence: Evidence, policy: Policy) -> tuple[Finding, str] | None:
    """Rule 3: the earliest phase in which anything decides is the one that decides."""
    for phase in evidence.phases:
        for name, rule in PHASE_RULES.items():
            finding = rule(evidence, phase, policy)
            if finding is not None:
                return finding, name
    return None


def _rest(evidence: Evidence, policy: Policy) -> tuple[Finding, str]:
    missing = no_verdict(evidence)
    if missing is not None:
        return missing, "12 no verdict"
    doubt = doubted_pass(evidence, policy)
    if doubt is not None:
        return doubt, "12 no verdict"
    below = below_threshold(evidence, policy)
    if below is not None:
        return below, "13 below threshold"
    return unknown(evidence), "14 unknown"


def _decision(evidence: Evidence, policy: Policy, finding: Finding, rule: str) -> Decision:
    outcome = finding.outcome
    return Decision(
        verdict=_verdict(outcome),
        rule=rule,
        summary=" ".join(finding.text.split()),
        cause=outcome if isinstance(outcome, Cause) else None,
        reason=outcome if isinstance(outcome, FailReason) else None,
        flags=flags(evidence, policy),
        contradictions=contradictions(evidence),
    )


def _verdict(outcome: Cause | FailReason | None) -> Verdict:
    if outcome is None:
        return Verdict.PASS
    return Verdict.FAIL if isinstance(outcome, FailReason) else Verdict.INFRA_ERROR


def flags(evidence: Evidence, policy: Policy) -> tuple[Flag, ...]:
    """Return what was observed beside the verdict."""
    phases = evidence.phases
    agent = evidence.agent
    periods = (agent.after.periods or 0) - (agent.before.periods or 0)
    share = agent.throttled_share
    observed = {
        Flag.OOM_KILLS: any(kills_in(evidence, phase) for phase in phases),
        Flag.PIDS_DENIED: any(phase.pids_denied for phase in phases),
        Flag.TIMED_OUT: agent.timed_out,
        Flag.STARVED: share is not None and share >= policy.starved_share and periods >= MIN_PERIODS,
        Flag.ENGINE_GAP: any(phase.engine_gap or phase.engine_lost for phase in phases),
        Flag.TWO_REWARDS: evidence.artefact.other is not None,
        Flag.TAMPERED: bool(evidence.integrity.forged or evidence.integrity.doubts),
        Flag.TOOLS_CHANGED: bool(evidence.integrity.notes),
    }
    return tuple(flag for flag, seen in observed.items() if seen)


def is_sound(evidence: Evidence) -> bool:
    """Whether there is a verdict artefact that can only be this verifier's, from this container, in this phase."""
    verifier = evidence.verifier
    return (
        verifier.entered
        and evidence.artefact.status is ArtefactStatus.COMPLETE
        and evidence.artefact.reward is not None
        and evidence.identity_intact is True
        and not (verifier.engine_gap or verifier.engine_lost)
        and not evidence.agent.unkillable
    )


def crash(evidence: Evidence) -> Finding | None:
    """Rule 0: the runner itself failed. A sound verdict that it had in hand by then still counts."""
    if evidence.crash is None or is_sound(evidence):
        return None
    last_line = evidence.crash.strip().splitlines()[-1:] or ["no traceback"]
    return Finding(Cause.HARNESS_CRASH, f"the runner failed: {last_line[0]}")


def config_error(evidence: Evidence) -> ConfigMistake | None:
    """Rule 1: something was asked for that cannot be. Once the agent has acted it may be the agent's doing."""
    if evidence.agent.entered or evidence.verifier.entered:
        return None
    for phase in evidence.phases:
        if phase.trouble is not None and phase.trouble.is_config_error:
            return ConfigMistake(f"{phase.trouble.call}: {phase.trouble.text}")
    return None


def complete_pass(evidence: Evidence, policy: Policy) -> Finding | None:
    """Rule 2: a sound verdict at or above the threshold, with nothing that says who else may have written it."""
    reward = evidence.artefact.reward
    if not is_sound(evidence) or reward is None or reward < policy.pass_threshold:
        return None
    if evidence.integrity.forged or evidence.integrity.doubts:
        return None
    return Finding(None, f"reward {reward:g}")


def forged(evidence: Evidence) -> Finding | None:
    """Rule 2 again: what ran in the container reached for its own verdict, which is a fail whatever else happened.

    Were it an infra-error, an agent that expects to fail could take the trial out of its own score.
    """
    if not evidence.integrity.forged:
        return None
    return Finding(FailReason.SANDBOX_BROKEN, f"tampering: {'; '.join(evidence.integrity.forged)}")


def doubted_pass(evidence: Evidence, policy: Policy) -> Finding | None:
    """Rule 12 again: a pass that may not be the verifier's own is none. A fail needs no tampering to be one."""
    reward = evidence.artefact.reward
    if not evidence.integrity.doubts or not is_sound(evidence) or reward is None or reward < policy.pass_threshold:
        return None
    text = "; ".join(evidence.integrity.doubts)
    return Finding(Cause.VERIFIER_ERROR, f"the verdict says pass and cannot be trusted: {text}")


_NO_VERDICT: Mapping[ArtefactStatus, str] = MappingProxyType(
    {
        ArtefactStatus.MISSING: "the verifier wrote no verdict",
        ArtefactStatus.MALFORMED: "the verifier's verdict cannot be read",
        ArtefactStatus.WRONG_NONCE: "the verdict does not carry this verifier's nonce",
        ArtefactStatus.NO_TESTS: "the verifier ran no test",
        ArtefactStatus.STALE: "the verdict was not written in the verifier phase",
    }
)


def no_verdict(evidence: Evidence) -> Finding | None:
    """Rule 12: the verifier ran and did not say pass or fail."""
    verifier, artefact = evidence.verifier, evidence.artefact
    if not verifier.entered or artefact.status is ArtefactStatus.COMPLETE:
        return None
    if verifier.error is not None:
        return Finding(Cause.VERIFIER_ERROR, verifier.error)
    if verifier.trouble is not None:
        return Finding(Cause.VERIFIER_ERROR, f"{verifier.trouble.call}: {verifier.trouble.text}")
    seen = [] if verifier.exit_code is None else [f"exit status {verifier.exit_code}"]
    seen += [verifier.last_line] if verifier.last_line else []
    ending = f" ({': '.join(seen)})" if seen else ""
    return Finding(Cause.VERIFIER_ERROR, f"{_NO_VERDICT[artefact.status]}{ending}")


def below_threshold(evidence: Evidence, policy: Policy) -> Finding | None:
    """Rule 13: a sound verdict below the threshold is the agent's own fail."""
    agent, reward = evidence.agent, evidence.artefact.reward
    if not is_sound(evidence) or reward is None or _perhaps_killed(evidence):
        return None
    if evidence.start.trouble is not None:  # nothing ran as it should have after that
        return None
    text = f"reward {reward:g} is below {policy.pass_threshold:g}"
    if agent.timed_out:
        return Finding(
            FailReason.AGENT_TIMEOUT, f"{text}; the agent's {agent.limit or agent.seconds:g} s were over"
        )
    if agent.exit_code:
        return Finding(FailReason.AGENT_CRASH, f"{text}; the agent ended with exit status {agent.exit_code}")
    return Finding(FailReason.TESTS_FAILED, text)


def _perhaps_killed(evidence: Evidence) -> bool:
    """Whether agent or verifier died of SIGKILL and neither kernel nor engine can say that it was not for memory.

    A verifier may write a 0 before it starts to look, so its own death leaves nothing to go by either.
    """
    return any(
        phase.exit_code == KILLED and not kills_in(evidence, phase).source
        for phase in (evidence.agent, evidence.verifier)
    )


def unknown(evidence: Evidence) -> Finding:
    """Rule 14: nothing above applies; that is counted, and never a fail."""
    for phase in evidence.phases:
        if phase.trouble is not None:
            return Finding(Cause.UNKNOWN, f"{phase.name}: {phase.trouble.call}: {phase.trouble.text}")
    return Finding(Cause.UNKNOWN, "the evidence fits no rule")
