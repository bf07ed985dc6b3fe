"""Conditions on a run's rates that decide its exit status: what may be written, and whether it holds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import percent_down
from pytest_infranoise.reports.text import percent_up
from pytest_infranoise.reports.text import plural
from pytest_infranoise.reports.text import rate_text

if TYPE_CHECKING:
    from pytest_infranoise.results import AgentResult
    from pytest_infranoise.results import Analysis
    from pytest_infranoise.results import ConfigResult
    from pytest_infranoise.results import Rate

RATES = ("infra-rate", "pass-rate")
MISSING = "missing"
QUANTITIES = (*RATES, MISSING)
BOUNDS = ("upper", "lower")
OPERATORS = ("<=", ">=", "<", ">")
GRAMMAR = (
    "write e.g. 'infra-rate[3x] <= 5%', 'pass-rate >= 40%' (every config), 'lower(pass-rate[3x]) >= 40%' (upper or "
    "lower end of the 95% interval) or 'missing <= 0'; operators <= < >= >"
)

_OPERATOR = re.compile(r"[<>=!~]+")
_BOUND = re.compile(r"(?P<bound>[^()\[\]]*)\((?P<inner>.*)\)", re.DOTALL)
_QUANTITY = re.compile(r"(?P<name>[^()\[\]]*?)\s*(?:\[(?P<config>[^\[\]]*)\])?", re.DOTALL)
_NUMBER = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*(?P<percent>%?)")
# More configs than this would make a line that nobody reads.
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition; ``str()`` of it is a text that ``parse_gate`` reads as the same gate.

    ``config`` None stands for every config (for ``missing``: the whole run). ``threshold`` is a proportion, for
    ``missing`` a count.
    """

    quantity: str
    config: str | None
    bound: str | None
    operator: str
    threshold: Decimal

    def __str__(self) -> str:
        inner = self.quantity if self.config is None else f"{self.quantity}[{self.config}]"
        left = inner if self.bound is None else f"{self.bound}({inner})"
        return f"{left} {self.operator} {self.threshold_text}"

    @property
    def threshold_text(self) -> str:
        """The threshold as people write it: a percentage, for ``missing`` a number."""
        if self.quantity == MISSING:
            return f"{self.threshold:f}"
        return f"{_plain(self.threshold * 100)}%"

    def check_configs(self, names: Iterable[str]) -> None:
        """Check that the gate's config is one of ``names``.

        Raises:
            ValueError: it is not; the message lists them.
        """
        known = list(names)
        if self.config is None or self.config in known:
            return
        near = difflib.get_close_matches(self.config, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"gate {str(self)!r}: no resource config {self.config!r} in this run; {hint}configs: {', '.join(known)}"
        )

    def allows(self, value: float) -> bool:
        """Whether a value satisfies the condition."""
        limit = float(self.threshold)
        return {
            "<=": value <= limit,
            "<": value < limit,
            ">=": value >= limit,
            ">": value > limit,
        }[self.operator]


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate holds, and one line that says why."""

    gate: Gate
    holds: bool
    line: str


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_gate(text: str) -> Gate:
    """Return the gate that ``text`` states.

    Raises:
        ValueError: it states none; the message says what is wrong and shows the grammar.
    """
    try:
        return _parse(text)
    except _Wrong as wrong:
        raise ValueError(f"gate {text!r}: {wrong}; {GRAMMAR}") from None


class _Wrong(Exception):
    """What is wrong with a gate, in a few words."""


def _parse(text: str) -> Gate:
    operators = list(_OPERATOR.finditer(text))
    if len(operators) != 1:
        raise _Wrong("more than one comparison" if operators else "no comparison")
    (operator,) = operators
    if operator.group() not in OPERATORS:
        raise _Wrong(f"unknown operator {operator.group()!r}")
    bound, quantity, config = _left(text[: operator.start()].strip())
    threshold = _threshold(text[operator.end() :].strip(), quantity)
    return Gate(quantity, config, bound, operator.group(), threshold)


def _left(text: str) -> tuple[str | None, str, str | None]:
    bound = None
    match = _BOUND.fullmatch(text)
    if match is not None:
        bound, text = match["bound"].strip(), match["inner"].strip()
        if bound not in BOUNDS:
            raise _Wrong(f"unknown function {bound!r}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _Wrong(f"{text!r} is no QUANTITY[CONFIG]")
    quantity, config = match["name"], match["config"]
    if quantity not in QUANTITIES:
        near = difflib.get_close_matches(quantity, QUANTITIES, n=1)
        raise _Wrong(f"unknown quantity {quantity!r}" + (f", did you mean {near[0]!r}?" if near else ""))
    if bound is not None and quantity == MISSING:
        raise _Wrong("missing is a count and has no interval")
    if config is not None and not config.strip():
        raise _Wrong("no config between the brackets")
    return bound, quantity, config.strip() if config is not None else None


def _threshold(text: str, quantity: str) -> Decimal:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _Wrong(f"{text!r} is not a threshold" if text else "no threshold")
    number, percent = Decimal(match["number"]), bool(match["percent"])
    if quantity == MISSING:
        if percent or number != int(number):
            raise _Wrong(f"missing is a count of trials, so its threshold is a whole number, not {text}")
        return Decimal(int(number))
    if percent:
        number = number / 100
    elif number >= 1:
        raise _Wrong(f"{text} can be read in two ways; for {text} of 100 write {text}%")
    if number > 1:
        raise _Wrong(f"{text} is more than 100%")
    return number


def evaluate(gate: Gate, analysis: Analysis) -> GateResult:
    """Judge a gate on a run.

    A rate's gate compares the point estimate, or the interval's end for ``upper`` and ``lower``; every agent, and
    without CONFIG every config, must hold. Where nothing was recorded a rate's gate does not hold, and none holds
    in a run that is not an estimate.
    """
    if analysis.cut_short:
        return GateResult(gate, False, f"gate {gate} is refused: not an estimate: {analysis.cut_short}")
    holds, why = _judge_missing(gate, analysis) if gate.quantity == MISSING else _judge_rate(gate, analysis)
    return GateResult(gate, holds, f"gate {gate} {'holds' if holds else 'does not hold'}: {why}")


def _judge_missing(gate: Gate, analysis: Analysis) -> tuple[bool, str]:
    results = [
        result for agent in analysis.agents for result in agent.configs if gate.config in (None, result.config)
    ]
    missing, planned = sum(result.missing for result in results), sum(result.planned for result in results)
    return bool(results) and gate.allows(missing), f"{missing} of {planned} planned trials missing"


def _judge_rate(gate: Gate, analysis: Analysis) -> tuple[bool, str]:
    places = list(_places(gate, analysis))
    failing = [place for place in places if not _holds(gate, place.rate)]
    shown = failing or places
    if not shown:
        return False, f"no trial was planned under {gate.config or 'any config'}"
    values = listed([_what(place) for place in shown], _MOST_SHOWN)
    return not failing, "; ".join([values, *_beyond_the_data(gate, shown)])


@dataclass(frozen=True, slots=True)
class _Place:
    """One agent's rate under one config, and what to call it."""

    label: str
    result: ConfigResult
    rate: Rate


