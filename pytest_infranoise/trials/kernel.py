"""Which processes the kernel killed for memory, by the best source that can be read.

A counter of the container's cgroup decides where it is readable. It vanishes with the container, and then the
kernel's log counts, then the engine's ``oom`` event, then its ``OOMKilled`` state. Both of the engine's lie at
times (a neighbour under the same parent limit is flagged, a child's death is flagged only at the end, one in a
hundred is lost), so where they differ from a counter they are only written down as contradictions.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_infranoise.trials.evidence import KILLED
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import PhaseEvidence


@dataclass(frozen=True, slots=True)
class Kills:
    """Kernel kills in one phase: at least ``count``, by ``source``."""

    count: int
    source: str

    def __bool__(self) -> bool:
        return self.count > 0


def kills_in(evidence: Evidence, phase: PhaseEvidence) -> Kills:
    """Return the kernel kills in a phase; a count of 0 with an empty source means that nothing could tell."""
    counted = phase.oom_kills
    if counted is not None:
        return Kills(counted, "cgroup counter")
    if phase.logged_kills:
        return Kills(len(phase.logged_kills), "kernel log")
    events = sum(1 for _ in evidence.events_in(phase, "oom"))
    if events:
        # cgroup v1 sends one or two events for each kill.
        return Kills(max(1, events // 2), "oom event")
    if evidence.state.oom_killed and _explains_state(evidence, phase):
        return Kills(1, "State.OOMKilled")
    return Kills(0, "" if evidence.state.oom_killed is None else "engine")


def _explains_state(evidence: Evidence, phase: PhaseEvidence) -> bool:
    """Whether OOMKilled, which says no time, can only mean this phase: the last, after others without kills."""
    *earlier, last = evidence.phases
    return phase is last and not any(kills_in(evidence, other) for other in earlier)


def contradictions(evidence: Evidence) -> tuple[str, ...]:
    """Return where sources of evidence say different things, one sentence each."""
    found = []
    state = evidence.state
    counted = [phase.oom_kills for phase in evidence.phases]
    for phase in evidence.phases:
        if phase.oom_kills == 0 and any(True for _ in evidence.events_in(phase, "oom")):
            found.append(f"{phase.name}: the engine sent an oom event, the cgroup counter shows no kill")
        if phase.oom_kills and not any(True for _ in evidence.events_in(phase, "oom")):
            found.append(f"{phase.name}: the cgroup counter shows a kill, the engine sent no oom event")
        if phase.oom_kills and phase.host_oom_kills == 0:
            found.append(f"{phase.name}: the cgroup counter shows a kill, the machine's own counter shows none")
        if phase.oom_kills == 0 and phase.logged_kills:
            found.append(f"{phase.name}: the kernel's log tells of a kill, the cgroup counter shows none")
        if phase.exit_code == KILLED and phase.oom_kills == 0 and not phase.timed_out:
            found.append(f"{phase.name}: exit status {KILLED}, but the kernel killed nothing for memory")
        if kills_in(evidence, phase) and phase.ceiling is not None and phase.own_ceiling_reached is None:
            found.append(f"{phase.name}: killed for memory, but no peak could be read; taken for the own ceiling")
    artefact = evidence.artefact
    if artefact.failed and artefact.reward is not None and artefact.reward >= 1:
        found.append(f"reward {artefact.reward:g}, but the test tool's report counts {artefact.failed} failed")
    if state.oom_killed and counted and all(count == 0 for count in counted):
        found.append("the engine says OOMKilled, the cgroup counter shows no kill in any phase")
    artefact = evidence.artefact
    if artefact.other is not None and artefact.reward is not None:
        found.append(f"{artefact.source} says {artefact.reward:g}, another reward file says {artefact.other:g}")
    # While the container runs, engines before 24 always say no.
    if state.oom_killed is False and state.running is False and any(counted):
        found.append("the engine denies OOMKilled, the cgroup counter shows a kill")
    return tuple(found)
