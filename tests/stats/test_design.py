"""Planning, looking early, slots, gaps between published scores, and shadow ceilings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.gaps import cv_bias
from pytest_infranoise.stats.gaps import gap_se
from pytest_infranoise.stats.gaps import gap_verdict
from pytest_infranoise.stats.gaps import smallest_gap
from pytest_infranoise.stats.planning import baseline_samples
from pytest_infranoise.stats.planning import mde
from pytest_infranoise.stats.planning import plan_k
from pytest_infranoise.stats.planning import plan_k_tost
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.sequential import asymp_cs
from pytest_infranoise.stats.sequential import gs_bounds
from pytest_infranoise.stats.sequential import gs_spend
from pytest_infranoise.stats.sequential import look
from pytest_infranoise.stats.sequential import mcnemar_evalue
from pytest_infranoise.stats.shadow import shadow_ceilings
from pytest_infranoise.stats.slots import beyond_session_se
from pytest_infranoise.stats.slots import overdispersion
from pytest_infranoise.stats.slots import slot_components


def test_plan_and_mde_are_inverse() -> None:
    k = plan_k(0.03, 89, 0.095)
    assert k is not None
    assert mde(89, k, 0.095) <= 0.03 < mde(89, k - 1, 0.095)


@pytest.mark.parametrize(("margin", "true_delta", "k"), [(0.03, 0.01, 33), (0.05, 0.02, 15), (0.05, 0.0, 8)])
def test_tost_plans_of_the_published_table(margin: float, true_delta: float, k: int) -> None:
    assert plan_k_tost(margin, 89, 0.095, true_delta=true_delta) == k


def test_no_number_of_samples_is_said_as_none() -> None:
    assert plan_k(0.0, 89, 0.1) is None
    assert plan_k(0.03, 0, 0.1) is None
    assert plan_k_tost(0.03, 89, 0.1, true_delta=0.03) is None
    for unknown in (0.0, math.nan):
        assert plan_k(0.03, 89, unknown) is None
        assert math.isnan(mde(89, 5, unknown))
    assert math.isnan(mde(0, 5, 0.1))
    assert math.isnan(mde(89, 0, 0.1))


def test_rerunning_only_sensitive_tasks_is_cheaper() -> None:
    every, few = plan_k(0.02, 89, 0.1), plan_k(0.02, 89, 0.1, run_tasks=18)
    assert every is not None
    assert few is not None
    assert few == pytest.approx(every * 18 / 89, abs=1)


def test_variance_beyond_the_possible_counts_as_a_quarter() -> None:
    assert plan_k(0.03, 89, 0.5) == plan_k(0.03, 89, 0.25)


def test_planning_input_is_checked() -> None:
    with pytest.raises(ValueError, match="power"):
        plan_k(0.03, 89, 0.1, power=1.0)
    with pytest.raises(ValueError, match="run_tasks"):
        plan_k(0.03, 89, 0.1, run_tasks=90)
    with pytest.raises(ValueError, match="negative"):
        baseline_samples(-1, 3)


def test_baseline_gets_dunnett_share() -> None:
    assert baseline_samples(10, 6) == 22
    assert baseline_samples(3, 2) == baseline_samples(3, 1) == 3


def test_pocock_bounds_match_the_published_ones() -> None:
    bounds = gs_bounds([0.2, 0.4, 0.6, 0.8, 1.0], kind="pocock")
    assert bounds == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=5e-4)


def test_bounds_spend_what_they_should() -> None:
    rng = np.random.default_rng(3)
    fracs = [0.25, 0.5, 0.75, 1.0]
    for kind in ("obf", "pocock"):
        bounds = np.array(gs_bounds(fracs, 0.2, kind))
        walks = np.cumsum(rng.normal(0, 0.5, (200_000, 4)), axis=1) / np.sqrt(fracs)
        crossed = np.logical_or.accumulate(np.abs(walks) > bounds, axis=1).mean(axis=0)
        assert crossed == pytest.approx(gs_spend(fracs, 0.2, kind), abs=0.004)


def test_one_look_is_an_ordinary_test() -> None:
    assert gs_bounds([1.0]) == pytest.approx([1.959964], abs=1e-5)
    assert gs_spend([1.0]) == pytest.approx([0.05])


@pytest.mark.parametrize("fracs", [[], [0.0, 1.0], [0.5, 0.5], [0.8, 0.4], [0.5, 1.2]])
def test_fractions_must_rise(fracs: list[float]) -> None:
    with pytest.raises(ValueError, match="fractions"):
        gs_bounds(fracs)


def test_spending_kind_and_level_are_checked() -> None:
    with pytest.raises(ValueError, match="kind"):
        gs_spend([1.0], kind="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha"):
        gs_spend([1.0], alpha=1.0)


def test_a_look_claims_nothing_after_one_round() -> None:
    delta = delta_paired([1] * 50, [1] * 50, [0] * 50, [1] * 50)
    first = look(delta, 1, 5, 0.9)
    assert first.ci == first.tost_interval == Interval(-1.0, 1.0)
    assert not first.stop


def test_looks_stop_for_a_difference_and_for_equivalence() -> None:
    n, x0 = [10] * 89, ([2, 5, 8] * 30)[:89]
    moved = look(delta_paired([x + 2 for x in x0], n, x0, n), 5, 10, 0.05)
    assert moved.different
    assert moved.stop
    wobble = [x + (1 if t % 2 else -1) for t, x in enumerate(x0)]
    same = look(delta_paired(wobble, n, x0, n), 9, 10, 0.08)
    assert same.equivalent
    assert not same.different
    last = look(delta_paired(wobble, n, x0, n), 10, 10, 0.001)
    assert last.stop
    assert not last.equivalent


def test_looks_use_the_bounds_of_their_level() -> None:
    n, x0 = [10] * 89, ([2, 5, 8] * 30)[:89]
    delta = delta_paired([x + 1 for x in x0], n, x0, n)
    result, fracs = look(delta, 3, 4, 0.05), [0.25, 0.5, 0.75, 1.0]
    assert result.ci == delta.interval_at(gs_bounds(fracs, 0.05)[2])
    assert result.tost_interval == delta.interval_at(gs_bounds(fracs, 0.10)[2])


def test_look_arguments_are_checked() -> None:
    delta = delta_paired([1, 0], [2, 2], [1, 1], [2, 2])
    for round_, rounds, margin in ((0, 5, 0.03), (6, 5, 0.03), (1, 5, 0.0)):
        with pytest.raises(ValueError, match="round"):
            look(delta, round_, rounds, margin)


def test_confidence_sequence_is_wider_than_one_look() -> None:
    sequence = asymp_cs(0.02, 0.4, 500)
    assert sequence.hi - 0.02 > 1.96 * 0.4 / math.sqrt(500)
    assert asymp_cs(0.0, 0.0, 10) == asymp_cs(0.0, 0.4, 0) == Interval(-1.0, 1.0)
    with pytest.raises(ValueError, match="alpha"):
        asymp_cs(0.0, 0.4, 10, alpha=0.0)


def test_evalue_averages_to_one_under_the_null() -> None:
    pairs = 12
    law = stats.binom.pmf(np.arange(pairs + 1), pairs, 0.5)
    mean = sum(w * mcnemar_evalue(u, pairs - u) for u, w in enumerate(law.tolist()))
    assert mean == pytest.approx(1.0)
    assert mcnemar_evalue(0, 0) == pytest.approx(1.0)
    assert mcnemar_evalue(5000, 0) == math.inf
    with pytest.raises(ValueError, match="negative"):
        mcnemar_evalue(-1, 0)


def test_one_slot_measures_no_drift() -> None:
    one, none = slot_components([0.5], [0.001]), slot_components([], [])
    assert not one.measured
    assert one.mean == 0.5
    assert math.isnan(one.sigma2)
    assert one.interval == Interval(-math.inf, math.inf)
    assert math.isnan(none.mean)


def test_slots_that_agree_keep_their_sampling_noise() -> None:
    agreed = slot_components([0.5] * 5, [0.0004] * 5)
    assert agreed.sigma2 == 0.0
    assert agreed.se == 0.0
    # Half-width t(4) times the plain SE of five slots.
    assert agreed.interval.hi - 0.5 == pytest.approx(2.7764 * 0.02 / math.sqrt(5), rel=1e-4)
    assert agreed.trusted
    assert agreed.p == pytest.approx(1.0)


def test_slots_without_a_variance_are_not_certain() -> None:
    unknown = slot_components([0.5, 0.6, 0.4], [0.0, math.nan, 0.0])
    assert unknown.sigma2 == pytest.approx(0.01)
    assert math.isnan(unknown.p)
    assert slot_components([0.5, 0.5], [0.0, 0.0]).interval == Interval(-math.inf, math.inf)
    mixed, known = slot_components([0.5, 0.6], [0.0, 0.01]), slot_components([0.5, 0.6], [0.01, 0.01])
    assert mixed == known
    with pytest.raises(ValueError, match="variance"):
        slot_components([0.5], [-0.1])


def test_drift_is_found() -> None:
    drifting = slot_components([0.4, 0.5, 0.6, 0.45, 0.58], [0.0004] * 5)
    assert drifting.p < 0.001
    assert math.sqrt(drifting.sigma2) == pytest.approx(np.std([0.4, 0.5, 0.6, 0.45, 0.58], ddof=1), rel=0.1)


def test_score_beyond_the_session() -> None:
    assert beyond_session_se(0.03, 0.0016, 4) == pytest.approx(math.sqrt(0.0009 + 0.0004))
    assert math.isnan(beyond_session_se(0.03, 0.0, 1))
    with pytest.raises(ValueError, match="negative"):
        beyond_session_se(-0.1, 0.0, 3)


def test_overdispersion_is_a_variance_ratio() -> None:
    assert overdispersion([0.0, 0.1, -0.1], [0.005, 0.005, 0.005]) == pytest.approx(2.0)
    assert math.isnan(overdispersion([0.1], 0.01))
    assert math.isnan(overdispersion([0.1, 0.2], 0.0))
    assert math.isnan(overdispersion([], []))


@pytest.mark.parametrize(
    ("tasks", "k", "expected"),
    [(89, 1, (9.1, 9.9, 10.7, 13.6)), (89, 5, (4.1, 5.4, 6.4, 9.4)), (500, 5, (1.7, 3.4, 4.4, 7.4))],
)
def test_smallest_gaps_of_the_published_table(tasks: int, k: int, expected: tuple[float, ...]) -> None:
    kinds = ("same", "documented", "undocumented", "uncapped")
    points = [100 * smallest_gap(0.6, tasks, k, configs=kind) for kind in kinds]  # type: ignore[arg-type]
    assert points == pytest.approx(expected, abs=0.06)


def test_gap_has_three_verdicts() -> None:
    verdicts = [gap_verdict(0.6 + g, 0.6, 89, 5).verdict for g in (0.02, -0.05, 0.09)]
    assert verdicts == [
        "within sampling noise",
        "beyond noise but explainable by infrastructure",
        "distinguishable",
    ]


def test_bias_bound_adds_to_noise() -> None:
    gap = gap_verdict(0.6, 0.5, 89, 5)
    assert gap.half_noise < gap.half < gap.half_additive
    same = gap_verdict(0.6, 0.5, 89, 5, configs="same")
    assert same.half == pytest.approx(same.half_noise)
    assert gap_verdict(0.6, 0.5, 89, 5, se=0.2).verdict == "within sampling noise"
    assert gap_verdict(0.6, 0.5, 89, 5, bias=0.5).verdict == "beyond noise but explainable by infrastructure"


def test_perfect_scores_are_not_without_error() -> None:
    assert gap_se(1.0, 1.0, 10, 3) > 0.01
    assert gap_verdict(1.0, 0.98, 10, 3).verdict == "within sampling noise"


def test_gap_without_trials_cannot_be_told() -> None:
    gap = gap_verdict(0.9, 0.1, 0, 5)
    assert gap.verdict == "within sampling noise"
    assert gap.half == math.inf


def test_gap_input_is_checked() -> None:
    with pytest.raises(ValueError, match="configs"):
        gap_verdict(0.6, 0.5, 89, 5, configs="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scores"):
        gap_verdict(60, 50, 89, 5)
    with pytest.raises(ValueError, match="se > 0"):
        gap_verdict(0.6, 0.5, 89, 5, se=0.0)
    with pytest.raises(ValueError, match="alpha"):
        cv_bias(math.nan)


def test_critical_values_grow_with_bias() -> None:
    values = [cv_bias(t) for t in (0.0, 0.5, 1.0, 5.0, 29.9, 30.1, math.inf)]
    assert values == sorted(values)
    assert cv_bias(-1.0) == cv_bias(1.0)
    for t in (0.0, 0.7, 3.0):
        assert cv_bias(t, 0.1) == pytest.approx(math.sqrt(stats.ncx2.ppf(0.9, 1, t**2)) if t else 1.644854)


def test_shadow_counts_passes_above_the_ceiling() -> None:
    task = ["a", "a", "b", "b", "c", "c"]
    passed = [True, True, True, False, True, False]
    peak = [1.0, 3.0, 5.0, 5.0, math.nan, 0.5]
    low, high = shadow_ceilings(task, passed, peak, [2.0, 4.0])
    assert low.loss == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert low.exceeding == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert (low.tasks_affected, low.tasks, low.trials, low.unknown) == (2, 3, 5, 1)
    assert high.loss == pytest.approx(1 / 6)
    assert high.loss_ci.lo <= high.loss <= high.loss_ci.hi


def test_shadow_without_peaks_knows_nothing() -> None:
    for args in (([], [], []), (["a"], [True], [math.nan])):
        (shadow,) = shadow_ceilings(*args, ceilings=3.0)
        assert math.isnan(shadow.loss)
        assert shadow.loss_ci == Interval(0.0, 1.0)
        assert shadow.trials == 0


def test_shadow_input_is_checked() -> None:
    with pytest.raises(ValueError, match="per trial"):
        shadow_ceilings(["a"], [True, False], [1.0], [2.0])
    with pytest.raises(ValueError, match="ceilings"):
        shadow_ceilings(["a"], [True], [1.0], [0.0])
