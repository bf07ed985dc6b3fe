"""The task of ours in Harbor's format: its files, its odds, and what its verifier takes for right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_infranoise.model import Spec
from pytest_infranoise.tasks.harbor import load
from tests.tasks.tasks import MIB

ROOT = Path(__file__).parents[2] / "bench_tasks" / "count-visitors"
EXPECTED = re.findall(r"'(2024-.*)'", (ROOT / "tests" / "check.pl").read_text())

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="the verifier is written in perl")


def test_task() -> None:
    task = load(ROOT)
    assert task is not None
    assert (task.name, task.image, task.network) == ("count-visitors", "infranoise/base:bookworm", False)
    assert task.spec == Spec(1, 64 * MIB)
    assert (task.files, task.workdir, task.unsupported) == (ROOT / "environment", "/app", None)
    assert task.solution is not None
    assert [strategy.script.stem for strategy in task.strategies] == ["remember", "tick-off", "neighbours"]
    head = (ROOT / "task.toml").read_text().partition("schema_version")[0]
    for strategy in task.strategies:
        assert re.search(rf"^#   {strategy.name} +{strategy.odds:g} ", head, re.MULTILINE)


def test_expected_counts() -> None:
    program = (ROOT / "environment" / "visits.pl").read_text()
    [sizes] = re.findall(SIZES, program, re.DOTALL)
    state, visits, visitors = map(int, sizes)
    assert f"below {visitors}" in (ROOT / "instruction.md").read_text()
    counts = []
    for day in (1, 2, 3):
        seen = set()
        for _ in range(visits):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            seen.add(int(visitors * (state / 0x80000000)))
        counts.append(f"2024-05-{day:02d},{len(seen)}")
    assert counts == EXPECTED


SIZES = r"state = (\d+);.*1 \.\. ([\d_]+)\).*int\(([\d_]+) \* uniform"


def verify(tmp_path: Path, answer: str | None, check: str | None = None) -> dict[str, float] | None:
    """Return what the verifier writes as its reward, if anything."""
    for name in ("test.sh", "check.pl"):
        text = (ROOT / "tests" / name).read_text()
        for place in ("/tests", "/app", "/logs/verifier"):
            text = text.replace(f"{place}/", f"{tmp_path}/")
        (tmp_path / name).write_text(text)
    if check is not None:
        (tmp_path / "check.pl").write_text(check)
    if answer is not None:
        (tmp_path / "visitors.csv").write_text(answer)
    subprocess.run(["bash", tmp_path / "test.sh"], capture_output=True, timeout=60)
    reward = tmp_path / "reward.json"
    return json.loads(reward.read_text()) if reward.exists() else None


RIGHT = "".join(f"{line}\n" for line in EXPECTED)


@needs_perl
@pytest.mark.parametrize(
    ("answer", "reward"),
    [(RIGHT, 1), (RIGHT.replace("\n", "\r\n"), 1), (None, 0), ("", 0), (RIGHT + RIGHT, 0), (RIGHT[:-2], 0)],
)
def test_answers(tmp_path: Path, answer: str | None, reward: float) -> None:
    assert verify(tmp_path, answer) == {"reward": reward}


@needs_perl
@pytest.mark.parametrize("check", ["kill 'KILL', $$;", "exit 1;", "print 'nonsense';", "print '';"])
def test_a_check_that_broke_is_no_verdict(tmp_path: Path, check: str) -> None:
    assert verify(tmp_path, RIGHT, check) is None
