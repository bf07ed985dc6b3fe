"""Golden files show whole summaries; set INFRANOISE_UPDATE_GOLDEN=1 to write them, then read the difference."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
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
from pytest_infranoise.journal import Started
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import TrialKey
from pytest_infranoise.reports.terminal import render
from pytest_infranoise.reports.terminal import render_gates
from tests.builders import DEMO
from tests.builders import Counts
from tests.builders import key
from tests.builders import large_counts
from tests.builders import run_of
from tests.builders import simulated_counts
from tests.strategies import count_tables

GOLDEN = Path(__file__).parent / "golden"


def demo() -> Run:
    changed: dict[TrialKey, dict[str, Any]] = {
        key("fit-statistics", "1x", 1): {
            "reason": FailReason.AGENT_TIMEOUT,
            "flags": (Flag.TIMED_OUT, Flag.STARVED),
        },
        key("fit-statistics", "3x", 0): {"flags": (Flag.TIMED_OUT,)},
        key("join-spike", "3x", 0): {"flags": (Flag.OOM_KILLS,)},
        key("search", "1x", 2): {"cause": Cause.VERIFIER_ERROR},
    }
    return run_of(DEMO, changed)


def missing() -> Run:
    run = run_of(
        {
            "scripted": {
                "1x": {"a": (1, 1, 0, 1), "b": (0, 0, 0, 3)},
                "3x": {"a": (0, 0, 0, 3), "b": (2, 0, 1)},
                "uncapped": {"a": (3, 0, 0), "b": (1, 0, 0, 2)},
            }
        },
        cut_short="stopped by -x after the first failure",
        tasks={"collected": list("abcde"), "skipped": dict.fromkeys("cd", "needs a GPU"), "broken": 1},
        pass_threshold=0.5,
    )
    return replace(run, unfinished=(Started(key("b", "1x", 0), 0, "gw1"),), damaged=1)


def unequal() -> Run:
    """Samples that differ, a task with a single one, and tasks that a config lacks or that only one has."""
    return run_of(
        {
            "scripted": {
                "1x": {"a": (1, 5, 4), "b": (1, 0), "c": (2, 2), "only-1x": (3, 0)},
                "3x": {"a": (2, 1), "b": (4, 1), "c": (2, 2), "only-3x": (0, 3)},
                "uncapped": {"a": (5, 5), "b": (0, 0, 0, 2), "c": (4, 0)},
            }
        }
    )


RUNS: dict[str, Callable[[], Run]] = {
    "demo": demo,
    "large": lambda: run_of(large_counts(tasks=89, samples=5)),
    "simulated": lambda: run_of(simulated_counts()),
    "two-agents": lambda: run_of(large_counts(tasks=12, samples=3, agents=("scripted", "codex/gpt-9"))),
    "one-sample": lambda: run_of(large_counts(tasks=20, samples=1)),
    "one-trial": lambda: run_of({"oracle": {"1x": {"a": (1,)}}}),
    "all-infra": lambda: run_of(
        {"scripted": {name: {task: (0, 0, 3) for task in "abcd"} for name in ("1x", "3x")}}
    ),
    "missing": missing,
    "eight-tasks": lambda: run_of(large_counts(tasks=8, samples=3)),
    "unequal": unequal,
    "all-pass": lambda: run_of({"oracle": {name: {task: (3,) for task in "abcd"} for name in ("1x", "3x")}}),
    "no-trial": lambda: run_of({}),
    "nothing-recorded": lambda: run_of({"oracle": {name: {"a": (0, 0, 0, 2)} for name in ("1x", "3x")}}),
}


@pytest.mark.parametrize("width", [80, 110])
@pytest.mark.parametrize("name", RUNS)
def test_golden(name: str, width: int) -> None:
    lines = render(analyse(RUNS[name]()), width)
    golden = GOLDEN / f"{name}-{width}.txt"
    if os.environ.get("INFRANOISE_UPDATE_GOLDEN"):
        golden.write_text("\n".join(lines) + "\n", "ascii")
    assert lines == golden.read_text("ascii").splitlines()


def text_of(run: Run, width: int = 100) -> str:
    """Return the summary with wrapped lines joined again."""
    return re.sub(r"\n  (?=\S)", " ", "\n".join(render(analyse(run), width)))


@given(count_tables(), st.integers(80, 160))
@settings(max_examples=150, deadline=None)
def test_any_counts_fit_any_width_and_claim_no_zero(counts: Counts, width: int) -> None:
    for line in render(analyse(run_of(counts)), width):
        assert len(line) <= width
        assert line.isascii()
        assert line == line.rstrip()


@given(count_tables(st.sampled_from(["a", "b", "c", "d", "e", "f"])), st.integers(80, 160))
@settings(max_examples=150, deadline=None)
def test_no_number_is_undefined_or_a_zero_probability(counts: Counts, width: int) -> None:
    text = "\n".join(render(analyse(run_of(counts)), width))
    assert not re.search(r"\bnan\b|\binf\b|(?<![\d.])0?\.000+\b|-0\.0\b|None", text)


@given(
    count_tables(st.sampled_from(["1x", "2x", "3x", "5x", "uncapped"])),
    st.integers(60, 130),
    st.sampled_from([0.001, 0.05, 0.2]),
    st.sampled_from(["benchmark", "population"]),
)
@settings(max_examples=150, deadline=None)
def test_any_design_and_any_chain_fit_and_are_defined(
    counts: Counts, width: int, alpha: float, target: str
) -> None:
    lines = render(analyse(run_of(counts, design={"alpha": alpha, "target": target})), width)
    assert max(map(len, lines)) <= width
    assert not re.search(r"\bnan\b|\binf\b|(?<![\d.])0?\.000+\b|-0\.0\b|None", "\n".join(lines))


def test_what_intervals_cover_follows_the_design() -> None:
    text = text_of(run_of(DEMO, design={"target": "population", "alpha": 0.1, "margin": 0.025}), 120)
    assert "90% intervals describe tasks like these (target population), so they are wider" in text
    assert "pass% [90% CI]" in text
    assert "Margin +-2.5pp, fixed before the run." in text
    assert "90% CI [" not in text.split("CALIBRATION")[1]
    equivalence = text_of(run_of(CHAIN, design={"target": "population", "alpha": 0.1}))
    assert "within +-3pp of 1x's: d = 0.0, 80% CI [" in equivalence


def calibrated(text: str) -> str:
    """Return the lines about the calibration as one, with single spaces."""
    part = text[text.index("CALIBRATION") :].split("\n\n")[0]
    return re.sub(r"\s+", " ", part)


def cell(place: int, crashes: int, wobble: int) -> tuple[int, int, int]:
    more = wobble if place % 2 else -wobble
    return (8 + more, 12 - crashes - more, crashes) if place < 10 else (18 + more, 2 - more, 0)


# Ten hungry tasks crash under low ceilings. Under 3x half of the tasks pass once more, the others once less.
CHAIN: Counts = {
    "a": {
        name: {f"t{place:02}": cell(place, crashes, wobble) for place in range(60)}
        for name, crashes, wobble in (("1x", 10, 0), ("2x", 7, 0), ("3x", 1, 1), ("uncapped", 0, 0))
    }
}


class TestCalibration:
    def test_what_is_calibrated_is_shown_with_the_ceilings_that_fell_short(self) -> None:
        assert calibrated(text_of(run_of(CHAIN))) == (
            "CALIBRATION calibrated: 3x instead of 1x shown fewer infra-errors (Holm p < .0001); cut by about 90%, "
            "8.3% -> 0.8% pass rate within +-3pp of 1x's: d = 0.0, 90% CI [-2.3, +2.3] the grid is coarse: 2x cuts "
            "30% (Holm p = .0018)"
        )

    def test_what_would_settle_it(self) -> None:
        text = calibrated(text_of(run_of(CHAIN, design={"margin": 0.01})))
        assert "inconclusive; best candidate 3x" in text
        assert "p = 1.000 means that no difference was detected, not that there is none" in text
        assert re.search(r"to settle \+-1pp: \d+ samples/task; \+-5pp: \d+ samples?/task, if d stays 0.0", text)

    def test_a_score_that_moves_is_another_benchmark(self) -> None:
        moved = {f"t{place:02}": (18, 1, 1) if place < 10 else (18, 2, 0) for place in range(60)}
        text = calibrated(text_of(run_of({"a": {**CHAIN["a"], "3x": moved}})))
        assert "the score moves: 3x has fewer infra-errors, and is not the same benchmark" in text
        assert text.endswith("It moves: p < .0001.")

    def test_no_infra_error_is_nothing_to_reduce(self) -> None:
        clean: Counts = {"a": {name: {"t": (3, 3), "u": (4, 2)} for name in ("1x", "3x")}}
        assert "not shown anything to cut: 1x had 0 infra-errors in 12 trials, at most 24.3%" in calibrated(
            text_of(run_of(clean))
        )

    def test_few_of_all_tasks_may_settle_it(self) -> None:
        changed: dict[TrialKey, dict[str, Any]] = {}
        for config in ("1x", "2x", "3x", "uncapped"):
            for place, sample in product(range(60), range(20)):
                used = {"phases": {"agent": {"anonymous_peak": 90 if place < 10 else 10}}}
                details = {**used, "allocation": {"memory_floor": 100}}
                changed[key(f"t{place:02}", config, sample, "a")] = {"details": details}
        text = calibrated(text_of(run_of(CHAIN, changed, design={"margin": 0.01})))
        assert "rerunning only the 10 tasks that came near the spec: +-1pp:" in text

    def test_none_where_there_is_no_chain_or_no_estimate(self) -> None:
        assert "CALIBRATION  none: this run is not an estimate" in text_of(run_of(CHAIN, cut_short="stopped"))
        assert "no config has higher ceilings than the baseline uncapped" in text_of(
            run_of(CHAIN, baseline="uncapped")
        )
        configs = [describe_config(config) for config in parse_configs(["1x,3x", "ram:memory=1x..5x"])]
        counts: Counts = {"a": {name: CHAIN["a"]["1x"] for name in ("1x", "3x", "ram")}}
        text = text_of(run_of(counts, configs=configs))
        assert "no trend and no calibration, the configs are no chain of rising ceilings: neither of 3x and" in text
        assert "CALIBRATION" not in text


def test_a_ranking_that_depends_on_the_config_is_one_sentence() -> None:
    up = {"1x": {f"t{n:02}": (2, 8) for n in range(40)}, "3x": {f"t{n:02}": (7, 3) for n in range(40)}}
    same = {name: {f"t{n:02}": (5, 5) for n in range(40)} for name in ("1x", "3x")}
    text = text_of(run_of({"x": up, "y": same}))
    assert "ranking of the agents (by estimate, not tested), by config: 1x: y > x; 3x: x > y\n" in text
    assert (
        "the difference between agents depends on the config: x minus y is -30.0 under 1x and +20.0 under 3x"
        in text
    )
    text = text_of(run_of({"x": same, "y": same}))
    assert "ranking of the agents (by estimate, not tested), the same under every config: x = y\n" in text
    assert "the difference between agents is not shown to depend on the config" in text


def test_a_time_limit_is_not_booked_as_skill() -> None:
    text = text_of(demo())
    assert "agent timeout, a fail, and CPU-starved    1    0          0" in text
    assert "an agent timeout counts as a fail, yet shows a limit on time (or on CPU), not on skill" in text
    assert "not on skill" not in text_of(run_of(DEMO))


def test_what_trials_used_stands_below_what_ended_them() -> None:
    phases = {"agent": {"anonymous_peak": 300 * 1024**2, "seconds": 41.6, "throttled_share": 0.5}}
    text = text_of(run_of(DEMO, {key("search", "1x", 0): {"details": {"phases": phases}}}))
    rows = {line.split("  ")[0]: line.split()[-3:] for line in text.splitlines() if line.startswith("(")}
    assert rows == {
        "(agent's seconds, median)": ["42", "-", "-"],
        "(CPU periods throttled, median)": ["50%", "-", "-"],
        "(peak memory without page cache, largest)": ["300M", "-", "-"],
    }


def test_rounds_that_disturb_each_other_are_told() -> None:
    counts: Counts = {"a": {name: {f"t{n}": (4, 4) for n in range(8)} for name in ("1x", "3x")}}
    run = run_of(counts)
    # Under 3x every task passes in the rounds in which it fails under 1x.
    turned = tuple(
        replace(entry, key=replace(entry.key, sample=7 - entry.key.sample)) if entry.key.config == "3x" else entry
        for entry in run.records
    )
    text = text_of(replace(run, records=turned))
    assert "trials disturb each other, and intervals are too narrow" in text
    assert "disturb" not in text_of(run)
    timed = tuple(replace(entry, started=1e6 + entry.key.sample) for entry in run.records)
    assert "all rounds began within one hour: how scores vary from day to day was not measured" in text_of(
        replace(run, records=timed)
    )


def test_zero_is_never_printed_as_a_rate() -> None:
    text = text_of(run_of(DEMO), 120)
    assert "0 of 12, at most 24.3%" in text
    assert not re.search(r"(?<![\d.])0\.0 \[", text.split("\nd: ")[0])


def test_a_large_p_is_not_called_equality() -> None:
    same: Counts = {"scripted": {name: {"t": (5, 5), "u": (5, 5)} for name in ("1x", "3x")}}
    text = text_of(run_of(same))
    assert "1.000" in text
    assert "A large p means that no difference was shown, not that there is none." in text
    legend = "has been shown equal to 1x's"
    assert not re.search(r"\b(equal|identical|no effect|within noise|calibrated)\b", text.replace(legend, ""))


def test_what_intervals_cover_stands_above_the_first_table() -> None:
    lines = render(analyse(run_of(DEMO)), 100)
    covers = next(place for place, line in enumerate(lines) if "these tasks, not others like them" in line)
    assert covers < next(place for place, line in enumerate(lines) if line.startswith("config"))


def test_a_cut_run_says_so_first() -> None:
    lines = render(analyse(run_of(DEMO, cut_short="stopped by -x")), 100)
    assert lines[1] == "not an estimate: stopped by -x"


def test_a_baseline_with_all_p_one_config_has_no_holm() -> None:
    text = text_of(run_of({"a": {"1x": {"t": (1, 2)}, "3x": {"t": (2, 1)}}}))
    assert "pHolm" not in text


def test_ceilings_and_floors_are_told_in_multiples_of_the_spec() -> None:
    assert "ceiling, the hard limit: 1x = spec, 3x = 3 x spec, uncapped = none" in text_of(run_of(DEMO))
    rule = {"floor": 0.5, "ceiling": 1.0}
    odd = [
        {"name": "1x", "cpus": rule, "memory": rule},
        {"name": "ram", "cpus": rule, "memory": {**rule, "ceiling": 5}},
    ]
    text = text_of(run_of(DEMO, configs=odd))
    assert "1x = 0.5 x spec to spec, ram = 0.5 x spec to spec CPU and 0.5 x spec to 5 x spec memory" in text


def test_what_any_config_is_stands_in_the_summary() -> None:
    values = ["1x,task", "ram:memory=1x..5x", "slow:time=1.5x"]
    text = text_of(run_of(DEMO, configs=[describe_config(config) for config in parse_configs(values)]))
    assert (
        "ceiling, the hard limit: 1x = spec, task = the task's own, ram = spec CPU and 5 x spec memory, slow = "
        "spec; agent timeout: slow = 1.5 x the task's"
    ) in text

    values = ["amounts:memory=512M..1G,cpus=0.5..uncapped", "task"]
    text = text_of(run_of(DEMO, configs=[describe_config(config) for config in parse_configs(values)]))
    assert (
        "floor (guaranteed) to ceiling (hard limit): amounts = 0.5 to none CPU and 512M to 1G memory, "
        "task = spec to the task's own"
    ) in text
    assert "agent timeout:" not in text


def test_notes_on_the_configs_follow_what_they_are() -> None:
    lines = render(analyse(run_of(DEMO, config_notes=["3x is not what it seems"])), 120)
    assert lines[2] == "3x is not what it seems"


def test_tampering_is_counted_where_the_numbers_are() -> None:
    flags = {0: (Flag.TAMPERED, Flag.TOOLS_CHANGED), 1: (Flag.TOOLS_CHANGED,)}
    run = run_of(
        {"scripted": {"1x": {"t": (1, 1, 1)}}},
        {key("t", sample=sample): {"flags": flags[sample]} for sample in flags},
    )
    text = text_of(run)
    assert "1 trial with signs of tampering with the verdict: none is a pass" in text
    assert "2 trials changed programs that the verifier relies on, in ways that may be honest" in text


def test_notes_that_a_reader_needs() -> None:
    run = run_of(
        {"scripted": {"1x": {"t": (1, 0, 1)}}},
        {key("t", sample=0): {"flags": (Flag.LEAKED,)}, key("t", sample=1): {"cause": Cause.UNKNOWN}},
    )
    text = text_of(replace(run, retries=(run.records[0],)))
    assert "1 trial left a container behind that could not be removed" in text
    assert "1 trial ended for an unknown cause: too many to publish these numbers" in text
    assert "retries: 1 of 1 later attempt passed; rates are of first attempts" in text


def test_a_flip_is_called_a_finding_by_nobody() -> None:
    few = text_of(run_of({"a": {"1x": {"t": (0, 3)}, "3x": {"t": (3, 0)}}}))
    assert "with 3 samples even 0/3 against 3/3 has p = .100" in few
    many = text_of(run_of({"a": {"1x": {"t": (4, 5), "u": (5, 4)}, "3x": {"t": (5, 4), "u": (5, 4)}}}))
    assert "not findings: none is found singly (1x against 3x, 2 tasks)" in many


def test_a_task_that_moves_is_a_finding_beside_which_others_are_places_to_look() -> None:
    counts: Counts = {"a": {"1x": {"t": (0, 9), "u": (5, 4)}, "3x": {"t": (9, 0), "u": (6, 3)}}}
    text = text_of(run_of(counts))
    assert "tasks that move (1x against 3x, false discovery rate 10%): +t 0->9 of 9\n" in text
    assert "Those not named above are places to look, not findings" in text


def test_gate_lines_are_wrapped() -> None:
    results = [evaluate(parse_gate("infra-rate <= 5%"), analyse(run_of(DEMO)))]
    lines = render_gates(results, 80)
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(line.strip() for line in lines) == results[0].line
