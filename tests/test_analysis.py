from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings

from pytest_infranoise.analysis import analyse
from pytest_infranoise.analysis import infra_alternative
from pytest_infranoise.analysis import smallest_flip_p
from pytest_infranoise.journal import Started
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Timeouts
from tests.builders import DEMO
from tests.builders import Counts
from tests.builders import key
from tests.builders import record
from tests.builders import run_of
from tests.strategies import count_tables


def config(analysis: Analysis, name: str, agent: int = 0) -> ConfigResult:
    return next(result for result in analysis.agents[agent].configs if result.config == name)


class TestRates:
    def test_counts_and_macro_averages_of_the_demo(self) -> None:
        strict = config(analyse(run_of(DEMO)), "1x")
        assert (strict.passes, strict.fails, strict.infra, strict.recorded, strict.missing) == (3, 3, 6, 12, 0)
        assert strict.score.value == pytest.approx((1 / 3 + 0 + 0 + 2 / 3) / 4)
        assert strict.infra_rate.value == pytest.approx((1 / 3 + 1 + 2 / 3 + 0) / 4)
        # join-spike had infra-errors only, so three tasks are left: 1 of 2, 0 of 1, 2 of 3.
        assert strict.excluded.value == pytest.approx((1 / 2 + 0 + 2 / 3) / 3)
        assert (strict.excluded.tasks, strict.excluded.trials, strict.only_infra) == (3, 6, ("join-spike",))

    def test_no_event_in_twelve_trials_has_the_wilson_bound(self) -> None:
        z2 = 1.959963984540054**2
        rate = config(analyse(run_of(DEMO)), "uncapped").infra_rate
        assert (rate.value, rate.interval.lo) == (0.0, 0.0)
        assert rate.interval.hi == pytest.approx(z2 / (12 + z2))
        assert rate.method == "naive Wilson"

    def test_one_sample_is_naive_wilson(self) -> None:
        counts = {"a": {"1x": {f"t{place}": (int(place < 7), int(place >= 7)) for place in range(20)}}}
        rate = config(analyse(run_of(counts)), "1x").score
        z2, p, n = 1.959963984540054**2, 7 / 20, 20
        centre, spread = p + z2 / 2 / n, math.sqrt(z2) * math.sqrt(p * (1 - p) / n + z2 / 4 / n / n)
        assert rate.interval == pytest.approx(((centre - spread) / (1 + z2 / n), (centre + spread) / (1 + z2 / n)))
        assert rate.method == "naive Wilson"

    def test_many_samples_are_stratified_and_tighter_than_naive(self) -> None:
        counts = {"a": {"1x": {f"t{place:02}": (place % 6, 5 - place % 6) for place in range(60)}}}
        rate = config(analyse(run_of(counts)), "1x").score
        assert rate.method == "stratified Wilson"
        assert rate.interval.hi - rate.interval.lo < 2 * 1.96 * math.sqrt(0.25 / 300)

    def test_unequal_samples_are_a_mean_of_tasks_not_of_trials(self) -> None:
        rate = config(analyse(run_of({"a": {"1x": {"t": (9, 0), "u": (0, 1)}}})), "1x").score
        assert (rate.value, rate.events, rate.trials, rate.tasks) == (0.5, 9, 10, 2)

    def test_the_average_is_rounded_once(self) -> None:
        # In floats, (1/5 + 3/5 + 2/5) / 3 is 0.4000000000000001.
        assert (1 / 5 + 3 / 5 + 2 / 5) / 3 > 0.4
        counts = {"a": {"1x": {"t": (1, 4), "u": (3, 2), "v": (2, 3)}}}
        assert config(analyse(run_of(counts)), "1x").score.value == 0.4

    def test_missing_trials_enter_no_rate(self) -> None:
        result = config(analyse(run_of({"a": {"1x": {"t": (1, 1, 0, 2), "u": (0, 0, 0, 4)}}})), "1x")
        assert (result.planned, result.recorded, result.missing) == (8, 2, 6)
        assert (result.score.value, result.score.tasks, result.score.trials) == (0.5, 1, 2)

    def test_no_event_with_one_task_seen_once_still_has_a_bound(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (3,), "u": (3,), "v": (1, 0, 0, 2)}}}
        rate = config(analyse(run_of(counts)), "1x").infra_rate
        # As if each of the 3 tasks had been seen as seldom as the one that was seen least.
        assert rate.interval.hi == pytest.approx(1.959963984540054**2 / (3 + 1.959963984540054**2))

    def test_only_infra_errors(self) -> None:
        result = config(analyse(run_of({"a": {"1x": {"t": (0, 0, 3), "u": (0, 0, 3)}}})), "1x")
        assert (result.score.value, result.infra_rate.value, result.excluded.value) == (0.0, 1.0, None)
        assert tuple(result.excluded.interval) == (0.0, 1.0)
        assert result.only_infra == ("t", "u")

    def test_no_trial_at_all(self) -> None:
        analysis = analyse(run_of({}))
        assert (analysis.planned, analysis.recorded, analysis.agents, analysis.baseline) == (0, 0, (), None)


