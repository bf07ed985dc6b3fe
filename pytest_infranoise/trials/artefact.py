"""The verdict artefact: the JSON file in which a verifier states its reward."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any
from typing import TypeGuard

from pytest_infranoise.trials.evidence import MAX_TEXT
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus

MAX_BYTES = 64 * 1024


def parse_artefact(content: bytes, nonce: str, errors: str | None = None) -> Artefact:
    """Return what a verifier wrote, judged by form: whether it is complete, and if not, why.

    Complete is one JSON object with this verifier's ``nonce``, a ``reward`` from 0 to 1 and, if it has ``tests``
    at all, at least one test. Other keys are left alone.

    Args:
        content: the file.
        nonce: what only this run of this verifier was told.
        errors: the test tool's own count of the errors that it met, when it did: with it, a reward of 0 for no
            test is one, because the tests were tried.
    """
    text = content[:MAX_TEXT].decode("utf-8", "replace")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return Artefact(ArtefactStatus.MALFORMED, text=text)
    if not isinstance(data, dict):
        return Artefact(ArtefactStatus.MALFORMED, text=text)
    if data.get("nonce") != nonce:
        return Artefact(ArtefactStatus.WRONG_NONCE, text=text)
    reward, tests = data.get("reward"), data.get("tests")
    if not _is_reward(reward):
        return Artefact(ArtefactStatus.MALFORMED, text=text, stated=_number(reward))
    if not (tests is None or _is_count(tests)):
        return Artefact(ArtefactStatus.MALFORMED, text=text, stated=float(reward))
    if tests == 0 and (reward or errors is None):
        return Artefact(ArtefactStatus.NO_TESTS, tests=0, text=text, stated=float(reward))
    if tests == 0:
        return without_tests(Artefact(ArtefactStatus.COMPLETE, 0.0, 0, text, "the verdict"), errors or "")
    return Artefact(ArtefactStatus.COMPLETE, float(reward), tests, text)


def without_tests(artefact: Artefact, errors: str) -> Artefact:
    """Return a reward of 0 for no test, which counts because pytest's last line counts errors; marked as text."""
    text = f"{artefact.text.strip()[: MAX_TEXT // 2]} (no test ran; pytest ended with: {errors})"
    return replace(artefact, tests=0, text=text[:MAX_TEXT], source=f"{artefact.source} and pytest's last line")


def _number(value: Any) -> float | None:
    """Return what can be kept of a value that is no reward: a number, if it is one."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_reward(value: Any) -> TypeGuard[float]:
    # NaN is in no range. An int is compared as it is: one beyond the largest float cannot be converted.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
