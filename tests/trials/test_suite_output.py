from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.trials.suite_output import PARSERS
from pytest_infranoise.trials.suite_output import Status
from pytest_infranoise.trials.suite_output import errors_met
from pytest_infranoise.trials.suite_output import status_of

PYTEST = """\
============================= test session starts ==============================
tests/test_a.py::test_old PASSED                                         [ 50%]
____________________________________ test_b ____________________________________
    PASSED tests/test_a.py::test_printed_by_a_test
=========================== short test summary info ============================
\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mtest_a\x1b[0m
PASSED tests/test_a.py::test_p[a b - c]
FAILED tests/test_a.py::test_b - AssertionError: assert 1 - 1 == 2
ERROR tests/test_a.py::test_c - RuntimeError
ERROR tests/test_broken.py
SKIPPED [3] tests/test_a.py:12: no network
XFAIL tests/test_a.py::test_d - known
XPASS tests/test_a.py::test_e - fixed?
PASSED tests/test_a.py::test_f
ERROR tests/test_a.py::test_f - teardown
PASSED [100%]
FAILED
============ 1 failed, 3 passed in 0.12s ============
"""
RESULTS = {
    "tests/test_a.py::test_a": Status.PASSED,
    "tests/test_a.py::test_p[a b - c]": Status.PASSED,
    "tests/test_a.py::test_b": Status.FAILED,
    "tests/test_a.py::test_c": Status.ERROR,
    "tests/test_broken.py": Status.ERROR,
    "tests/test_a.py::test_d": Status.XFAIL,
    "tests/test_a.py::test_e": Status.XPASS,
    "tests/test_a.py::test_f": Status.ERROR,
    "[100%]": Status.PASSED,
}


def test_the_summary_of_pytest() -> None:
    assert PARSERS["pytest"](PYTEST) == RESULTS


def test_the_progress_of_pytest() -> None:
    assert PARSERS["pytest-progress"](PYTEST) == {"tests/test_a.py::test_old": Status.PASSED, **RESULTS}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("a.py::test[/tmp/pytest-0/x]", "a.py::test[/x]"),
        ("a.py::test[//host/x]", "a.py::test[//host/x]"),
        ("a.py::test[/a/*]", "a.py::test[/a/*]"),
        ("a.py::test[x]", "a.py::test[x]"),
        ("a.py::test", "a.py::test"),
    ],
)
def test_paths_in_parameters(name: str, short: str) -> None:
    assert PARSERS["pytest-options"](f"PASSED {name}\n") == {short: Status.PASSED}


def test_buttons_of_matplotlib() -> None:
    output = "PASSED a.py::test[MouseButton.LEFT]\nPASSED a.py::test[MouseButton.RIGHT]"
    assert set(PARSERS["matplotlib"](output)) == {"a.py::test[1]", "a.py::test[3]"}


def test_unittest() -> None:
    output = """\
test_a (app.tests.TestX) ... ok
test_b (app.tests.TestX)
What it is for. ... ok
test_c (app.tests.TestX) ... FAIL
test_d (app.tests.TestX) ... skipped 'no ... database'
test_e (app.tests.TestX) ... expected failure
test_f (app.tests.TestX) ... Testing against Django installed in '/testbed' silenced.
ok
test_g (app.tests.TestX) ... System check identified no issues (0 silenced).
ERROR
test_h (app.tests.TestX) ... it prints ... ok
======================================================================
ERROR: test_i (app.tests.TestX)
ok
"""
    assert PARSERS["unittest"](output) == {
        "test_a (app.tests.TestX)": Status.PASSED,
        "What it is for.": Status.PASSED,
        "test_c (app.tests.TestX)": Status.FAILED,
        "test_d (app.tests.TestX)": Status.SKIPPED,
        "test_e (app.tests.TestX)": Status.XFAIL,
        "test_f (app.tests.TestX)": Status.PASSED,
        "test_g (app.tests.TestX)": Status.ERROR,
        "test_h (app.tests.TestX) ... it prints": Status.PASSED,
        "test_i": Status.ERROR,
    }


def test_sympy() -> None:
    output = """\
sympy/core/tests/test_basic.py[4]
test_a ok
test_b F
test_c slow E
test_d f
test_e ok                                            [FAIL]
________________ sympy/core/tests/test_basic.py:test_b _________________
"""
    assert PARSERS["sympy"](output) == {
        "test_a": Status.PASSED,
        "test_b": Status.FAILED,
        "test_c": Status.ERROR,
        "sympy/core/tests/test_basic.py:test_b": Status.FAILED,
    }


@pytest.mark.parametrize("parser", sorted(PARSERS))
@pytest.mark.parametrize("output", ["", "sh: 1: pytest: not found\n", "PASSED", "Segmentation fault (core dumped)"])
def test_nothing_is_read_into_other_output(parser: str, output: str) -> None:
    assert PARSERS[parser](output) == {}


@pytest.mark.parametrize(
    ("test", "status"),
    [
        ("t[a b]", Status.PASSED),
        ("t[a", Status.PASSED),  # as published, cut at a space: stands for t[a b] and t[a c]
        ("u[a", Status.FAILED),  # one of two that begin so failed
        ("t[z", None),
        ("t[a b", Status.PASSED),
        ("u", None),  # not cut: another test's beginning is another test
        ("nobody", None),
    ],
)
def test_names_that_were_cut(test: str, status: Status | None) -> None:
    results = {
        "t[a b]": Status.PASSED,
        "t[a c]": Status.XFAIL if test == "nobody" else Status.PASSED,
        "u[a b]": Status.FAILED,
        "u[a c]": Status.PASSED,
    }
    assert status_of(test, results) == status


@given(output=st.text(st.sampled_from("PASSED FAIL ok ... ::[]\n\x1b_:-"), max_size=300))
def test_any_output_can_be_read(output: str) -> None:
    for parse in PARSERS.values():
        assert all(name.strip() for name in parse(output))


def test_errors_that_unittest_met() -> None:
    """As the unittest of today prints them."""
    argv = [sys.executable, "-m", "unittest", "no_such_module_here"]
    printed = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=60).stderr
    assert (errors_met(printed) or "").endswith("FAILED (errors=1)")
    assert errors_met(printed.replace("FAILED (errors=1)", "FAILED (failures=1)")) is None
    assert errors_met(printed.partition("FAILED (")[0]) is None


@pytest.mark.parametrize(
    ("output", "met"),
    [
        ("Ran 3 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=1)\n", True),
        ("Ran 0 tests in 0.0s\n\nOK\n", False),
        ("Ran 0 tests in 0.0s\n\nNO TESTS RAN\n", False),
        ("Ran 3 tests in 0.1s\n\nFAILED (errors=0)\n", False),
        ("FAILED (errors=1)\n", False),
        ("=== tests finished: 0 passed, 2 exceptions, in 0.10 seconds ===\n", True),
        ("=== tests finished: 4 passed, 1 failed, in 0.10 seconds ===\n", False),
        ("=== tests finished: 4 passed, in 0.10 seconds ===\n", False),
        ("===== 1 error in 0.10s =====\n", True),
        ("===== no tests ran in 0.10s =====\n", False),
        ("sh: pytest: not found\n", False),
    ],
)
def test_last_words_that_count_errors(output: str, met: bool) -> None:
    assert (errors_met(f"noise\n{output}") is not None) == met