class TestDeltas:
    def test_score_delta_of_the_demo(self) -> None:
        agent = analyse(run_of(DEMO)).agents[0]
        assert [comparison.config for comparison in agent.comparisons] == ["3x", "uncapped"]
        top = agent.comparisons[1].score
        assert top.value == pytest.approx(8 / 12)
        assert (top.tasks, top.dropped) == (4, 0)
        assert top.interval.lo <= 8 / 12 <= top.interval.hi

    def test_infra_p_is_the_exact_permutation_p_of_a_fall(self) -> None:
        before, after = {"t": (0, 1, 2), "u": (1, 1, 1)}, {"t": (1, 2, 0), "u": (2, 0, 1)}
        run = run_of({"a": {"1x": before, "3x": after}})
        # Every way to deal each task's six trials, three to each config: 2 infra-errors of t, 2 of u.
        deals = [sum(place < 2 for place in chosen) for chosen in combinations(range(6), 3)]
        as_low = [first + second <= 1 for first, second in product(deals, deals)]
        delta = analyse(run).agents[0].comparisons[0].infra_rate
        assert delta.p == pytest.approx(sum(as_low) / len(as_low))

    def test_a_rise_of_infra_errors_is_no_evidence_of_a_fall(self) -> None:
        run = run_of({"a": {"1x": {"t": (5, 0, 0)}, "3x": {"t": (0, 0, 5)}}})
        delta = analyse(run).agents[0].comparisons[0].infra_rate
        assert (delta.value, delta.p) == (1.0, 1.0)

    def test_holm_allows_for_the_number_of_configs(self) -> None:
        comparisons = analyse(run_of(DEMO)).agents[0].comparisons
        low, high = sorted(comparison.infra_rate.p or 0.0 for comparison in comparisons)
        adjusted = sorted(comparison.infra_rate.p_holm or 0.0 for comparison in comparisons)
        assert adjusted == pytest.approx([2 * low, max(2 * low, high)])

    def test_only_tasks_with_trials_in_both_configs_are_compared(self) -> None:
        run = run_of({"a": {"1x": {"t": (0, 2), "u": (0, 2)}, "3x": {"t": (2, 0), "u": (0, 0, 0, 2), "v": (2, 0)}}})
        delta = analyse(run).agents[0].comparisons[0].score
        assert (delta.value, delta.tasks, delta.dropped) == (1.0, 1, 2)

    def test_no_common_task(self) -> None:
        delta = analyse(run_of({"a": {"1x": {"t": (1,)}, "3x": {"u": (1,)}}})).agents[0].comparisons[0].score
        assert (delta.value, delta.p, delta.p_holm, delta.tasks) == (None, None, None, 0)

    def test_all_or_none_everywhere_claims_no_certainty(self) -> None:
        same = {"t": (3, 0), "u": (0, 3)}
        delta = analyse(run_of({"a": {"1x": same, "3x": same}})).agents[0].comparisons[0].score
        assert (delta.value, delta.p) == (0.0, 1.0)
        assert delta.interval.lo < -0.2 < 0.2 < delta.interval.hi

    def test_the_baseline_is_the_one_in_run_json(self) -> None:
        agent = analyse(run_of(DEMO, baseline="3x")).agents[0]
        assert [(comparison.config, comparison.baseline) for comparison in agent.comparisons] == [
            ("1x", "3x"),
            ("uncapped", "3x"),
        ]


