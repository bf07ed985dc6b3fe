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
from hypothesis import strategies as st

from pytest_infranoise.analysis import analyse
from pytest_infranoise.analysis import infra_alternative
from pytest_infranoise.analysis import smallest_flip_p
from pytest_infranoise.chains import calibration_problem
from pytest_infranoise.chains import chain
from pytest_infranoise.config_grammar import describe_config
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.design import Design
from pytest_infranoise.journal import Started
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Spread
from pytest_infranoise.results import TaskUsage
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


def peaks(place: TrialKey, anonymous: int, spec: int = 100, **details: Any) -> dict[TrialKey, dict[str, Any]]:
    """Return a record's change to one with a measured peak and the floor that it was given."""
    phases = {"agent": {"anonymous_peak": anonymous, "seconds": 5.0, "throttled_share": 0.25}}
    found = {"phases": phases, "allocation": {"memory_floor": spec}, **details}
    return {place: {"details": found, "peak_memory": 10 * anonymous, "seconds": 9.0}}


def _cell(place: int, crashes: int, wobble: int) -> tuple[int, int, int]:
    more = wobble if place % 2 else -wobble
    return (8 + more, 12 - crashes - more, crashes) if place < 10 else (18 + more, 2 - more, 0)


# Ten hungry tasks of sixty crash under 1x. Under 3x half of the tasks pass once more, the others once less.
CHAIN: Counts = {
    "a": {
        name: {f"t{place:02}": _cell(place, crashes, wobble) for place in range(60)}
        for name, crashes, wobble in (("1x", 10, 0), ("3x", 1, 1), ("uncapped", 0, 0))
    }
}


