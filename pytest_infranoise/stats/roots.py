"""Where a function of one number crosses zero."""

from __future__ import annotations

from collections.abc import Callable


def root(function: Callable[[float], float], low: float, high: float, xtol: float = 1e-13) -> float:
    """Return the zero of a continuous function between two points at which its signs differ, to within `xtol`.

    Source: Brent (1973), as in scipy.

    Raises:
        ValueError: the signs do not differ.
    """
    # Loading it takes as long as all else that a summary needs, and many need no root.
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=xtol))
