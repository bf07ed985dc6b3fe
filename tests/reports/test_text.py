from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import bracketed
from pytest_infranoise.reports.text import fit
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import p_text
from pytest_infranoise.reports.text import percent_down
from pytest_infranoise.reports.text import percent_up
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rate_text
from pytest_infranoise.reports.text import shown
from pytest_infranoise.reports.text import table
from pytest_infranoise.reports.text import together
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import Rate
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.units import plural


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0, "<.0001"),
        (0.00009999, "<.0001"),
        (0.0001, ".0001"),
        (0.00956, ".0096"),
        (0.01, ".010"),
        (0.313, ".313"),
        (0.9996, "1.000"),
        (1.0, "1.000"),
        (None, "-"),
    ],
)
def test_p_values(p: float | None, text: str) -> None:
    assert p_text(p) == text


@given(st.floats(0, 1))
def test_no_p_value_is_zero(p: float) -> None:
    assert re.fullmatch(r"<\.0001|1\.000|\.\d{3,4}", p_text(p))
    assert float(p_text(p).removeprefix("<")) > 0


@pytest.mark.parametrize(
    ("value", "up", "down"), [(0.2425, "24.3%", "24.2%"), (0.05, "5.0%", "5.0%"), (1.0, "100.0%", "100.0%")]
)
def test_ends_are_rounded_outwards(value: float, up: str, down: str) -> None:
    assert (percent_up(value), percent_down(value)) == (up, down)


@pytest.mark.parametrize(("value", "text"), [(0.25, "+25.0"), (-0.0004, "0.0"), (0.0, "0.0"), (-1.0, "-100.0")])
def test_points(value: float, text: str) -> None:
    assert points(value) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(0, 12, 4, 0.0, Interval(0, 0.2425), ""), "0 of 12, at most 24.3%"),
        (Rate(1, 5340, 89, 1 / 5340, Interval(0, 0.00106), ""), "1 of 5340, at most 0.2%"),
        (Rate(1, 12, 4, 1 / 12, Interval(0.0149, 0.3539), ""), "8.3% [1.5, 35.4]"),
        (Rate(12, 12, 4, 1.0, Interval(0.7575, 1), ""), "100.0% [75.8, 100.0]"),
        (Rate(0, 0, 0, None, Interval(0, 1), ""), "no trials"),
    ],
)
def test_rates(rate: Rate, text: str) -> None:
    assert rate_text(rate) == text


def test_control_characters_and_other_alphabets_are_escaped() -> None:
    assert shown("t\x1b[31m\u00e2che\n\udc80\u00a0") == "t\\x1b[31m\\xe2che\\x0a\\xdc80\\xa0"


@given(st.text(), st.integers(4, 40))
def test_a_fitted_name_is_ascii_and_never_too_wide(name: str, width: int) -> None:
    text = fit(name, width)
    assert len(text) <= width
    assert text.isascii()
    assert text.isprintable()


def test_a_long_name_keeps_both_ends() -> None:
    assert fit("build-something-0001", 12) == "build..-0001"


@given(st.text(), st.integers(20, 100))
def test_wrapped_lines_are_ascii_and_never_too_wide(text: str, width: int) -> None:
    for line in wrap(text, width):
        assert len(line) <= width
        assert line.isascii()
        assert line.isprintable()


def test_phrases_are_not_broken() -> None:
    assert wrap(f"aaaa {together('bb cc')} dd", 9) == ["aaaa", "  bb cc", "  dd"]


def test_lists_say_what_they_leave_out() -> None:
    assert listed(["a", "b"], 3) == "a, b"
    assert listed(["a", "b", "c", "d", "e"], 3) == "a, b, c and 2 more"
    assert (plural(1, "task"), plural(0, "task")) == ("1 task", "0 tasks")


def test_a_table_takes_the_widest_gap_that_fits() -> None:
    columns = [Column("name", ["a", "bb"]), Column("n", ["1", "10"], right=True)]
    assert table(columns, 20) == ["name    n", "a       1", "bb     10"]
    assert table(columns, 8) == ["name   n", "a      1", "bb    10"]
    assert table(columns, 7) is None


def test_bracketed_numbers_stand_below_each_other() -> None:
    assert bracketed([("8.3", "0.4", "68.6"), ("50.0", "20.0", "80.0"), "none left"]) == [
        " 8.3 [ 0.4,68.6]",
        "50.0 [20.0,80.0]",
        "none left",
    ]
