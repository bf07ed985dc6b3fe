from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.agents.logs import LOG_CAP
from pytest_infranoise.agents.logs import PhaseLog
from pytest_infranoise.agents.secrets import Masker

KEY = "-----BEGIN KEY-----\nc2VjcmV0IGtleQ==\n-----END KEY-----\n"
_secrets = st.text(alphabet="abcxyz*", min_size=4, max_size=8)


@pytest.mark.parametrize(
    ("data", "masked"),
    [
        (b"token=tr0ub4dor&3;", b"token=***;"),
        (b"tr0ub4dor&3tr0ub4dor&3", b"******"),
        (b"cut off in the tr0ub4", b"cut off in the ***"),
        (b"cut off tr0ub4\n[12 more bytes were not kept]\n", b"cut off ***\n[12 more bytes were not kept]\n"),
        (b"tr0 is too little to tell", b"tr0 is too little to tell"),
        (b"ends in tr0", b"ends in tr0"),
        (b"key c2VjcmV0IGtleQ== alone", b"key *** alone"),
        (KEY.encode(), b"***"),
        (b"\xff\x00", b"\xff\x00"),
    ],
)  # fmt: skip
def test_bytes(data: bytes, masked: bytes) -> None:
    assert Masker(["tr0ub4dor&3", KEY]).data(data) == masked


def test_a_secret_that_holds_another() -> None:
    assert Masker(["abcd", "abcdefgh"]).text("abcdefgh abcd") == "*** ***"


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("two\nlines", "two lines"),
        ("two\nlines", '{"key": "two\\nlines"}'),
        ("quote'\\n", "ValueError: quote'\\\\n"),
        ("quote'd\n", "cp: cannot stat 'quote'\\''d'"),
        ("echo\\nes", "echo\nes"),
        ("umläute", '"uml\\u00e4ute"'),
        ('say "yes"', '\\"say \\"yes\\"'),
    ],
)
def test_forms_that_a_secret_takes_by_itself(secret: str, text: str) -> None:
    masked = Masker([secret]).text(text)
    assert "***" in masked
    assert not any(part in masked for part in ("lines", "quote", "nes", "uml", "yes"))


def test_a_text_that_was_cut_off_ends_in_no_part_of_a_secret() -> None:
    assert Masker(["tr0ub4dor&3"]).cut_text("the token is tr0ub4") == "the token is ***"


def test_values_too_short_to_be_secrets_are_left() -> None:
    masker = Masker(["1", "", "yes"])
    assert not masker
    assert masker.text("1 yes") == "1 yes"


@given(st.lists(_secrets, max_size=3), st.text(alphabet="abcxyz*. ", max_size=40))
def test_no_secret_is_left_in_a_text(secrets: list[str], text: str) -> None:
    masked = Masker(secrets).text(text)
    assert not any(secret in masked for secret in secrets if "*" not in secret)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just("hunter2"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("hunter2"), inner, max_size=3),
    max_leaves=8,
)


@given(_json)
def test_no_secret_is_left_in_json(value: Any) -> None:
    assert "hunter2" not in json.dumps(Masker(["hunter2"]).json(value))
    assert Masker().json(value) == value


def test_keys_that_are_ours_stay() -> None:
    assert Masker(["agent"]).json({"agent": ["an agent"]}, keys=False) == {"agent": ["an ***"]}


@pytest.mark.parametrize("masker", [Masker(), Masker(["tr0ub4dor&3"])])
def test_a_log_is_capped_and_leaves_no_other_file(tmp_path: Path, masker: Masker) -> None:
    log = PhaseLog(tmp_path / "agent.log", masker)
    for _ in range(4):
        with log.part() as part:
            part.write_bytes(b"x" * (3 * 1024**2) + b"tr0ub4dor&3")
    with log.part():
        pass
    (path,) = tmp_path.iterdir()
    assert LOG_CAP < path.stat().st_size < LOG_CAP + 100
    assert path.read_bytes().endswith(b"\n[the rest of this phase was not kept]\n")
    assert (b"tr0ub4dor" in path.read_bytes()) != bool(masker)


def test_a_log_takes_what_was_written_before_an_exception(tmp_path: Path) -> None:
    log = PhaseLog(tmp_path / "agent.log", Masker(["tr0ub4dor&3"]))

    def write_and_fail() -> None:
        with log.part() as part:
            part.write_bytes(b"said tr0ub4dor&3")
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        write_and_fail()
    assert log.path.read_bytes() == b"said ***"
