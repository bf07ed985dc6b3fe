"""Deltas, their exact tests and equivalence: what the reference does not pin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pytest_infranoise.stats.deltas import Delta
from pytest_infranoise.stats.deltas import cmh_exact_p
from pytest_infranoise.stats.deltas import cmh_z2
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.deltas import delta_se
from pytest_infranoise.stats.deltas import delta_se_fixed
from pytest_infranoise.stats.deltas import delta_t
from pytest_infranoise.stats.deltas import newcombe
from pytest_infranoise.stats.deltas import newcombe_paired
from pytest_infranoise.stats.deltas import signflip
from pytest_infranoise.stats.deltas import two_prop_z_p
from pytest_infranoise.stats.equivalence import p_within
from pytest_infranoise.stats.equivalence import smallest_margin
from pytest_infranoise.stats.equivalence import tost
from pytest_infranoise.stats.equivalence import tost_p
from pytest_infranoise.stats.rates import Interval

UNKNOWN = Interval(-1.0, 1.0)


def large(shift: int = 0) -> Delta:
    """A pair that needs no guard: 40 tasks x 10 samples, rates from .2 to .8."""
    x0 = [2, 3, 4, 5, 6, 7, 8, 4] * 5
    x1 = [x + shift + (1 if t % 2 else -1) for t, x in enumerate(x0)]
    return delta_paired(x1, [10] * 40, x0, [10] * 40)


def test_no_tasks_are_defined() -> None:
    for counts in (([], [], [], []), ([1], [3], [0], [0])):
        delta = delta_paired(*counts)
        assert math.isnan(delta.est)
        assert delta.ci == UNKNOWN
        assert (delta.p, delta.tasks, delta.dropped) == (1.0, 0, len(counts[0]))
        assert not tost(delta, 0.5).shown
        assert tost_p(delta, 0.5) == 1.0
    assert all(math.isnan(v) for v in delta_se([], [], [], []))


def test_tasks_missing_in_one_config_are_dropped_and_counted() -> None:
    delta = delta_paired([3, 1, 2], [3, 3, 3], [1, 0, 2], [3, 0, 3])
    without = delta_paired([3, 2], [3, 3], [1, 2], [3, 3])
    assert (delta.tasks, delta.dropped) == (2, 1)
    assert (delta.est, delta.ci, delta.p) == (without.est, without.ci, without.p)


def test_different_task_lists_are_rejected() -> None:
    with pytest.raises(ValueError, match="different tasks"):
        delta_paired([1], [2], [1, 1], [2, 2])
    with pytest.raises(ValueError, match="target"):
        delta_paired([1], [2], [1], [2], target="all")  # type: ignore[arg-type]


def test_one_trial_each_knows_almost_nothing() -> None:
    delta = delta_paired([1], [1], [0], [1])
    assert delta.est == 1.0
    assert delta.lo < 0.0
    assert delta.p == 1.0


def test_population_of_one_task_is_wide_open() -> None:
    delta = delta_paired([10], [10], [10], [10], target="population")
    assert delta.lo < -0.7
    assert delta.hi > 0.7


def test_large_pairs_are_plain_t() -> None:
    delta = large()
    plain = delta_se_fixed([1] * 2, [4] * 2, [2] * 2, [4] * 2)
    assert delta.method == plain.method == "stratified-t"
    assert not delta.guarded
    assert delta.df > 300
    assert delta.hi - delta.est == pytest.approx(stats.t.ppf(0.975, delta.df) * delta.se)
    assert delta.p == pytest.approx(2 * stats.t.sf(abs(delta.est) / delta.se, delta.df))


def test_dual_p_agrees_with_the_interval() -> None:
    for shift in (0, 1, 2):
        delta = large(shift)
        assert (delta.p < 0.05) == (delta.lo > 0 or delta.hi < 0)


def test_pairing_by_task_beats_pooling() -> None:
    x1, x0 = [10] * 20 + [3, 4] * 10, [10] * 20 + [1, 2] * 10
    n = [10] * 40
    assert delta_paired(x1, n, x0, n).p < 0.001 < two_prop_z_p(sum(x1), 400, sum(x0), 400)


def test_one_sample_per_task_is_paired_t() -> None:
    x1, x0 = [1] * 30 + [0] * 10, [0] * 12 + [1] * 24 + [0] * 4
    delta = delta_paired(x1, [1] * 40, x0, [1] * 40)
    reference = stats.ttest_rel(x1, x0)
    assert delta.method == "paired-t"
    assert delta.p == pytest.approx(reference.pvalue)
    assert delta.ci == pytest.approx(tuple(reference.confidence_interval()))


def test_a_lone_sample_does_not_discard_the_others_precision() -> None:
    n, x0 = [10] * 40, [2, 3, 4, 5, 6, 7, 8, 4] * 5
    x1 = [x + (1 if t % 2 else -1) for t, x in enumerate(x0)]
    full = delta_paired(x1, n, x0, n)
    lone = delta_paired([1, *x1[1:]], [1, *n[1:]], x0, n)
    assert lone.method == "stratified-t"
    assert full.se < lone.se < 1.6 * full.se


def test_lone_samples_that_agree_are_not_taken_for_certain() -> None:
    n, x = [10] * 20, [5] * 20
    seen = delta_paired(x, n, x, n)
    padded = delta_paired(x + [1] * 20, n + [1] * 20, x + [1] * 20, n + [1] * 20)
    # Tasks seen once must not lower the sum of variances as if theirs were 0.
    assert padded.se * padded.tasks > 2 * seen.se * seen.tasks


def test_guard_widens_and_says_so() -> None:
    counts = ([3, 2, 0, 3], [3] * 4, [1, 0, 0, 2], [3] * 4)
    plain, guarded = delta_se_fixed(*counts), delta_paired(*counts)
    pooled = newcombe(8, 12, 3, 12)
    assert guarded.method == "stratified-t+guard"
    assert guarded.lo == min(plain.lo, pooled.lo)
    assert guarded.hi == max(plain.hi, pooled.hi)
    assert guarded.p == pytest.approx(cmh_exact_p(*counts))


def test_ten_discordant_tasks_alone_do_not_lift_the_guard() -> None:
    x1, x0, n = [1] * 8 + [0] * 2, [0] * 8 + [1] * 2, [1] * 10
    delta = delta_paired(x1, n, x0, n)
    assert (delta.discordant, delta.df) == (10, 9)
    assert delta.guarded


def test_population_guard_uses_signflip_and_votes() -> None:
    counts = ([3, 2, 0, 3], [3] * 4, [1, 0, 0, 2], [3] * 4)
    delta = delta_paired(*counts, target="population")
    assert delta.p == pytest.approx(signflip([2, 2, 0, 1]))
    assert delta.lo <= newcombe(8 / 3, 4, 1, 4).lo
    assert delta.hi - delta.lo > delta_t(*counts).hi - delta_t(*counts).lo - 1e-12


def test_plain_estimators_without_spread_have_no_interval() -> None:
    constant = ([2, 2, 2], [2, 2, 2], [0, 0, 0], [2, 2, 2])
    for function in (delta_se_fixed, delta_t):
        delta = function(*constant)
        assert delta.se == 0.0
        assert delta.ci == UNKNOWN
        assert 0.0 < delta.p < 1.0
        assert tost_p(delta, 0.9) == 1.0


def test_unequal_samples_use_the_macro_average_in_the_guard_too() -> None:
    # Pooled counts would compare 100/101 with 50/101; the mean over tasks moves by .25.
    delta = delta_paired([0, 100], [1, 100], [0, 50], [1, 100])
    assert delta.est == pytest.approx(0.25)
    assert delta.votes is not None
    assert delta.votes.rate1 - delta.votes.rate0 == pytest.approx(0.25)
    # 50 more trials of one task cannot make up for the other one's single trial.
    assert delta.lo < -0.15


def test_fractional_counts_have_no_exact_test() -> None:
    with pytest.raises(ValueError, match="whole"):
        cmh_exact_p([0.5], [1], [0], [1])
    assert delta_paired([0.5, 1], [2, 2], [0, 1], [2, 2]).p == 1.0


def test_exact_p_of_one_task_is_fisher() -> None:
    expected = stats.fisher_exact(np.array([[7, 3], [2, 8]])).pvalue
    assert cmh_exact_p([7], [10], [2], [10]) == pytest.approx(expected, rel=1e-12)


def test_exact_p_keeps_far_tails() -> None:
    p = cmh_exact_p([20] * 20, [20] * 20, [0] * 20, [20] * 20, "greater")
    assert p == pytest.approx(math.comb(40, 20) ** -20.0, rel=1e-9, abs=0.0)


def test_nothing_to_permute_is_no_evidence() -> None:
    assert cmh_exact_p([3, 0], [3, 3], [3, 0], [3, 3]) == 1.0
    assert cmh_exact_p([], [], [], []) == 1.0
    assert cmh_z2([3, 0], [3, 3], [3, 0], [3, 3]) == 0.0
    assert two_prop_z_p(0, 5, 0, 5) == 1.0
    assert two_prop_z_p(0, 0, 3, 5) == 1.0
    with pytest.raises(ValueError, match="alternative"):
        cmh_exact_p([1], [2], [1], [2], "larger")  # type: ignore[arg-type]


def test_signflip_sides_and_empty() -> None:
    assert signflip([]) == signflip([0.0, 0.0]) == 1.0
    assert signflip([1, 1, 1], "greater") == pytest.approx(1 / 8)
    assert signflip([1, 1, 1], "less") == 1.0
    assert signflip([1, -1]) == 1.0
    # Thirds and halves share a grid of sixths: exact.
    assert signflip([1 / 3, 1 / 2, 1 / 6]) == pytest.approx(2 / 8)


def test_newcombe_without_trials() -> None:
    assert newcombe(0, 0, 0, 0) == UNKNOWN
    half_known = newcombe(10, 10, 0, 0)
    assert half_known.lo == pytest.approx(-0.2775, abs=1e-4)
    assert half_known.hi == 1.0
    assert newcombe_paired(0, 0, 0, 0) == UNKNOWN
    with pytest.raises(ValueError, match="negative"):
        newcombe_paired(-1, 0, 0, 5)


def test_tost_of_a_plain_t_matches_two_one_sided_tests() -> None:
    delta, margin = large(), 0.08
    upper = stats.t.sf((delta.est + margin) / delta.se, delta.df)
    lower = stats.t.cdf((delta.est - margin) / delta.se, delta.df)
    result = tost(delta, margin)
    assert result.p == pytest.approx(max(upper, lower))
    assert result.shown
    assert result.smallest == pytest.approx(max(-delta.interval(0.9).lo, delta.interval(0.9).hi))
    assert tost(delta, result.smallest * 1.001).shown
    assert not tost(delta, result.smallest * 0.999).shown


def test_no_inflation_looks_at_the_upper_limit_only() -> None:
    result = tost(large(-1), 0.03)
    assert not result.shown
    assert result.no_inflation


def test_no_inflation_fails_when_the_upper_limit_exceeds_the_margin() -> None:
    delta = large(1)
    narrow = delta.interval(0.9)
    assert not tost(delta, (narrow.lo + narrow.hi) / 2).no_inflation


def test_guarded_tost_p_is_the_larger_of_the_two() -> None:
    # One mixed task: t with a single df is far wider than the pooled interval.
    delta = delta_paired([2, 2, 0, 1], [2] * 4, [2, 2, 0, 0], [2] * 4)
    assert delta.df == 1
    assert tost_p(delta, smallest_margin(delta)) == pytest.approx(0.05, abs=1e-9)
    # Twelve tasks, two of them barely mixed: now the pooled interval is the wider one.
    n, x = [10] * 12, [10] * 5 + [0] * 5 + [9, 1]
    delta = delta_paired([10] * 5 + [0] * 5 + [8, 1], n, x, n)
    assert delta.se > 0
    assert smallest_margin(delta) > 3 * (abs(delta.est) + delta.se)
    assert tost_p(delta, smallest_margin(delta)) == pytest.approx(0.05, abs=1e-9)


def test_guarded_tost_p_needs_both_intervals() -> None:
    counts = ([3, 3, 0], [3] * 3, [3, 3, 0], [3] * 3)
    delta = delta_paired(*counts)
    bound = smallest_margin(delta)
    assert tost_p(delta, bound) == pytest.approx(0.05, abs=1e-9)
    assert tost_p(delta, 0.03) > 0.4
    assert math.isnan(p_within(delta, 0.03))


def test_posterior_of_a_plain_delta() -> None:
    delta = large()
    inside = p_within(delta, 0.05)
    draws = stats.t.rvs(delta.df, delta.est, delta.se, size=200_000, random_state=np.random.default_rng(1))
    assert inside == pytest.approx(np.mean(np.abs(draws) < 0.05), abs=0.005)


@pytest.mark.parametrize(("margin", "alpha"), [(0.0, 0.05), (-0.1, 0.05), (math.nan, 0.05), (0.1, 0.5)])
def test_margins_and_levels_are_checked(margin: float, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"margin|alpha"):
        tost(large(), margin, alpha)
