"""Reads a verdict from the reward files of Harbor: ``reward.json``, which wins, or ``reward.txt``.

The test script's exit status says nothing, as in Harbor. A file that is missing, empty or not what it should be
is no verdict, and neither is a 0 of a script whose test tool should have left a report, or its last line, and did
not: then the tests never ran. A report of no tests is one more of those, unless pytest's last line in the script's
output counts errors: then the tests were tried, and could not be imported with what the agent left.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import FileUnfit
from pytest_infranoise.trials.artefact import without_tests
from pytest_infranoise.trials.evidence import MAX_TEXT
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.pytest_summary import ended
from pytest_infranoise.trials.pytest_summary import errors_met
from pytest_infranoise.trials.reports import MAX_BYTES as MAX_REPORT
from pytest_infranoise.trials.reports import READERS as REPORTS
from pytest_infranoise.trials.reports import Report
from pytest_infranoise.trials.reports import not_fetched

if TYPE_CHECKING:
    from pytest_infranoise.trials.readers import Reading

MAX_BYTES = 64 * 1024
_DIGITS = 1000  # no number that anybody means has more


def read(reading: Reading) -> Artefact:
    """Return the verdict in the container's reward files.

    Options are ``files``, ``ctrf``, and what the test script makes pytest leave: ``writes_ctrf``, ``shows_pytest``,
    and where it has them ``junit`` (where such a report is written) and ``runs_pytest``.
    """
    artefact = _reward(reading, reading.options["files"])
    if artefact.reward is None:
        return artefact
    report, left = _report(reading)
    untried = report is not None and report.ran == 0
    errors = errors_met(reading.text()) if untried and artefact.reward <= 0 else None
    if errors is not None:
        return without_tests(artefact, errors)
    if untried:
        return replace(artefact, status=ArtefactStatus.NO_TESTS, reward=None, tests=0, stated=artefact.reward)
    lacking = None if left or artefact.reward > 0 else _lacking(reading)
    if lacking is not None:
        text = f"{artefact.text.strip()} (but the test tool left no {lacking}: its tests did not run)"
        stated = artefact.reward
        return replace(artefact, status=ArtefactStatus.NO_TESTS, reward=None, text=text[:MAX_TEXT], stated=stated)
    return artefact if report is None else replace(artefact, tests=report.ran, failed=report.failed)


def _report(reading: Reading) -> tuple[Report | None, bool]:
    """Return the test tool's report, and whether there is one at all, also one too long to be read."""
    left = False
    for kind in [kind for kind in REPORTS if kind in reading.options]:
        try:
            report = REPORTS[kind](reading.read(reading.options[kind], MAX_REPORT))
        except FileMissing as error:
            left = left or isinstance(error, FileUnfit)
            continue
        if report is not None:
            return report, True
    return None, left


def _lacking(reading: Reading) -> str | None:
    """Return what pytest would have left, had it been started; None when it is there, or would not be."""
    if reading.options["writes_ctrf"] or "junit" in reading.options:
        return "report"
    if reading.options.get("shows_pytest") and not ended(reading.text()):
        return "last line of pytest"
    if reading.options.get("runs_pytest") and not reading.cut:
        line = not_fetched(reading.text())
        return None if line is None else f"trace but '{line}'"
    return None


def _reward(reading: Reading, files: list[str]) -> Artefact:
    """Return what the first file that is there says, and whether the next one says something else."""
    found = [artefact for path in files if (artefact := _parsed(reading, path)) is not None]
    if not found:
        return Artefact(text=f"none of {', '.join(files)} is there")
    first, *rest = found
    other = next((artefact.reward for artefact in rest if artefact.reward not in (None, first.reward)), None)
    return replace(first, stated=other) if first.reward is None else replace(first, other=other)


def _parsed(reading: Reading, path: str) -> Artefact | None:
    """Return what a reward file says, None when there is none; what cannot be read is there, and says nothing."""
    source = path.rpartition("/")[2]
    try:
        content = reading.read(path, MAX_BYTES)
    except FileUnfit as error:
        return Artefact(ArtefactStatus.MALFORMED, text=error.text, source=source)
    except FileMissing:
        return None
    parsed = parse_json(content) if path.endswith(".json") else parse_text(content)
    return replace(parsed, source=source)


def parse_json(content: bytes) -> Artefact:
    """Return what ``reward.json`` says: the number under ``reward``, or the only one there is."""
    text = content[:MAX_TEXT].decode("utf-8", "replace")
    malformed = Artefact(ArtefactStatus.MALFORMED, text=text)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return malformed
    if not isinstance(data, dict) or not data or not all(_is_number(value) for value in data.values()):
        return malformed
    if "reward" not in data and len(data) > 1:
        return Artefact(ArtefactStatus.MALFORMED, text=f"several rewards, none of them called reward: {text}")
    reward = data["reward"] if "reward" in data else next(iter(data.values()))
    return Artefact(ArtefactStatus.COMPLETE, float(reward), text=text)


def parse_text(content: bytes) -> Artefact:
    """Return what ``reward.txt`` says: one number."""
    text = content[:MAX_TEXT].decode("utf-8", "replace")
    try:
        reward = float(content.decode("ascii")) if len(content) <= _DIGITS else math.nan
    except ValueError:
        reward = math.nan
    if not math.isfinite(reward):
        return Artefact(ArtefactStatus.MALFORMED, text=text)
    return Artefact(ArtefactStatus.COMPLETE, reward, text=text)


def _is_number(value: Any) -> bool:
    """Whether Harbor takes a value for a reward; true and false are numbers to it."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False
