from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.agents.builtin import check
from pytest_infranoise.agents.builtin import draw
from pytest_infranoise.agents.builtin import instruction_environment
from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Strategy
from pytest_infranoise.model import Task
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verifier
from tests.agents.sandbox import MemorySandbox

KEY = TrialKey("scripted", "", "job", "1x", 0)
STRATEGIES = (Strategy("lean", Path("lean.sh"), 0.6), Strategy("brute", Path("brute.sh"), 0.4))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    for name in ("oracle", "lean", "brute"):
        (tmp_path / f"{name}.sh").write_text(f"echo {name}\n")
    return Task(
        name="job",
        file=tmp_path / "task.yaml",
        instruction="Do it.",
        image="base",
        build=None,
        spec=Spec(1, 1024**3),
        verifier=Verifier("true", tmp_path),
        content_hash="0",
        workdir="/srv",
        oracle=tmp_path / "oracle.sh",
        strategies=tuple(replace(strategy, script=tmp_path / strategy.script) for strategy in STRATEGIES),
    )


def run(task: Task, kind: str, sample: int = 0, **options: Any) -> tuple[MemorySandbox, Mapping[str, Any]]:
    choice = AgentChoice(kind, kind, options=options)
    agent = make_builtin(AgentContext(choice, task, replace(KEY, sample=sample), seed=7))
    assert agent.on_host is False
    sandbox = MemorySandbox()
    agent.setup(sandbox)
    assert (sandbox.files, sandbox.calls) == ({}, [])
    result = agent.run(task.instruction, sandbox)
    assert result.exit_code == 0
    return sandbox, result.details


def test_nop(task: Task) -> None:
    sandbox, _ = run(task, "nop")
    assert (sandbox.files, sandbox.calls) == ({}, [])


def test_oracle(task: Task) -> None:
    sandbox, details = run(task, "oracle")
    assert sandbox.files == {"/infranoise/agent/oracle.sh": b"echo oracle\n"}
    (call,) = sandbox.calls
    assert (call["argv"], call["workdir"]) == (["sh", "/infranoise/agent/oracle.sh"], "/srv")
    assert call["environment"] == {
        "INFRANOISE_INSTRUCTION": "Do it.",
        "INFRANOISE_INSTRUCTION_FILE": "/infranoise/instruction.md",
    }
    assert details == {}


def test_only_the_strategy_that_was_drawn_is_sent(task: Task) -> None:
    seen = set()
    for sample in range(8):
        sandbox, details = run(task, "scripted", sample)
        assert list(sandbox.files) == [f"/infranoise/agent/{details['strategy']}.sh"]
        seen.add(details["strategy"])
    assert seen == {"lean", "brute"}


def test_command(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "tr0ub4dor&3")
    monkeypatch.setenv("OTHER", "not passed")
    sandbox, _ = run(task, "command", command="solve", env=["TOKEN"])
    (call,) = sandbox.calls
    assert call["argv"] == ["sh", "-c", "solve"]
    assert call["environment"]["TOKEN"] == "tr0ub4dor&3"
    assert "OTHER" not in call["environment"]
    choice = AgentChoice("x", "command", options={"command": "solve", "env": ["TOKEN"]})
    agent = make_builtin(AgentContext(choice, task, KEY, 0))
    assert getattr(agent, "secrets", None) == ("tr0ub4dor&3",)
    assert "tr0ub4dor" not in repr(agent)


def test_what_was_drawn_is_known_also_when_time_is_over(task: Task) -> None:
    agent = make_builtin(AgentContext(AgentChoice("scripted", "scripted"), task, KEY, 7))
    result = agent.run("Do it.", DeadlineSandbox(MemorySandbox(), 0))
    assert result.exit_code is None
    assert result.details["strategy"] in {"lean", "brute"}


@pytest.mark.parametrize(
    ("choice", "changes", "text"),
    [
        (AgentChoice("oracle", "oracle"), {"oracle": None}, "the task has no oracle"),
        (AgentChoice("scripted", "scripted"), {"strategies": ()}, "the task has no strategies"),
        (AgentChoice("mine", "mine"), {}, "unknown agent 'mine'; built in: oracle, nop, command, scripted"),
        (AgentChoice("command", "command"), {}, "needs its text"),
        (
            AgentChoice("command", "command", options={"command": "x", "env": ["NO_SUCH_VARIABLE"]}),
            {},
            "not set in the environment: NO_SUCH_VARIABLE",
        ),
    ],
)
def test_mistakes(task: Task, choice: AgentChoice, changes: dict[str, Any], text: str) -> None:
    task = replace(task, **changes)
    problem = check(choice, task)
    assert problem is not None
    assert text in problem
    with pytest.raises(ValueError, match=re.escape(problem)):
        make_builtin(AgentContext(choice, task, KEY, 0))


def test_no_mistakes(task: Task) -> None:
    for choice in (
        AgentChoice("oracle", "oracle"),
        AgentChoice("scripted", "scripted"),
        AgentChoice("nop", "nop"),
        AgentChoice("command", "command", options={"command": "x", "env": ["PATH"]}),
    ):
        assert check(choice, task) is None


def test_a_draw_never_changes() -> None:
    # The strategies of published runs must come out again: these are on record.
    drawn = [draw(STRATEGIES, 7, replace(KEY, sample=sample)).name for sample in range(10)]
    assert drawn == ["brute", "lean", "lean", "lean", "lean", "brute", "brute", "brute", "brute", "brute"]


@pytest.mark.parametrize("field", ["agent", "model", "task", "config"])
def test_draws_are_independent(field: str) -> None:
    def draws(value: str) -> list[str]:
        changed: dict[str, Any] = {field: value}
        return [draw(STRATEGIES, 7, replace(KEY, sample=sample, **changed)).name for sample in range(400)]

    first, second = draws("a"), draws("b")
    both = sum(one == other == "lean" for one, other in zip(first, second, strict=True)) / 400
    assert first != second
    assert both == pytest.approx(0.36, abs=0.08)
    assert Counter(first)["lean"] / 400 == pytest.approx(0.6, abs=0.08)


@given(st.integers(0, 2**32), st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_every_draw_is_one_of_the_strategies(seed: int, odds: list[float]) -> None:
    strategies = tuple(Strategy(str(number), Path(), value) for number, value in enumerate(odds))
    assert draw(strategies, seed, KEY) in strategies


def test_odds_of_zero_are_never_drawn() -> None:
    strategies = (
        Strategy("never", Path(), 0.0),
        Strategy("always", Path(), 1.0),
        Strategy("nor this", Path(), 0.0),
    )
    assert {draw(strategies, 7, replace(KEY, sample=sample)).name for sample in range(50)} == {"always"}


@pytest.mark.parametrize("instruction", ["x" * 100_001, "a\0b"])
def test_an_instruction_no_variable_can_hold_is_in_the_file_only(instruction: str) -> None:
    assert list(instruction_environment(instruction)) == ["INFRANOISE_INSTRUCTION_FILE"]
