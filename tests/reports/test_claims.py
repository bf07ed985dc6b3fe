"""No sentence claims more than was tested: tables of counts for which a summary could say too much."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.analysis import analyse
from pytest_infranoise.config_grammar import describe_config
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.gates import evaluate
from pytest_infranoise.gates import parse_gate
from pytest_infranoise.journal import Run
from pytest_infranoise.model import Flag
from pytest_infranoise.model import TrialKey
from pytest_infranoise.planner import assumed_variance
from pytest_infranoise.planner import near_spec_of
from pytest_infranoise.reports.calibrating import render_calibration
from pytest_infranoise.reports.terminal import render
from tests.builders import Counts
from tests.builders import key
from tests.builders import large_counts
from tests.builders import run_of
from tests.builders import simulated_counts
from tests.strategies import count_tables

Row = Mapping[str, tuple[int, ...]]
CHAIN_NAMES = st.sampled_from(["1x", "2x", "3x", "5x", "uncapped"])


def tasks(number: int, cell: Callable[[int], tuple[int, ...]]) -> Row:
    return {f"t{place:02}": cell(place) for place in range(number)}


# All or none, and one task turns.
CRASH = {
    "1x": tasks(20, lambda n: (10,) if n < 9 else (0, 0, 10) if n == 9 else (0, 10)),
    "3x": tasks(20, lambda n: (10,) if n < 10 else (0, 10)),
}
# Ten tasks with the same cut in both; beside them a task that only 1x has, and one that only 3x has.
UNEVEN = {
    "1x": {**tasks(10, lambda _: (5, 2, 3)), "z": (0, 10)},
    "3x": {**tasks(10, lambda _: (5, 5)), "y": (0, 0, 10)},
}

# A small move that is sure.
MOVED = {
    "1x": tasks(100, lambda n: (30, 17, 3) if n < 40 else (50,) if n < 70 else (0, 50)),
    "3x": tasks(100, lambda n: (33, 17) if n < 40 else (50,) if n < 70 else (0, 50)),
}


def summary(run: Run, width: int = 100) -> str:
    """Return the summary on one line."""
    return " ".join(" ".join(render(analyse(run), width)).split())


def gate(text: str, run: Run) -> str:
    return evaluate(parse_gate(text), analyse(run)).line


class TestAChangeWhoseSizeIsNotShown:
    """Twenty all-or-none tasks of which one turns: p is exact and small, and the widened interval holds 0."""

    def test_the_note_explains_the_pair(self) -> None:
        text = summary(run_of({"a": CRASH}))
        assert "+5.0 [-4.7,+14.6] <.0001" in text
        assert "A small p beside an interval that holds 0 shows that something changed, and not how much." in text

    def test_the_note_is_there_for_nobody_else(self) -> None:
        assert "not how much" not in summary(
            run_of({"a": {name: tasks(4, lambda n: (3,)) for name in ("1x", "3x")}})
        )
        assert "not how much" not in summary(run_of(large_counts(89, 5)))

    def test_calibration_and_gate_say_so(self) -> None:
        run = run_of({"a": CRASH})
        text = summary(run)
        assert (
            "CALIBRATION the score moves: 3x has fewer infra-errors; whether the score moves by more than +-3pp "
            in text
        )
        assert "It moves: p < .0001; by how much is not shown." in text
        assert gate("calibrated", run).endswith("95% CI [-4.7, +14.6], p < .0001; by how much is not shown")


class TestFlips:
    def test_a_change_that_is_no_trend_is_not_called_chance(self) -> None:
        counts: Counts = {
            "a": {
                name: tasks(4, lambda n, p=passes: (p, 10 - p) if n == 0 else (10,))  # type: ignore[misc]
                for name, passes in (("1x", 0), ("3x", 10), ("uncapped", 0))
            }
        }
        text = summary(run_of(counts))
        assert "+25.0 [+11.1,+40.2] <.0001" in text
        assert "not findings: none is found singly (trend over all ceilings, 4 tasks)" in text

    def test_configs_that_are_no_chain_name_the_comparison_that_was_made(self) -> None:
        configs = [describe_config(config) for config in parse_configs(["base:memory=1x..1x,cpus=1x..1x"])]
        configs += [
            describe_config(config)
            for config in parse_configs(["mem:memory=1x..3x,cpus=1x..1x", "cpu:memory=1x..1x,cpus=1x..3x"])
        ]
        none = tasks(5, lambda _: (0, 10))
        counts: Counts = {"a": {"base": none, "mem": {**none, "t00": (10, 0)}, "cpu": none}}
        text = summary(run_of(counts, configs=configs, baseline="base"))
        assert "none is found singly (base against cpu, 5 tasks)" in text

    def test_many_small_moves_are_chance_one_by_one_only(self) -> None:
        counts: Counts = {
            "a": {
                name: tasks(12, lambda _, p=p: p)  # type: ignore[misc]
                for name, p in (("1x", (8, 1, 1)), ("3x", (5, 1, 4)), ("uncapped", (9, 1, 0)))
            }
        }
        text = summary(run_of(counts))
        assert "not findings: none is found singly (trend over all ceilings, 12 tasks)" in text
        assert "beyond what chance" not in text

    def test_a_task_of_one_config_has_not_passed_as_often_under_every_config(self) -> None:
        counts: Counts = {"a": {"1x": {"a": (3,), "b": (3,)}, "3x": {"a": (3,), "b": (0, 0, 0, 3)}}}
        text = summary(run_of(counts))
        assert "none; every task that ran under 1x and another config passed as often under both" in text


class TestMovers:
    @pytest.mark.parametrize(
        ("passes", "baseline", "told"),
        [
            ((0, 10, 9), "3x", "+t00 0->9 of 10"),
            ((2, 5, 8), "3x", "+t00 2->8 of 10"),
            ((0, 5, 10), "uncapped", "+t00 0->10 of 10"),
            ((10, 0, 0), "1x", "-t00 10->0 of 10"),
        ],
    )
    def test_the_direction_is_that_of_the_trend(self, passes: tuple[int, ...], baseline: str, told: str) -> None:
        configs = dict(zip(("1x", "3x", "uncapped"), passes, strict=True))
        counts: Counts = {
            "a": {
                name: tasks(3, lambda n, x=x: (x, 10 - x) if n == 0 else (0, 10))  # type: ignore[misc]
                for name, x in configs.items()
            }
        }
        assert f"false discovery rate 10%): {told}" in summary(run_of(counts, baseline=baseline))

    def test_where_the_ends_agree_all_configs_are_shown(self) -> None:
        passes = {"1x": 5, "1.5x": 0, "2x": 0, "3x": 10, "5x": 10, "uncapped": 5}
        counts: Counts = {"a": {name: {"t": (x, 10 - x), "u": (0, 10)} for name, x in passes.items()}}
        assert "+t 5->0->0->10->10->5 of 10" in summary(run_of(counts))

    @given(count_tables(CHAIN_NAMES), CHAIN_NAMES)
    @settings(max_examples=100, deadline=None)
    def test_every_mover_found_is_told_with_a_sign_its_counts_bear_out(self, counts: Counts, baseline: str) -> None:
        for agent in analyse(run_of(counts, baseline=baseline)).agents:
            for mover in agent.movers.found if agent.movers else ():
                assert (mover.before, mover.after) == (mover.cells[0], mover.cells[-1])
                if len([cell for cell in mover.cells if cell.recorded]) < 4 and mover.delta:
                    assert (mover.delta > 0) == mover.rising


class TestNewlySolved:
    def test_the_bound_is_that_of_the_interval(self) -> None:
        for seed in range(4):
            run = run_of(large_counts(60, 5, configs=("1x", "3x")))
            analysis = analyse(run)
            (comparison,) = analysis.agents[0].comparisons
            sure = max(0.0, -comparison.fail_rate.interval.hi)
            told = f"at least {100 * sure:.1f} with" if sure else "none shown with"
            assert f"{told} no assumption about the crashed trials" in summary(run), seed

    def test_failures_that_are_gone_for_sure_were_solved(self) -> None:
        counts: Counts = {
            "a": {"1x": tasks(40, lambda _: (2, 6, 2)), "3x": tasks(40, lambda n: (8, 2) if n % 2 else (6, 4))}
        }
        found = re.search(r"at least ([\d.]+) with no assumption", summary(run_of(counts)))
        assert found
        assert 20 < float(found[1]) < 30  # genuine failures fall by 30


class TestCalibration:
    def test_the_rates_beside_a_cut_are_of_the_same_tasks(self) -> None:
        text = summary(run_of({"a": UNEVEN}))
        assert "cut by about 100%, 30.0% -> 0 of 100, on the 10 tasks that ran under both" in text
        lines = " ".join(" ".join(render_calibration(analyse(run_of({"a": UNEVEN})), (), 100)).split())
        assert "cut and pHolm are of the tasks that ran under both configs, infra% is of all" in lines

    def test_what_cannot_be_compared_is_no_cut_of_0(self) -> None:
        counts: Counts = {
            "a": {"1x": tasks(6, lambda _: (3, 1, 1)), "3x": tasks(6, lambda _: (0, 0, 0, 5)), "5x": {"u": (3, 2)}}
        }
        text = summary(run_of(counts))
        assert "5x not comparable" in text
        assert "5x 0%" not in text

    def test_not_the_same_benchmark_only_beyond_the_margin(self) -> None:
        narrow, wide = (summary(run_of({"a": MOVED}, design={"margin": margin})) for margin in (0.01, 0.015))
        assert "3x has fewer infra-errors, and is not the same benchmark" in narrow
        assert "to settle" not in narrow
        assert "whether the score moves by more than +-1.5pp is not shown" in wide
        assert re.search(r"to settle \+-1.5pp: never; \+-5pp: \d+ samples/task, if d stays \+2.4", wide)

    def test_that_errors_fell_is_tested_and_by_how_much_is_not(self) -> None:
        text = "\n".join(render_calibration(analyse(run_of({"a": UNEVEN})), (), 100))
        assert "cuts enough" not in text
        assert re.search(r"^3x .* <\.0001 +shown +by estimate$", text, re.MULTILINE)


class TestPlanning:
    def test_for_tasks_like_these_more_tasks_are_needed(self) -> None:
        counts = large_counts(60, 5, configs=("1x", "3x"))
        some, more = (
            analyse(run_of(table, design={"target": "population", "margin": 0.05})).agents[0].planner
            for table in (counts, large_counts(60, 40, configs=("1x", "3x")))
        )
        assert some is not None
        assert more is not None
        assert (some.counts, some.variance, some.near_spec) == ("tasks", None, None)
        # By the standard error over tasks: z = 1.960 + .842 for a difference, 1.645 + 1.282 for equality at d = 0.
        se = analyse(run_of(counts, design={"target": "population"})).agents[0].comparisons[0].score.se
        assert se is not None
        assert some.detectable == pytest.approx(2.801585 * se, rel=1e-5)
        assert some.for_margin_if_zero == pytest.approx(60 * (2.926405 * se / 0.05) ** 2, abs=1)
        text = summary(run_of(counts, design={"target": "population"}))
        assert "smallest d that 60 tasks like these detect:" in text
        assert "samples/task" not in text

    def test_gates_ask_for_tasks_too(self) -> None:
        run = run_of(large_counts(20, 5, configs=("1x", "3x")), design={"target": "population"})
        assert "so few tasks show none below about" in gate("equivalent(3x,1x)", run)
        assert "with so many tasks it is shown from" in gate("delta(3x,1x) >= 20pp", run)

    def test_under_the_guard_nothing_is_planned(self) -> None:
        counts: Counts = {
            "a": {
                "1x": tasks(6, lambda n: (2, 4, 4) if n else (0, 10)),
                "3x": tasks(6, lambda n: (2, 8) if n else (9, 1)),
            }
        }
        text = summary(run_of(counts))
        assert "smallest d that would be detected cannot be told: few trials, or few tasks that differ" in text
        assert "to settle more data; how much cannot be told from so few trials" in text
        assert "samples/task" not in text

    @given(st.lists(st.sampled_from(["near", "starved", "late", "killed", "dark", "calm"]), min_size=2, max_size=6))
    @settings(max_examples=60, deadline=None)
    def test_summary_and_plan_count_the_same_tasks(self, kinds: list[str]) -> None:
        flags = {"starved": Flag.STARVED, "late": Flag.TIMED_OUT, "killed": Flag.OOM_KILLS}
        names = {f"{kind}-{place}": kind for place, kind in enumerate(kinds)}
        changed: dict[TrialKey, dict[str, Any]] = {}
        for (name, kind), config, sample in product(names.items(), ("1x", "3x"), range(4)):
            phases = {"agent": {"anonymous_peak": 90 if kind == "near" else 10}}
            changed[key(name, config, sample, "a")] = {
                "details": {} if kind == "dark" else {"phases": phases, "allocation": {"memory_floor": 100}},
                "flags": (flags[kind],) if kind in flags else (),
            }
        counts: Counts = {"a": {config: dict.fromkeys(names, (2, 2)) for config in ("1x", "3x")}}
        run = run_of(counts, changed)
        planner = analyse(run).agents[0].planner
        assert planner is not None
        rerun = near_spec_of(run, assumed_variance()).rerun
        assert len(names if planner.near_spec is None else planner.near_spec) == rerun


class TestWords:
    def test_no_movement_is_no_trend_shown(self) -> None:
        text = summary(run_of({"a": {name: tasks(3, lambda _: (1,)) for name in ("1x", "3x", "uncapped")}}))
        assert "no trend of pass shown (p = 1.000), no trend of infra shown (p = 1.000)" in text
        assert "flat" not in text

    def test_a_margin_that_the_run_does_not_state_was_not_fixed_before_it(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (1, 1)}}}
        assert "Margin +-3pp, fixed before the run." in summary(run_of(counts))
        assert "Margin +-3pp, the default: the run states none." in summary(run_of(counts, design={}))

    def test_a_ranking_is_by_estimate(self) -> None:
        better = {name: tasks(8, lambda n: (3, 2) if n else (4, 1)) for name in ("1x", "3x")}
        other = {name: tasks(8, lambda _: (3, 2)) for name in ("1x", "3x")}
        text = summary(run_of({"a": better, "b": other}))
        assert "ranking of the agents (by estimate, not tested), the same under every config: a > b" in text


class TestDocumentation:
    """What docs/statistics.md quotes is what is printed."""

    text = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text("utf-8")

    def test_every_column_is_explained_by_its_name(self) -> None:
        uneven: Counts = {"a": {"1x": {"t": (1, 1)}, "3x": {"t": (2, 2)}}}
        printed = [
            line
            for run in (run_of(large_counts(20, 5)), run_of(uneven))
            for line in render(analyse(run), 80)
            if line.startswith("config ")
        ]
        headings = {heading for line in printed for heading in re.split(r" {2,}", line)} - {"config"}
        assert {"trials", "excl. infra%", "same*", "pHolm"} <= headings
        for heading in headings:
            assert f"`{heading.removesuffix(' [95% CI]')}" in self.text, heading

    @pytest.mark.parametrize(
        "quoted",
        [
            "no ceiling is known to cut infra-errors enough",
            "the score moves: 3x has fewer infra-errors, and is not the same benchmark",
            "inconclusive; best candidate 3x",
            "calibrated: 3x instead of 1x",
            "tasks that move",
            "tasks that flip",
            "none shown",
            "no trend of pass shown",
        ],
    )
    def test_what_is_quoted_is_printed(self, quoted: str) -> None:
        same = {
            name: tasks(60, lambda n, cell=cell: cell if n < 10 else (20,) if n < 40 else (0, 20))  # type: ignore[misc]
            for name, cell in (("1x", (15, 4, 1)), ("3x", (16, 4)))
        }
        runs = (
            run_of(simulated_counts()),
            run_of({"a": same}),
            run_of({"a": MOVED}, design={"margin": 0.01}),
            run_of({"a": {name: tasks(3, lambda _: (1,)) for name in ("1x", "3x", "uncapped")}}),
            run_of(large_counts(8, 3)),
        )
        assert f"`{quoted}" in self.text
        printed = " ".join(map(summary, runs))
        assert quoted in printed

    def test_the_bound_of_clean_trials_is_the_printed_one(self) -> None:
        counts: Counts = {"a": {name: tasks(8, lambda _: (2, 1)) for name in ("1x", "3x")}}
        assert "0 of 24, at most 13.8%" in summary(run_of(counts), 160)
        assert "`0 of 24, at most 13.8%`" in self.text
