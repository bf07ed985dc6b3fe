"""The difference of two deltas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from scipy import stats

from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.interaction import Side
from pytest_infranoise.stats.interaction import interaction
from tests.stats.strategies import Config
from tests.stats.strategies import runs

Four = tuple[Config, Config, Config, Config]
TASKS = 40
DRAW = np.random.default_rng(3)
RANDOM = [DRAW.integers(0, 7, TASKS) for _ in range(4)]
N = np.full(TASKS, 6)


def sides(x1: object, x0: object, y1: object, y0: object) -> tuple[Side, Side]:
    return Side(np.asarray(x1), N, np.asarray(x0), N), Side(np.asarray(y1), N, np.asarray(y0), N)


def test_it_is_the_difference_of_the_deltas_with_their_variances_added() -> None:
    found = interaction(*sides(*RANDOM))
    first = delta_paired(RANDOM[0], N, RANDOM[1], N)
    second = delta_paired(RANDOM[2], N, RANDOM[3], N)
    assert not found.guarded
    assert found.est == pytest.approx(first.est - second.est)
    rates = [x / 6 for x in RANDOM]
    variances = np.concatenate([rate * (1 - rate) / 5 for rate in rates])
    df = variances.sum() ** 2 / (variances**2 / 5).sum()
    se = math.sqrt(variances.sum()) / TASKS
    assert se == pytest.approx(math.hypot(first.se, second.se))
    assert tuple(found.interval) == pytest.approx(stats.t.interval(0.95, df, found.est, se))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.est) / se, df))


def test_for_the_population_it_is_a_paired_t_on_the_tasks_differences() -> None:
    found = interaction(*sides(*RANDOM), target="population")
    differences = (RANDOM[0] - RANDOM[1] - RANDOM[2] + RANDOM[3]) / 6
    known = stats.ttest_1samp(differences, 0)
    assert found.p == pytest.approx(known.pvalue)
    assert tuple(found.interval) == pytest.approx(tuple(known.confidence_interval(0.95)))


def test_only_tasks_in_all_four_cells_count() -> None:
    first, second = sides(*RANDOM)
    holes = np.asarray(N).copy()
    holes[:5] = 0
    x = RANDOM[0].copy()
    x[:5] = 0
    found = interaction(first._replace(x1=x, n1=holes), second)
    assert (found.tasks, found.dropped) == (TASKS - 5, 5)
    rest = [part[5:] for part in RANDOM]
    n = N[5:]
    assert found.est == pytest.approx(interaction(Side(rest[0], n, rest[1], n), Side(rest[2], n, rest[3], n)).est)


def test_agents_that_agree_everywhere_do_not_interact_and_claim_no_certainty() -> None:
    found = interaction(*sides(RANDOM[0], RANDOM[1], RANDOM[0], RANDOM[1]))
    assert (found.est, found.p, found.guarded, found.discordant) == (0.0, 1.0, True, 0)
    assert found.interval.lo < -0.1 < 0.1 < found.interval.hi


def test_all_or_none_data_are_guarded() -> None:
    found = interaction(Side([3] * 4, [3] * 4, [0] * 4, [3] * 4), Side([0] * 4, [3] * 4, [0] * 4, [3] * 4))
    assert found.guarded
    assert found.est == 1.0
    assert 0 < found.interval.lo < 1
    assert 0 < found.p < 0.05


def test_no_common_task() -> None:
    found = interaction(Side([1], [1], [0], [0]), Side([1], [1], [1], [1]))
    assert math.isnan(found.est)
    assert (tuple(found.interval), found.p, found.tasks, found.dropped) == ((-2.0, 2.0), 1.0, 0, 1)


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match="different tasks"):
        interaction(Side([1], [1], [1], [1]), Side([1, 1], [1, 1], [1, 1], [1, 1]))
    with pytest.raises(ValueError, match="events <= trials"):
        interaction(Side([2], [1], [1], [1]), Side([1], [1], [1], [1]))
    with pytest.raises(ValueError, match="target"):
        interaction(*sides(*RANDOM), target="tasks")  # type: ignore[arg-type]


@given(runs(configs=4))
@settings(max_examples=200, deadline=None)
def test_any_counts_have_a_defined_answer_that_is_fair_to_both(run: Four) -> None:
    one, two = (Side(a.x, a.n, b.x, b.n) for a, b in (run[:2], run[2:]))
    targets: tuple[Target, ...] = ("benchmark", "population")
    for target in targets:
        found = interaction(one, two, target=target)
        mirrored = interaction(two, one, target=target)
        assert 0 < found.p <= 1
        assert -2 <= found.interval.lo <= found.interval.hi <= 2
        if found.tasks:
            assert found.interval.lo - 1e-9 <= found.est <= found.interval.hi + 1e-9
            assert mirrored.est == pytest.approx(-found.est, abs=1e-12)
            assert mirrored.p == pytest.approx(found.p, abs=1e-6)
            assert mirrored.interval.lo == pytest.approx(-found.interval.hi, abs=1e-6)
            # p and interval never contradict each other.
            if found.p < 0.0499:
                assert found.interval.lo > -1e-9 or found.interval.hi < 1e-9
            if found.p > 0.0501:
                assert found.interval.lo <= 1e-9
                assert found.interval.hi >= -1e-9
