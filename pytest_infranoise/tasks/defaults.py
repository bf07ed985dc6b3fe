"""Resources for tasks that state none: they come from the user, and are never silently unlimited."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_infranoise.units import parse_memory

MIN_MEMORY = 6 * 1024**2  # Docker starts no container with less
MAX_CPUS = 4096.0


@dataclass(frozen=True, slots=True)
class DefaultResources:
    """Floor and ceiling for tasks that state none, in cores and bytes; None when the user gave none."""

    cpus: tuple[float, float] | None = None
    memory: tuple[int, int] | None = None


NO_DEFAULTS = DefaultResources()


def parse_cpus(text: str) -> tuple[float, float]:
    """Return the floor and ceiling in ``1`` or ``1..2``.

    Raises:
        ValueError: it is no such text; the message is fit to show to a user.
    """
    try:
        low, high = (float(part) for part in _ends(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a number of CPUs; give e.g. 1, or a floor and a ceiling: 1..2") from None
    if not 0.01 <= low <= high <= MAX_CPUS:
        raise ValueError(f"{text!r} is no sensible floor and ceiling in CPUs; give e.g. 1..2")
    return low, high


def parse_memory_range(text: str) -> tuple[int, int]:
    """Return the floor and ceiling in ``2G`` or ``2G..6G``, in bytes.

    Raises:
        ValueError: it is no such text; the message is fit to show to a user.
    """
    try:
        low, high = (parse_memory(part) for part in _ends(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not an amount of memory; give e.g. 2G, or a floor and a ceiling: 2G..6G"
        ) from None
    if not MIN_MEMORY <= low <= high:
        raise ValueError(f"{text!r} is no sensible floor and ceiling in memory; give e.g. 2G..6G (6M at least)")
    return low, high


def _ends(text: str) -> tuple[str, str]:
    low, separator, high = text.partition("..")
    return low, high if separator else low
