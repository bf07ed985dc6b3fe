"""Runs whose records carry limits and memory, as real trials write them, read back through the journal."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_infranoise.journal import Run
from pytest_infranoise.journal import read_run
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from tests.builders import CEILINGS
from tests.builders import meta_of
from tests.builders import record
from tests.builders import write_run

MIB = 1024**2
SPEC = 128 * MIB
ENGINE = {
    "id": "ABCD",
    "version": "20.10.24",
    "cgroup_version": "1",
    "kernel": "6.18",
    "cpus": 8.0,
    "memory": 2**34,
}
SURVIVED = (Flag.OOM_KILLS,)


def details(
    config: str = "1x",
    need: float | None = None,
    *,
    spec: int = SPEC,
    cpus: float = 1.0,
    peak: float | None = None,
    sampled: bool = False,
) -> dict[str, Any]:
    """Return a record's details: limits under ``config``, and memory in multiples of the spec."""
    factor = CEILINGS[config]
    ceiling = None if factor is None else int(spec * factor)
    cores = None if factor is None else cpus * factor
    phase = {
        "anonymous_peak": None if need is None else int(need * spec),
        "peak": None if peak is None else int(peak * spec),
        "peak_is_sampled": sampled,
    }
    return {
        "phases": {"agent": phase},
        "allocation": {"memory_floor": spec, "memory_ceiling": ceiling, "cpus_floor": cpus, "cpus_ceiling": cores},
        "limits": {"memory": ceiling, "cpus": cores, "source": "cgroup v1 files on the host"},
    }


def trial(place: TrialKey, verdict: Verdict = Verdict.PASS, need: float | None = None, **fields: Any) -> Record:
    """Return the record of one trial; ``peak``, ``sampled``, ``spec`` and ``cpus`` as in ``details``."""
    kwargs = {name: fields.pop(name) for name in ("spec", "cpus", "peak", "sampled") if name in fields}
    made = details(place.config, need, **kwargs)
    peak = made["phases"]["agent"]["peak"]
    return record(place, verdict, details=made, peak_memory=peak, **fields)


def killed(place: TrialKey, **fields: Any) -> Record:
    """Return the record of a trial that was killed at its own ceiling."""
    factor = CEILINGS[place.config] or 1.0
    return trial(
        place,
        Verdict.INFRA_ERROR,
        factor * 0.95,
        peak=factor,
        cause=Cause.RESOURCE_KILL,
        flags=SURVIVED,
        **fields,
    )


def needing(place: TrialKey, need: float, verdict: Verdict = Verdict.PASS, **fields: Any) -> Record:
    """Return the record of a trial that needs so much: killed where the ceiling is below it."""
    ceiling = CEILINGS[place.config]
    if ceiling is not None and need > ceiling:
        return killed(place, **fields)
    return trial(place, verdict, need, peak=need * 1.1, **fields)


def run_of_records(records: Iterable[Record], path: Path = Path("runs"), **meta: Any) -> Run:
    """Return the run of these records, which nobody wrote."""
    made = tuple(records)
    planned = tuple(entry.key for entry in made)
    return Run(
        path=path,
        meta=meta_of(planned, **{"engine": ENGINE, "workers": 2, **meta}),
        planned=planned,
        records=made,
        retries=(),
        unfinished=(),
        damaged=0,
    )


def run_with(runs_dir: Path, records: Iterable[Record], **meta: Any) -> Run:
    """Write these records as a run, and return it as it is read back."""
    return read_run(write_run(run_of_records(records, **meta), runs_dir))


def world(
    tasks: int = 40,
    samples: int = 5,
    configs: Sequence[str] = ("1x", "3x", "uncapped"),
    *,
    agents: Sequence[str] = ("scripted",),
    adapts: bool = False,
    lift: Mapping[str, float] | None = None,
    seed: int = 1,
    task_hash: Callable[[str], str] = "0{}".format,
) -> list[Record]:
    """Return the records of a benchmark with memory-hungry tasks.

    A quarter of the tasks have trials that need more than the spec. ``adapts``: they need no more than they get,
    except uncapped, which breaks what shadow ceilings assume. ``lift`` adds to the pass rate under a config.
    """
    draw = random.Random(seed)
    made = []
    odds = [draw.betavariate(0.5, 0.4) for _ in range(tasks)]
    for agent in agents:
        for place, config in ((place, config) for place in range(tasks) for config in configs):
            hungry = place % 4 == 0
            for sample in range(samples):
                need = draw.choice((0.6, 1.6, 2.5, 4.0)) if hungry else draw.uniform(0.1, 0.6)
                if adapts and config != "uncapped":
                    need = min(need, 0.9 * (CEILINGS[config] or 1.0))
                passed = draw.random() < odds[place] + (lift or {}).get(config, 0.0)
                name = f"task-{place:02}"
                key = TrialKey(agent, "", name, config, sample)
                verdict = Verdict.PASS if passed else Verdict.FAIL
                made.append(needing(key, need, verdict, task_hash=task_hash(name)))
    return made