class TestConclusions:
    def test_calibration_is_the_rule_on_these_counts(self) -> None:
        agent = analyse(run_of(CHAIN)).agents[0]
        assert agent.chain == ("1x", "3x", "uncapped")
        found = agent.calibration
        assert found is not None
        assert (found.status, found.pick, found.candidate) == ("calibrated", "3x", "3x")
        assert [row.config for row in found.rows] == ["3x", "uncapped"]
        assert found.rows[0].cut == pytest.approx(0.9)
        # One number must not stand in two places with two values.
        for row, comparison in zip(found.rows, agent.comparisons, strict=True):
            assert row.p_infra_holm == comparison.infra_rate.p_holm
        equivalence = agent.comparisons[0].equivalence
        assert equivalence is not None
        assert equivalence.shown
        assert equivalence.smallest < 0.03

    def test_the_margin_and_the_cut_come_from_the_design(self) -> None:
        for design, status in (
            ({"margin": 0.01}, "inconclusive"),
            ({"min_cut": 0.95}, "no-infra-reduction"),
            ({"alpha": 0.2, "margin": 0.02}, "calibrated"),
        ):
            found = analyse(run_of(CHAIN, design=design)).agents[0].calibration
            assert found is not None
            assert found.status == status

    def test_no_ceiling_is_no_ceiling_to_recommend(self) -> None:
        counts: Counts = {"a": {name: CHAIN["a"][name] for name in ("1x", "uncapped")}}
        found = analyse(run_of(counts)).agents[0].calibration
        assert found is not None
        assert (found.status, found.candidate) == ("no-infra-reduction", None)
        assert found.rows[0].gate

    def test_only_configs_above_the_baseline_are_candidates(self) -> None:
        agent = analyse(run_of(CHAIN, baseline="3x")).agents[0]
        assert agent.calibration is not None
        assert [row.config for row in agent.calibration.rows] == ["uncapped"]
        top = analyse(run_of(CHAIN, baseline="uncapped")).agents[0]
        assert (top.calibration, top.chain) == (None, ("1x", "3x", "uncapped"))
        assert top.movers is not None
        assert (top.movers.baseline, top.movers.top) == ("1x", "uncapped")
        assert top.top == "3x"

    def test_the_order_of_ceilings_is_not_the_order_of_names(self) -> None:
        counts: Counts = {"a": {name: CHAIN["a"][name] for name in ("uncapped", "1x", "3x")}}
        agent = analyse(run_of(counts, baseline="1x")).agents[0]
        assert agent.chain == ("1x", "3x", "uncapped")
        assert agent.trends is not None
        assert agent.trends.configs == agent.chain

    def test_trends_fall_and_stay(self) -> None:
        trends = analyse(run_of(CHAIN)).agents[0].trends
        assert trends is not None
        assert trends.infra_rate.p is not None
        assert trends.infra_rate.p < 1e-6
        assert not trends.infra_rate.rising
        assert trends.score.p == pytest.approx(1.0)
        assert trends.infra_fit == pytest.approx((10 * 10 / 20 / 60, 10 * 1 / 20 / 60, 0))

    def test_two_configs_have_no_trend_and_configs_that_are_no_chain_neither(self) -> None:
        counts: Counts = {"a": {name: CHAIN["a"][name] for name in ("1x", "3x")}}
        assert analyse(run_of(counts)).agents[0].trends is None
        names = ["1x,3x", "ram:memory=1x..5x"]
        configs = [describe_config(config) for config in parse_configs(names)]
        other: Counts = {"a": {name: CHAIN["a"]["1x"] for name in ("1x", "3x", "ram")}}
        agent = analyse(run_of(other, configs=configs)).agents[0]
        assert (agent.chain, agent.trends, agent.calibration) == (None, None, None)
        assert agent.no_chain == "neither of 3x and ram gives at least as much of everything"
        assert len(agent.comparisons) == 2
        assert agent.movers is not None
        assert not agent.movers.by_trend

    @pytest.mark.parametrize(
        ("values", "order"),
        [
            (["3x,1x,uncapped"], ("1x", "3x", "uncapped")),
            (["1x", "ram:memory=1x..5x", "both:memory=1x..5x,cpus=1x..2x"], ("1x", "ram", "both")),
            (["1x", "slow:time=2x"], ("1x", "slow")),
            (["1x", "ram:memory=1x..5x", "cpu:cpus=1x..5x"], None),
            (["1x", "fix:memory=512M..1G"], None),
            (["1x,task"], None),
            (["1x", "again:time=1x"], None),
            (["3x", "slow:time=2x"], None),
        ],
    )
    def test_what_is_a_chain(self, values: list[str], order: tuple[str, ...] | None) -> None:
        rules = {config.name: describe_config(config) for config in parse_configs(values)}
        found, why = chain(list(rules), rules)
        assert found == order
        assert bool(why) == (order is None)

    @pytest.mark.parametrize(
        ("values", "baseline", "pick", "why"),
        [
            (["1x,3x,uncapped"], "1x", None, ""),
            (["1x,3x,uncapped"], "1x", "3x", ""),
            (["1x,3x,uncapped"], "1x", "uncapped", "uncapped is no ceiling above the baseline's; those are: 3x"),
            (["1x,3x,uncapped"], "1x", "1x", "1x is no ceiling above the baseline's; those are: 3x"),
            (["1x,3x,uncapped"], "3x", None, "no config has a memory ceiling above that of the baseline 3x"),
            (["1x,uncapped"], "1x", None, "no config has a memory ceiling above that of the baseline 1x"),
            (["1x"], "1x", None, "no config has a memory ceiling above"),
            (["1x,3x", "ram:memory=1x..5x"], "1x", None, "the configs are no chain of rising ceilings: neither"),
        ],
    )
    def test_what_can_never_be_calibrated_is_known_before_the_run(
        self, values: list[str], baseline: str, pick: str | None, why: str
    ) -> None:
        rules = {config.name: describe_config(config) for config in parse_configs(values)}
        found = calibration_problem(list(rules), rules, baseline, pick)
        assert found.startswith(why)
        assert bool(found) == bool(why)

    def test_samples_for_the_candidate(self) -> None:
        agent = analyse(run_of(CHAIN, design={"margin": 0.01})).agents[0]
        planner = agent.planner
        assert planner is not None
        assert (planner.config, round(planner.delta, 9), planner.tasks) == ("3x", 0.0, 60)
        assert planner.samples == pytest.approx(20)
        passes = [CHAIN["a"][name][f"t{place:02}"][0] for name in ("1x", "3x") for place in range(60)]
        variance = sum(x * (20 - x) / (20 * 19) for x in passes) / 120
        assert planner.variance == pytest.approx(variance)
        assert planner.for_margin == planner.for_margin_if_zero
        assert planner.for_margin is not None
        assert planner.for_margin > 20
        assert planner.detectable == pytest.approx(
            (1.959964 + 0.841621) * math.sqrt(2 * variance / 60 / 20), rel=1e-5
        )
        assert planner.near_spec is None

    def test_tasks_near_their_spec_are_those_that_a_ceiling_can_reach(self) -> None:
        three = {name: (1, 1) for name in ("low", "high", "dead")}
        counts: Counts = {"a": {"1x": {**three, "dead": (1, 0, 1)}, "3x": three}}
        changed: dict[TrialKey, dict[str, Any]] = {}
        for task, used in (("low", 70), ("high", 80), ("dead", 10)):
            for config, sample in product(("1x", "3x"), range(2)):
                changed |= peaks(key(task, config, sample, "a"), used)
        analysis = analyse(run_of(counts, changed))
        assert analysis.specs == {"dead": 100, "high": 100, "low": 100}
        planner = analysis.agents[0].planner
        assert planner is not None
        assert planner.near_spec is not None
        assert set(planner.near_spec) == {"high", "dead"}

    def test_rerunning_few_tasks_needs_fewer_samples(self) -> None:
        changed: dict[TrialKey, dict[str, Any]] = {}
        for place, config, sample in product(range(60), CHAIN["a"], range(20)):
            changed |= peaks(key(f"t{place:02}", config, sample, "a"), 90 if place < 10 else 10)
        planner = analyse(run_of(CHAIN, changed)).agents[0].planner
        assert planner is not None
        assert planner.near_spec == tuple(f"t{place:02}" for place in range(10))
        assert planner.for_five_near is not None
        assert planner.for_five is not None
        assert planner.for_five_near < planner.for_five

    def test_a_task_that_nobody_measured_may_be_near_its_spec(self) -> None:
        counts: Counts = {"a": {name: {"t": (1, 1), "u": (1, 1)} for name in ("1x", "3x")}}
        planner = analyse(run_of(counts, peaks(key("t", "1x", 0, "a"), 10))).agents[0].planner
        assert planner is not None
        assert planner.near_spec is None

    @pytest.mark.parametrize(("samples", "found"), [(4, []), (6, [("t", 1.0)])])
    def test_movers_need_five_samples(self, samples: int, found: list[tuple[str, float]]) -> None:
        before, after = {"t": (0, samples), "u": (1, samples - 1)}, {"t": (samples, 0), "u": (1, samples - 1)}
        movers = analyse(run_of({"a": {"1x": before, "3x": after}})).agents[0].movers
        assert movers is not None
        assert (movers.by_trend, movers.tasks) == (False, 2)
        assert [(mover.task, mover.delta) for mover in movers.found] == found

    def test_where_a_change_comes_from_adds_up(self) -> None:
        comparison = analyse(run_of(DEMO)).agents[0].comparisons[1]
        parts, split = comparison.accounting, comparison.decomposition
        assert parts is not None
        assert split is not None
        assert parts.dS == pytest.approx(-parts.dE - parts.dF) == pytest.approx(comparison.score.value)
        assert split.infra + split.capability == pytest.approx(parts.dS)
        assert comparison.fail_rate.value == pytest.approx(parts.dF)


