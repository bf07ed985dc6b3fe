"""Exact coverage on the size of the demo run: 4 tasks x 3 samples, many of them all-or-none.

Every possible table is enumerated, so these are true probabilities and not simulations.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import rate_ci

TASKS, SAMPLES = 4, 3
TRIALS = [SAMPLES] * TASKS
PROBABILITIES = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
ONE_TASK = list(itertools.product(range(SAMPLES + 1), repeat=2))


class Claims(NamedTuple):
    """What each table of a pair of configs lets a report say."""

    lo: FloatArray
    hi: FloatArray
    p: FloatArray
    smallest: FloatArray


@lru_cache
def delta_claims() -> Claims:
    known: dict[tuple[int, ...], tuple[Interval, float, float]] = {}
    rows = []
    for cells in itertools.product(range(len(ONE_TASK)), repeat=TASKS):
        key = tuple(sorted(cells))
        if key not in known:
            x1, x0 = zip(*(ONE_TASK[c] for c in key), strict=True)
            delta = delta_paired(x1, TRIALS, x0, TRIALS)
            narrow = delta.interval(0.90)
            known[key] = delta.ci, delta.p, max(-narrow.lo, narrow.hi)
        rows.append(known[key])
    lo, hi = np.array([row[0] for row in rows]).T
    return Claims(lo, hi, np.array([row[1] for row in rows]), np.array([row[2] for row in rows]))


def table_probabilities(p1: tuple[float, ...], p0: tuple[float, ...]) -> FloatArray:
    law = np.ones(1)
    for a, b in zip(p1, p0, strict=True):
        cell = np.array([stats.binom.pmf(x1, SAMPLES, a) * stats.binom.pmf(x0, SAMPLES, b) for x1, x0 in ONE_TASK])
        law = np.outer(law, cell).ravel()
    return law


PAIRS = [
    ((1.0, 1.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0)),
    ((0.95, 0.95, 0.05, 0.05), (0.95, 0.95, 0.05, 0.05)),
    ((0.5, 0.5, 0.5, 0.5), (0.5, 0.5, 0.5, 0.5)),
    ((0.95, 0.5, 0.0, 0.8), (0.95, 0.5, 0.0, 0.8)),
    ((1.0, 0.0, 0.5, 0.2), (0.0, 1.0, 0.2, 0.5)),
    ((1.0, 1.0, 0.95, 0.05), (1.0, 0.2, 0.95, 0.05)),
    ((1.0, 1.0, 1.0, 0.0), (0.0, 0.0, 1.0, 0.0)),
    ((0.3, 0.7, 0.5, 0.7), (0.5, 0.3, 0.7, 0.7)),
    ((0.5, 1.0, 0.7, 0.9), (0.3, 0.0, 0.3, 0.7)),
]


@pytest.mark.parametrize(("p1", "p0"), PAIRS)
def test_delta_covers_and_never_claims_too_much(p1: tuple[float, ...], p0: tuple[float, ...]) -> None:
    claims, law = delta_claims(), table_probabilities(p1, p0)
    truth = float(np.mean(p1) - np.mean(p0))
    covered = (claims.lo - 1e-9 <= truth) & (truth <= claims.hi + 1e-9)
    assert law[covered].sum() >= 0.95
    if abs(truth) < 1e-12:
        assert law[claims.p < 0.05].sum() <= 0.05
    # Equivalence within a margin just below the true difference would be a false claim.
    assert law[claims.smallest < abs(truth) - 1e-9].sum() <= 0.05


def test_rate_ci_covers_whatever_the_tasks_are() -> None:
    tables = list(itertools.product(range(SAMPLES + 1), repeat=TASKS))
    intervals = np.array([rate_ci(x, TRIALS) for x in tables])
    worst = 1.0
    for p in itertools.combinations_with_replacement(PROBABILITIES, TASKS):
        cells = [[float(stats.binom.pmf(k, SAMPLES, q)) for k in range(SAMPLES + 1)] for q in p]
        law = np.array([np.prod([cells[t][x] for t, x in enumerate(table)]) for table in tables])
        covered = (intervals[:, 0] - 1e-9 <= np.mean(p)) & (np.mean(p) <= intervals[:, 1] + 1e-9)
        worst = min(worst, float(law[covered].sum()))
    assert worst >= 0.95


def test_identical_all_or_none_tasks_are_not_called_equal() -> None:
    delta = delta_paired([3, 3, 0, 0], TRIALS, [3, 3, 0, 0], TRIALS)
    assert delta.est == 0.0
    assert delta.p == 1.0
    assert delta.method == "stratified-t+guard"
    narrow = delta.interval(0.90)
    assert narrow.hi == pytest.approx(-narrow.lo)
    # +-29pp is all that 24 trials can say.
    assert 0.25 < narrow.hi < 0.35


def test_a_clear_change_is_still_seen() -> None:
    delta = delta_paired([3, 3, 3, 3], TRIALS, [0, 0, 3, 3], TRIALS)
    assert delta.est == 0.5
    assert delta.p == pytest.approx(2 / 400)
    assert delta.lo > 0.0
