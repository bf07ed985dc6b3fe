"""How a trial's verdict shows in pytest: reports, letters, JUnit properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Record
from pytest_infranoise.model import Verdict

if TYPE_CHECKING:
    from pytest_infranoise.agents.secrets import Masker

RECORD = pytest.StashKey[Record]()
LOGS = pytest.StashKey[Path]()
MASKER: pytest.StashKey[Masker] = pytest.StashKey()
CATEGORY = "infra-error"


class InfraError(Exception):
    """The trial is an infra-error; raised in the setup phase, so that other tools see an error, not a failure."""

    def __init__(self, record: Record) -> None:
        super().__init__(infra_error_text(record))


class ConfigErrorReport(Exception):
    """The user's mistake, found only while running: no verdict, but an error of its own kind."""


def printable(text: str) -> str:
    """Return a text that a terminal shows as it is and that travels between processes.

    Containers and agents write what they like: escape sequences, and surrogates, which execnet refuses.
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def infra_error_text(record: Record) -> str:
    """Return an infra-error in one line."""
    return printable(f"{record.cause}: {record.summary}")


def failure_text(item: pytest.Item, record: Record) -> str:
    """Return a fail in a few lines: the reason, the verifier's last words, and where the logs are."""
    lines = [item.nodeid, f"{record.reason}: {record.summary}"]
    for phase in ("agent", "verifier") if record.reason is FailReason.AGENT_CRASH else ("verifier",):
        last_words = record.details.get("phases", {}).get(phase, {}).get("last_line")
        if last_words:
            lines.append(f"{phase}: {last_words}")
    if LOGS in item.stash:
        lines.append(f"logs: {item.stash[LOGS]}")
    return printable("\n".join(lines))


def properties(record: Record) -> dict[str, str]:
    """Return the properties that end up in JUnit files."""
    key = record.key
    found = {
        "task": key.task,
        "agent": key.agent,
        "config": key.config,
        "sample": str(key.sample),
        "verdict": record.verdict.value,
    }
    if record.cause is not None:
        found["cause"] = record.cause.value
    if record.reason is not None:
        found["reason"] = record.reason.value
    return found


def add_properties(item: pytest.Item, record: Record) -> None:
    """Attach the properties that end up in JUnit files."""
    item.user_properties.extend(properties(record).items())


def annotate(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Put the record on the one report that tells the trial's outcome, and its own words in place of tracebacks.

    As one JSON string: whatever travels between xdist's processes must survive execnet, which refuses enums,
    dates and lone surrogates and takes the whole session down with them.
    """
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, InfraError | ConfigErrorReport):
        report.longrepr = printable(str(error))
    if isinstance(error, ConfigErrorReport):
        report.infranoise_config_error = True  # type: ignore[attr-defined]
    _mask(item, report)
    record = item.stash.get(RECORD, None)
    infra_error = record is not None and record.verdict is Verdict.INFRA_ERROR
    # A marked function's infra-error may show only in its call.
    if record is not None and (report.when == "call" or (infra_error and report.when == "setup")):
        attach(report, record)


def _mask(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep secrets out of what pytest itself wrote down: tracebacks and captured output of a test's own code."""
    masker = item.stash.get(MASKER, None)
    if not masker or not (report.longrepr or report.sections):
        return
    report.sections = [(name, masker.text(content)) for name, content in report.sections]
    text = str(report.longrepr)
    if report.longrepr and not isinstance(report.longrepr, tuple) and masker.text(text) != text:
        report.longrepr = masker.text(text)


def attach(report: pytest.TestReport, record: Record) -> None:
    """Put a record on a report."""
    report.infranoise = json.dumps(record.to_json())  # type: ignore[attr-defined]


def attached(report: Any) -> Record | None:
    """Return the record on a report, in whatever process it was put there."""
    text = getattr(report, "infranoise", None)
    return None if text is None else Record.from_json(json.loads(text))


def interrupt(report: Any, text: str) -> None:
    """Let a report tell of a trial that was interrupted: it is missing, which is no outcome."""
    report.infranoise_interrupted = True
    report.when = "setup"
    report.longrepr = f"interrupted: {text}"


def has_no_verdict(report: Any) -> bool:
    """Whether a report tells of a trial of ours that came to no verdict."""
    return any(getattr(report, f"infranoise_{name}", False) for name in ("config_error", "interrupted"))


def report_status(report: Any) -> tuple[str, str, Any] | None:
    """Return category, letter and word of a report of ours that pytest would name otherwise."""
    if getattr(report, "infranoise_config_error", False):
        return "error", "E", ("CONFIG-ERROR", {"red": True})
    if getattr(report, "infranoise_interrupted", False):
        return "interrupted", "!", ("INTERRUPTED", {"yellow": True})
    text = getattr(report, "infranoise", None)
    if text is not None and report.failed and json.loads(text)["verdict"] == Verdict.INFRA_ERROR:
        return CATEGORY, "I", ("INFRA-ERROR", {"purple": True})
    return None
