"""The grammar of gates: conditions on a run's numbers that decide its exit status."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

RATES = ("infra-rate", "pass-rate")
MISSING = "missing"
DELTA = "delta"
EQUIVALENT = "equivalent"
CALIBRATED = "calibrated"
STATEMENTS = (EQUIVALENT, CALIBRATED)
QUANTITIES = (*RATES, MISSING, DELTA, *STATEMENTS)
BOUNDS = ("upper", "lower")
OPERATORS = ("<=", ">=", "<", ">")
GRAMMAR = (
    "write e.g. 'infra-rate[3x] <= 5%', 'pass-rate >= 40%' (every config), 'lower(pass-rate[3x]) >= 40%' (upper or "
    "lower end of the interval), 'delta(3x,1x) >= -3pp' (pass rate of 3x minus that of 1x: its whole interval), "
    "'equivalent(3x,1x)' (within the run's margin), 'calibrated', 'calibrated[3x]' or 'missing <= 0'; operators "
    "<= < >= >"
)

_OPERATOR = re.compile(r"[<>=!~]+")
_CALL = re.compile(r"(?P<name>[^()\[\]]*)\((?P<inner>.*)\)", re.DOTALL)
_QUANTITY = re.compile(r"(?P<name>[^()\[\]]*?)\s*(?:\[(?P<config>[^\[\]]*)\])?", re.DOTALL)
_PAIR = re.compile(r"(?P<one>[^()\[\],]*),(?P<zero>[^()\[\],]*)", re.DOTALL)
_NUMBER = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*(?P<percent>%?)")
_POINTS = re.compile(r"(?P<number>[+-]?(?:[0-9]{1,9}(?:\.[0-9]{0,7})?|\.[0-9]{1,7}))\s*pp")


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition; ``str()`` of it is a text that ``parse_gate`` reads as the same gate.

    ``config`` None stands for every config (for ``missing``: the whole run, for ``calibrated``: any ceiling).
    ``other`` is what a delta or an equivalence compares ``config`` with. ``threshold`` is a proportion, for
    ``missing`` a count. ``equivalent`` and ``calibrated`` are statements, without operator and threshold.
    """

    quantity: str
    config: str | None
    bound: str | None
    operator: str
    threshold: Decimal
    other: str | None = None

    def __str__(self) -> str:
        if self.other is not None:
            inner = f"{self.quantity}({self.config},{self.other})"
        else:
            inner = self.quantity if self.config is None else f"{self.quantity}[{self.config}]"
        left = inner if self.bound is None else f"{self.bound}({inner})"
        return left if self.quantity in STATEMENTS else f"{left} {self.operator} {self.threshold_text}"

    @property
    def threshold_text(self) -> str:
        """The threshold as people write it: a percentage, points for a delta, for ``missing`` a number."""
        if self.quantity == MISSING:
            return f"{self.threshold:f}"
        return f"{_plain(self.threshold * 100)}{'pp' if self.quantity == DELTA else '%'}"

    def check_configs(self, names: Iterable[str]) -> None:
        """Check that the gate's configs are among ``names``.

        Raises:
            ValueError: one is not; the message lists them.
        """
        known = list(names)
        for config in (self.config, self.other):
            if config is None or config in known:
                continue
            near = difflib.get_close_matches(config, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"gate {str(self)!r}: no resource config {config!r} in this run; {hint}configs: {', '.join(known)}"
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


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


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
    if not operators:
        return _statement(text.strip())
    if len(operators) > 1:
        raise _Wrong("more than one comparison")
    (operator,) = operators
    if operator.group() not in OPERATORS:
        raise _Wrong(f"unknown operator {operator.group()!r}")
    bound, quantity, config, other = _left(text[: operator.start()].strip())
    threshold = _threshold(text[operator.end() :].strip(), quantity)
    return Gate(quantity, config, bound, operator.group(), threshold, other)


def _statement(text: str) -> Gate:
    """Return a gate that is a statement and compares nothing with a number."""
    call = _CALL.fullmatch(text)
    if call is not None and call["name"].strip() == EQUIVALENT:
        one, zero = _pair(call["inner"], EQUIVALENT)
        return Gate(EQUIVALENT, one, None, "", Decimal(0), zero)
    match = _QUANTITY.fullmatch(text)
    if match is not None and match["name"] == CALIBRATED:
        return Gate(CALIBRATED, _config(match["config"]), None, "", Decimal(0))
    if match is not None and match["name"] == EQUIVALENT:
        raise _Wrong("equivalent needs two configs, as in equivalent(3x,1x)")
    raise _Wrong("no comparison")


def _left(text: str) -> tuple[str | None, str, str | None, str | None]:
    """Return bound, quantity, config and the config that it is compared with."""
    bound = None
    call = _CALL.fullmatch(text)
    if call is not None and call["name"].strip() in BOUNDS:
        bound, text = call["name"].strip(), call["inner"].strip()
        call = _CALL.fullmatch(text)
    name = call["name"].strip() if call is not None else None
    if call is not None and name == DELTA:
        return bound, DELTA, *_pair(call["inner"], DELTA)
    if name in STATEMENTS:
        raise _Wrong(f"{name} holds or does not, and is compared with nothing")
    if call is not None and bound is None:
        raise _Wrong(f"unknown function {name!r}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _Wrong(f"{text!r} is no QUANTITY[CONFIG]")
    return bound, _compared(match["name"], bound), _config(match["config"]), None


def _compared(quantity: str, bound: str | None) -> str:
    if quantity in STATEMENTS:
        raise _Wrong(f"{quantity} holds or does not, and is compared with nothing")
    if quantity == DELTA:
        raise _Wrong("delta needs two configs, as in delta(3x,1x)")
    if quantity not in QUANTITIES:
        near = difflib.get_close_matches(quantity, QUANTITIES, n=1)
        raise _Wrong(f"unknown quantity {quantity!r}" + (f", did you mean {near[0]!r}?" if near else ""))
    if bound is not None and quantity == MISSING:
        raise _Wrong("missing is a count and has no interval")
    return quantity


def _config(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise _Wrong("no config between the brackets")
    return text.strip() if text is not None else None


def _pair(text: str, quantity: str) -> tuple[str, str]:
    match = _PAIR.fullmatch(text)
    one, zero = (match["one"].strip(), match["zero"].strip()) if match is not None else ("", "")
    if not one or not zero:
        raise _Wrong(f"{text.strip()!r} is no pair of configs, as in {quantity}(3x,1x)")
    if one == zero:
        raise _Wrong(f"{one} is compared with itself")
    return one, zero


def _threshold(text: str, quantity: str) -> Decimal:
    if quantity == DELTA:
        return _points(text)
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


def _points(text: str) -> Decimal:
    match = _POINTS.fullmatch(text)
    if match is None:
        raise _Wrong(f"{text!r} is no difference in percentage points, such as -3pp" if text else "no threshold")
    number = Decimal(match["number"]) / 100
    if abs(number) > 1:
        raise _Wrong(f"{text} is more than 100pp")
    return number
