from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_infranoise.model import Flag
from pytest_infranoise.model import Verdict
from pytest_infranoise.peaks import usages
from pytest_infranoise.planner import Question
from pytest_infranoise.planner import assumed_variance
from pytest_infranoise.planner import make_plan
from pytest_infranoise.planner import measured_variance
from pytest_infranoise.planner import near_spec_of
from pytest_infranoise.stats.rates import within_task_variance
from tests.builders import key
from tests.builders import large_counts
from tests.builders import run_of
from tests.measured import details
from tests.measured import killed
from tests.measured import needing
from tests.measured import run_of_records
from tests.measured import run_with
from tests.measured import trial
from tests.measured import world

ASSUMED = assumed_variance()


class TestPlan:
    def test_the_published_table(self) -> None:
        # statistics.md 2j, E[p(1-p)] = .095.
        variance = replace(ASSUMED, value=0.095)
        plan = make_plan(Question(89, 2, 0.03, 0.03), variance, samples=(1, 3, 5, 10, 20, 40))
        assert [need.samples for need in plan.needs] == [21, 33, 132, 19]
        assert [round(100 * power.delta, 1) for power in plan.powers] == [12.9, 7.5, 5.8, 4.1, 2.9, 2.0]

    def test_holm_needs_more_and_only_with_several_others(self) -> None:
        needs = {need.label: need.samples for need in make_plan(Question(89, 4, None, 0.03), ASSUMED).needs}
        assert list(needs) == ["detect d = 3pp", "the same, 3 x Holm"]
        assert needs["detect d = 3pp"] is not None
        assert (needs["the same, 3 x Holm"] or 0) > needs["detect d = 3pp"]
        assert len(make_plan(Question(89, 2, None, 0.03), ASSUMED).needs) == 1

    def test_no_variance_means_no_number(self) -> None:
        plan = make_plan(Question(89, 3, 0.03, None), replace(ASSUMED, value=0.0))
        assert {(need.samples, need.split, need.few) for need in plan.needs} == {(None, None, None)}
        assert math.isnan(plan.powers[0].delta)

    def test_only_the_tasks_near_their_spec(self) -> None:
        run = run_of_records(world(40, 5))
        variance = measured_variance(run)
        assert variance is not None
        near = near_spec_of(run, ASSUMED)
        assert (near.tasks, near.unknown) == (10, 0)
        plan = make_plan(Question(40, 3, 0.03, None), variance, near)
        assert all(need.few and need.samples and need.few < need.samples for need in plan.needs)


class TestVariance:
    def test_of_a_run_is_the_mean_over_configs(self) -> None:
        counts = large_counts(20, 4, configs=("1x", "3x"))
        found = measured_variance(run_of(counts))
        assert found is not None
        columns = [counts["scripted"][config].values() for config in ("1x", "3x")]
        values = [within_task_variance([c[0] for c in column], [sum(c) for c in column]) for column in columns]
        assert found.value == pytest.approx(sum(values) / 2)
        assert (found.tasks, found.samples) == (20, 4)

    def test_of_several_agents_the_largest(self) -> None:
        run = run_of({"sure": {"1x": {"a": (4,), "b": (0, 4)}}, "unsure": {"1x": {"a": (2, 2), "b": (3, 1)}}})
        found = measured_variance(run)
        assert found is not None
        assert found.source == "unsure, mean of 1 config"
        assert found.rough

    @pytest.mark.parametrize("cells", [{}, {"a": (1,), "b": (0, 1)}, {"a": (3,), "b": (0, 0, 3)}])
    def test_nothing_that_varies_gives_none(self, cells: dict[str, tuple[int, ...]]) -> None:
        assert measured_variance(run_of({"scripted": {"1x": cells}})) is None

    def test_an_assumption_is_never_rough(self) -> None:
        assert not ASSUMED.rough
        assert ASSUMED.value == pytest.approx(0.4 * 0.24)


