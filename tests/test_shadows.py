from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_infranoise.model import Record
from pytest_infranoise.model import Verdict
from pytest_infranoise.peaks import usages
from pytest_infranoise.shadows import ShadowTable
from pytest_infranoise.shadows import shadow_tables
from tests.builders import config_meta
from tests.builders import key
from tests.measured import SPEC
from tests.measured import killed
from tests.measured import run_of_records
from tests.measured import trial
from tests.measured import world


def tables(records: list[Record], **meta: Any) -> tuple[ShadowTable, ...]:
    run = run_of_records(records, **meta)
    return shadow_tables(usages(run), {entry["name"]: entry for entry in run.meta["configs"]})


def test_passes_above_a_ceiling_are_lost() -> None:
    needs = {"a": (0.5, 1.2, 2.5, 2.5), "b": (0.5, 0.5, 0.5, 4.0)}
    records = [
        trial(key(task, "uncapped", sample), Verdict.FAIL if sample == 3 else Verdict.PASS, need)
        for task, row in needs.items()
        for sample, need in enumerate(row)
    ]
    (found,) = tables(records)
    assert (found.source, found.trials, found.score) == ("uncapped", 8, 0.75)
    rows = {row.label: (row.killed.value, row.score, row.tasks) for row in found.forecasts}
    assert rows == {
        "1x": (0.5, 0.5, 2),
        "1.5x": (0.375, 0.625, 2),
        "2x": (0.375, 0.625, 2),
        "3x": (0.125, 0.75, 1),
        "5x": (0.0, 0.75, 0),
    }
    for row in found.forecasts:
        assert row.loss == pytest.approx(found.score - row.score)
        assert row.interval.lo <= row.score <= row.interval.hi


def test_the_highest_ceiling_is_the_source_and_forecasts_only_lower_ones() -> None:
    records = [trial(key("a", config, 0), need=0.5) for config in ("3x", "1x", "2x")]
    (found,) = tables(records)
    assert found.source == "3x"
    assert [row.label for row in found.forecasts] == ["1x", "1.5x", "2x"]
    assert [row.check is not None for row in found.forecasts] == [True, False, True]


def test_a_kill_at_the_source_s_ceiling_is_one_at_every_lower_one() -> None:
    records = [killed(key("a", "3x", 0)), trial(key("a", "3x", 1), need=0.5)]
    (found,) = tables(records)
    assert found.killed == 1
    assert {row.killed.value for row in found.forecasts} == {0.5}


def test_trials_without_a_sample_are_left_out_and_counted() -> None:
    records = [trial(key("a", "uncapped", 0), need=0.5), trial(key("a", "uncapped", 1), peak=5.0)]
    (found,) = tables(records)
    assert (found.trials, found.unknown) == (1, 1)


def test_nothing_to_go_by_is_said() -> None:
    (dark,) = tables([trial(key("a", "uncapped", 0), peak=5.0)])
    assert (dark.forecasts, dark.reason) == ((), "no trial has a sample of memory without page cache")
    assert math.isnan(dark.score)
    (strict,) = tables([trial(key("a", "1x", 0), need=0.5)])
    assert not strict.forecasts
    assert "no ceiling below that of 1x" in strict.reason


def test_a_world_that_keeps_the_assumption_is_not_contradicted() -> None:
    (found,) = tables(world(60, 5, ("1x", "2x", "3x", "uncapped")))
    checks = {row.label: row.check for row in found.forecasts if row.check is not None}
    assert list(checks) == ["1x", "2x", "3x"]
    assert not any(check.off for check in checks.values())
    for row in found.forecasts:
        if row.check is not None:
            assert row.killed.value == pytest.approx(row.check.killed.value, abs=0.05)


def test_agents_that_adapt_contradict_it() -> None:
    (found,) = tables(world(40, 5, adapts=True))
    checks = [row.check for row in found.forecasts if row.check is not None]
    assert all(check.off for check in checks)
    assert all(check.killed.value == 0 for check in checks)


def test_chance_alone_seldom_contradicts() -> None:
    configs = ("1x", "2x", "3x", "5x", "uncapped")
    off = 0
    for seed in range(20):
        (found,) = tables(world(30, 3, configs, seed=seed))
        off += any(row.check.off for row in found.forecasts if row.check is not None)
    assert off <= 4


def test_every_agent_has_its_own() -> None:
    found = tables(world(8, 2, agents=("a", "b")))
    assert [table.agent for table in found] == ["a", "b"]


def test_a_ceiling_in_bytes_is_its_own_row() -> None:
    named = {"name": "own", "cpus": {"floor": 1.0, "ceiling": 1.0}, "memory": {"floor": 1.0, "ceiling": "200M"}}
    capped = trial(key("a", "1x", 0), need=0.5)
    capped = replace(capped, key=key("a", "own", 0), details={**capped.details, "limits": {"memory": 1.6 * SPEC}})
    records = [capped, trial(key("a", "uncapped", 0), need=1.8)]
    (found,) = tables(records, configs=[named, config_meta("uncapped")])
    rows = {row.label: row.killed.value for row in found.forecasts}
    assert list(rows) == ["1x", "1.5x", "own", "2x", "3x", "5x"]
    assert (rows["own"], rows["2x"]) == (1.0, 0.0)