def _places(gate: Gate, analysis: Analysis) -> Iterator[_Place]:
    several = len(analysis.agents) > 1
    for agent in analysis.agents:
        for result in agent.configs:
            if gate.config in (None, result.config):
                rate = result.infra_rate if gate.quantity == "infra-rate" else result.score
                yield _Place(_label(agent, result, several), result, rate)


def _label(agent: AgentResult, result: ConfigResult, several: bool) -> str:
    return f"{agent.label} {result.config}" if several else result.config


def _holds(gate: Gate, rate: Rate) -> bool:
    if rate.value is None:
        return False
    if gate.bound is None:
        return gate.allows(rate.value)
    return gate.allows(rate.interval.hi if gate.bound == "upper" else rate.interval.lo)


def _what(place: _Place) -> str:
    if place.rate.value is None:
        return f"{place.label} has no recorded trial"
    return f"{place.label} {rate_text(place.rate)}"


def _beyond_the_data(gate: Gate, places: Sequence[_Place]) -> Iterator[str]:
    """Say where so few trials could not show the threshold, whatever their outcome."""
    from pytest_infranoise.stats.rates import rate_ci

    if gate.bound is not None:
        return
    upward = gate.operator in (">", ">=")
    ends: dict[int, float] = {}
    for place in places:
        trials = [cell.recorded for cell in place.result.cells.values()]
        best = rate_ci(trials if upward else [0] * len(trials), trials)
        ends[sum(trials)] = best.lo if upward else best.hi
    for trials_run, end in sorted(ends.items()):
        if trials_run and not gate.allows(end):
            few = plural(trials_run, "trial")
            yield f"{few} cannot show {gate.threshold_text}: {_best_case(gate, upward, end)}"


def _best_case(gate: Gate, upward: bool, end: float) -> str:
    did = "is an infra-error" if gate.quantity == "infra-rate" else "passes"
    return f"if each {did}, at least {percent_down(end)}" if upward else f"if none {did}, at most {percent_up(end)}"
