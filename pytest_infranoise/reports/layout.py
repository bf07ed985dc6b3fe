"""Tables that turn into sentences where they do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import table
from pytest_infranoise.reports.text import wrap

SMALLEST_WIDTH = 60


def tabulated(columns: Sequence[Column], width: int, gaps: Sequence[int] = (3, 2)) -> list[str]:
    """Return the columns side by side; where that is wider than ``width``, each row as a sentence.

    The first column is what a row is about.
    """
    lines = table(columns, width, gaps)
    if lines is not None:
        return lines
    about, *others = columns
    return [
        line
        for place, name in enumerate(about.cells)
        for line in wrap(
            f"{name.strip()}: {', '.join(f'{column.heading} {column.cells[place].strip()}' for column in others)}",
            width,
        )
    ]
