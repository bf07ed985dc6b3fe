"""What must hold for every count table, however degenerate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.stats.calibration import calibrate
from pytest_infranoise.stats.counts import Target
from pytest_infranoise.stats.decomposition import QSource
from pytest_infranoise.stats.decomposition import accounting
from pytest_infranoise.stats.decomposition import decompose
from pytest_infranoise.stats.deltas import cmh_exact_p
from pytest_infranoise.stats.deltas import cmh_z2
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.deltas import delta_se_fixed
from pytest_infranoise.stats.deltas import delta_t
from pytest_infranoise.stats.deltas import newcombe
from pytest_infranoise.stats.deltas import newcombe_paired
from pytest_infranoise.stats.deltas import signflip
from pytest_infranoise.stats.equivalence import smallest_margin
from pytest_infranoise.stats.equivalence import tost
from pytest_infranoise.stats.movers import flips
from pytest_infranoise.stats.movers import trend_flips
from pytest_infranoise.stats.multiplicity import bh
from pytest_infranoise.stats.multiplicity import holm
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
from pytest_infranoise.stats.rates import wilson
from pytest_infranoise.stats.rates import within_task_variance
from pytest_infranoise.stats.sequential import look
from pytest_infranoise.stats.trend import cochran_armitage
from pytest_infranoise.stats.trend import trend_slopes
from pytest_infranoise.stats.trend import trend_stratified
from pytest_infranoise.stats.variants import score_variants
from tests.stats.strategies import Config
from tests.stats.strategies import runs
from tests.stats.strategies import shuffled_runs

TARGETS = st.sampled_from(["benchmark", "population"])
CONF = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.9999])
SLACK = 1e-12
DIFFERENCES = st.one_of(st.integers(-5, 5), st.floats(-1, 1).filter(lambda v: abs(v) > 1e-9))


def assert_rate_interval(interval: Interval, estimate: float) -> None:
    assert 0.0 <= interval.lo <= interval.hi <= 1.0
    if not math.isnan(estimate):
        assert interval.lo - SLACK <= estimate <= interval.hi + SLACK


@given(n=st.integers(0, 400), data=st.data(), conf=CONF)
def test_binomial_intervals_hold_the_estimate(n: int, data: st.DataObject, conf: float) -> None:
    x = data.draw(st.integers(0, n))
    estimate = x / n if n else math.nan
    for function in (wilson, clopper_pearson):
        interval = function(x, n, conf)
        assert_rate_interval(interval, estimate)
        assert (interval.lo == 0.0) == (x == 0)
        assert (interval.hi == 1.0) == (x == n)
    posterior = jeffreys(x, n, conf)
    assert 0.0 <= posterior.lo < posterior.hi <= 1.0


@given(run=runs(configs=1), target=TARGETS, conf=CONF)
def test_rate_ci_holds_the_mean_rate(run: tuple[Config, ...], target: Target, conf: float) -> None:
    (config,) = run
    estimate = mean_rate(config.x, config.n)
    for interval in (
        rate_ci(config.x, config.n, target, conf),
        naive_wilson(config.x, config.n, conf),
        korn_graubard(config.x, config.n, conf),
    ):
        assert_rate_interval(interval, estimate)


@given(run=runs(configs=1), target=TARGETS)
def test_rate_ci_is_never_a_point(run: tuple[Config, ...], target: Target) -> None:
    (config,) = run
    interval = rate_ci(config.x, config.n, target)
    trials = max(sum(config.n), 1)
    # No estimator can know a rate better than a quarter of one trial in all of them.
    assert interval.hi - interval.lo > 0.25 / trials


@given(run=runs(configs=1))
def test_failures_mirror_passes(run: tuple[Config, ...]) -> None:
    (config,) = run
    fails = [n - x for x, n in zip(config.x, config.n, strict=True)]
    interval, mirrored = rate_ci(config.x, config.n), rate_ci(fails, config.n)
    assert mirrored.lo == pytest.approx(1.0 - interval.hi, abs=1e-9)
    assert mirrored.hi == pytest.approx(1.0 - interval.lo, abs=1e-9)


@given(run=runs(configs=1))
def test_rate_summaries_are_in_range_or_undefined(run: tuple[Config, ...]) -> None:
    (config,) = run
    seen = [n for n in config.n if n > 0]
    assert math.isnan(se_fixed(config.x, config.n)) == (not seen or min(seen) < 2)
    assert math.isnan(se_cluster(config.x, config.n)) == (len(seen) < 2)
    within = within_task_variance(config.x, config.n)
    assert math.isnan(within) or 0.0 <= within <= 0.5
    assert not icc(config.x, config.n) > 1.0


@given(run=runs(), target=TARGETS, conf=CONF)
def test_delta_interval_holds_the_delta(run: tuple[Config, ...], target: Target, conf: float) -> None:
    one, zero = run
    delta = delta_paired(one.x, one.n, zero.x, zero.n, conf, target)
    assert -1.0 <= delta.lo <= delta.hi <= 1.0
    assert 0.0 <= delta.p <= 1.0
    assert delta.tasks + delta.dropped == len(one.n)
    assert math.isnan(delta.est) == (delta.tasks == 0)
    if delta.tasks:
        assert delta.lo - SLACK <= delta.est <= delta.hi + SLACK
    assert delta.interval(conf) == delta.ci


@given(run=runs(), target=TARGETS)
def test_delta_is_never_a_point(run: tuple[Config, ...], target: Target) -> None:
    one, zero = run
    delta = delta_paired(one.x, one.n, zero.x, zero.n, target=target)
    trials = max(sum(one.n) + sum(zero.n), 1)
    assert delta.hi - delta.lo > 0.25 / trials
    assert smallest_margin(delta) > 0.125 / trials


@given(run=runs(), target=TARGETS)
def test_small_pairs_are_guarded(run: tuple[Config, ...], target: Target) -> None:
    one, zero = run
    delta = delta_paired(one.x, one.n, zero.x, zero.n, target=target)
    few = delta.discordant < 10 or not delta.df >= 10 or not delta.se > 0
    assert delta.guarded == (few and delta.tasks > 0)
    assert delta.method.endswith("+guard") == delta.guarded


@given(run=runs(), target=TARGETS, margin=st.sampled_from([0.03, 0.1, 0.4]))
def test_swapping_configs_flips_the_sign(run: tuple[Config, ...], target: Target, margin: float) -> None:
    one, zero = run
    ahead = delta_paired(one.x, one.n, zero.x, zero.n, target=target)
    behind = delta_paired(zero.x, zero.n, one.x, one.n, target=target)
    assert behind.lo == pytest.approx(-ahead.hi, abs=1e-9)
    assert behind.hi == pytest.approx(-ahead.lo, abs=1e-9)
    assert behind.p == pytest.approx(ahead.p, abs=1e-9)
    assert tost(behind, margin).p == pytest.approx(tost(ahead, margin).p, abs=1e-9)
    if ahead.tasks:
        assert behind.est == pytest.approx(-ahead.est, abs=1e-12)


@given(both=shuffled_runs(), target=TARGETS)
def test_task_order_does_not_matter(both: tuple[tuple[Config, ...], tuple[Config, ...]], target: Target) -> None:
    (one, zero), (one_again, zero_again) = both
    first = delta_paired(one.x, one.n, zero.x, zero.n, target=target)
    second = delta_paired(one_again.x, one_again.n, zero_again.x, zero_again.n, target=target)
    values = [(first.lo, second.lo), (first.hi, second.hi), (first.p, second.p), (first.se, second.se)]
    rate, rate_again = rate_ci(one.x, one.n, target), rate_ci(one_again.x, one_again.n, target)
    values += list(zip(rate, rate_again, strict=True))
    for a, b in values:
        assert a == pytest.approx(b, abs=1e-9, nan_ok=True)


@given(run=runs())
def test_plain_estimators_never_invent_an_interval(run: tuple[Config, ...]) -> None:
    one, zero = run
    for function in (delta_se_fixed, delta_t):
        delta = function(one.x, one.n, zero.x, zero.n)
        assert not delta.guarded
        assert 0.0 <= delta.p <= 1.0
        if not delta.se > 0:
            assert delta.ci == Interval(-1.0, 1.0)


@given(run=runs(), margin=st.floats(0.001, 1.5), alpha=st.sampled_from([0.01, 0.05, 0.1]))
def test_tost_p_is_dual_to_its_interval(run: tuple[Config, ...], margin: float, alpha: float) -> None:
    one, zero = run
    delta = delta_paired(one.x, one.n, zero.x, zero.n)
    result = tost(delta, margin, alpha)
    assert 0.0 <= result.p <= 1.0
    # Intervals are clipped at +-1, so duality holds below that.
    assume(abs(result.smallest - margin) > 1e-9 and margin < 1.0)
    assert result.shown == (result.p < alpha)
    assert result.shown == (result.smallest < margin)


@given(run=runs())
def test_exact_tests_give_probabilities(run: tuple[Config, ...]) -> None:
    one, zero = run
    args = (one.x, one.n, zero.x, zero.n)
    two = cmh_exact_p(*args)
    up, down = cmh_exact_p(*args, "greater"), cmh_exact_p(*args, "less")
    for p in (two, up, down):
        assert 0.0 < p <= 1.0
    # Both tails hold the observed outcome.
    assert up + down >= 1.0 - 1e-9
    assert cmh_exact_p(zero.x, zero.n, one.x, one.n, "less") == pytest.approx(up, abs=1e-9)
    assert cmh_z2(*args) >= 0.0


@given(d=st.lists(DIFFERENCES, max_size=12))
def test_signflip_matches_enumeration(d: list[float]) -> None:
    values = np.array([v for v in d if v != 0], dtype=float)
    sums = np.zeros(1)
    for v in values:
        sums = np.concatenate([sums + v, sums - v])
    observed = abs(values.sum())
    exact = float(np.mean(np.abs(sums) >= observed - 1e-12))
    p = signflip(d)
    # Values off any common grid are rounded; ties then count against rejection only.
    near = float(np.mean(np.abs(sums) >= observed - 4e-4 * np.abs(values).sum()))
    assert exact - 1e-9 <= p <= near + 1e-9


@given(a=st.integers(0, 60), b=st.integers(0, 60), c=st.integers(0, 60), d=st.integers(0, 60), conf=CONF)
def test_newcombe_intervals_hold_the_difference(a: int, b: int, c: int, d: int, conf: float) -> None:
    n = a + b + c + d
    paired = newcombe_paired(a, b, c, d, conf)
    independent = newcombe(a + b, n, a + c, n, conf)
    for interval in (paired, independent):
        assert -1.0 - SLACK <= interval.lo <= interval.hi <= 1.0 + SLACK
        if n:
            assert interval.lo - SLACK <= (b - c) / n <= interval.hi + SLACK


@given(p=st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=12))
def test_adjusted_p_values_only_grow(p: list[float]) -> None:
    raw = np.array(p)
    for adjusted in (holm(p), bh(p)):
        made = ~np.isnan(raw)
        assert np.array_equal(np.isnan(adjusted), ~made)
        assert np.all(adjusted[made] >= raw[made] - SLACK)
        assert np.all(adjusted[made] <= 1.0)
        order = np.argsort(raw[made], kind="stable")
        assert np.all(np.diff(adjusted[made][order]) >= 0)
    assert np.all(holm(p)[~np.isnan(raw)] >= bh(p)[~np.isnan(raw)] - SLACK)


@given(run=runs(), q_source=st.sampled_from(["baseline", "both", "top"]))
def test_decomposition_is_an_identity(run: tuple[Config, ...], q_source: QSource) -> None:
    one, zero = run
    args = (one.x, one.e, one.n, zero.x, zero.e, zero.n)
    books, parts = accounting(*args), decompose(*args, q_source)
    if books.tasks == 0:
        assert math.isnan(books.dS)
        assert parts.infra_ci == Interval(-1.0, 1.0)
        return
    assert books.dS == pytest.approx(-books.dE - books.dF, abs=1e-12)
    assert parts.infra + parts.capability == pytest.approx(books.dS, abs=1e-12)
    # A crash removed is worth at most one pass.
    removed = np.maximum(np.array(zero.e) / np.maximum(zero.n, 1) - np.array(one.e) / np.maximum(one.n, 1), 0)
    both = (np.array(one.n) > 0) & (np.array(zero.n) > 0)
    assert parts.infra <= removed[both].mean() + SLACK
    for part, interval in ((parts.infra, parts.infra_ci), (parts.capability, parts.capability_ci)):
        assert -1.0 <= interval.lo <= interval.hi <= 1.0
        assert interval.lo - SLACK <= part <= interval.hi + SLACK


@given(run=runs(configs=1))
def test_score_variants_lie_within_the_bounds(run: tuple[Config, ...]) -> None:
    (config,) = run
    scores = score_variants(config.x, config.e, config.n)
    if scores.tasks == 0:
        assert math.isnan(scores.as_failure)
        return
    assert scores.bound_low == scores.as_failure
    assert scores.as_failure <= scores.bound_high + SLACK
    if not math.isnan(scores.imputed_within_task):
        assert scores.bound_low - SLACK <= scores.imputed_within_task <= scores.bound_high + SLACK
    if scores.excluded_tasks_dropped == 0:
        assert scores.excluded == pytest.approx(scores.imputed_within_task, abs=1e-12)


@settings(max_examples=60)
@given(run=runs(configs=3), eligible=st.sampled_from([None, (), (1,), (2,)]))
def test_calibration_is_defined_for_every_run(run: tuple[Config, ...], eligible: tuple[int, ...] | None) -> None:
    x, e, n = (np.array([getattr(c, name) for c in run]).T for name in ("x", "e", "n"))
    result = calibrate(x, e, n, 0.1, eligible=eligible)
    assert [row.config for row in result.rows] == [1, 2]
    assert (result.pick is not None) == (result.status == "calibrated")
    assert (result.candidate is None) == (result.status == "no-infra-reduction")
    if result.candidate is not None:
        row = result.rows[result.candidate - 1]
        assert row.p_infra_holm <= 0.05
        assert row.cut >= 0.5
        assert row.equivalence.shown == (result.status == "calibrated")
    if eligible is not None:
        assert result.candidate in (None, *eligible)


@settings(max_examples=60)
@given(run=runs(configs=3))
def test_trends_and_movers_are_defined_for_every_run(run: tuple[Config, ...]) -> None:
    x, n = (np.array([getattr(c, name) for c in run]).T.reshape(-1, 3) for name in ("x", "n"))
    forward = trend_stratified(x, n)
    backward = trend_stratified(x[:, ::-1], n[:, ::-1])
    assert backward.z == pytest.approx(-forward.z, abs=1e-9)
    for p in (forward.p, cochran_armitage(x.sum(axis=0), n.sum(axis=0)).p, trend_slopes(x, n).p):
        assert 0.0 <= p <= 1.0
    for mover in trend_flips(x, n):
        assert 0.0 < mover.p <= 1.0
        assert mover.moved == (mover.p_adj <= 0.10)
    for flip in flips(x[:, 2], n[:, 2], x[:, 0], n[:, 0]):
        assert 0.0 < flip.p <= 1.0
        assert flip.moved == (flip.p_adj <= 0.10)
        assert math.isnan(flip.lfsr) or 0.0 <= flip.lfsr <= 0.5


@given(run=runs(), rounds=st.integers(1, 6), data=st.data())
def test_looking_early_claims_less(run: tuple[Config, ...], rounds: int, data: st.DataObject) -> None:
    one, zero = run
    round_ = data.draw(st.integers(1, rounds))
    delta = delta_paired(one.x, one.n, zero.x, zero.n)
    result = look(delta, round_, rounds, 0.3)
    # A repeated interval is never narrower than a single look's, up to the integration's error.
    assert result.ci.lo <= delta.lo + 1e-6
    assert result.ci.hi >= delta.hi - 1e-6
    assert result.stop or round_ < rounds
