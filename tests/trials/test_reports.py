"""What test tools report: it may take a verdict away, and never gives one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.tasks.harbor_parts import CTRF
from pytest_infranoise.trials.reports import Report
from pytest_infranoise.trials.reports import not_fetched
from pytest_infranoise.trials.reports import read_ctrf
from pytest_infranoise.trials.reports import read_junit
from tests.trials.lab import Lab
from tests.trials.tampering import REWARD
from tests.trials.tampering import background
from tests.trials.test_foreign import ANSWER
from tests.trials.test_foreign import harbor
from tests.trials.test_runner import PASS
from tests.trials.test_runner import fail
from tests.trials.test_runner import infra
from tests.trials.test_runner import outcome


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ('{"results": {"summary": {"tests": 3, "passed": 3}}}', Report(3, 3, 0)),
        ('{"results": {"summary": {"tests": 3, "failed": 1, "skipped": 1, "pending": 0}}}', Report(3, 2, 1)),
        ('{"results": {"summary": {"tests": 2, "skipped": 2, "failed": null}}}', Report(2, 0, 0)),
        ('{"results": {"summary": {"tests": 0}}}', Report(0, 0, 0)),
        ('{"results": {"summary": {"tests": -1}}}', None),
        ('{"results": {"summary": {"tests": true}}}', None),
        ('{"results": {"summary": {"tests": 1, "failed": "1"}}}', None),
        ('{"results": {"summary": [1]}}', None),
        ('{"results": {"summary": {"tes', None),
        ("[" * 100_000, None),
        ("null", None),
        ("", None),
    ],
)
def test_ctrf(text: str, report: Report | None) -> None:
    assert read_ctrf(text.encode()) == report


CASES = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest">
<testcase name="a"/><testcase name="b"><failure message="no">&lt;!ENTITY</failure></testcase>
<testcase name="c"><skipped/></testcase><testcase name="d"><error message="collection failure"/></testcase>
</testsuite></testsuites>"""
BOMB = """<!DOCTYPE b [<!ENTITY a "aaaaaaaaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<testsuite><testcase name="&b;"/></testsuite>"""


@pytest.mark.parametrize(
    ("text", "report"),
    [
        (CASES, Report(4, 3, 2)),
        ("<testsuite><testcase><![CDATA[x]]></testcase><!-- y --></testsuite>", Report(1, 1, 0)),
        ('<testsuites><testsuite tests="0"/></testsuites>', Report(0, 0, 0)),
        ("<testsuite><testcase/>", None),
        ("<html><testcase/></html>", None),
        (BOMB, None),
        ('<?xml version="1.0" encoding="no-such"?><testsuite/>', None),
        ("", None),
    ],
)
def test_junit(text: str, report: Report | None) -> None:
    assert read_junit(text.encode()) == report


@given(st.binary() | st.text().map(str.encode))
def test_nothing_in_a_report_can_raise(content: bytes) -> None:
    read_ctrf(content)
    read_junit(content)
    not_fetched(content.decode("utf-8", "replace"))


@pytest.mark.parametrize(
    "line",
    [
        "curl: (6) Could not resolve host: astral.sh",
        "/tests/test.sh: line 7: uvx: command not found",
        "sh: 3: pytest: not found",
        "E: Unable to locate package curl",
        "ERROR: No matching distribution found for pytest==8.4.1",
        "error: Failed to fetch: `https://pypi.org/simple/pytest/`",
        "/usr/bin/python3: No module named pytest",
    ],
)
def test_a_tool_that_could_not_be_fetched(line: str) -> None:
    assert not_fetched(f"Installing\n{line}\n") == line
    assert not_fetched(f"{line}\n==== 1 failed in 0.01s ====\n") is None


@pytest.mark.parametrize("line", ["FAILED a.py::b - no curl: (6) in the answer", "answer not found", "pytest ran"])
def test_other_lines_say_nothing(line: str) -> None:
    assert not_fetched(f"{line}\n") is None


JUNIT = "/logs/verifier/junit.xml"


def junit(cases: str) -> str:
    return f"# pytest --junitxml={JUNIT}\necho '<testsuite>{cases}</testsuite>' > {JUNIT}\n"


@pytest.mark.engine
def test_reports_on_a_real_engine(lab: Lab) -> None:
    zero = f"echo 0 > {REWARD}.txt\n"
    untried = {
        "junit missing": f"# pytest --junitxml {JUNIT}\n{zero}",
        "junit without tests": junit("") + zero,
        "junit all skipped": junit("<testcase><skipped/></testcase>") + zero,
        "no runner": f"uvx pytest /tests/test_outputs.py && echo 1 > {REWARD}.txt || {zero}",
    }
    for sample, (why, test) in enumerate(untried.items()):
        # Whatever the agent leaves in the report's place does not count either.
        record = lab.do(f"echo '<testsuite><testcase/></testsuite>' > {JUNIT}", harbor(lab, test), sample=sample)
        assert outcome(record) == infra(Cause.VERIFIER_ERROR), why
        assert "ran no test" in record.summary, why
    tried = lab.do("true", harbor(lab, junit("<testcase><failure/></testcase>") + zero), sample=5)
    assert outcome(tried) == fail(FailReason.TESTS_FAILED)
    assert (tried.details["artefact"]["tests"], tried.details["artefact"]["failed"]) == (1, 1)


@pytest.mark.engine
def test_a_pass_that_the_test_tool_contradicts(lab: Lab) -> None:
    """A verifier that was alone is taken at its word; one that was not may have been spoken for."""
    summary = '{"results": {"summary": {"tests": 2, "failed": 1}}}'
    task = harbor(lab, f"echo '{summary}' > {CTRF}; echo 1 > {REWARD}.txt")
    alone = lab.do(ANSWER, task)
    assert (*outcome(alone), alone.flags) == (*PASS, ())
    assert alone.details["contradictions"] == ["reward 1, but the test tool's report counts 1 failed"]
    watched = lab.do(background("exec sleep 300"), task, sample=1)
    assert outcome(watched) == infra(Cause.VERIFIER_ERROR)
    assert "1 tests failed by the test tool's report" in watched.summary
