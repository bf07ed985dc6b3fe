"""Adjusted p-values for a family of tests.

Holm serves the comparisons with the baseline: it allows for deltas that share the baseline's noise.
Benjamini-Hochberg serves the task flips, whose tasks are independent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_infranoise.stats.counts import FloatArray


def holm(p: npt.ArrayLike) -> FloatArray:
    """Holm's step-down adjusted p-values: control the chance of any false rejection.

    `p`: shape (tests,); nan marks a test that was not made and stays nan without counting. Returns
    the adjusted values in the same order; empty stays empty. Raises ValueError outside [0, 1].
    Source: Holm 1979; statistics.md 2e.
    """
    values, made = _family(p)
    order = np.argsort(values[made], kind="stable")
    ranked = values[made][order]
    stepped = np.maximum.accumulate(ranked * np.arange(ranked.size, 0, -1))
    return _restore(values, made, order, stepped)


def bh(p: npt.ArrayLike) -> FloatArray:
    """Benjamini-Hochberg adjusted p-values: control the expected share of false discoveries.

    Arguments, result and errors as in `holm`. Source: Benjamini and Hochberg 1995; statistics.md 2e.
    """
    values, made = _family(p)
    order = np.argsort(values[made], kind="stable")
    ranked = values[made][order]
    scaled = ranked * ranked.size / np.arange(1, ranked.size + 1)
    stepped = np.minimum.accumulate(scaled[::-1])[::-1]
    return _restore(values, made, order, stepped)


def _family(p: npt.ArrayLike) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    values = np.asarray(p, dtype=np.float64)
    made = ~np.isnan(values)
    if values.ndim != 1 or np.any(values[made] < 0) or np.any(values[made] > 1):
        raise ValueError("p-values must be a 1-d array within [0, 1]")
    return values, made


def _restore(
    values: FloatArray,
    made: npt.NDArray[np.bool_],
    order: npt.NDArray[np.intp],
    stepped: FloatArray,
) -> FloatArray:
    adjusted = values.copy()
    unsorted = np.empty_like(stepped)
    unsorted[order] = np.minimum(stepped, 1.0)
    adjusted[made] = unsorted
    return adjusted
