"""Published results, judged by our functions: the numbers that others found in them come out again."""

from __future__ import annotations

import csv
import gzip
import itertools
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from pytest_infranoise.stats.gaps import gap_verdict
from pytest_infranoise.stats.rates import icc
from pytest_infranoise.stats.rates import mean_rate
from pytest_infranoise.stats.rates import rate_ci
from pytest_infranoise.stats.rates import se_fixed
from pytest_infranoise.stats.variants import score_variants

DATA = Path(__file__).parents[3] / "shared" / "data"
TRIALS = DATA / "terminal_bench_leaderboard_trials.csv.gz"
ROWS = DATA / "terminal_bench_2_leaderboard.csv"
SUBMISSIONS, TASKS, SAMPLES = 13, 80, 5
# Lost a third of its trials to a provider's outage, which the leaderboard counts as failures.
OUTAGE = "20250825_swe-agent-mini_claude-4-sonnet"

# submission -> task -> run -> (passed, an infra-error by a reading of its log)
Board = dict[str, dict[str, dict[str, tuple[bool, bool]]]]


@pytest.fixture(scope="module")
def board() -> Board:
    if not TRIALS.is_file():
        pytest.skip(f"{TRIALS} is not here")
    found: Board = defaultdict(lambda: defaultdict(dict))
    with gzip.open(TRIALS, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["source"] == "HEAD":
                ended = row["is_resolved"] == "1", row["derived_tag"] == "infra"
                found[row["submission"]][row["task_id"]][row["run"]] = ended
    assert len(found) == SUBMISSIONS
    assert all(len(tasks) == TASKS for tasks in found.values())
    return found


def passes(board: Board, submission: str) -> list[int]:
    return [sum(passed for passed, _ in runs.values()) for runs in board[submission].values()]


def test_tasks_hold_most_of_the_variance(board: Board) -> None:
    values = [icc(passes(board, submission), [SAMPLES] * TASKS) for submission in board]
    assert np.mean(values) == pytest.approx(0.69, abs=0.005)
    assert np.median(values) == pytest.approx(0.71, abs=0.005)


def test_scores_of_single_runs_vary_as_predicted(board: Board) -> None:
    """What repeats within one benchmark show is what the stratified SE says beforehand."""
    observed, predicted = [], []
    for submission, tasks in board.items():
        runs = sorted({run for ended in tasks.values() for run in ended})
        scores = [np.mean([ended[run][0] for ended in tasks.values()]) for run in runs]
        observed.append(np.var(scores, ddof=1))
        predicted.append(SAMPLES * se_fixed(passes(board, submission), [SAMPLES] * TASKS) ** 2)
    assert math.sqrt(np.mean(observed)) == pytest.approx(0.030, abs=0.0005)
    assert math.sqrt(np.mean(predicted)) == pytest.approx(0.029, abs=0.0005)


def test_scores_are_those_of_the_leaderboard(board: Board) -> None:
    scores = {submission: mean_rate(passes(board, submission), [SAMPLES] * TASKS) for submission in board}
    best, worst = max(scores, key=scores.__getitem__), min(scores, key=scores.__getitem__)
    assert (best, worst) == ("20250923_droid_claude-4-1-opus", OUTAGE)
    assert (scores[best], scores[worst]) == pytest.approx((0.5875, 0.1275))
    for submission, score in scores.items():
        interval = rate_ci(passes(board, submission), [SAMPLES] * TASKS)
        # Published as +- 2 to 3 points.
        assert interval.lo < score < interval.hi
        assert 0.01 < (interval.hi - interval.lo) / 2 < 0.035


def test_an_outage_scored_as_failures_moves_the_score(board: Board) -> None:
    infra = [sum(infra for _, infra in runs.values()) for runs in board[OUTAGE].values()]
    found = score_variants(passes(board, OUTAGE), infra, [SAMPLES] * TASKS)
    assert found.as_failure == pytest.approx(0.1275)
    assert found.pooled_excluded == pytest.approx(0.186, abs=0.0005)
    assert found.bound_low <= found.as_failure < found.excluded < found.bound_high


def test_no_rows_less_than_three_points_apart_are_distinguishable() -> None:
    if not ROWS.is_file():
        pytest.skip(f"{ROWS} is not here")
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = [
            (float(row["accuracy"]) / 100, float(row["stderr"]) / 100, int(row["n_tasks"]))
            for row in csv.DictReader(file)
            if row["stderr"] not in ("", "None") and float(row["stderr"]) > 0
        ]
    assert len(rows) > 40
    near = [pair for pair in itertools.combinations(rows, 2) if abs(pair[0][0] - pair[1][0]) < 0.03]
    assert len(near) > 50
    for (one, error_one, tasks), (two, error_two, _) in near:
        for se in (None, math.hypot(error_one, error_two)):
            gap = gap_verdict(one, two, tasks, SAMPLES, se=se)
            assert gap.verdict != "distinguishable"
    far = gap_verdict(0.60, 0.40, 89, SAMPLES)
    assert far.verdict == "distinguishable"
