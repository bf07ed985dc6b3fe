"""Runs made from tables of counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from itertools import product
from itertools import repeat
from pathlib import Path
from typing import Any

from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import write_meta
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.results import Cell

# agent -> config -> task -> (passes, fails, infra-errors, missing), the last ones optional.
Counts = Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]

CEILINGS = {"1x": 1.0, "1.5x": 1.5, "2x": 2.0, "3x": 3.0, "5x": 5.0, "uncapped": None}
RUN = "20260131-235959-1f9a3c"


def key(task: str = "a", config: str = "1x", sample: int = 0, agent: str = "scripted", model: str = "") -> TrialKey:
    return TrialKey(agent, model, task, config, sample)


def record(place: TrialKey, verdict: Verdict = Verdict.PASS, **fields: Any) -> Record:
    if verdict is Verdict.INFRA_ERROR:
        fields.setdefault("cause", Cause.RESOURCE_KILL)
    values = {"run": RUN, "attempt": 0, "task_hash": "0" * 8, "rule": "0", "summary": "made up", **fields}
    return Record(key=place, verdict=verdict, **values)


def config_meta(name: str) -> dict[str, Any]:
    rule = {"floor": 1.0, "ceiling": CEILINGS.get(name, 4.0)}
    return {"name": name, "cpus": rule, "memory": rule}


def meta_of(planned: Sequence[TrialKey], **changes: Any) -> dict[str, Any]:
    configs = list(dict.fromkeys(place.config for place in planned))
    agents = list(dict.fromkeys((place.agent, place.model) for place in planned))
    return {
        "schema": 1,
        "run": RUN,
        "planned": [[place.agent, place.model, place.task, place.config, place.sample] for place in planned],
        "tasks": {"collected": sorted({place.task for place in planned}), "skipped": {}, "broken": 0},
        "configs": [config_meta(name) for name in configs],
        "baseline": configs[0] if configs else None,
        "agents": [{"name": name, "model": model} for name, model in agents],
        "samples": max((place.sample + 1 for place in planned), default=0),
        "seed": 7,
        "gates": [],
        "design": {"margin": 0.03, "alpha": 0.05, "min_cut": 0.5, "target": "benchmark"},
        "pass_threshold": 1.0,
        "enforcement": "memory and CPU ceilings read back from cgroup v1 files on the host for 36 of 36 trials",
        "finished": "2026-01-31T23:59:59+00:00",
        "cut_short": None,
        **changes,
    }


def run_of(counts: Counts, records: Mapping[TrialKey, Mapping[str, Any]] | None = None, **meta: Any) -> Run:
    """Return the run with these counts; ``records`` changes fields of single records."""
    planned: list[TrialKey] = []
    made: list[Record] = []
    for agent, configs in counts.items():
        name, _, model = agent.partition("/")
        for config, tasks in configs.items():
            for task, ends in tasks.items():
                for sample, verdict in enumerate(_verdicts(Cell(*ends))):
                    place = TrialKey(name, model, task, config, sample)
                    planned.append(place)
                    if verdict is not None:
                        made.append(record(place, verdict))
    changes = records or {}
    return Run(
        path=Path(".infranoise/runs", RUN),
        meta=meta_of(planned, **meta),
        planned=tuple(planned),
        records=tuple(replace(entry, **changes.get(entry.key, {})) for entry in made),
        retries=(),
        unfinished=(),
        damaged=0,
    )


def _verdicts(cell: Cell) -> Iterator[Verdict | None]:
    return chain(
        repeat(Verdict.PASS, cell.passes),
        repeat(Verdict.FAIL, cell.fails),
        repeat(Verdict.INFRA_ERROR, cell.infra),
        repeat(None, cell.missing),
    )


def write_run(run: Run, runs_dir: Path) -> Path:
    """Write a run as the running wing does, and return its directory."""
    run_dir = runs_dir / str(run.meta["run"])
    write_meta(run_dir, run.meta)
    journal = Journal(run_dir, "main")
    for entry in run.records:
        journal.started(entry.key, entry.attempt)
        journal.finished(entry)
    assert read_run(run_dir).planned == run.planned
    return run_dir


DEMO: Counts = {
    "scripted": {
        "1x": {"fit-statistics": (1, 1, 1), "join-spike": (0, 0, 3), "search": (0, 1, 2), "sum-digits": (2, 1, 0)},
        "3x": {"fit-statistics": (2, 1, 0), "join-spike": (3, 0, 0), "search": (0, 2, 1), "sum-digits": (2, 1, 0)},
        "uncapped": {
            "fit-statistics": (3, 0, 0),
            "join-spike": (3, 0, 0),
            "search": (3, 0, 0),
            "sum-digits": (2, 1, 0),
        },
    }
}


def large_counts(
    tasks: int,
    samples: int,
    agents: Sequence[str] = ("scripted",),
    configs: Sequence[str] = ("1x", "3x", "uncapped"),
) -> Counts:
    """Return counts of tasks of all difficulties, a fifth of them short of memory below a high ceiling."""
    draw = random.Random(1)
    names = [f"task-{place:02}-build-something" for place in range(tasks)]
    odds = {name: draw.betavariate(0.5, 0.4) for name in names}
    hungry = {name: draw.random() < 0.2 for name in names}
    table: dict[str, dict[str, dict[str, Sequence[int]]]] = {}
    for agent, (place, config) in product(agents, enumerate(configs)):
        crash = (0.3, 0.1, 0.02)[min(place, 2)]
        for name in names:
            cell = [0, 0, 0]
            for _ in range(samples):
                crashed = hungry[name] and draw.random() < crash
                cell[2 if crashed else int(draw.random() >= odds[name])] += 1
            table.setdefault(agent, {}).setdefault(config, {})[name] = cell
    return table


# Infra-error rate and share of the gain for unlocked tasks: 1x, 3x and uncapped as published, the others guessed.
_WORLD = {"1x": (0.058, 0.0), "1.5x": (0.045, 0.1), "2x": (0.033, 0.2), "3x": (0.021, 0.35), "5x": (0.012, 0.65)}
_TOP = "uncapped"


def simulated_counts(tasks: int = 89, samples: int = 10, seed: int = 6, rescue: float = 0.4) -> Counts:
    """Return a run of six ceilings as in the article's world.

    Task difficulties are beta-distributed; a fifth of the tasks holds all crashes, and 6 in 89 of them are solved
    more often the more memory they get. ``rescue`` is the pass rate of a trial that would have crashed.
    """
    draw = random.Random(seed)
    names = [f"task-{place:02}" for place in range(tasks)]
    shape = (1 - 0.63) / 0.63
    odds = {name: draw.betavariate(0.55 * shape, 0.45 * shape) for name in names}
    hungry = names[: max(1, round(tasks * 18 / 89))]
    unlocked = hungry[: max(1, round(tasks * 6 / 89))]
    for name in unlocked:
        odds[name] *= 0.2
    table: dict[str, dict[str, Sequence[int]]] = {}
    for config, (crash, unlock) in {**_WORLD, _TOP: (0.005, 1.0)}.items():
        table[config] = {}
        for name in names:
            rate = crash * tasks / len(hungry) if name in hungry else 0.0
            solved = min(0.97, odds[name] + 0.58 * unlock) if name in unlocked else odds[name]
            removed = 0.058 * tasks / len(hungry) - rate if name in hungry else 0.0
            cell = [0, 0, 0]
            for _ in range(samples):
                if draw.random() < rate:
                    cell[2] += 1
                elif draw.random() < removed:
                    cell[0 if draw.random() < rescue else 1] += 1
                else:
                    cell[0 if draw.random() < solved else 1] += 1
            table[config][name] = cell
    return {"scripted": table}