class TestBeside:
    def test_causes_largest_first(self) -> None:
        changed = {key("t", sample=place): {"cause": Cause.VERIFIER_ERROR} for place in (2, 3)}
        run = run_of({"scripted": {"1x": {"t": (1, 0, 3)}}}, changed)
        assert list(config(analyse(run), "1x").causes.items()) == [
            (Cause.VERIFIER_ERROR, 2),
            (Cause.RESOURCE_KILL, 1),
        ]

    def test_timeouts_by_how_the_trial_ended(self) -> None:
        changed: dict[TrialKey, dict[str, Any]] = {
            key("t", sample=0): {"flags": (Flag.TIMED_OUT, Flag.STARVED)},
            key("t", sample=2): {"reason": FailReason.AGENT_TIMEOUT, "flags": (Flag.TIMED_OUT,)},
            key("t", sample=3): {"reason": FailReason.AGENT_TIMEOUT},
            key("t", sample=4): {"reason": FailReason.TESTS_FAILED, "flags": (Flag.STARVED,)},
            key("t", sample=5): {"flags": (Flag.TIMED_OUT,)},
        }
        run = run_of({"scripted": {"1x": {"t": (2, 3, 1)}}}, changed)
        result = config(analyse(run), "1x")
        assert result.timeouts == Timeouts(fails=2, passes=1, infra=1)
        assert (result.timeouts.total, result.starved) == (4, 2)

    def test_a_pass_that_survived_a_kill_is_a_pass_and_is_counted(self) -> None:
        run = run_of({"scripted": {"1x": {"t": (2,)}}}, {key("t"): {"flags": (Flag.OOM_KILLS,)}})
        result = config(analyse(run), "1x")
        assert (result.survived_kills, result.passes, result.infra) == (1, 2, 0)

    def test_flips_are_sorted_by_size_and_leave_out_the_steady(self) -> None:
        flips = analyse(run_of(DEMO)).agents[0].flips
        assert [(flip.task, flip.largest) for flip in flips] == [
            ("join-spike", Fraction(1)),
            ("search", Fraction(1)),
            ("fit-statistics", Fraction(2, 3)),
        ]

    def test_unequal_samples_flip_by_share(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (1, 1), "u": (1, 1)}, "3x": {"t": (2, 2), "u": (2, 1)}}}
        assert [flip.task for flip in analyse(run_of(counts)).agents[0].flips] == ["u"]

    def test_a_task_that_one_config_lacks_does_not_flip(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (0, 0, 0, 2)}, "3x": {"t": (2, 0)}}}
        assert analyse(run_of(counts)).agents[0].flips == ()

    @pytest.mark.parametrize(("samples", "p"), [(1, 1.0), (3, 2 / 20), (5, 2 / 252)])
    def test_what_the_strongest_flip_could_show(self, samples: int, p: float) -> None:
        assert smallest_flip_p(samples) == pytest.approx(p)


class TestAccounts:
    def test_planned_is_recorded_plus_missing(self) -> None:
        analysis = analyse(run_of({"a": {"1x": {"t": (1, 1, 1, 2)}, "3x": {"t": (0, 0, 0, 5)}}}))
        assert (analysis.planned, analysis.recorded, analysis.missing) == (10, 3, 7)

    def test_records_that_were_not_planned_count_nowhere(self) -> None:
        run = run_of({"scripted": {"1x": {"t": (1,)}}})
        stray = record(key("elsewhere"), Verdict.FAIL)
        analysis = analyse(replace(run, records=(*run.records, stray)))
        assert (analysis.planned, analysis.recorded, analysis.unplanned) == (1, 1, 1)
        assert config(analysis, "1x").score.value == 1.0
        assert analysis.tasks.measured == ("t",)

    def test_unfinished_damaged_and_retries(self) -> None:
        run = run_of({"scripted": {"1x": {"t": (1, 0, 0, 1)}}})
        run = replace(
            run, unfinished=(Started(key("t", sample=1), 0, "gw0"),), damaged=2, retries=(run.records[0],)
        )
        analysis = analyse(run)
        assert (analysis.unfinished, analysis.damaged, analysis.retries) == (1, 2, 1)
        assert config(analysis, "1x").recorded == 1

    def test_tasks_measured_skipped_and_not_run(self) -> None:
        tasks = {"collected": ["t", "u", "v", "w"], "skipped": {"v": "needs a GPU"}, "broken": 1}
        coverage = analyse(run_of({"a": {"1x": {"t": (1,), "u": (0, 0, 0, 1)}}}, tasks=tasks)).tasks
        assert (coverage.measured, coverage.not_run, coverage.broken) == (("t",), ("u", "w"), 1)
        assert coverage.skipped == {"v": "needs a GPU"}
        assert coverage.collected == 5

    def test_agents_and_models_are_kept_apart(self) -> None:
        run = run_of({"x/m1": {"1x": {"t": (3, 0)}}, "x/m2": {"1x": {"t": (0, 3)}}, "y": {"1x": {"t": (0, 0, 3)}}})
        analysis = analyse(run)
        assert [agent.label for agent in analysis.agents] == ["x (m1)", "x (m2)", "y"]
        assert [config(analysis, "1x", place).score.value for place in range(3)] == [1.0, 0.0, 0.0]

    def test_configs_keep_the_order_in_which_they_were_given(self) -> None:
        run = run_of(DEMO)
        shuffled = replace(run, planned=tuple(reversed(run.planned)), records=tuple(reversed(run.records)))
        assert analyse(shuffled).configs == ("1x", "3x", "uncapped")
        assert analyse(shuffled).agents == analyse(run).agents


