"""Rules 4 to 11: what one phase says. Each is asked of one phase after the other, in this order."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from types import MappingProxyType

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Phase
from pytest_infranoise.trials.decision import Finding
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import KILLED
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.kernel import kills_in
from pytest_infranoise.units import format_memory

PhaseRule = Callable[[Evidence, PhaseEvidence, Policy], Finding | None]


def engine_lost(evidence: Evidence, phase: PhaseEvidence, _policy: Policy) -> Finding | None:
    """Rule 4: the engine was away. Comes before exit statuses, because a restart makes up its own."""
    if phase.engine_gap:
        return Finding(Cause.DAEMON_LOST, f"the engine's event stream broke off in the {phase.name} phase")
    if phase.trouble and phase.engine_lost and evidence.engine_answers is not True:
        return Finding(Cause.DAEMON_LOST, f"no engine in the {phase.name} phase: {phase.trouble.text}")
    return None


def cut_off(_evidence: Evidence, phase: PhaseEvidence, _policy: Policy) -> Finding | None:
    """Rule 6, first part: we ended the phase ourselves, because the host ran short of memory."""
    if phase.cut_off is None or phase.cut_off.cause is None:
        return None
    return Finding(phase.cut_off.cause, f"{phase.cut_off.text} (in the {phase.name} phase)")


_STATED = frozenset({Cause.EVICTED, Cause.UNSCHEDULABLE, Cause.IMAGE_PULL, Cause.NETWORK_SETUP, Cause.ENV_START})


def engine_statement(_evidence: Evidence, phase: PhaseEvidence, _policy: Policy) -> Finding | None:
    """Rule 5: the engine says by type what it could not do."""
    trouble = phase.trouble
    if trouble is None or trouble.cause not in _STATED:
        return None
    return Finding(trouble.cause, f"{trouble.call}: {trouble.text}")


def ended_by_a_kill(phase: PhaseEvidence) -> bool:
    """Whether we ended the phase because the kernel had killed for memory in it, as the mode ``group`` has it."""
    return phase.cut_off is not None and phase.cut_off.cause is None


def kernel_kill(evidence: Evidence, phase: PhaseEvidence, policy: Policy) -> Finding | None:
    """Rule 6: the kernel killed a process for memory.

    Any victim counts in setup and in the verifier, where the agent's work is not what died. In the agent phase
    a victim that is not the main process counts unless the policy says otherwise, and in the mode ``group``
    always: everything dies with it.
    """
    kills = kills_in(evidence, phase)
    is_main = phase.exit_code == KILLED or phase.container_ended
    counts = is_main or phase.phase is not Phase.AGENT or policy.oom_child == "infra" or policy.oom_mode == "group"
    if not (kills and counts) and not ended_by_a_kill(phase):
        return None
    # What ended the phase was seen then, also when no counter can be read any more.
    count, source = (kills.count, kills.source) if kills else (1, "seen while it ran")
    what = f"{count} kernel {'kill' if count == 1 else 'kills'} in the {phase.name} phase"
    peak = "" if phase.peak is None else f", peak {format_memory(phase.peak)}"
    if phase.own_ceiling_reached is False:
        ceiling = "uncapped" if phase.ceiling is None else f"ceiling {format_memory(phase.ceiling)} not reached"
        return Finding(Cause.HOST_PRESSURE, f"{what}, {ceiling}{peak} ({source})")
    return Finding(
        Cause.RESOURCE_KILL, f"{what} at the ceiling of {format_memory(phase.ceiling or 0)}{peak} ({source})"
    )


def own_deadline(_evidence: Evidence, phase: PhaseEvidence, _policy: Policy) -> Finding | None:
    """Rule 7: our own timer ended the phase. After the agent's the verifier decides, so nothing is said here."""
    if not phase.timed_out or phase.phase is Phase.AGENT:
        return None
    cause = Cause.VERIFIER_ERROR if phase.phase is Phase.VERIFIER else Cause.SETUP_FAILED
    return Finding(cause, f"{phase.name} timed out after {phase.limit or phase.seconds:g} s")


def denied(_evidence: Evidence, phase: PhaseEvidence, policy: Policy) -> Finding | None:
    """Rule 8: a ceiling that does not kill kept something from happening, or the engine's disk is full."""
    trouble = phase.trouble
    if trouble is not None and trouble.cause in (Cause.HOST_DISK_FULL, Cause.RESOURCE_EXHAUSTED):
        return Finding(trouble.cause, f"{trouble.call}: {trouble.text}")
    if phase.engine_disk_full:
        return Finding(Cause.HOST_DISK_FULL, f"the engine's disk was full in the {phase.name} phase")
    if phase.full_disks and (phase.phase is not Phase.AGENT or policy.oom_child == "infra"):
        full = " and ".join(phase.full_disks)
        return Finding(Cause.RESOURCE_EXHAUSTED, f"{full} of the trial was full in the {phase.name} phase")
    if phase.pids_denied and (phase.phase is not Phase.AGENT or policy.oom_child == "infra"):
        return Finding(
            Cause.RESOURCE_EXHAUSTED,
            f"the pids ceiling kept {phase.pids_denied} processes from starting in the {phase.name} phase",
        )
    return None


