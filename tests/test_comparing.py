from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.comparing import CannotCompare
from pytest_infranoise.comparing import RunComparison
from pytest_infranoise.comparing import compare_runs
from pytest_infranoise.comparing import compare_scores
from pytest_infranoise.journal import Run
from pytest_infranoise.reports.comparison import render_runs
from pytest_infranoise.stats.gaps import ALLOWANCE
from pytest_infranoise.stats.gaps import published_se
from tests.builders import Counts
from tests.builders import run_of
from tests.measured import ENGINE
from tests.measured import run_of_records
from tests.measured import world
from tests.strategies import count_tables

LEADERBOARD = Path(__file__).parents[2] / "shared" / "data" / "terminal_bench_2_leaderboard.csv"


def made(counts: Counts, hashes: Callable[[str], str] = "0{}".format, **meta: Any) -> Run:
    """Return a run on the same host as every other."""
    run = run_of(counts, **{"engine": ENGINE, "workers": 2, **meta})
    return replace(run, records=tuple(replace(entry, task_hash=hashes(entry.key.task)) for entry in run.records))


def verdicts(found: RunComparison) -> list[str]:
    return [pair.gap.verdict for pair in found.pairs]


def table(passes: int, tasks: int = 20, samples: int = 5) -> dict[str, tuple[int, int]]:
    return {f"t{place:02}": (passes, samples - passes) for place in range(tasks)}


class TestScores:
    def test_the_three_verdicts(self) -> None:
        gaps = [compare_scores(0.441, score, 89, 5).gap.verdict for score in (0.46, 0.49, 0.52)]
        assert gaps == [
            "within sampling noise",
            "beyond noise but explainable by infrastructure",
            "distinguishable",
        ]

    def test_the_published_gaps(self) -> None:
        # statistics.md 2i, 89 tasks x 5 samples at a score of .60.
        others = compare_scores(0.6, 0.6, 89, 5).others
        assert [round(100 * half, 1) for half in others.values()] == [4.1, 5.4, 6.4, 9.4]
        assert list(others) == list(ALLOWANCE)

    def test_samples_of_one_side_matter(self) -> None:
        assert compare_scores(0.4, 0.5, 89, 5, 50).gap.se < compare_scores(0.4, 0.5, 89, 5).gap.se
        assert compare_scores(0.4, 0.5, 89, 1).gap.gap == pytest.approx(0.1)

    @given(
        st.floats(0, 1), st.floats(0, 1), st.integers(1, 500), st.integers(1, 20), st.sampled_from(list(ALLOWANCE))
    )
    def test_it_does_not_matter_which_is_first(
        self, a: float, b: float, tasks: int, samples: int, configs: Any
    ) -> None:
        one, other = (compare_scores(x, y, tasks, samples, configs=configs).gap for x, y in ((a, b), (b, a)))
        assert one.gap == pytest.approx(-other.gap)
        assert one.half == pytest.approx(other.half)
        assert one.verdict == other.verdict


@pytest.mark.skipif(not LEADERBOARD.exists(), reason=f"NO REAL DATA: {LEADERBOARD} is not here")
class TestTerminalBench2:
    def rows(self) -> list[tuple[float, float]]:
        with LEADERBOARD.open(encoding="utf-8") as file:
            return [(float(row["accuracy"]) / 100, float(row["stderr"]) / 100) for row in csv.DictReader(file)]

    def test_no_two_rows_less_than_3_points_apart_are_distinguishable(self) -> None:
        close = [
            (a, b) for (a, _), (b, _) in itertools.combinations(self.rows(), 2) if round(100 * abs(a - b), 2) < 3
        ]
        assert len(close) > 150
        told = [pair for pair in close if compare_scores(*pair, 89, 5).gap.verdict == "distinguishable"]
        assert told == []

    def test_rows_far_apart_are(self) -> None:
        scores = [score for score, _ in self.rows()]
        assert compare_scores(scores[0], scores[20], 89, 5).gap.verdict == "distinguishable"

    def test_the_assumed_error_is_about_the_published_one_and_seldom_below(self) -> None:
        ratios = [published_se(score, score, 89, 5) / 2**0.5 / se for score, se in self.rows() if se]
        assert min(ratios) > 0.95
        assert sum(ratios) / len(ratios) < 1.25


