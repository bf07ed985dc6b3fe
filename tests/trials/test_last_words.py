"""Where only the end of an output is kept, no part of a secret is told that was cut off at its start."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.agents.secrets import Masker
from pytest_infranoise.sandboxes.execs import OUTPUT_KEPT
from pytest_infranoise.sandboxes.execs import Output
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.trials.evidence import MAX_TEXT
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.phase_run import PhaseRun
from pytest_infranoise.trials.pytest_summary import grade

SECRET = "sk-0123456789abcdefghijklmnop"


def last_line(output: bytes) -> str:
    """Return what a phase keeps of a command's last line, the way its output takes through an exec."""
    kept = Output(None)
    for place in range(0, len(output), 16_384):
        kept.add(output[place : place + 16_384])
    tail = kept.tail()
    kept.close()
    box: Any = type("Box", (), {})()
    run = PhaseRun(PhaseEvidence(None), box, Masker([SECRET]).text)
    cut = kept.total > OUTPUT_KEPT
    run.take(ExecResult(1, tail, 0.1, truncated=cut, output_bytes=kept.total))
    return run.last_line


def parts(secret: str) -> set[str]:
    return {secret[place : place + 6] for place in range(len(secret) - 5)}


@given(st.integers(0, len(SECRET)), st.sampled_from(["", " ", "\n", "\n\n", "\nend\n", " end\n"]), st.booleans())
@settings(deadline=None)
def test_a_secret_at_the_cut_is_not_told_by_its_rest(left: int, end: str, same_line: bool) -> None:
    filled = "x" * (OUTPUT_KEPT - left - len(end))
    output = f"begin{' ' if same_line else chr(10)}{SECRET}{filled}{end}".encode()
    told = last_line(output)
    assert not [part for part in parts(SECRET) if part in told]
    assert told


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (b"", ""),
        (b"one\n", "one"),
        (b"one\ntwo", "two"),
        (b"x" * OUTPUT_KEPT, "x" * 200),  # whole: nothing was cut off it
        (b"x" * (OUTPUT_KEPT + 1), "one very long line"),
        (b"x" * OUTPUT_KEPT + b"\nlast\n\n", "last"),
        (b"x" * OUTPUT_KEPT + b"\n", "one very long line"),
        (f"token {SECRET}".encode(), "token ***"),
    ],
)
def test_last_lines(output: bytes, told: str) -> None:
    assert last_line(output) == told


@given(st.integers(0, MAX_TEXT), st.sampled_from([" ", "\n", "x"]))
def test_an_output_s_end_in_a_verdict_begins_with_a_whole_word(length: int, between: str) -> None:
    text = grade(f"{SECRET}{between}{'y' * length}").text
    masked = Masker([SECRET]).text(text)
    assert not [part for part in parts(SECRET) if part in masked]
    assert len(text) <= MAX_TEXT
