"""`infranoise plan`, `compare` and `calibrate` as a user types them.

The golden texts say what each prints; set INFRANOISE_UPDATE_GOLDEN=1 to write them, then read the difference.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from click.testing import Result
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.cli import main
from pytest_infranoise.journal import Run
from pytest_infranoise.model import Flag
from pytest_infranoise.model import TrialKey
from tests.builders import key
from tests.builders import run_of
from tests.builders import write_run
from tests.measured import SPEC
from tests.measured import details
from tests.measured import run_with
from tests.measured import trial
from tests.measured import world

GOLDEN = Path(__file__).parent / "golden"
OLD, NEW, ADAPTS, TWO = (f"2026010{place}-000000-{letter * 6}" for place, letter in enumerate("abcd", start=1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of runs, written and read through the journal."""
    runs = tmp_path_factory.mktemp("runs")
    run_with(runs, world(24, 4), run=OLD)
    moved = world(24, 4, seed=2, lift={"1x": 0.3}, task_hash=lambda name: "new" if name < "task-03" else f"0{name}")
    run_with(runs, moved, run=NEW)
    run_with(runs, world(16, 3, adapts=True), run=ADAPTS)
    run_with(runs, world(12, 3, ("1x", "3x"), agents=("a", "b")), run=TWO)
    return runs


def infranoise(*args: str, columns: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, args)


SHOWN: dict[str, list[str]] = {
    "plan": ["plan", "--tasks", "89", "--margin", "3"],
    "plan-configs": [
        *("plan", "--tasks", "89", "--margin", "3", "--delta", "6", "--configs", "6"),
        *("--near-spec", "18", "--samples", "5", "--samples", "3"),
    ],
    "plan-from": ["plan", "--from", OLD],
    "compare-scores": ["compare", "44.1", "46.0", "--tasks", "89", "--samples", "5"],
    "compare-scores-known": [
        *("compare", "30", "38.5%", "--tasks", "89", "--samples", "5", "--samples-b", "3"),
        "--configs-documented",
    ],
    "compare-runs": ["compare", OLD, NEW],
    "compare-agents": ["compare", TWO, TWO, "--agent-a", "a", "--agent-b", "b"],
    "calibrate": ["calibrate", OLD],
    "calibrate-adapts": ["calibrate", ADAPTS],
    "calibrate-agents": ["calibrate", TWO],
}


def shown(runs: Path, name: str, columns: int) -> str:
    args = SHOWN[name]
    needs_runs = any(run in args for run in (OLD, NEW, ADAPTS, TWO))
    result = infranoise(*args, *(["--run-dir", str(runs)] if needs_runs else []), columns=columns)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", SHOWN)