@given(count_tables())
@settings(max_examples=150, deadline=None)
def test_any_counts_are_accounted_for_and_bounded(counts: Counts) -> None:
    run = run_of(counts)
    analysis = analyse(run)
    assert analysis.planned == analysis.recorded + analysis.missing == len(run.planned)
    assert analysis.missing == len(run.missing)
    for agent in analysis.agents:
        for result in agent.configs:
            assert result.recorded == result.passes + result.fails + result.infra
            assert result.planned == result.recorded + result.missing
            assert sum(result.causes.values()) == result.infra
            for rate in (result.score, result.excluded, result.infra_rate):
                assert 0 <= rate.interval.lo <= rate.interval.hi <= 1
                assert (rate.value is None) == (rate.trials == 0)
                if rate.value is not None:
                    assert rate.interval.lo - 1e-12 <= rate.value <= rate.interval.hi + 1e-12
            if result.score.value is not None:
                assert result.infra_rate.value is not None
                assert result.score.value + result.infra_rate.value <= 1 + 1e-12
        for comparison in agent.comparisons:
            for delta in (comparison.score, comparison.infra_rate):
                assert (delta.value is None) == (delta.tasks == 0) == (delta.p is None)
                if delta.value is not None and delta.p is not None and delta.p_holm is not None:
                    assert -1 <= delta.interval.lo <= delta.value + 1e-12
                    assert delta.value - 1e-12 <= delta.interval.hi <= 1
                    assert 0 < delta.p <= delta.p_holm <= 1


@pytest.mark.parametrize(
    ("zero", "one", "side"),
    [
        ({"cpus": 1.0, "memory": 1.0}, {"cpus": 3.0, "memory": 3.0}, "less"),
        ({"cpus": 1.0, "memory": 1.0}, {"cpus": None, "memory": None}, "less"),
        ({"cpus": None, "memory": None}, {"cpus": 1.0, "memory": 1.0}, "greater"),
        ({"cpus": 1.0, "memory": 1.0}, {"cpus": 0.5, "memory": 2.0}, "two-sided"),
        ({"cpus": 1.0, "memory": 1.0}, {"cpus": 1.0, "memory": "512M"}, "two-sided"),
    ],
)
def test_the_configs_alone_set_what_the_infra_test_looks_for(
    zero: dict[str, Any], one: dict[str, Any], side: str
) -> None:
    def config_of(ceilings: dict[str, Any]) -> dict[str, Any]:
        return {resource: {"floor": 1.0, "ceiling": ceiling} for resource, ceiling in ceilings.items()}

    assert infra_alternative(config_of(zero), config_of(one)) == side
    assert infra_alternative(None, config_of(one)) == "two-sided"


def test_a_run_that_has_not_ended_is_no_estimate() -> None:
    run = run_of({"a": {"1x": {"t": (3,)}}}, finished=None)

    assert analyse(run).cut_short == "the run has not ended, or was killed"
