"""Accounting and the Kitagawa split, and the scores under each treatment of infra errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_infranoise.stats.decomposition import accounting
from pytest_infranoise.stats.decomposition import decompose
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.variants import score_variants


def test_only_crashes_removed_leaves_no_capability() -> None:
    # Survivors pass half the time in both configs; crashes go from 4 of 10 to none.
    parts = decompose([5] * 20, [0] * 20, [10] * 20, [3] * 20, [4] * 20, [10] * 20)
    assert parts.infra == pytest.approx(0.2)
    assert parts.capability == pytest.approx(0.0, abs=1e-12)
    assert parts.rescued_pass_rate == pytest.approx(0.5)


def test_only_capability_gained_leaves_no_infra_part() -> None:
    parts = decompose([8] * 20, [0] * 20, [10] * 20, [3] * 20, [0] * 20, [10] * 20)
    assert parts.infra == 0.0
    assert parts.capability == pytest.approx(0.5)
    assert math.isnan(parts.rescued_pass_rate)


def test_unlock_bounds_need_no_assumption() -> None:
    books = accounting([9, 5], [0, 0], [10, 10], [5, 5], [2, 0], [10, 10])
    assert (books.dS, books.dE, books.dF) == pytest.approx((0.2, -0.1, -0.1))
    assert (books.unlock_lower, books.unlock_upper) == pytest.approx((0.1, 0.2))
    # Twice as many passes as crashes removed: not all of it can be crashes.
    assert books.iv_pass_rate == pytest.approx(2.0)


def test_iv_pass_rate_needs_fewer_crashes() -> None:
    assert math.isnan(accounting([5], [1], [10], [5], [1], [10]).iv_pass_rate)


def test_tasks_that_always_crash_borrow_the_other_rate() -> None:
    parts = decompose([4, 5], [0, 0], [5, 5], [0, 5], [5, 0], [5, 5])
    assert parts.borrowed == 1
    # All of the gain is the removed crashes, at the rate seen without them.
    assert (parts.infra, parts.capability) == pytest.approx((0.4, 0.0))
    top = decompose([0, 5], [5, 0], [5, 5], [4, 5], [0, 0], [5, 5], "top")
    assert top.borrowed == 1
    assert top.infra == pytest.approx(-0.4)


def test_tasks_that_crash_everywhere_have_no_parts() -> None:
    parts = decompose([0], [5], [5], [0], [5], [5])
    assert (parts.infra, parts.capability, parts.borrowed) == (0.0, 0.0, 1)


def test_no_infra_errors_do_not_give_a_point_interval() -> None:
    parts = decompose([3, 0, 3, 1], [0] * 4, [3] * 4, [3, 0, 2, 1], [0] * 4, [3] * 4)
    assert parts.infra == 0.0
    assert parts.infra_ci.lo < -0.1 < 0.1 < parts.infra_ci.hi


def test_few_tasks_with_a_share_do_not_give_a_narrow_interval() -> None:
    # Nine tasks that happen to agree closely say little about their average.
    parts = decompose([6] * 9, [0] * 9, [10] * 9, [4] * 8 + [5], [2] * 9, [10] * 9)
    assert parts.infra_ci.lo == 0.0
    assert parts.infra_ci.hi > 0.25


def test_many_tasks_get_a_plain_t_interval() -> None:
    e0 = [1, 2, 3, 4] * 10
    parts = decompose([6, 5, 4, 7] * 10, [0] * 40, [10] * 40, [4, 4, 4, 3] * 10, e0, [10] * 40)
    crash = np.array(e0) / 10
    part = crash * np.array([4 / 9, 4 / 8, 4 / 7, 3 / 6] * 10)
    half = 2.0227 * part.std(ddof=1) / math.sqrt(40)
    assert parts.infra == pytest.approx(part.mean())
    assert parts.infra_ci == pytest.approx((part.mean() - half, part.mean() + half), abs=1e-4)


def test_tasks_missing_in_one_config_are_dropped() -> None:
    books = accounting([3, 9], [0, 0], [5, 9], [1, 0], [1, 0], [5, 0])
    assert (books.tasks, books.dropped) == (1, 1)
    assert books.dS == pytest.approx(0.4)


def test_no_tasks_are_undefined() -> None:
    books, parts = accounting([], [], [], [], [], []), decompose([], [], [], [], [], [])
    assert all(math.isnan(v) for v in (books.dS, books.unlock_lower, parts.infra, parts.capability))
    assert parts.capability_ci == Interval(-1.0, 1.0)
    assert parts.tasks == 0


def test_bad_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="events"):
        accounting([4], [2], [5], [0], [0], [5])
    with pytest.raises(ValueError, match="q_source"):
        decompose([1], [0], [2], [1], [0], [2], "floor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="different tasks"):
        accounting([1], [0], [2], [1, 1], [0, 0], [2, 2])


def test_excluding_infra_errors_drops_and_counts_dead_tasks() -> None:
    scores = score_variants([4, 0, 1], [0, 5, 3], [5, 5, 5])
    assert scores.excluded_tasks_dropped == 1
    assert scores.excluded == pytest.approx((4 / 5 + 1 / 2) / 2)
    assert scores.pooled_excluded == pytest.approx(5 / 7)
    # The dead task is imputed with the pooled rate, so that no task vanishes from this variant.
    assert scores.imputed_within_task == pytest.approx((4 / 5 + 5 / 7 + 1 / 2) / 3)
    assert (scores.bound_low, scores.bound_high) == pytest.approx((1 / 3, (4 / 5 + 1 + 4 / 5) / 3))


def test_a_run_that_only_crashed_has_bounds_but_no_estimate() -> None:
    scores = score_variants([0, 0], [3, 3], [3, 3])
    assert (scores.bound_low, scores.bound_high) == (0.0, 1.0)
    assert math.isnan(scores.excluded)
    assert math.isnan(scores.pooled_excluded)
    assert math.isnan(scores.imputed_within_task)
    assert scores.excluded_tasks_dropped == 2


def test_score_variants_reject_more_outcomes_than_trials() -> None:
    with pytest.raises(ValueError, match="events"):
        score_variants([3], [3], [5])
