"""The exit status of a session with trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_infranoise.gates import GateResult

GATE_FAILED = 20


def exit_status(
    status: int,
    *,
    others_failed: bool,
    missing: int,
    gates: Sequence[GateResult],
    bad_trials: int,
    quarantined: int = 0,
) -> int:
    """Return the session's exit status; the first line of the table in the README that applies."""
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return status
    if others_failed:
        return pytest.ExitCode.TESTS_FAILED
    if missing or quarantined or not all(gate.holds for gate in gates):
        return GATE_FAILED
    if gates:
        return pytest.ExitCode.OK
    return pytest.ExitCode.TESTS_FAILED if bad_trials else pytest.ExitCode.OK
