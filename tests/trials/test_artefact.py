from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.trials.artefact import parse_artefact
from pytest_infranoise.trials.evidence import ArtefactStatus

NONCE = "9f2c"


@pytest.mark.parametrize(
    ("text", "status", "reward"),
    [
        ('{"reward": 1, "nonce": "9f2c"}', "complete", 1.0),
        ('{"reward": 0, "nonce": "9f2c", "tests": 3}', "complete", 0.0),
        ('{"reward": 0.25, "nonce": "9f2c", "extra": [1]}\n\n', "complete", 0.25),
        ("", "malformed", None),
        ('{"reward": 1, "nonce": "9f', "malformed", None),
        ('{"reward": 1, "nonce": "9f2c"} {}', "malformed", None),
        ('[1, "9f2c"]', "malformed", None),
        ("\ufffd\x00", "malformed", None),
        ("[" * 5000, "malformed", None),
        ('{"reward": 1}', "wrong-nonce", None),
        ('{"reward": 1, "nonce": "beef"}', "wrong-nonce", None),
        ('{"reward": 1, "nonce": null}', "wrong-nonce", None),
        ('{"nonce": "9f2c"}', "malformed", None),
        ('{"reward": "1", "nonce": "9f2c"}', "malformed", None),
        ('{"reward": true, "nonce": "9f2c"}', "malformed", None),
        ('{"reward": null, "nonce": "9f2c"}', "malformed", None),
        ('{"reward": NaN, "nonce": "9f2c"}', "malformed", None),
        ('{"reward": 1e999, "nonce": "9f2c"}', "malformed", None),
        ('{"reward": 1.001, "nonce": "9f2c"}', "malformed", None),
        ('{"reward": -0.1, "nonce": "9f2c"}', "malformed", None),
        (f'{{"reward": {"9" * 4000}, "nonce": "9f2c"}}', "malformed", None),
        (f'{{"reward": {"9" * 5000}, "nonce": "9f2c"}}', "malformed", None),
        ('{"reward": 1, "nonce": "9f2c", "tests": 0}', "no-tests", None),
        ('{"reward": 1, "nonce": "9f2c", "tests": -1}', "malformed", None),
        ('{"reward": 1, "nonce": "9f2c", "tests": true}', "malformed", None),
        ('{"reward": 1, "nonce": "9f2c", "tests": 1.5}', "malformed", None),
    ],
)
def test_forms(text: str, status: str, reward: float | None) -> None:
    artefact = parse_artefact(text.encode(), NONCE)
    assert (artefact.status.value, artefact.reward) == (status, reward)


@pytest.mark.parametrize(
    ("text", "status", "reward"),
    [
        ('{"reward": 0, "nonce": "9f2c", "tests": 0}', "complete", 0.0),
        ('{"reward": 0.5, "nonce": "9f2c", "tests": 0}', "no-tests", None),
        ('{"reward": 1, "nonce": "9f2c", "tests": 0}', "no-tests", None),
        ('{"reward": 0, "nonce": "beef", "tests": 0}', "wrong-nonce", None),
        ('{"reward": 1, "nonce": "9f2c", "tests": 2}', "complete", 1.0),
    ],
)
def test_no_test_ran_and_errors_were_met(text: str, status: str, reward: float | None) -> None:
    artefact = parse_artefact(text.encode(), NONCE, "1 error")
    assert (artefact.status.value, artefact.reward) == (status, reward)
    assert ("pytest ended with: 1 error" in artefact.text) == (reward == 0)
    assert artefact.source == ("the verdict and pytest's last line" if reward == 0 else "")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    assert parse_artefact(content, NONCE).status is not ArtefactStatus.COMPLETE


@given(st.fixed_dictionaries({}, optional={"reward": _json, "nonce": _json | st.just(NONCE), "tests": _json}))
def test_complete_means_every_field_is_right(data: dict[str, Any]) -> None:
    artefact = parse_artefact(json.dumps(data).encode(), NONCE)
    if artefact.status is ArtefactStatus.COMPLETE:
        assert data["nonce"] == NONCE
        assert 0 <= data["reward"] <= 1
        assert artefact.reward == data["reward"]
        assert data.get("tests") is None or data["tests"] >= 1
    else:
        assert artefact.reward is None