class TestTargets:
    def test_for_tasks_like_these_intervals_are_wider_and_p_flips_signs(self) -> None:
        counts: Counts = {
            "a": {
                "1x": {f"t{place:02}": (place % 6, 5 - place % 6) for place in range(60)},
                "3x": {f"t{place:02}": (5 - place % 6, place % 6) for place in range(60)},
            }
        }
        these, like_these = (
            analyse(run_of(counts, design={"target": target})).agents[0] for target in ("benchmark", "population")
        )
        for one, other in zip(these.configs, like_these.configs, strict=True):
            assert one.score.value == other.score.value
            assert other.score.interval.lo < one.score.interval.lo < one.score.interval.hi < other.score.interval.hi
        assert like_these.configs[0].score.method == "clustered Wilson"
        assert like_these.comparisons[0].score.method == "paired-t"

    def test_the_infra_p_of_the_population_is_a_sign_flip(self) -> None:
        counts: Counts = {
            "a": {"1x": {name: (1, 0, 4) for name in "abc"}, "3x": {name: (5, 0, 0) for name in "abc"}}
        }
        delta = analyse(run_of(counts, design={"target": "population"})).agents[0].comparisons[0].infra_rate
        assert delta.p == pytest.approx(1 / 8)

    def test_alpha_sets_the_level_of_every_interval(self) -> None:
        wide, narrow = (analyse(run_of(CHAIN, design={"alpha": alpha})).agents[0] for alpha in (0.01, 0.2))
        for one, other in (
            (wide.configs[0].score, narrow.configs[0].score),
            (wide.comparisons[0].score, narrow.comparisons[0].score),
        ):
            assert one.interval.hi - one.interval.lo > other.interval.hi - other.interval.lo

    def test_an_earlier_run_has_the_defaults_and_a_later_one_may_say_more(self) -> None:
        assert analyse(run_of(DEMO)).design == Design()
        assert analyse(run_of(DEMO, design={"margin": 0.02, "looks": 3})).design == Design(margin=0.02)


