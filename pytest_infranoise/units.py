"""Quantities and counts as people write them in task files, options and reports."""

from __future__ import annotations

import re

_MEMORY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_memory(text: str | int) -> int:
    """Return the bytes in ``64M``, ``1.5 GiB`` or ``1048576``.

    Units are powers of 1024 with or without ``i`` and ``B``, as in Docker's options.

    Raises:
        ValueError: the text is no such quantity; the message is fit to show to a user.
    """
    match = _MEMORY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes")
    return int(float(match["number"]) * _FACTORS[match["unit"].lower()])


def format_memory(size: float) -> str:
    """Return bytes in the largest unit that keeps the number at least 1, e.g. ``192 MiB``."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size >= factor:
            number = size / factor
            return f"{number:.0f} {unit}" if number >= 100 or number.is_integer() else f"{number:.1f} {unit}"
    return f"{size:.0f} B"


def plural(number: int, noun: str) -> str:
    """Return ``1 task`` or ``2 tasks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
