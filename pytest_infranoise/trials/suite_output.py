"""What the tests of somebody's repository printed -> a status for each test.

SWE-bench names tests as its own log parsers do, each in a way of its own, so the names here follow them: the
same output gives the same names. Where one test has several results, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from pytest_infranoise.trials import pytest_summary


class Status(StrEnum):
    """How one test ended."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAIL = "xfail"
    XPASS = "xpass"


Results = dict[str, Status]

# Colours, and the other control characters that some runners mix in.
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
_WORDS = {status.name: status for status in Status}
_SUMMARY = re.compile(rf"({'|'.join(_WORDS)})[ \t]+(\S.*)")
_PROGRESS = re.compile(rf"(\S.*?)[ \t]+({'|'.join(_WORDS)})(?:[ \t]+\[ *\d+%\])?")
_SKIP_COUNT = re.compile(r"\[\d+\] ")  # SKIPPED [1] path:line: reason names no test
_OPTION = re.compile(r"(.*?)\[(/[^/*][^*]*)\](.*)")

_UNITTEST_WORDS = MappingProxyType(
    {
        "ok": Status.PASSED,
        "OK": Status.PASSED,
        "FAIL": Status.FAILED,
        "ERROR": Status.ERROR,
        "expected failure": Status.XFAIL,
        "unexpected success": Status.XPASS,
    }
)
_UNITTEST_HEADER = re.compile(r"(FAIL|ERROR): (\S+).*")

_SYMPY_WORDS = MappingProxyType({"ok": Status.PASSED, "F": Status.FAILED, "E": Status.ERROR})
_SYMPY_RESULT = re.compile(r"(test_\S*)(?: .*)? (ok|F|E)")
_SYMPY_HEADER = re.compile(r"_+ (\S+\.py:\S+) _+")


def read_pytest(output: str) -> Results:
    """Read the lines of ``pytest -rA``: ``PASSED tests/test_x.py::test_y``."""
    return dict(_pytest_lines(output))


def read_pytest_options(output: str) -> Results:
    """Read the same, with paths in parameters cut down to their last part, as temporary directories differ."""
    return {_short_option(name): status for name, status in _pytest_lines(output)}


def read_pytest_progress(output: str) -> Results:
    """Read the same, and ``tests/test_x.py::test_y PASSED``, as ``pytest -v`` and old versions print it."""
    results: Results = {}
    for line in _lines(output):
        progress = None if line[:1].isspace() else _PROGRESS.fullmatch(line)
        if progress is not None and _SUMMARY.match(line) is None:
            results[progress[1]] = _WORDS[progress[2]]
        else:
            results.update(_pytest_lines(line))
    return results


def read_matplotlib(output: str) -> Results:
    """Read the lines of ``pytest -rA`` with the names that Matplotlib's mouse buttons have as numbers."""
    return read_pytest(output.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def read_unittest(output: str) -> Results:
    """Read verbose unittest output: ``test_x (module.Class) ... ok``, also with other text before the ``ok``."""
    results: Results = {}
    waiting: str | None = None
    for line in _lines(output):
        header = _UNITTEST_HEADER.fullmatch(line)
        if header is not None:
            results[header[2]] = Status[{"FAIL": "FAILED"}.get(header[1], header[1])]
            continue
        if " ... skipped" in line:
            results[line.partition(" ... skipped")[0].strip()] = Status.SKIPPED
            continue
        name, separator, ending = line.rpartition(" ... ")
        status = _UNITTEST_WORDS.get(ending.strip() if separator else line.strip())
        if separator and status is not None:
            results[name.strip()] = status
            waiting = None
        elif separator:
            waiting = line.partition(" ... ")[0].strip()
        elif status is not None and waiting is not None:
            results[waiting] = status
            waiting = None
    return results


def read_sympy(output: str) -> Results:
    """Read SymPy's own runner: ``test_x ok``, and ``___ sympy/a/test_b.py:test_x ___`` above a failure."""
    results: Results = {}
    for line in map(str.strip, _lines(output)):
        header = _SYMPY_HEADER.fullmatch(line)
        result = _SYMPY_RESULT.fullmatch(line)
        if header is not None:
            results[header[1]] = Status.FAILED
        elif result is not None:
            results[result[1]] = _SYMPY_WORDS[result[2]]
    return results


PARSERS: Mapping[str, Callable[[str], Results]] = MappingProxyType(
    {
        "pytest": read_pytest,
        "pytest-options": read_pytest_options,
        "pytest-progress": read_pytest_progress,
        "matplotlib": read_matplotlib,
        "unittest": read_unittest,
        "sympy": read_sympy,
    }
)


def status_of(test: str, results: Mapping[str, Status]) -> Status | None:
    """Return how a test ended; None when nothing says so.

    Published lists hold names that were cut within their parameters (``test_x[a`` for ``test_x[a b]``). Such a
    name stands for every test that begins so, and the worst of them decides.
    """
    if test in results:
        return results[test]
    if test.count("[") <= test.count("]"):
        return None
    found = {status for name, status in results.items() if name.startswith(test)}
    order = (Status.FAILED, Status.ERROR, Status.XPASS, Status.SKIPPED, Status.XFAIL, Status.PASSED)
    return next((status for status in order if status in found), None)


# The last words of unittest and of SymPy's runner, when they count errors; pytest's are in ``pytest_summary``.
_ERRORS_MET = re.compile(
    r"^(Ran \d+ tests? in [\d.]+s\n\nFAILED \([^)\n]*errors=[1-9]\d*[^)\n]*\)"
    r"|=+ tests finished: [^\n]*\b[1-9]\d* exceptions\b[^\n]*=+)$",
    re.MULTILINE,
)


def errors_met(output: str) -> str | None:
    """Return the last words of tests that ran to their end and count errors; None when nothing shows that."""
    found = pytest_summary.errors_met(output)
    if found is None and (last := _ERRORS_MET.findall("\n".join(_lines(output)))):
        found = " ".join(last[-1].split())
    return found


def _lines(output: str) -> Iterator[str]:
    for line in output.split("\n"):
        yield _CONTROL.sub("", line).rstrip()


def _pytest_lines(output: str) -> Iterator[tuple[str, Status]]:
    for line in _lines(output):
        # What is indented is a test's own output.
        match = _SUMMARY.fullmatch(line)
        if match is None or (match[1] == "SKIPPED" and _SKIP_COUNT.match(match[2])):
            continue
        status = _WORDS[match[1]]
        name = match[2] if status is Status.PASSED else match[2].split(" - ", 1)[0]
        yield name.strip(), status


def _short_option(name: str) -> str:
    match = _OPTION.fullmatch(name)
    return name if match is None else f"{match[1]}[/{match[2].rpartition('/')[2]}]{match[3]}"