class TestAgents:
    def test_the_ranking_may_depend_on_the_config(self) -> None:
        up = {"1x": {f"t{n:02}": (2, 8) for n in range(40)}, "3x": {f"t{n:02}": (7, 3) for n in range(40)}}
        same = {name: {f"t{n:02}": (5, 5) for n in range(40)} for name in ("1x", "3x")}
        (found,) = analyse(run_of({"x": up, "y": same})).interactions
        assert (found.one, found.zero, found.config, found.baseline) == ("x", "y", "3x", "1x")
        assert found.before == pytest.approx(-0.3)
        assert found.after == pytest.approx(0.2)
        assert found.delta.value == pytest.approx(0.5)
        assert found.reverses
        assert found.delta.interval.lo > 0.3
        assert found.delta.p_holm is not None
        assert found.delta.p_holm < 1e-6

    def test_every_pair_and_config_is_one_family(self) -> None:
        run = run_of({name: DEMO["scripted"] for name in ("x", "y", "z")})
        found = analyse(run).interactions
        assert len(found) == 3 * 2
        assert [entry.delta.p_holm for entry in found] == [1.0] * 6

    def test_agents_without_a_common_task_are_not_compared(self) -> None:
        run = run_of({"x": {"1x": {"t": (1,)}, "3x": {"t": (1,)}}, "y": {"1x": {"u": (1,)}, "3x": {"u": (1,)}}})
        assert analyse(run).interactions == ()


