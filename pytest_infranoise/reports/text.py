"""Numbers, lines and tables as plain ASCII text that never claims more than the data."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_infranoise.findings import Movers
    from pytest_infranoise.results import Rate
    from pytest_infranoise.stats.rates import Interval

# Below this a proportion is printed as 0.0 %.
_ROUNDS_TO_ZERO = 0.0005
# Guards against 0.05 * 1000 coming out as 50.000000000000007, which would be rounded up to 5.1 %.
_FUZZ = 1e-9
# A no-break space: textwrap does not break a line at it.
_UNBROKEN = "\N{NO-BREAK SPACE}"


def percent(value: float) -> str:
    """Return a proportion as a percentage with one decimal and no sign, e.g. ``33.3``."""
    return f"{value * 100:.1f}"


def percent_up(value: float) -> str:
    """Return an upper end as a percentage that is not below it, e.g. ``24.3%``."""
    return f"{math.ceil(value * 1000 - _FUZZ) / 10:.1f}%"


def percent_down(value: float) -> str:
    """Return a lower end as a percentage that is not above it, e.g. ``75.7%``."""
    return f"{math.floor(value * 1000 + _FUZZ) / 10:.1f}%"


def points(value: float) -> str:
    """Return a difference of proportions in signed percentage points, e.g. ``+25.0``; 0.0 has no sign."""
    text = f"{value * 100:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def level(share: float) -> str:
    """Return a confidence level, e.g. ``95%``."""
    return f"{100 * share:.6g}%"


def plus_minus(value: float) -> str:
    """Return a margin around 0 in points that is not below ``value``, e.g. ``+-3.3``."""
    return f"+-{math.ceil(value * 1000 - _FUZZ) / 10:.1f}"


def margin_text(margin: float) -> str:
    """Return a margin as it was chosen, e.g. ``+-3pp``."""
    return f"+-{100 * margin:g}pp"


def interval_text(interval: Interval) -> str:
    """Return an interval of a change in points, e.g. ``[-0.9, +3.8]``."""
    return f"[{points(interval.lo)}, {points(interval.hi)}]"


def p_words(p: float | None) -> str:
    """Return a p-value for a sentence: ``p = .313``, ``p < .0001``."""
    text = p_text(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def p_text(p: float | None) -> str:
    """Return a p-value as ``.313``, ``.0096`` or ``<.0001``; never as zero, and ``-`` where there is none."""
    if p is None:
        return "-"
    if p < 0.0001:
        return "<.0001"
    text = f"{p:.4f}" if p < 0.01 else f"{p:.3f}"
    return text.removeprefix("0")


def almost_none(rate: Rate) -> bool:
    """Whether a rate would be printed as 0.0 %, which no number of trials can show."""
    return rate.value is not None and rounds_to_zero(rate.value)


def rounds_to_zero(share: float) -> bool:
    """Whether a proportion would be printed as 0.0 %."""
    return share < _ROUNDS_TO_ZERO


def rate_cell(rate: Rate) -> str:
    """Return a rate for a narrow column, e.g. ``8.3`` or ``0 of 12, <=24.3%``."""
    if rate.value is None:
        return "no trials"
    if almost_none(rate):
        return f"{rate.events} of {rate.trials}, <={percent_up(rate.interval.hi)}"
    return percent(rate.value)


def rate_text(rate: Rate) -> str:
    """Return a rate with its interval in one phrase, e.g. ``8.3% [1.5, 35.4]`` or ``0 of 12, at most 24.3%``."""
    if rate.value is None:
        return "no trials"
    if almost_none(rate):
        return f"{rate.events} of {rate.trials}, at most {percent_up(rate.interval.hi)}"
    return f"{percent(rate.value)}% [{percent(rate.interval.lo)}, {percent(rate.interval.hi)}]"


def few_trials(size_unknown: bool) -> str:
    """Return the note on the small-data guard; ``size_unknown``: some interval holds 0 beside a small p."""
    text = "few trials: intervals are widened and p is exact"
    if not size_unknown:
        return text
    return f"{text}. A small p beside an interval that holds 0 shows that something changed, and not how much."


def looked_at(movers: Movers) -> str:
    """Return how single tasks were tested."""
    return "trend over all ceilings" if movers.by_trend else f"{movers.baseline} against {movers.top}"


def shown(text: str) -> str:
    """Return a user's text as one line of printable ASCII; what is not is written as an escape."""
    escaped = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return escaped.encode("ascii", "backslashreplace").decode("ascii")


def fit(text: str, width: int) -> str:
    """Return a name in at most ``width`` columns; of a longer one the beginning and the end."""
    text = shown(text)
    if len(text) <= width:
        return text
    tail = max((width - 2) // 2, 0)
    return f"{text[: width - 2 - tail]}..{text[len(text) - tail :]}"


def together(text: str) -> str:
    """Return a phrase that ``wrap`` puts on one line where it fits on one."""
    return text.replace(" ", _UNBROKEN)


def wrap(text: str, width: int, indent: str = "  ") -> list[str]:
    """Return a sentence as lines of at most ``width`` columns, all but the first indented."""
    ascii_text = _UNBROKEN.join(shown(part) for part in text.split(_UNBROKEN))
    lines = textwrap.wrap(ascii_text, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ").rstrip() for line in lines]


def listed(items: Sequence[str], most: int) -> str:
    """Return a comma list of at most ``most`` items, and how many more there are."""
    rest = len(items) - most
    return ", ".join(items) if rest <= 0 else f"{', '.join(items[:most])} and {rest} more"


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: its heading and cells as parallel texts; numbers stand at the right."""

    heading: str
    cells: Sequence[str]
    right: bool = False

    @property
    def width(self) -> int:
        """Columns that the widest text needs."""
        return max(map(len, (self.heading, *self.cells)))

    def lines(self) -> list[str]:
        """Return heading and cells, all of the same width."""
        return [f"{text:>{self.width}}" if self.right else f"{text:<{self.width}}" for text in self.texts()]

    def texts(self) -> Iterable[str]:
        """Return the heading and the cells as they are."""
        return (self.heading, *self.cells)


def table(columns: Sequence[Column], width: int, gaps: Sequence[int] = (3, 2)) -> list[str] | None:
    """Return the columns side by side with the widest of ``gaps`` that fits; None when none does."""
    needed = sum(column.width for column in columns)
    for gap in gaps:
        if needed + gap * (len(columns) - 1) <= width:
            rows = zip(*(column.lines() for column in columns), strict=True)
            return [(" " * gap).join(row).rstrip() for row in rows]
    return None


def bracketed(values: Iterable[tuple[str, str, str] | str]) -> list[str]:
    """Return ``value [low,high]`` cells of one column with their numbers below each other.

    A cell that is already text is kept as it is.
    """
    cells = list(values)
    triples = [cell for cell in cells if not isinstance(cell, str)]
    widths = [max((len(triple[part]) for triple in triples), default=0) for part in range(3)]
    return [
        cell if isinstance(cell, str) else f"{cell[0]:>{widths[0]}} [{cell[1]:>{widths[1]}},{cell[2]:>{widths[2]}}]"
        for cell in cells
    ]
