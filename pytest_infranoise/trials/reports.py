"""What a test tool's own report says: whether any test ran, and whether one failed.

A report is written in the container, by whatever runs in there: it can take a verdict away, and never gives one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree as ET

from pytest_infranoise.trials.pytest_summary import ended

MAX_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class Report:
    """How many tests there were, how many of them were not skipped, and how many did not pass."""

    tests: int
    ran: int
    failed: int


def read_ctrf(content: bytes) -> Report | None:
    """Return what a report in the common test report format says; None when it is none."""
    try:
        summary: Mapping[str, Any] = json.loads(content)["results"]["summary"]
        tests = summary["tests"]
        others = [summary.get(name) or 0 for name in ("skipped", "pending", "failed")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not all(_is_count(number) for number in (tests, *others)):
        return None
    skipped, pending, failed = others
    return Report(tests, max(0, tests - skipped - pending), failed)


def read_junit(content: bytes) -> Report | None:
    """Return what a report in JUnit's XML says; None when it is none.

    A file that could not be imported is in there as an error, and so was tried.
    """
    if b"<!" in re.sub(rb"<!\[CDATA\[|<!--", b"", content):
        return None  # entities can make a few bytes into gigabytes, and no test tool declares any
    try:
        root = ET.fromstring(content)
    except (ET.ParseError, ValueError, LookupError, RecursionError):
        return None
    if root.tag not in ("testsuites", "testsuite"):
        return None
    cases = list(root.iter("testcase"))
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    failed = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
    return Report(len(cases), len(cases) - skipped, failed)


READERS: Mapping[str, Callable[[bytes], Report | None]] = MappingProxyType({"ctrf": read_ctrf, "junit": read_junit})

# What is printed by those who fetch and start a test tool, when they cannot.
_NOT_FETCHED = re.compile(
    r"^(?:.*: )?(?:"
    r"curl: \(\d+\) .+"
    r"|(?:line \d+: )?(?:uvx?|curl|wget|pip3?|pytest|python3?): (?:command )?not found"
    r"|E: (?:Unable to (?:locate package|fetch)|Failed to fetch|Package '[^']+' has no installation candidate).*"
    r"|ERROR: (?:Could not find a version that satisfies the requirement|No matching distribution found for) .+"
    r"|error: (?:Failed to fetch|Failed to download|Request failed|Could not connect)\b.*"
    r"|.*Temporary failure (?:in name resolution|resolving).*"
    r"|No module named '?pytest'?"
    r")$",
    re.MULTILINE,
)


def not_fetched(output: str) -> str | None:
    """Return the line in an output that says that a test tool could not be fetched, where none ran; else None.

    Text is weak evidence, so both are asked for: such a line, and no last line of pytest's.
    """
    found = _NOT_FETCHED.search(output)
    return None if found is None or ended(output) else found[0].strip()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
