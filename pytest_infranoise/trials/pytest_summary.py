"""Reads a verdict, test by test, from the summary that pytest prints: the way of Terminal-Bench 1.

Text is weak evidence: whatever runs in the container may print such lines. So nothing is read into an output
that is not whole: the summary must be there, and pytest's last line, which counts what is in it. At least one test
ran, or pytest counts errors: then it met files that it could not import, and what the benchmark's own tests import
is what the agent was to leave. Where pytest says neither (no tests ran, all skipped, no last line), nothing shows
that the tests were tried.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_infranoise.trials.evidence import MAX_TEXT
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus

if TYPE_CHECKING:
    from pytest_infranoise.trials.readers import Reading

_SUMMARY = re.compile(r"^=+ *short test summary info *=+[ \r]*$", re.MULTILINE | re.IGNORECASE)
_RESULT = re.compile(r"(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR):? +(\S.*)")
_WORDS = "passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun|subtests passed"
_LAST = re.compile(
    rf"^=* ?((?:\d+ (?:{_WORDS})(?:, )?)+|no tests ran) in \d[\d.]*s(?: \([\d:, a-z]+\))? ?=*[ \r]*$"
)
# What stands between exclamation marks ended the run before its tests did; these two follow from counted results.
_STOPPED = re.compile(
    r"^!{3,} (?!(?:\S+\.)?(?:Interrupted: )?(?:\d+ errors? during collection|stopping after \d+ failures?) !)"
    r"(.+?) !{3,}[ \r]*$"
)
_COUNT = re.compile(r"(\d+) (failed|error)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# As Terminal-Bench counts them: what was skipped or expected to fail is no failure, a surprise pass is one.
_GOOD = frozenset({"PASSED", "SKIPPED", "XFAIL"})


def read(reading: Reading) -> Artefact:
    """Return the verdict in what the verifier's command printed."""
    artefact = grade(reading.text())
    if reading.cut and artefact.reward:
        # A failure may stand in the part that was not kept.
        lost = _none(ArtefactStatus.MALFORMED, "the verifier printed more than is kept", reading.text())
        return replace(lost, stated=artefact.reward)
    return artefact


def ended(output: str) -> bool:
    """Whether pytest's last line is in an output: it ran to its end, whatever it found."""
    return any(_LAST.match(line) for line in _COLOURS.sub("", output).splitlines())


def grade(output: str) -> Artefact:
    """Return the verdict in an output: 1 when no test failed, 0 when one did."""
    output = _COLOURS.sub("", output)
    begin = _SUMMARY.search(output)
    if begin is None:
        return _none(ArtefactStatus.MISSING, "pytest printed no summary", output)
    lines = output[begin.end() :].splitlines()
    results = dict(result for line in lines if (result := _result(line)) is not None)
    ends = [match[1] for line in lines if (match := _LAST.match(line)) is not None]
    if not ends:
        return _none(ArtefactStatus.MALFORMED, "pytest's summary breaks off", output)
    counted = sum(int(number) for end in ends for number, _ in _COUNT.findall(end))
    if not counted and not any(_is_test(name, status) for name, status in results.items()):
        return _none(ArtefactStatus.NO_TESTS, "no test ran", output)
    failed = [name for name, status in results.items() if status not in _GOOD]
    stopped = next((match[1] for line in lines if (match := _STOPPED.match(line))), None)
    if stopped is not None and not failed and not counted:
        return _none(ArtefactStatus.MALFORMED, f"pytest was stopped before its end ({stopped})", output)
    reward = 0.0 if failed or counted else 1.0
    tests = len(results) or counted
    text = f"{len(results) - len(failed)} of {tests} tests passed"
    if failed:
        text = f"{text}; not: {', '.join(failed)}"
    return Artefact(ArtefactStatus.COMPLETE, reward, tests, text[:MAX_TEXT], "pytest's summary")


def errors_met(output: str) -> str | None:
    """Return pytest's last line in an output when it counts errors: it ran to its end, and could not run tests.

    Of several runs the last one counts. Its exit status says less: 2 is also an interruption.
    """
    lines = (match[1] for line in _COLOURS.sub("", output).splitlines() if (match := _LAST.match(line)))
    last = next(reversed([*lines]), "")
    return last if any(word == "error" for _, word in _COUNT.findall(last)) else None


def _result(line: str) -> tuple[str, str] | None:
    match = _RESULT.fullmatch(line.strip())
    if match is None:
        return None
    # A description stands behind " - ", which may also be within a parameter's brackets.
    name = re.split(r" - (?![^\[]*\])", match[2], maxsplit=1)[0].strip()
    return name, match[1]


def _is_test(name: str, status: str) -> bool:
    """Whether a result is of a test that ran, and not of a file that could not be imported, or of a skipped one."""
    return status != "SKIPPED" and (status != "ERROR" or "::" in name)


def _none(status: ArtefactStatus, problem: str, output: str) -> Artefact:
    tail = whole_end(output, MAX_TEXT - len(problem) - 2)
    return Artefact(status, text=f"{problem}: {tail}", source="pytest's summary")


def whole_end(output: str, most: int) -> str:
    """Return the end of an output in at most so many characters, from the start of a line or word.

    It is told to people, after secrets are taken out of it: the rest of one whose start was cut off would stay.
    """
    text = output.strip()
    if len(text) <= most:
        return text
    return text[-most:].partition("\n")[2] or text[-most:].partition(" ")[2] or "one very long line"
