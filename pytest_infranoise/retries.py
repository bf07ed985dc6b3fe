"""Which infra-errors may be tried again: only those whose outcome is unknown, whatever the reward would be.

A retry is another attempt in a fresh container. The first attempt stays the trial's result, because rates of
trials that were repeated until something else came out estimate nothing; later ones are shown beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_infranoise.model import Cause
from pytest_infranoise.model import Phase
from pytest_infranoise.model import Record
from pytest_infranoise.model import Verdict

# The most retries of each cause, within the user's own number; None: as many as that. A ceiling that was hit
# would be hit again; that a kill in the verifier's phase is the verifier's own trouble is worth one look.
_MOST: Mapping[Cause, int | None] = MappingProxyType(
    {
        Cause.RESOURCE_KILL: 1,
        Cause.RESOURCE_EXHAUSTED: 0,
        Cause.HOST_PRESSURE: None,
        Cause.HOST_DISK_FULL: None,
        Cause.EVICTED: None,
        Cause.UNSCHEDULABLE: None,
        Cause.IMAGE_PULL: None,
        Cause.NETWORK_SETUP: None,
        Cause.ENV_START: 2,
        Cause.DAEMON_LOST: None,
        Cause.EXEC_LOST: None,
        Cause.CONTAINER_LOST: None,
        Cause.SETUP_FAILED: 2,
        Cause.VERIFIER_ERROR: None,
        Cause.MODEL_API: None,
        Cause.HARNESS_CRASH: None,
        Cause.UNKNOWN: None,
    }
)
# Seconds to wait before the first retry, twice as long before each further one.
_PAUSES: Mapping[Cause, float] = MappingProxyType(
    {Cause.IMAGE_PULL: 30.0, Cause.MODEL_API: 10.0, Cause.NETWORK_SETUP: 2.0, Cause.HOST_PRESSURE: 5.0}
)
LONGEST_PAUSE = 300.0  # seconds


def may_retry(record: Record, retries: int, made: int) -> bool:
    """Whether an attempt that ended like this may be followed by another.

    Never when a verifier stated a reward, whichever it was and whether or not it could be taken for a verdict: to
    repeat a trial for what came out of it is to choose among outcomes.

    Args:
        record: the last attempt.
        retries: the most that the user allows.
        made: the retries of this trial so far; an attempt that died with an earlier session was none.
    """
    if record.verdict is not Verdict.INFRA_ERROR or record.cause is None or _stated(record):
        return False
    most = _MOST[record.cause]
    allowed = retries if most is None else min(most, retries)
    if record.cause is Cause.RESOURCE_KILL and not _in_verifier(record):
        return False
    return made < allowed


def pause_before(record: Record, made: int) -> float:
    """Return the seconds to wait before the attempt after this one; ``made`` as in ``may_retry``."""
    pause = _PAUSES.get(record.cause, 0.0) * 2.0**made if record.cause else 0.0
    return min(pause, LONGEST_PAUSE)


def _stated(record: Record) -> bool:
    """Whether the verifier stated a reward, also one that is no verdict; or whether that cannot be told."""
    stated = record.details.get("artefact", {}).get("stated")
    return record.reward is not None or stated is not None or "details_lost" in record.details


def _in_verifier(record: Record) -> bool:
    phases = record.details.get("phases", {})
    killed = [name for name, phase in phases.items() if phase.get("oom_kills")]
    return killed == [Phase.VERIFIER.value]
