"""Trends over ceilings and per-task movers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from pytest_infranoise.stats.movers import can_reject
from pytest_infranoise.stats.movers import enough_samples
from pytest_infranoise.stats.movers import flip_p
from pytest_infranoise.stats.movers import flips
from pytest_infranoise.stats.movers import trend_flips
from pytest_infranoise.stats.trend import cochran_armitage
from pytest_infranoise.stats.trend import isotonic
from pytest_infranoise.stats.trend import trend_exact_p
from pytest_infranoise.stats.trend import trend_slopes
from pytest_infranoise.stats.trend import trend_stratified


def test_trend_uses_every_config() -> None:
    x = np.tile([2, 3, 4, 5], (10, 1))
    rising = trend_stratified(x, 10)
    assert rising.z > 3
    assert trend_stratified(10 - x, 10).z == pytest.approx(-rising.z)
    assert rising.tasks == 10


def test_trend_ignores_tasks_without_variation() -> None:
    x = np.array([[0, 1, 2], [3, 3, 3], [0, 0, 0]])
    assert trend_stratified(x, 3).tasks == 1
    assert trend_stratified(x, 3).z == pytest.approx(trend_stratified(x[:1], 3).z)


def test_trend_scores_are_free_of_scale_and_checked() -> None:
    x = [[0, 1, 3], [1, 2, 2]]
    assert trend_stratified(x, 3, [1, 3, 5]).z == pytest.approx(trend_stratified(x, 3).z)
    with pytest.raises(ValueError, match="score"):
        trend_stratified(x, 3, [0, 1])
    with pytest.raises(ValueError, match="matrix"):
        trend_stratified([1, 2], 3)


def test_trend_copes_with_empty_cells() -> None:
    full, holes = trend_stratified([[1, 2, 3]], [[4, 4, 4]]), trend_stratified([[1, 0, 3]], [[4, 0, 4]])
    assert full.z == pytest.approx(holes.z, abs=0.3)
    assert trend_stratified([[2, 0, 0]], [[4, 0, 0]]).p == 1.0


def test_the_exact_trend_deals_every_tasks_trials_anew() -> None:
    x, n = np.array([[0, 1, 2], [1, 0, 2]]), np.array([[2, 2, 2], [2, 1, 2]])
    # Every way to choose which trials of each task pass, as totals of their configs' scores.
    scores = [np.repeat([0, 1, 2], trials).tolist() for trials in n]
    totals = [
        [sum(chosen) for chosen in itertools.combinations(s, int(k))] for s, k in zip(scores, x.sum(1), strict=True)
    ]
    deals = [a + b for a, b in itertools.product(*totals)]
    mean, observed = sum(deals) / len(deals), int((x @ [0, 1, 2]).sum())
    as_far = sum(abs(deal - mean) >= abs(observed - mean) - 1e-9 for deal in deals) / len(deals)
    assert trend_exact_p(x, n) == pytest.approx(as_far)


def test_the_exact_trend_of_two_configs_and_one_task_is_fisher_where_both_are_symmetric() -> None:
    assert trend_exact_p([[0, 3]], 3) == pytest.approx(stats.fisher_exact(np.array([[0, 3], [3, 0]])).pvalue)
    assert trend_exact_p([[0, 3]], 3) == pytest.approx(0.1)


def test_the_exact_trend_approaches_the_normal_law() -> None:
    draw = np.random.default_rng(5)
    x = draw.binomial(10, [0.45, 0.5, 0.55], (60, 3))
    assert trend_exact_p(x, 10) == pytest.approx(trend_stratified(x, 10).p, rel=0.2)


def test_no_information_is_no_trend() -> None:
    assert trend_exact_p(np.zeros((0, 3)), 3) == trend_exact_p([[3, 3, 3]], 3) == 1.0
    for x in (np.zeros((0, 3)), np.zeros((2, 3))):
        assert trend_stratified(x, 3) == (0.0, 1.0, 0)
        assert trend_slopes(x, 3).p == 1.0
    assert cochran_armitage([0, 0], [5, 5]).p == 1.0
    assert cochran_armitage([0, 0], [0, 0]).p == 1.0


def test_slopes_are_a_one_sample_t() -> None:
    x = np.array([[0, 1, 2], [1, 1, 3], [2, 2, 2], [0, 2, 2]])
    slopes = (x[:, 2] - x[:, 0]) / 2 / 4
    result = trend_slopes(x, 4)
    assert result.est == pytest.approx(slopes.mean())
    assert result.p == pytest.approx(stats.ttest_1samp(slopes, 0).pvalue)
    # Equal slopes have no spread to test with.
    assert trend_slopes([[0, 1], [0, 1]], 4).p == 1.0


def test_isotonic_leaves_unknown_configs_open() -> None:
    fit = isotonic([0.5, math.nan, 0.3, 0.4], [10, 0, 10, 10], increasing=False)
    assert np.isnan(fit[1])
    assert fit[[0, 2, 3]] == pytest.approx([0.5, 0.35, 0.35])
    assert isotonic([]).size == 0
    with pytest.raises(ValueError, match="equal length"):
        isotonic([0.1, 0.2], [1])


def test_flip_p_is_half_of_the_ties() -> None:
    law = stats.hypergeom(10, 4, 6).pmf
    p = [law(k) for k in range(5)]
    expected = sum(q for q in p if q < p[0] * (1 - 1e-9)) + 0.5 * sum(q for q in p if math.isclose(q, p[0]))
    assert flip_p(0, 6, 4, 4) == pytest.approx(expected)
    assert flip_p(3, 3, 3, 3) == 0.5
    assert flip_p(0, 0, 0, 0) == 0.5
    with pytest.raises(ValueError, match="counts"):
        flip_p(4, 3, 0, 3)


def test_clear_movers_are_found_among_many_quiet_tasks() -> None:
    x0, x1 = [0] * 3 + [5] * 30 + [10] * 56, [10] * 3 + [6] * 30 + [10] * 56
    n = [10] * 89
    found = flips(x1, n, x0, n)
    assert [f.task for f in found if f.moved] == [0, 1, 2]
    # All-pass tasks could never reject and do not dilute the family.
    assert all(math.isnan(f.p_adj) for f in found[33:])
    assert all(0 < f.shrunk < f.delta for f in found[:3])
    assert all(f.lfsr < 0.05 for f in found[:3])


def test_too_few_samples_find_nothing_and_say_so() -> None:
    n = [3] * 89
    found = flips([3] + [0] * 88, n, [0] * 89, n)
    # One task can vary at all, so it is a family of its own and still needs p <= .1.
    assert (found[0].p, found[0].p_adj, found[0].moved) == pytest.approx((0.05, 0.05, True))
    assert not enough_samples(3, 3, 89)
    assert not enough_samples(5, 5, 89)
    assert enough_samples(10, 10, 89)
    assert not enough_samples(0, 5, 89)
    assert not enough_samples(5, 5, 0)


def test_movers_keep_the_index_of_the_task() -> None:
    found = flips([0, 1, 5], [0, 2, 5], [0, 1, 0], [5, 2, 5])
    assert [f.task for f in found] == [1, 2]
    assert (found[1].x1, found[1].n1, found[1].x0, found[1].n0) == (5, 5, 0, 5)
    # Two tasks show no common law to shrink towards.
    assert all(math.isnan(f.shrunk) for f in found)
    assert flips([], [], [], []) == ()


def test_tarone_keeps_only_what_can_reject() -> None:
    least = np.array([0.5, 0.04, 0.001, 0.02])
    # At .1 / 2 three tests could reject, more than two; at .1 / 3 only two of them still can.
    assert can_reject(least, 0.1).tolist() == [False, False, True, True]
    # Three tests at .05 each: .1 / 3 is out of reach for all of them.
    assert not can_reject(np.array([0.05, 0.05, 0.05]), 0.1).any()
    assert can_reject(np.array([]), 0.1).size == 0


def test_trend_mid_p_matches_enumeration() -> None:
    x, n, steps = [1, 0, 3], [3, 2, 3], [0, 1, 2]
    tables = [t for t in itertools.product(*(range(m + 1) for m in n)) if sum(t) == sum(x)]
    weights = np.array([math.prod(math.comb(m, k) for m, k in zip(n, t, strict=True)) for t in tables])
    totals = np.array([sum(s * k for s, k in zip(steps, t, strict=True)) for t in tables])
    law = weights / weights.sum()
    distance = np.round(np.abs(totals - law @ totals), 9)
    seen = distance[tables.index(tuple(x))]
    expected = law[distance > seen].sum() + 0.5 * law[distance == seen].sum()
    (mover,) = trend_flips([x], [n])
    assert mover.p == pytest.approx(expected)
    assert mover.rising


def test_trend_detects_what_two_configs_miss() -> None:
    ramp = [0, 1, 2, 3, 4, 5]
    x = np.array([ramp] + [[5, 5, 4, 5, 5, 5]] * 20)
    assert [m.task for m in trend_flips(x, 5) if m.moved] == [0]
    assert not trend_flips(x[:, ::-1], 5)[0].rising
    # Without 20 companions that can never reject, two configs still need all five.
    assert flips(x[:, 4], [5] * 21, x[:, 1], [5] * 21)[0].p > 0.05


def test_trend_flips_of_nothing() -> None:
    assert trend_flips(np.zeros((0, 3)), 3) == ()
    (constant,) = trend_flips([[3, 3, 3]], 3)
    assert (constant.p, constant.moved, constant.rising) == (1.0, False, False)
    with pytest.raises(ValueError, match="score"):
        trend_flips([[1, 2]], 3, [0, 1, 2])
    with pytest.raises(ValueError, match="discovery"):
        trend_flips([[1, 2]], 3, fdr=0)
