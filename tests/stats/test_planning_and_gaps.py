"""Splitting samples unevenly, margins from samples, and the error of scores of which only the number is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_infranoise.stats.gaps import gap_se
from pytest_infranoise.stats.gaps import gap_verdict
from pytest_infranoise.stats.gaps import published_se
from pytest_infranoise.stats.gaps import usual_icc
from pytest_infranoise.stats.planning import MOST_TRIED
from pytest_infranoise.stats.planning import Split
from pytest_infranoise.stats.planning import cheapest_split
from pytest_infranoise.stats.planning import margin_shown
from pytest_infranoise.stats.planning import mde_of_tasks
from pytest_infranoise.stats.planning import plan_k_tost
from pytest_infranoise.stats.planning import plan_tasks_tost

SCORES = st.floats(0, 1)
TASKS = st.integers(1, 500)
SAMPLES = st.integers(1, 40)


@given(st.integers(1, 60), st.integers(2, 8))
def test_the_cheapest_split_is_the_best_of_all(k: int, configs: int) -> None:
    best = min(
        base + (configs - 1) * others
        for base, others in itertools.product(range(1, 3 * k + 3 * configs), range(1, k + 1))
        if others * k + base * k <= 2 * base * others
    )
    split = cheapest_split(k, configs)
    assert 1 / split.baseline + 1 / split.others <= 2 / k + 1e-12
    assert split.total(configs) == best


def test_many_samples_are_split_by_the_square_root_rule() -> None:
    k = 10 * MOST_TRIED
    split = cheapest_split(k, 6)
    assert split.baseline / split.others == pytest.approx(math.sqrt(5), rel=1e-3)
    assert 1 / split.baseline + 1 / split.others <= 2 / k
    assert cheapest_split(10**15, 3).others < 10**15


def test_two_configs_share_evenly() -> None:
    assert cheapest_split(7, 2) == Split(7, 7)
    for k, configs in ((0, 2), (3, 1)):
        with pytest.raises(ValueError, match="configs"):
            cheapest_split(k, configs)


@pytest.mark.parametrize("true_delta", [0.0, 0.01])
def test_a_margin_is_what_its_samples_were_planned_for(true_delta: float) -> None:
    k = plan_k_tost(0.03, 89, 0.1, true_delta=true_delta)
    assert k is not None
    shown = [margin_shown(89, samples, 0.1, true_delta=true_delta) for samples in (k, k - 1)]
    assert shown[0] <= 0.03 < shown[1]
    for nothing in ((0, 5, 0.1), (89, 0, 0.1), (89, 5, math.nan)):
        assert math.isnan(margin_shown(*nothing))


def test_less_variance_lies_between_tasks_near_the_ends() -> None:
    assert usual_icc(0.0) == usual_icc(1.0) == 0.0
    assert usual_icc(0.5) == usual_icc(0.4) == 0.6
    assert usual_icc(0.1) == pytest.approx(usual_icc(0.9))
    with pytest.raises(ValueError, match="score"):
        usual_icc(1.1)


@given(SCORES, SCORES, TASKS, SAMPLES, SAMPLES)
def test_a_published_error_is_never_below_the_plain_one(s1: float, s2: float, tasks: int, k1: int, k2: int) -> None:
    se = published_se(s1, s2, tasks, k1, k2)
    assert se >= gap_se(s1, s2, tasks, k1, k2, 0.6) * (1 - 1e-9)
    assert se == pytest.approx(published_se(s2, s1, tasks, k2, k1))


@pytest.mark.parametrize("events", range(12))
def test_few_events_against_none_are_no_difference(events: int) -> None:
    trials = 445
    se = published_se(events / trials, 0.0, 89, 5)
    judged = gap_verdict(events / trials, 0.0, 89, 5, configs="same", se=se).verdict
    p = stats.fisher_exact(np.array([[events, trials - events], [0, trials]])).pvalue
    assert judged == ("distinguishable" if events >= 5 else "within sampling noise")
    assert p < 0.07 or judged == "within sampling noise"


def test_in_the_middle_it_is_the_plain_error() -> None:
    assert published_se(0.45, 0.5, 89, 5) == pytest.approx(gap_se(0.45, 0.5, 89, 5), rel=0.01)
    assert published_se(0.45, 0.5, 89, 5, icc=0.0) == pytest.approx(gap_se(0.45, 0.5, 89, 5, icc=0.0), rel=0.01)
    assert published_se(0.45, 0.5, 0, 5) == math.inf


class TestTasksLikeThese:
    def test_the_number_of_tasks_gives_the_power_that_was_asked_for(self) -> None:
        # Normal power of two one-sided tests with the standard error that so many tasks have.
        for sd, true in ((0.3, 0.0), (0.3, 0.025), (0.8, 0.03)):
            tasks = plan_tasks_tost(0.05, sd, true_delta=true)
            assert tasks is not None
            se = sd / math.sqrt(tasks)
            z = stats.norm.ppf(0.95)
            power = stats.norm.cdf((0.05 - true) / se - z) - stats.norm.cdf(-(0.05 + true) / se + z)
            assert power == pytest.approx(0.8, abs=0.01)

    def test_a_delta_that_is_detected(self) -> None:
        for tasks in (10, 89):
            delta = mde_of_tasks(tasks, 0.3)
            power = stats.norm.sf(stats.norm.ppf(0.975) - delta / (0.3 / math.sqrt(tasks)))
            assert power == pytest.approx(0.8, abs=1e-6)

    def test_nothing_is_enough_at_the_margin_and_nothing_is_known_without_spread(self) -> None:
        assert plan_tasks_tost(0.03, 0.3, true_delta=-0.03) is None
        assert plan_tasks_tost(0.03, 0.0) is None
        assert math.isnan(mde_of_tasks(0, 0.3))
        assert math.isnan(mde_of_tasks(10, 0.0))

    @given(st.floats(0.001, 0.2), st.floats(0.001, 1))
    def test_differences_that_cancel_to_a_rounding_are_none(self, margin: float, sd: float) -> None:
        assert plan_tasks_tost(margin, sd, true_delta=-1e-17) == plan_tasks_tost(margin, sd)