def test_golden(runs: Path, name: str, columns: int) -> None:
    text = shown(runs, name, columns)
    golden = GOLDEN / f"{name}-{columns}.txt"
    if os.environ.get("INFRANOISE_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, "ascii")
    assert text == golden.read_text("ascii")


@pytest.mark.parametrize("columns", [40, 60, 80, 81, 95, 200])
@pytest.mark.parametrize("name", SHOWN)
def test_no_line_is_too_long_and_all_is_ascii(runs: Path, name: str, columns: int) -> None:
    text = shown(runs, name, columns)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= max(columns, 60)
    assert not re.search(r"\bnan\b|\binf\b|p = \.000|None", text)


class TestMistakes:
    @pytest.mark.parametrize(
        "args",
        [
            ["plan", "--tasks", "0"],
            ["plan", "--tasks", "many"],
            ["plan", "--no-such-option"],
            ["compare", "44.1"],
            ["compare", "44.1", "46", "--configs", "good"],
            ["calibrate", "a", "b"],
        ],
    )
    def test_wrong_options_are_one_line_too(self, args: list[str]) -> None:
        result = infranoise(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.splitlines()) == 1

    @pytest.mark.parametrize(
        ("args", "complaint"),
        [
            (["plan"], "--tasks: give the number of tasks"),
            (["plan", "--tasks", "89", "--margin", "0"], "--margin: give a number between 0 and 100, not 0"),
            (["plan", "--tasks", "89", "--margin", "nan"], "--margin: give a number between 0 and 100, not nan"),
            (["plan", "--tasks", "89", "--delta", "120"], "--delta"),
            (["plan", "--tasks", "89", "--power", "1"], "--power"),
            (["plan", "--tasks", "89", "--alpha", ".5"], "--alpha"),
            (["plan", "--tasks", "89", "--icc", "1"], "--icc"),
            (["plan", "--tasks", "89", "--score", "100"], "--score"),
            (["plan", "--tasks", "9", "--near-spec", "10"], "--near-spec: 10 is more than the 9 tasks"),
            (["plan", "--from", "nosuch"], "no run 'nosuch'"),
            (["compare", "101", "40", "--tasks", "89", "--samples", "5"], "scores are in percent"),
            (["compare", "nan", "40", "--tasks", "89", "--samples", "5"], "scores are in percent"),
            (["compare", "44", "46", "--samples", "5"], "--tasks: two scores need"),
            (["compare", "44", "46", "--tasks", "89"], "--samples: two scores need"),
            (["compare", "44", "nosuch"], "44 is a score and nosuch is not"),
            (["compare", "nosuch", "44"], "44 is a score and nosuch is not"),
            (["compare", "44", "46", "--agent-a", "x"], "--agent-a is for two runs"),
            (["compare", "a", "b", "--tasks", "9"], "--tasks is for two scores"),
            (["compare", "a", "b", "--no-configs-documented"], "--configs-documented is for two scores"),
            (["compare", "44", "46", "--icc", "-1", "--tasks", "9", "--samples", "1"], "--icc"),
            (["compare", "44", "46", "--alpha", "2"], "--alpha"),
            (
                [
                    "compare",
                    "44",
                    "46",
                    "--configs",
                    "same",
                    "--configs-documented",
                    "--tasks",
                    "9",
                    "--samples",
                    "1",
                ],
                "say the same thing",
            ),
            (["compare", "nosuch", "other"], "no run 'nosuch'"),
            (["calibrate", "nosuch"], "no run 'nosuch'"),
            (["calibrate", "--force"], "--force: only with --write-spec"),
            (["calibrate", "--write-spec", "spec.txt"], "--write-spec: spec.txt: the suffix says the format"),
        ],
    )
    def test_one_clear_line_and_status_2(
        self, args: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = infranoise(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert complaint in result.stderr
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize("args", [["compare", "44"], ["compare", "-5", "4"], ["plan", "--tasks", "0"]])
    def test_what_click_refuses_has_the_same_status(self, args: list[str]) -> None:
        assert infranoise(*args).exit_code == 2

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(
            st.one_of(st.text(max_size=20), st.floats().map(str), st.just("0" * 400), st.just("44.1")),
            min_size=2,
            max_size=2,
        )
    )
    def test_whatever_is_compared_is_a_verdict_or_one_line(self, names: list[str]) -> None:
        result = infranoise("compare", "--tasks", "89", "--samples", "5", "--", *names)
        assert result.exit_code in (0, 2)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output

    def test_runs_that_cannot_be_compared(self, runs: Path, tmp_path: Path) -> None:
        run_with(tmp_path, [trial(key("other"))], run=OLD)
        result = infranoise("compare", str(runs / OLD), str(tmp_path / OLD))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "have no task in common" in result.stderr

    def test_a_run_without_a_record(self, tmp_path: Path) -> None:
        run = replace(run_with(tmp_path, [trial(key())], run=OLD), records=())
        (tmp_path / OLD / "trials-main.jsonl").unlink()
        assert run.planned
        result = infranoise("calibrate", str(tmp_path / OLD))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "no trial of this run has a record" in result.stderr
        planned = infranoise("plan", "--from", str(tmp_path / OLD))
        assert planned.exit_code == 0
        assert "no task whose outcomes varied" in " ".join(planned.stdout.split())


class TestPlan:
    def test_a_run_cut_short_is_named_as_what_it_is(self, tmp_path: Path) -> None:
        run_with(tmp_path, world(12, 4), run=OLD, cut_short="-x stopped it")
        text = infranoise("plan", "--from", str(tmp_path / OLD)).stdout
        assert "a run that is not an estimate, -x stopped it" in " ".join(text.split())

    def test_tasks_of_another_benchmark_are_not_said_to_be_near_their_spec(self, runs: Path) -> None:
        own, other = (
            infranoise("plan", "--from", OLD, "--run-dir", str(runs), *more).stdout
            for more in ([], ["--tasks", "89"])
        )
        assert "near spec" in own
        assert "near spec" not in other
        assert "for 89 tasks x 3 configs" in " ".join(other.split())

    def test_a_stated_variance_is_used_whatever_the_run_shows(self, runs: Path) -> None:
        text = infranoise("plan", "--from", OLD, "--run-dir", str(runs), "--icc", "0").stdout
        assert "0.240 (assumed: score 60%, ICC 0)" in " ".join(text.split())

    @pytest.mark.parametrize("target", ["benchmark", "population"])
    def test_a_run_that_was_made_for_tasks_like_these(self, tmp_path: Path, target: str) -> None:
        design = {"margin": 0.03, "alpha": 0.05, "min_cut": 0.5, "target": target}
        run_with(tmp_path, world(12, 4), run=OLD, design=design)
        text = " ".join(infranoise("plan", "--from", str(tmp_path / OLD)).stdout.split())
        assert ("no number of samples of the same tasks gets below" in text) == (target == "population")

    def test_a_margin_that_takes_for_ever(self) -> None:
        result = infranoise("plan", "--tasks", "1", "--margin", "0.0001", "--configs", "9")
        assert result.exit_code == 0

    def test_no_difference_is_larger_than_100_points(self) -> None:
        text = infranoise("plan", "--tasks", "1").stdout
        assert re.search(r"^ +1 +none +none$", text, re.MULTILINE)
        assert not re.search(r"\d{3}\.\dpp", text)


class TestCompare:
    def test_a_directory_that_is_named_like_a_score(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(runs)
        Path("44").symlink_to(OLD)
        assert infranoise("compare", "44", NEW, "--run-dir", str(runs)).exit_code == 0
        Path("44").unlink()

    def test_scores_that_look_like_proportions_are_pointed_out(self) -> None:
        text = infranoise("compare", "0.44", "0.46", "--tasks", "89", "--samples", "5").stdout
        assert "scores are in percent" in text


class TestCalibrate:
    def test_one_config_says_what_is_missing(self, tmp_path: Path) -> None:
        run_with(tmp_path, world(6, 2, ("1x",)), run=OLD)
        text = " ".join(infranoise("calibrate", str(tmp_path / OLD)).stdout.split())
        assert "CALIBRATION none: " in text
        assert "SHADOW CEILINGS none: no ceiling below that of 1x" in text

    def test_configs_that_are_no_chain(self, tmp_path: Path) -> None:
        strict, high = {"floor": 1.0, "ceiling": 1.0}, {"floor": 1.0, "ceiling": 3.0}
        configs = [{"name": "1x", "cpus": high, "memory": strict}, {"name": "3x", "cpus": strict, "memory": high}]
        run_with(tmp_path, world(6, 2, ("1x", "3x")), run=OLD, configs=configs)
        text = " ".join(infranoise("calibrate", str(tmp_path / OLD)).stdout.split())
        assert "CALIBRATION none: " in text
        assert "SHADOW CEILINGS a forecast from 12 trials" in text

    def test_a_run_without_measurements(self, tmp_path: Path) -> None:
        records = [replace(entry, details={}, peak_memory=None) for entry in world(12, 4)]
        run_with(tmp_path, records, run=OLD)
        target = tmp_path / "spec.json"
        text = " ".join(
            infranoise("calibrate", str(tmp_path / OLD), "--write-spec", str(target), columns=200).stdout.split()
        )
        assert "CALIBRATION" in text
        assert "SHADOW CEILINGS none: no trial has a sample of memory" in text
        assert "floors and ceilings of 12 tasks, 0 complete" in text

    def test_a_forecast_that_fits_is_not_called_equal_and_no_kill_is_no_rate_of_0(self, runs: Path) -> None:
        text = infranoise("calibrate", OLD, "--run-dir", str(runs), columns=120).stdout
        assert "fits: no difference beyond noise was seen, which does not show that there is none" in text
        shadows = text[text.index("SHADOW CEILINGS") :]
        assert re.search(r"^  5x +0 of \d+, <=[\d.]+% ", shadows, re.MULTILINE)
        assert not re.search(r"^  \S+ +0\.0 ", shadows, re.MULTILINE)


class TestWriteSpec:
    def test_it_writes_says_what_is_blank_and_keeps_what_is_there(self, runs: Path, tmp_path: Path) -> None:
        target = tmp_path / "spec.yaml"
        args = ["calibrate", OLD, "--run-dir", str(runs), "--write-spec", str(target)]
        result = infranoise(*args, columns=200)
        assert result.exit_code == 0
        assert f"written: {target}, floors and ceilings of 24 tasks" in result.stdout
        document = yaml.safe_load(target.read_text())
        assert document["run"] == OLD
        assert len(document["tasks"]) == 24
        again = infranoise(*args)
        assert (again.exit_code, again.stdout) == (2, "")
        assert "exists already" in again.stderr
        assert infranoise(*args, "--force").exit_code == 0

    def written(self, tmp_path: Path, run: Run) -> str:
        path = write_run(run, tmp_path)
        target = tmp_path / "spec.json"
        result = infranoise("calibrate", str(path), "--write-spec", str(target), columns=300)
        assert result.exit_code == 0
        return result.stdout[result.stdout.index("written:") :]

    @staticmethod
    def tasks(hungry: tuple[int, ...], passing: int = 40) -> dict[str, tuple[int, ...]]:
        ends = {n: hungry if n < 10 else (20,) if n < passing else (0, 20) for n in range(60)}
        return {f"t{n:02}": ends[n] for n in range(60)}

    def test_a_ceiling_that_one_agent_picked_is_not_calibrated_for_the_other(self, tmp_path: Path) -> None:
        a = {"1x": (15, 4, 1), "3x": (16, 4), "5x": (16, 4)}
        b = {"1x": (14, 4, 2), "3x": (14, 4, 2), "5x": (15, 5)}
        counts = {
            "a": {name: self.tasks(cell, 50 if name == "5x" else 40) for name, cell in a.items()},
            "b": {name: self.tasks(cell) for name, cell in b.items()},
        }
        text = self.written(tmp_path, run_of(counts, run=OLD))
        assert "not calibrated: these ceilings are what killed nothing; they are from 5x, and the score is" in text
        assert "shown to stay for a under 3x, for b under 5x only" in text

    def test_a_ceiling_that_both_picked_is(self, tmp_path: Path) -> None:
        cells = {"1x": (15, 4, 1), "3x": (16, 4)}
        counts = {agent: {name: self.tasks(cell) for name, cell in cells.items()} for agent in ("a", "b")}
        assert "not calibrated" not in self.written(tmp_path, run_of(counts, run=OLD))

    def test_a_score_that_moves_was_shown_to(self, tmp_path: Path) -> None:
        counts = {"a": {"1x": self.tasks((15, 4, 1)), "3x": self.tasks((16, 4), 50)}}
        text = self.written(tmp_path, run_of(counts, run=OLD))
        assert (
            "not calibrated: these ceilings are what killed nothing; the score was shown to move under 3x" in text
        )

    def test_a_task_whose_ceiling_is_above_the_pick_was_not_tested(self, tmp_path: Path) -> None:
        counts = {
            "a": {"1x": self.tasks((15, 4, 1)), "3x": self.tasks((16, 4)), "5x": self.tasks((16, 4))},
        }
        changed: dict[TrialKey, dict[str, Any]] = {
            key(task, config, sample, "a"): {"details": details(config, 2.9 if task in ("t00", "t59") else 0.5)}
            for config in counts["a"]
            for task in counts["a"]["1x"]
            for sample in range(20)
        }
        # Twice survived, and yet killed at the ceiling of the pick.
        for task in ("t00", "t59"):
            place = key(task, "3x", 1, "a")
            changed[place] = {**changed[place], "flags": (Flag.OOM_KILLS,), "peak_memory": 3 * SPEC}
        text = self.written(tmp_path, run_of(counts, changed, run=OLD))
        assert "not calibrated" not in text
        assert "a ceiling above that of 3x for 2 tasks (t00, t59): no part of what was tested" in text

    def test_a_run_cut_short_is_not_calibrated(self, tmp_path: Path) -> None:
        run_with(tmp_path, world(12, 4), run=OLD, cut_short="-x stopped it")
        target = tmp_path / "spec.json"
        result = infranoise("calibrate", str(tmp_path / OLD), "--write-spec", str(target))
        assert "not an estimate: -x stopped it" in result.stdout
        assert "not calibrated" in result.stdout
        assert '"ceilings_from": null' in target.read_text()


def test_commands_load_numpy_only_when_they_run() -> None:
    code = (
        "import sys; from pytest_infranoise.cli import main; main(['plan', '--help'], standalone_mode=False); "
        "sys.exit(str({'numpy', 'scipy', 'docker', 'pytest', 'yaml'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stderr.strip() == "set()"