class TestNearSpec:
    """Whether a ceiling can have mattered to a trial; what is unknown must not count as far from the spec."""

    @pytest.mark.parametrize(
        ("need", "peak", "expected"),
        [
            (0.1, 0.5, False),
            (0.1, 1.0, False),  # the rest is page cache
            (0.85, 1.0, True),
            (0.85, None, True),
            (None, 0.5, False),  # a need is never above the peak
            (None, 1.0, None),
            (None, None, None),
        ],
    )
    def test_by_need_and_peak(self, tmp_path: Path, need: float | None, peak: float | None, expected: bool) -> None:
        (usage,) = usages(run_with(tmp_path, [trial(key(), need=need, peak=peak)]))
        assert usage.near_spec() is expected

    def test_a_sampled_peak_bounds_nothing(self, tmp_path: Path) -> None:
        (usage,) = usages(run_with(tmp_path, [trial(key(), peak=0.5, sampled=True)]))
        assert usage.near_spec() is None

    def test_a_kill_is_near_and_an_ending_from_outside_tells_nothing(self, tmp_path: Path) -> None:
        lost = trial(key(sample=1), Verdict.INFRA_ERROR, 0.1, peak=0.2)
        lost = replace(lost, cause=None)
        first, second = usages(run_with(tmp_path, [killed(key()), lost]))
        assert first.near_spec() is True
        assert second.near_spec() is None

    def test_lack_of_cpu_and_missing_trials_count_too(self, tmp_path: Path) -> None:
        records = [
            trial(key("calm"), need=0.1, peak=0.1),
            trial(key("starved"), need=0.1, peak=0.1, flags=(Flag.STARVED,)),
            trial(key("late"), Verdict.FAIL, need=0.1, peak=0.1, flags=(Flag.TIMED_OUT,)),
            trial(key("dark")),
        ]
        near = near_spec_of(run_with(tmp_path, records), ASSUMED)
        assert (near.tasks, near.unknown, near.rerun) == (2, 1, 3)
        run = run_of({"scripted": {"1x": {"gone": (0, 0, 0, 2)}}})
        assert near_spec_of(run, ASSUMED).unknown == 1


class TestUsages:
    def test_limits_are_those_read_back(self, tmp_path: Path) -> None:
        made = trial(key(config="3x"), need=1.5, peak=2.0)
        made = replace(made, details={**made.details, "limits": {"memory": 123, "cpus": 0.5}})
        (usage,) = usages(run_with(tmp_path, [made]))
        assert (usage.memory_ceiling, usage.cpus_ceiling) == (123, 0.5)
        assert usage.memory_spec == details()["allocation"]["memory_floor"]

    def test_uncapped_is_known_only_when_it_was_asked_for(self, tmp_path: Path) -> None:
        open_end, dark = trial(key(config="uncapped"), need=1), replace(trial(key("b", "uncapped")), details={})
        first, second = usages(run_with(tmp_path, [open_end, dark]))
        assert first.memory_ceiling == math.inf
        assert second.memory_ceiling is None
        assert second.memory_spec is None

    @pytest.mark.parametrize(
        "strange",
        [
            {"phases": None, "limits": [], "allocation": "none"},
            {"phases": {"agent": None}, "allocation": {"memory_floor": "much"}},
            {"phases": {"agent": {"anonymous_peak": True}}, "limits": {"memory": float("inf")}},
        ],
    )
    def test_strange_details_are_unknown(self, tmp_path: Path, strange: dict[str, object]) -> None:
        (usage,) = usages(run_with(tmp_path, [replace(trial(key()), details=strange)]))
        assert (usage.need, usage.memory_ceiling, usage.memory_spec) == (None, None, None)

    def test_a_kill_that_was_survived_is_its_own_ceiling_s_only_at_the_ceiling(self, tmp_path: Path) -> None:
        at, below = (
            trial(key(sample=place), need=0.9, peak=peak, flags=(Flag.OOM_KILLS,))
            for place, peak in enumerate((1.0, 0.9))
        )
        first, second = usages(run_with(tmp_path, [at, below]))
        assert first.own_kill
        assert second.killed
        assert not second.own_kill
        assert first.least_need == first.memory_ceiling

    def test_needing_more_than_the_ceiling_is_a_kill(self, tmp_path: Path) -> None:
        first, second = usages(run_with(tmp_path, [needing(key(), 2.0), needing(key(config="3x"), 2.0)]))
        assert first.own_kill
        assert second.passed