class TestRuns:
    def test_a_large_gap_on_the_same_tasks_is_distinguishable(self) -> None:
        found = compare_runs(made({"a": {"1x": table(1)}}), made({"a": {"1x": table(4)}}))
        (pair,) = found.pairs
        assert pair.gap.verdict == "distinguishable"
        assert pair.delta.est == pytest.approx(0.6)
        assert (pair.a.score, pair.b.score) == pytest.approx((0.2, 0.8))
        assert pair.gap.bias == 0

    def test_a_run_and_itself(self) -> None:
        run = made({"a": {"1x": table(2), "3x": table(3)}})
        found = compare_runs(run, run)
        assert verdicts(found) == ["within sampling noise"] * 2
        assert any("same trials" in note for note in found.notes)

    def test_changed_tasks_are_set_aside(self) -> None:
        before = made({"a": {"1x": {**table(0), "old": (5,)}}})
        after = made({"a": {"1x": {**table(5), "new": (5,)}}}, lambda task: "new" if task < "t05" else f"0{task}")
        found = compare_runs(before, after)
        assert (found.common, len(found.changed)) == (15, 5 + 0)
        assert (found.only_a, found.only_b) == (("old",), ("new",))
        assert found.pairs[0].tasks == 15

    def test_a_task_that_changed_within_a_run_is_set_aside_too(self) -> None:
        run = made({"a": {"1x": table(2)}})
        mixed = replace(run, records=(replace(run.records[0], task_hash="other"), *run.records[1:]))
        assert compare_runs(mixed, mixed).changed == ("t00",)

    def test_all_tasks_changed(self) -> None:
        run = made({"a": {"1x": table(2)}})
        with pytest.raises(CannotCompare, match="no task in common; 20 have the same name and another content"):
            compare_runs(run, made({"a": {"1x": table(2)}}, "new{}".format))

    def test_only_common_configs_and_agents(self) -> None:
        one = made({"a": {"1x": table(2), "3x": table(2)}, "b": {"1x": table(2)}})
        other = made({"a": {"3x": table(3), "5x": table(3)}, "c": {"3x": table(2)}})
        found = compare_runs(one, other)
        assert [(pair.a.agent, pair.a.config, pair.b.config) for pair in found.pairs] == [("a", "3x", "3x")]

    def test_the_only_agents_are_compared_whatever_their_names(self) -> None:
        found = compare_runs(made({"a": {"1x": table(2)}}), made({"b": {"1x": table(2)}}))
        assert [(pair.a.agent, pair.b.agent) for pair in found.pairs] == [("a", "b")]

    def test_agents_that_were_asked_for(self) -> None:
        run = made({"a": {"1x": table(1)}, "b": {"1x": table(4)}})
        found = compare_runs(run, run, agent_a="a", agent_b="b")
        assert verdicts(found) == ["distinguishable"]
        assert not found.notes
        with pytest.raises(CannotCompare, match="--agent-a: no agent 'z' in that run; it has a, b"):
            compare_runs(run, run, agent_a="z", agent_b="b")
        with pytest.raises(CannotCompare, match="which agents"):
            compare_runs(run, run, agent_a="a")

    def test_verdicts_hold_together(self) -> None:
        configs = {config: table(2) for config in ("1x", "2x", "3x", "5x")}
        found = compare_runs(made({"a": configs}), made({"a": configs}))
        assert found.level == pytest.approx(1 - 0.05 / 4)
        assert {pair.delta.conf for pair in found.pairs} == {found.level}

    @pytest.mark.parametrize(
        ("a", "b", "changes", "bias"),
        [
            ("1x", "1x", {}, 0.0),
            ("1x", "1x", {"workers": 9}, 0.02),
            ("1x", "1x", {"engine": {**ENGINE, "cpus": 64.0}}, 0.02),
            ("1x", "1x", {"engine": None}, 0.03),
            ("1x", "3x", {"engine": None}, 0.03),
            ("1x", "5x", {"engine": None}, 0.06),
            ("1x", "1x", {"configs": []}, 0.03),
            ("1x", "3x", {}, 0.02),
            ("1x", "5x", {}, 0.06),
            ("3x", "uncapped", {}, 0.06),
        ],
    )
    def test_what_the_machine_may_explain(self, a: str, b: str, changes: dict[str, Any], bias: float) -> None:
        found = compare_runs(made({"x": {a: table(2)}}), made({"x": {b: table(2)}}, **changes))
        assert found.pairs[0].gap.bias == bias

    def test_other_time_is_no_small_matter(self) -> None:
        rule = {"floor": 1.0, "ceiling": 1.0}
        longer = [{"name": "1x", "cpus": rule, "memory": rule, "time": 2.0}]
        found = compare_runs(made({"x": {"1x": table(2)}}), made({"x": {"1x": table(2)}}, configs=longer))
        assert found.pairs[0].gap.bias == 0.06

    def test_amounts_that_depend_on_the_task(self) -> None:
        rule = {"floor": 1.0, "ceiling": "512M"}
        named = [{"name": "own", "cpus": {"floor": 1.0, "ceiling": 1.0}, "memory": rule}]
        found = compare_runs(made({"x": {"1x": table(2)}}), made({"x": {"own": table(2)}}, configs=named))
        assert found.pairs[0].gap.bias == 0.03

    def test_what_makes_a_reader_careful_is_said(self) -> None:
        one = made({"x": {"1x": {"a": (1, 1, 0, 1)}}}, cut_short="-x stopped it")
        other = made({"x": {"1x": {"a": (1, 1)}}}, pass_threshold=0.5, policy={"oom_child": "fail"})
        other = replace(other, path=Path("elsewhere"))
        notes = "\n".join(compare_runs(one, other).notes)
        for part in ("drift", "A is not an estimate: -x", "A: 1 of 3 planned", "0.5 in B", "different policies"):
            assert part in notes

    def test_one_sample_and_few_tasks_claim_nothing(self) -> None:
        found = compare_runs(
            made({"x": {"1x": {"a": (1,), "b": (0, 1)}}}), made({"x": {"1x": {"a": (0, 1), "b": (0, 1)}}})
        )
        (pair,) = found.pairs
        assert pair.gap.verdict == "within sampling noise"
        assert pair.interval.lo <= 0 <= pair.interval.hi

    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [({}, "distinguishable"), ({"workers": 9}, "beyond noise but explainable by infrastructure")],
    )
    def test_a_change_that_is_exact_is_no_noise_though_its_interval_holds_0(
        self, changes: dict[str, Any], verdict: str
    ) -> None:
        before, after = ({f"t{n:02}": (10,) if n < ok else (0, 10) for n in range(20)} for ok in (9, 10))
        found = compare_runs(made({"a": {"1x": before}}), made({"a": {"1x": after}}, **changes))
        (pair,) = found.pairs
        assert pair.delta.p < 1e-4
        assert pair.interval.lo < 0 < pair.interval.hi
        assert (pair.size_unknown, pair.gap.verdict) == (True, verdict)
        text = " ".join(" ".join(render_runs(found, 80)).split())
        assert "A change is shown (exact p < .0001), its size is not: so few trials leave [-4.7, +14.6]." in text
        assert "A small p beside an interval that holds 0 shows that something changed" in text
        assert "Sampling alone explains" not in text

    def test_no_infra_error_is_no_rate_of_0(self) -> None:
        found = compare_runs(made({"a": {"1x": table(1)}}), made({"a": {"1x": table(4)}}))
        text = "\n".join(render_runs(found, 120))
        assert text.count("0 of 100, <=3.7%") == 2
        assert not re.search(r"\b0\.0$", text, re.MULTILINE)

    def test_a_run_that_is_no_estimate_gets_no_verdict(self) -> None:
        cut = made({"a": {"1x": table(1)}}, cut_short="-x stopped it")
        text = "\n".join(render_runs(compare_runs(cut, made({"a": {"1x": table(4)}})), 200))
        assert "1x: no verdict, A is not an estimate; by what was recorded distinguishable." in text
        text = "\n".join(render_runs(compare_runs(cut, replace(cut, path=Path("other"))), 200))
        assert "1x: no verdict, A and B are not an estimate; by what was recorded within sampling noise." in text

    def test_two_runs_that_say_nothing_of_their_hosts_are_not_the_same_kind(self) -> None:
        dark = [made({"x": {"1x": table(2)}}, engine=engine) for engine in (None, dict[str, Any]())]
        (pair,) = compare_runs(*dark).pairs
        assert (pair.gap.bias, pair.allowance) == (0.03, "same config, but a run does not tell its host")

    def test_the_verdict_is_the_interval_s(self) -> None:
        runs = [
            run_of_records(world(30, 4, ("1x", "3x"), seed=seed, lift={"3x": lift}))
            for seed, lift in enumerate((0.0, 0.1, 0.3), start=1)
        ]
        for a, b in itertools.combinations(runs, 2):
            for pair in compare_runs(a, b).pairs:
                noise = pair.interval.lo <= 0 <= pair.interval.hi
                assert (pair.gap.verdict == "within sampling noise") is noise

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(count_tables(), count_tables())
    def test_any_two_runs_give_verdicts_or_one_reason(self, a: Counts, b: Counts) -> None:
        try:
            found = compare_runs(made(a), made(b))
        except CannotCompare:
            return
        assert all(0 <= pair.a.score <= 1 and pair.tasks for pair in found.pairs)
        for pair in found.pairs:
            if pair.gap.verdict == "within sampling noise":
                assert pair.delta.p > 1 - found.level
        back = compare_runs(made(b), made(a))
        assert sorted(verdicts(back)) == sorted(verdicts(found))
