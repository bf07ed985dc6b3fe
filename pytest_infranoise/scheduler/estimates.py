"""How long trials took, kept from run to run in pytest's cache, so that ``packed`` knows the long ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import pytest

from pytest_infranoise.model import Record
from pytest_infranoise.scheduler.plan import Estimates

_KEY = "infranoise/seconds"


def read_estimates(config: pytest.Config) -> Estimates:
    """Return what earlier runs took; nothing when pytest keeps no cache."""
    kept = _cache(config).get(_KEY, {}) if _cache(config) is not None else {}
    usable = isinstance(kept, dict) and all(isinstance(value, int | float) for value in kept.values())
    return Estimates(kept if usable else {})


def keep_seconds(config: pytest.Config, records: Iterable[Record]) -> None:
    """Keep how long the trials of a run held their floors; the newest run counts."""
    cache = _cache(config)
    found: dict[str, list[float]] = {}
    for record in records:
        times = record.details.get("times") or {}
        if "admitted" in times and "removed" in times:
            for name in Estimates.names(record.key):
                found.setdefault(name, []).append(times["removed"] - times["admitted"])
    if cache is not None and found:
        before = cache.get(_KEY, {})
        means = {name: round(statistics.fmean(values), 2) for name, values in found.items()}
        cache.set(_KEY, {**(before if isinstance(before, dict) else {}), **means})


def _cache(config: pytest.Config) -> Any:
    return getattr(config, "cache", None)