class TestMeasurements:
    def test_peaks_and_times_per_task_and_config(self) -> None:
        changed = peaks(key("t", sample=0), 60) | peaks(key("t", sample=1), 80)
        result = config(analyse(run_of({"scripted": {"1x": {"t": (2, 0, 1), "u": (1,)}}}, changed)), "1x")
        usage = result.usage
        assert usage.tasks["t"] == TaskUsage(trials=2, peak=800, anonymous=80, kills=1, seconds=9.0)
        assert usage.tasks["u"] == TaskUsage(trials=0, peak=None, anonymous=None, kills=0, seconds=0.0)
        assert usage.peak == Spread(2, 600, 700, 800)
        assert usage.throttled == Spread(2, 0.25, 0.25, 0.25)
        assert usage.agent_seconds == Spread(2, 5.0, 5.0, 5.0)

    @pytest.mark.parametrize(
        "details",
        [
            {},
            {"phases": None, "allocation": 3},
            {"phases": {"agent": [1]}, "allocation": {"memory_floor": "1G"}},
            {"phases": {"agent": {"anonymous_peak": "much", "seconds": None, "throttled_share": True}}},
        ],
    )
    def test_details_of_another_shape_measure_nothing(self, details: dict[str, Any]) -> None:
        run = run_of({"scripted": {"1x": {"t": (1,)}}}, {key("t"): {"details": details}})
        analysis = analyse(run)
        usage = config(analysis, "1x").usage
        assert (usage.anonymous, usage.throttled, usage.agent_seconds, analysis.specs) == (None, None, None, {})

    def test_timeouts_of_starved_trials_are_told_apart(self) -> None:
        changed: dict[TrialKey, dict[str, Any]] = {
            key("t", sample=0): {"reason": FailReason.AGENT_TIMEOUT, "flags": (Flag.TIMED_OUT, Flag.STARVED)},
            key("t", sample=1): {"reason": FailReason.AGENT_TIMEOUT, "flags": (Flag.TIMED_OUT,)},
            key("t", sample=2): {"reason": FailReason.TESTS_FAILED, "flags": (Flag.STARVED,)},
        }
        result = config(analyse(run_of({"scripted": {"1x": {"t": (0, 4)}}}, changed)), "1x")
        assert (result.timeouts.fails, result.timeouts.starved, result.starved) == (2, 1, 2)

    def test_rounds_and_hours(self) -> None:
        counts: Counts = {"a": {name: {f"t{n}": (3, 3) for n in range(6)} for name in ("1x", "3x")}}
        run = run_of(counts)
        records = tuple(replace(entry, started=1e6 + 3600.0 * (entry.key.sample // 2)) for entry in run.records)
        drift = analyse(replace(run, records=records)).agents[0].drift
        assert drift is not None
        assert (drift.tasks, drift.rounds, drift.slot) == (6, 6, "hour")
        assert drift.slots is not None
        # The builder lets every task pass in its first rounds: the second hour is half of that, the third nothing.
        assert (drift.slots.slots, drift.slots.measured, drift.slots.trusted) == (3, True, False)
        assert drift.slots.p < 1e-6
        assert drift.overdispersion == pytest.approx(0.0)
        assert analyse(run).agents[0].drift == replace(drift, slots=None)

    def test_a_task_that_lacks_a_round_does_not_make_rounds_differ(self) -> None:
        counts: Counts = {"a": {name: {"t": (2, 2), "u": (1, 1, 0, 2)} for name in ("1x", "3x")}}
        drift = analyse(run_of(counts)).agents[0].drift
        assert drift is not None
        assert (drift.tasks, drift.rounds) == (1, 4)
        assert analyse(run_of({"a": {"1x": {"t": (1,)}}})).agents[0].drift is None


DESIGNS = st.fixed_dictionaries(
    {
        "margin": st.sampled_from([0.001, 0.03, 0.5]),
        "alpha": st.sampled_from([0.0001, 0.05, 0.2]),
        "min_cut": st.sampled_from([0.1, 1.0]),
        "target": st.sampled_from(["benchmark", "population"]),
    }
)
KNOWN = st.sampled_from(["1x", "2x", "3x", "5x", "uncapped"])


@given(count_tables(KNOWN), DESIGNS, KNOWN)
@settings(max_examples=150, deadline=None)
def test_any_counts_and_any_design_are_judged(counts: Counts, design: dict[str, Any], baseline: str) -> None:
    analysis = analyse(run_of(counts, design=design, baseline=baseline))
    for agent in analysis.agents:
        for comparison in agent.comparisons:
            assert (comparison.equivalence is None) == (comparison.score.tasks == 0)
            if comparison.equivalence is not None:
                inside = max(-comparison.equivalence.interval.lo, comparison.equivalence.interval.hi)
                assert comparison.equivalence.shown == (inside < design["margin"])
        if agent.calibration is not None and agent.calibration.pick is not None:
            shown = agent.comparison(agent.calibration.pick)
            assert shown is not None
            assert shown.equivalence is not None
            assert shown.equivalence.shown
            assert agent.calibration.pick != "uncapped"
        if agent.planner is not None:
            planner = agent.planner
            assert planner.counts == ("tasks" if design["target"] == "population" else "samples")
            if planner.few or planner.counts == "tasks":
                assert planner.for_margin_near is None
            else:
                assert planner.variance is not None
                assert planner.variance > 0
            if planner.few:
                assert (planner.detectable, planner.for_margin, planner.for_margin_if_zero) == (None, None, None)
    for entry in analysis.interactions:
        assert entry.delta.p is not None
        assert 0 < entry.delta.p <= 1


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
