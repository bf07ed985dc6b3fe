"""Every reference value, computed by another program, to its stated tolerance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stats.reference import ESTIMATORS
from tests.stats.reference import evaluate

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("statistics-reference.json").read_text())


def assert_close(actual: Any, expected: Any, tol: float, where: str) -> None:
    if isinstance(expected, list):
        assert len(actual) == len(expected), where
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            assert_close(a, b, tol, f"{where}[{i}]")
    elif isinstance(expected, float | int) and not isinstance(expected, bool):
        assert actual is not None, where
        assert abs(actual - expected) <= tol, f"{where}: {actual!r} instead of {expected!r}"
    else:
        assert actual == expected, where


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_matches_reference(case: dict[str, Any]) -> None:
    result = evaluate(case["fn"], case["args"])
    for key, expected in case["expected"].items():
        assert_close(result[key], expected, case["tol"], f"{case['id']}.{key}")


def test_every_estimator_named_in_the_reference_is_mapped() -> None:
    assert {case["fn"] for case in CASES} <= set(ESTIMATORS)
    assert len(CASES) == 95
