"""Rates: degenerate input, unequal samples, and the choices that the reference does not pin."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import clopper_pearson
from pytest_infranoise.stats.rates import icc
from pytest_infranoise.stats.rates import jeffreys
from pytest_infranoise.stats.rates import korn_graubard
from pytest_infranoise.stats.rates import mean_rate
from pytest_infranoise.stats.rates import naive_wilson
from pytest_infranoise.stats.rates import rate_ci
from pytest_infranoise.stats.rates import se_cluster
from pytest_infranoise.stats.rates import se_fixed
from pytest_infranoise.stats.rates import t_quantile
from pytest_infranoise.stats.rates import wilson
from pytest_infranoise.stats.rates import within_task_variance
from pytest_infranoise.stats.rates import z_quantile

ALL = Interval(0.0, 1.0)


@pytest.mark.parametrize("function", [wilson, clopper_pearson, jeffreys])
def test_no_trials_say_nothing(function: type) -> None:
    assert function(0, 0) == ALL


@pytest.mark.parametrize("function", [rate_ci, naive_wilson, korn_graubard])
@pytest.mark.parametrize("counts", [([], []), ([0, 0], [0, 0])])
def test_no_tasks_say_nothing(function: type, counts: tuple[list[int], list[int]]) -> None:
    assert function(*counts) == ALL


def test_summaries_of_no_tasks_are_undefined() -> None:
    for function in (mean_rate, se_fixed, se_cluster, icc, within_task_variance):
        assert math.isnan(function([], []))


@pytest.mark.parametrize(
    ("x", "n"),
    [([4], [3]), ([-1], [3]), ([1, 2], [3]), ([math.nan], [3]), ([[1]], [[3]])],
)
def test_impossible_counts_are_rejected(x: list[float], n: list[float]) -> None:
    with pytest.raises(ValueError, match=r"events|counts"):
        rate_ci(x, n)


def test_unknown_target_and_level_are_rejected() -> None:
    with pytest.raises(ValueError, match="target"):
        rate_ci([1], [2], "tasks")  # type: ignore[arg-type]
    for conf in (0.0, 1.0, 95.0):
        with pytest.raises(ValueError, match="confidence"):
            rate_ci([1, 2], [3, 3], conf=conf)


def test_macro_average_ignores_how_often_a_task_ran() -> None:
    assert mean_rate([1, 0], [1, 99]) == 0.5


def test_a_task_without_trials_is_dropped() -> None:
    assert mean_rate([1, 0, 3], [2, 0, 3]) == 0.75
    assert rate_ci([1, 0, 3], [2, 0, 3]) == rate_ci([1, 3], [2, 3])
    assert se_fixed([1, 0, 3], [2, 0, 3]) == se_fixed([1, 3], [2, 3])


def test_one_sample_everywhere_is_naive_wilson() -> None:
    assert rate_ci([1, 0, 1, 1, 0], [1] * 5) == wilson(3, 5)


def test_all_or_none_tasks_are_naive_wilson() -> None:
    assert rate_ci([3, 3, 0, 0], [3] * 4) == wilson(6, 12)
    assert rate_ci([0] * 89, [5] * 89) == wilson(0, 445)


def test_zero_infra_errors_have_a_finite_upper_limit() -> None:
    benchmark, population = rate_ci([0] * 89, [5] * 89), rate_ci([0] * 89, [5] * 89, "population")
    assert benchmark.lo == population.lo == 0.0
    assert 0.005 < benchmark.hi < population.hi < 0.05


def test_stratified_interval_uses_that_tasks_are_fixed() -> None:
    # 60 all-or-none tasks and 29 mixed ones: much of the spread lies between tasks.
    x, n = [5] * 30 + [0] * 30 + [3] * 29, [5] * 89
    stratified, naive, population = rate_ci(x, n), naive_wilson(x, n), rate_ci(x, n, "population")
    assert stratified.hi - stratified.lo < 0.7 * (naive.hi - naive.lo)
    assert naive.hi - naive.lo < population.hi - population.lo


def test_few_varying_tasks_do_not_give_a_confident_interval() -> None:
    # Infra errors in two of 89 tasks: two variances from five samples each are no basis for t(88).
    x, n = [0] * 87 + [4, 3], [5] * 89
    rate, se = mean_rate(x, n), se_fixed(x, n)
    confident = 2 * t_quantile(0.95, 88) * se
    interval = rate_ci(x, n)
    assert interval.lo < rate < interval.hi
    assert interval.hi - interval.lo > 1.1 * confident


def test_single_samples_beside_repeated_ones_widen_the_interval() -> None:
    repeated = rate_ci([3, 2, 0, 1] * 5, [3] * 20)
    mixed = rate_ci([3, 2, 0, 1] * 4 + [1, 1, 0, 0], [3] * 16 + [1] * 4)
    assert mixed.hi - mixed.lo > repeated.hi - repeated.lo
    # Agreeing by chance is not certainty: three lone passes are not three sure tasks.
    assert rate_ci([3, 3, 1], [3, 3, 1]).lo < 0.7


def test_unequal_samples_weigh_a_rare_task_as_the_mean_does() -> None:
    # Pooled counts would say 99 of 100; half of the mean hangs on one trial.
    assert naive_wilson([0, 99], [1, 99]).lo < 0.2
    assert rate_ci([0, 0], [1, 100]).hi > 0.4


def test_one_task_is_a_binomial_problem() -> None:
    interval = rate_ci([7], [10])
    naive = wilson(7, 10)
    assert interval.lo <= naive.lo
    assert interval.hi >= naive.hi
    assert interval.hi - interval.lo < 1.3 * (naive.hi - naive.lo)


def test_two_tasks_never_beat_the_binomial_by_luck() -> None:
    # One task always passes: all of the SE rests on the other one's ten trials.
    interval, naive = rate_ci([3, 10], [10, 10]), naive_wilson([3, 10], [10, 10])
    assert interval.lo <= naive.lo
    assert interval.hi >= naive.hi


def test_population_counts_one_vote_per_task_when_tasks_agree() -> None:
    assert rate_ci([5] * 20, [5] * 20, "population") == clopper_pearson(20, 20)
    assert rate_ci([5], [5], "population") == clopper_pearson(1, 1)
    assert korn_graubard([5] * 20, [5] * 20) == clopper_pearson(20, 20)


def test_population_never_claims_more_than_all_trials() -> None:
    # Task rates closer together than binomial noise would give an effective size beyond the trials.
    x, n = [5, 5, 5, 4, 5, 5], [10] * 6
    interval = rate_ci(x, n, "population")
    assert interval.hi - interval.lo >= wilson(29, 60).hi - wilson(29, 60).lo - 1e-12


def test_icc_separates_task_difficulty_from_luck() -> None:
    assert icc([5, 0, 5, 0], [5] * 4) == pytest.approx(1.0)
    assert icc([1, 1, 1, 1], [2] * 4) == pytest.approx(-1.0)
    assert math.isnan(icc([5, 5], [5, 5]))
    assert math.isnan(icc([1, 0], [1, 1]))


def test_within_task_variance_uses_repeated_tasks_only() -> None:
    assert within_task_variance([1, 1], [2, 1]) == pytest.approx(0.5)
    assert within_task_variance([5, 5], [10, 10]) == pytest.approx(0.25 * 10 / 9)


def test_quantiles_at_the_edges() -> None:
    assert t_quantile(0.95, 0) == math.inf
    assert t_quantile(0.95, math.nan) == math.inf
    assert t_quantile(0.95, math.inf) == z_quantile(0.95)
    assert t_quantile(0.95, 1) == pytest.approx(12.7062, abs=1e-4)


def test_wilson_takes_effective_sizes() -> None:
    assert wilson(0.5, 1.5).lo < 1 / 3 < wilson(0.5, 1.5).hi
    assert wilson(1e-13, 1e-12) == ALL
    with pytest.raises(ValueError, match="counts"):
        wilson(3, 2)


def test_jeffreys_stays_off_the_edges_as_a_posterior_does() -> None:
    assert 0.0 < jeffreys(0, 10).lo < 0.001
    assert 0.999 < jeffreys(10, 10).hi < 1.0


def test_hull_and_clip() -> None:
    assert Interval(0.1, 0.3).hull(Interval(0.2, 0.9)) == Interval(0.1, 0.9)
    assert Interval(-2.0, 0.5).clip(-1.0, 1.0) == Interval(-1.0, 0.5)
    assert Interval(2.0, 3.0).clip(-1.0, 1.0) == Interval(1.0, 1.0)


def exact_coverage(true: tuple[float, ...], samples: int) -> float:
    """Return how often `rate_ci` holds the mean of these tasks' true rates, over every possible table."""
    mean, covered = float(np.mean(true)), 0.0
    chances = [[math.comb(samples, x) * p**x * (1 - p) ** (samples - x) for x in range(samples + 1)] for p in true]
    for table in itertools.product(range(samples + 1), repeat=len(true)):
        chance = math.prod(chances[task][x] for task, x in enumerate(table))
        interval = cached_rate_ci(tuple(sorted(table)), samples)
        covered += chance * (interval.lo <= mean + 1e-12 and mean - 1e-12 <= interval.hi)
    return covered


@functools.cache
def cached_rate_ci(table: tuple[int, ...], samples: int) -> Interval:
    return rate_ci(list(table), [samples] * len(table))


@pytest.mark.parametrize(("tasks", "samples"), [(4, 3), (3, 3), (2, 5), (5, 2)])
def test_small_runs_cover_whatever_the_true_rates_are(tasks: int, samples: int) -> None:
    grid = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.98, 1.0)
    worst = min(exact_coverage(true, samples) for true in itertools.combinations_with_replacement(grid, tasks))

    assert worst >= 0.95


def test_one_varying_task_does_not_make_a_known_rate_unknown() -> None:
    # 11 of 12: two degrees of freedom alone would say anything from a third to all.
    assert rate_ci([3, 3, 3, 2], [3, 3, 3, 3]).lo > 0.6
