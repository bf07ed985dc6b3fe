"""When trials started and what ran beside them: whether the order itself can look like an effect.

Computed from records alone, so that it says what happened and not what was intended.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_infranoise.model import Record

# From here on one half of the large trials met visibly another time of day than the small ones.
MUCH = 0.5
# A config whose trials started so much earlier or later than another's, as a share of the run, met another host.
APART = 0.1
FEWEST = 20


@dataclass(frozen=True, slots=True)
class Stay:
    """One trial's time on the host, in seconds since the epoch, and its floors in cores and bytes."""

    config: str
    began: float
    ended: float
    cpus: float
    memory: float


def stays(records: Iterable[Record]) -> list[Stay]:
    """Return the stays of all trials that had a container, in the order of their beginning."""
    found = []
    for record in records:
        times, allocation = record.details.get("times") or {}, record.details.get("allocation") or {}
        if "created" in times and "memory_floor" in allocation:
            ended = times.get("removed", record.started + record.seconds)
            floors = (allocation["cpus_floor"], allocation["memory_floor"])
            found.append(Stay(record.key.config, times["created"], ended, *floors))
    return sorted(found, key=lambda stay: stay.began)


def start_facts(records: Iterable[Record]) -> dict[str, Any]:
    """Return what ``run.json`` keeps of the order in which trials started, JSON-safe.

    ``correlation`` is that of floor and start time by resource, None where all floors are equal; ``starts`` the
    mean start of each config's trials as a share of the time in which trials started; ``beside`` how many of each
    config's trials ran beside at least one of another; ``remark`` a sentence when the order may matter.
    """
    found = stays(records)
    begins = [stay.began for stay in found]
    correlation = {
        "memory": rank_correlation([stay.memory for stay in found], begins),
        "cpus": rank_correlation([stay.cpus for stay in found], begins),
    }
    starts = _mean_starts(found)
    return {
        "trials": len(found),
        "correlation": {name: None if value is None else round(value, 3) for name, value in correlation.items()},
        "starts": {config: round(value, 3) for config, value in starts.items()},
        "beside": {config: dict(sorted(others.items())) for config, others in sorted(_beside(found).items())},
        "remark": _remark(found, correlation, starts),
    }


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, equal values sharing their mean rank; None when one is constant.

    Source: C. Spearman, The proof and measurement of association between two things, 1904.
    """
    if len(first) < 3 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + end - 1) / 2
        begin = end
    return ranks


def _mean_starts(found: Sequence[Stay]) -> dict[str, float]:
    if not found:
        return {}
    first, last = found[0].began, found[-1].began
    by_config: dict[str, list[float]] = {}
    for stay in found:
        by_config.setdefault(stay.config, []).append((stay.began - first) / (last - first) if last > first else 0.5)
    return {config: statistics.fmean(values) for config, values in sorted(by_config.items())}


def _beside(found: Sequence[Stay]) -> dict[str, Counter[str]]:
    """Return, for each config, how many of its trials ran beside at least one of another config or its own."""
    met: list[set[str]] = [set() for _ in found]
    running: list[int] = []
    for index, stay in enumerate(found):
        running = [other for other in running if found[other].ended > stay.began]
        for other in running:
            met[other].add(stay.config)
            met[index].add(found[other].config)
        running.append(index)
    counts: dict[str, Counter[str]] = {}
    for stay, configs in zip(found, met, strict=True):
        counts.setdefault(stay.config, Counter()).update(configs)
    return counts


def _remark(
    found: Sequence[Stay], correlation: Mapping[str, float | None], starts: Mapping[str, float]
) -> str | None:
    if len(found) < FEWEST:
        return None
    for name, word in (("memory", "memory"), ("cpus", "CPU")):
        value = correlation[name]
        if value is not None and abs(value) >= MUCH:
            return (
                f"trials with larger {word} floors started {'later' if value > 0 else 'earlier'} (rank correlation "
                f"of floor and start {value:+.2f}): what tells tasks apart may be the time they ran at"
            )
    early, late = min(starts, key=starts.__getitem__), max(starts, key=starts.__getitem__)
    if starts[late] - starts[early] >= APART:
        return (
            f"configs did not share the time evenly: {early} trials started after {starts[early]:.0%} of the run "
            f"on average, {late} trials after {starts[late]:.0%}: what tells them apart may be the time they ran at"
        )
    return None
