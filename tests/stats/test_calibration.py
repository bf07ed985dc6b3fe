"""Gate-then-TOST: the four outcomes, the order of ceilings, and its error rate at the margin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pytest_infranoise.stats.calibration import calibrate

Matrix = npt.NDArray[np.int64]
TASKS, SAMPLES = 40, 20


def run(scores: list[float], crashes: list[float]) -> tuple[Matrix, Matrix]:
    """Passes and infra errors of configs whose every task has exactly these rates."""
    spread = np.tile([-0.2, -0.1, 0.1, 0.2], TASKS // 4)
    x = np.rint((np.array(scores)[None, :] + spread[:, None]) * SAMPLES).astype(np.int64)
    e = np.rint(np.broadcast_to(crashes, (TASKS, len(crashes))) * SAMPLES).astype(np.int64)
    return x, e


def test_calibrated_when_errors_fall_and_the_score_stays() -> None:
    x, e = run([0.5, 0.5, 0.55], [0.2, 0.05, 0.0])
    # A score that stays must still vary by task, or nothing would be discordant.
    x[::2, 1] += 1
    x[1::2, 1] -= 1
    result = calibrate(x, e, SAMPLES, 0.05)
    assert (result.status, result.pick, result.candidate) == ("calibrated", 1, 1)
    assert result.rows[0].cut == pytest.approx(0.75)
    assert result.rows[0].equivalence.shown


def test_score_moves_stops_at_the_candidate() -> None:
    x, e = run([0.5, 0.6, 0.5], [0.2, 0.05, 0.0])
    result = calibrate(x, e, SAMPLES, 0.03)
    # Column 2 is equal to the baseline, but walking on to it would be a second chance.
    assert (result.status, result.pick, result.candidate) == ("score-moves", None, 1)


def test_inconclusive_when_neither_is_shown() -> None:
    x, e = run([0.5, 0.5], [0.2, 0.05])
    result = calibrate(x[:8], e[:8], SAMPLES, 0.03)
    assert (result.status, result.pick, result.candidate) == ("inconclusive", None, 1)


def test_for_the_population_tasks_are_what_is_drawn() -> None:
    # Errors of three tasks fall from 20 to 0 of 20: certain for these tasks, 1 in 8 by chance for tasks like these.
    n = np.full((3, 2), 20)
    x, e = np.zeros((3, 2), dtype=np.int64), np.array([[20, 0]] * 3)
    (these,) = calibrate(x, e, n, 0.05).rows
    (like_these,) = calibrate(x, e, n, 0.05, target="population").rows
    assert these.p_infra < 1e-20
    assert like_these.p_infra == pytest.approx(1 / 8)
    assert (these.gate, like_these.gate) == (True, False)


def test_a_small_cut_is_no_candidate() -> None:
    x, e = run([0.5, 0.5, 0.5], [0.2, 0.15, 0.05])
    result = calibrate(x, e, SAMPLES, 0.05)
    assert result.rows[0].p_infra_holm < 0.01
    assert result.rows[0].cut == pytest.approx(0.25)
    assert result.candidate == 2
    assert calibrate(x, e, SAMPLES, 0.05, min_cut=0.2).candidate == 1


@pytest.mark.parametrize("crashes", [[0.0, 0.0], [0.05, 0.2], [0.1, 0.1]])
def test_no_reduction_without_fewer_infra_errors(crashes: list[float]) -> None:
    x, e = run([0.5, 0.5], crashes)
    assert calibrate(x, e, SAMPLES, 0.05).status == "no-infra-reduction"


def test_no_infra_errors_at_the_baseline_leave_the_cut_undefined() -> None:
    x, e = run([0.5, 0.5], [0.0, 0.0])
    (row,) = calibrate(x, e, SAMPLES, 0.05).rows
    assert np.isnan(row.cut)
    assert row.p_infra == 1.0
    assert not row.gate


def test_only_eligible_configs_are_picked() -> None:
    x, e = run([0.5, 0.5, 0.5], [0.2, 0.05, 0.0])
    result = calibrate(x, e, SAMPLES, 0.05, eligible={2})
    assert result.candidate == 2
    assert len(result.rows) == 2


def test_baseline_alone_or_nothing_is_no_reduction() -> None:
    for x, e, n in (([[3]], [[1]], 5), (np.zeros((0, 3)), np.zeros((0, 3)), 5), ([], [], 0)):
        result = calibrate(x, e, n, 0.05)
        assert result.status == "no-infra-reduction"


@pytest.mark.parametrize(
    ("x", "e", "options"),
    [
        ([[3, 3]], [[3, 0]], {}),
        ([[3, 3]], [[1]], {}),
        ([[3, 3]], [[0, 0]], {"min_cut": 0.0}),
        ([[3, 3]], [[0, 0]], {"margin": 0.0}),
    ],
)
def test_bad_input_is_rejected(x: object, e: object, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"trials|min_cut|margin"):
        calibrate(x, e, 5, options.pop("margin", 0.05), **options)  # type: ignore[arg-type]


def test_wrong_picks_at_the_margin_stay_rare() -> None:
    rng = np.random.default_rng(20240607)
    margin, wrong, runs = 0.05, 0, 300
    for _ in range(runs):
        p = rng.beta(0.55 * 0.6, 0.45 * 0.6, 89)
        q = np.clip(p + margin * 89 / 20 * (np.arange(89) < 20), 0, 1)
        # Clipping eats part of the shift; the margin is set to what is really left.
        crash = np.where(np.arange(89) % 6 == 0, 0.35, 0.0)
        x = np.stack([rng.binomial(10, p), rng.binomial(10, q)], axis=1)
        e = np.stack([rng.binomial(10 - x[:, 0], crash), np.zeros(89, dtype=np.int64)], axis=1)
        wrong += calibrate(x, e, 10, float(np.mean(q - p))).status == "calibrated"
    # .05 plus three standard errors of the simulation.
    assert wrong / runs < 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)
