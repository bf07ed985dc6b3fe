"""Resource configs of every kind, and calls that may be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from pytest_infranoise.config_grammar import parse_config
from pytest_infranoise.model import Amount
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Rule

T = TypeVar("T")


def tried(call: Callable[[], T]) -> tuple[T | None, str]:
    """Return what a call returns, or the text of its ValueError."""
    try:
        return call(), ""
    except ValueError as error:
        return None, str(error)


multiples = st.integers(1, 10_000_000).map(lambda thousandths: thousandths / 1000)
memories = st.integers(1, 1024**5).map(lambda size: Amount(float(size)))
cores = st.integers(1, 4_096_000).map(lambda thousandths: Amount(thousandths / 1000))


def rules(amounts: st.SearchStrategy[Amount]) -> st.SearchStrategy[Rule]:
    free = st.builds(Rule, multiples | amounts, multiples | amounts | st.none()).filter(_may_be)
    return free | st.just(Rule(own=True))


def _may_be(rule: Rule) -> bool:
    floor, ceiling = rule.floor, rule.ceiling
    if isinstance(floor, Amount) and isinstance(ceiling, Amount):
        return floor.value <= ceiling.value
    return not (isinstance(floor, float) and isinstance(ceiling, float) and floor > ceiling)


names = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,39}", fullmatch=True).filter(
    lambda name: name.lower() not in ("task", "uncapped")
)
described = st.builds(
    ResourceConfig, names, rules(cores), rules(memories), st.integers(1, 100_000).map(lambda number: number / 1000)
)
built_in = st.sampled_from(["1x", "1.25x", "3x", "9999999.999999x", "uncapped", "task"]).map(parse_config)