def container_lost(evidence: Evidence, phase: PhaseEvidence, _policy: Policy) -> Finding | None:
    """Rule 9: the container ended, stopped, broke or became another one, and nothing above says why."""
    if phase.unkillable:
        return Finding(Cause.CONTAINER_LOST, f"processes of the {phase.name} phase could not be killed")
    foreign = evidence.foreign_actions_in(phase)
    if phase.shell_gone and evidence.setup.ended and phase.phase in (Phase.AGENT, Phase.VERIFIER):
        # Setup ran with that shell, and since then only the agent has been at work in there.
        return Finding(FailReason.SANDBOX_BROKEN, f"the container's shell was gone in the {phase.name} phase")
    if phase.container_ended or (phase.trouble and phase.trouble.cause is Cause.CONTAINER_LOST):
        return _ended(evidence, phase, foreign)
    if "pause" in foreign or "restart" in foreign:
        return Finding(Cause.CONTAINER_LOST, f"{'/'.join(foreign)} from outside in the {phase.name} phase")
    if evidence.identity_intact is False and phase is evidence.phases[-1]:
        return Finding(Cause.CONTAINER_LOST, "the container was restarted or replaced during the trial")
    return None


def _ended(evidence: Evidence, phase: PhaseEvidence, foreign: tuple[str, ...]) -> Finding:
    if foreign:
        return Finding(Cause.CONTAINER_LOST, f"{'/'.join(foreign)} from outside in the {phase.name} phase")
    if evidence.holder_is_init is False and phase.phase is Phase.AGENT:
        # A process 1 of the image's own can be killed from inside, and an agent's command was running.
        return Finding(FailReason.SANDBOX_BROKEN, "the container ended during the agent's work (suspected)")
    origin = "from outside" if evidence.holder_is_init else "for an unknown reason"
    return Finding(Cause.CONTAINER_LOST, f"the container ended {origin} in the {phase.name} phase")


def exec_lost(evidence: Evidence, phase: PhaseEvidence, _policy: Policy) -> Finding | None:
    """Rule 10: a command's end cannot be known, although engine and container are there."""
    trouble = phase.trouble
    if trouble is not None and phase.engine_lost:
        return Finding(Cause.DAEMON_LOST, f"{trouble.call} in the {phase.name} phase: {trouble.text}")
    if trouble is not None and trouble.cause is Cause.EXEC_LOST:
        return Finding(Cause.EXEC_LOST, f"{trouble.call} in the {phase.name} phase: {trouble.text}")
    if phase.exec_lost is not None or not phase.exec_started or phase.shell_gone:
        why = phase.exec_lost or "never started"
        return Finding(Cause.EXEC_LOST, f"a command of the {phase.name} phase: {why}")
    complete = evidence.artefact.status is ArtefactStatus.COMPLETE
    if phase.phase is Phase.VERIFIER and complete and evidence.identity_intact is None:
        return Finding(Cause.EXEC_LOST, "whether the container is still the same could not be asked")
    return None


def setup_or_provider(evidence: Evidence, phase: PhaseEvidence, _policy: Policy) -> Finding | None:
    """Rule 11: setup failed, the model's provider did, or the agent's code on our side.

    An exception of that code cannot be told from a bug of the harness, so it is never the model's fail.
    """
    if phase.phase is Phase.SETUP:
        return _setup_failed(phase)
    if phase.phase is not Phase.AGENT:
        return None
    if evidence.agent_cause is not None:
        return Finding(evidence.agent_cause, phase.error or "stated by the agent")
    if phase.error is not None and not phase.timed_out:
        return Finding(Cause.HARNESS_CRASH, f"the agent's own code failed: {phase.error}")
    return None


def _setup_failed(phase: PhaseEvidence) -> Finding | None:
    if phase.exit_code:
        text = f"the setup command ended with exit status {phase.exit_code}"
        return Finding(Cause.SETUP_FAILED, f"{text}: {phase.last_line}" if phase.last_line else text)
    if phase.error is not None:
        return Finding(Cause.SETUP_FAILED, phase.error)
    if phase.trouble is not None:
        return Finding(Cause.SETUP_FAILED, f"{phase.trouble.call}: {phase.trouble.text}")
    return None


PHASE_RULES: Mapping[str, PhaseRule] = MappingProxyType(
    {
        "4 engine lost": engine_lost,
        "5 engine statement": engine_statement,
        "6 memory guard": cut_off,
        "6 kernel kill": kernel_kill,
        "7 own deadline": own_deadline,
        "8 denied": denied,
        "9 container lost": container_lost,
        "10 exec lost": exec_lost,
        "11 setup or provider": setup_or_provider,
    }
)
