"""What ``run.json`` says of a run that was merged from several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.sessions import SCHEDULE
from pytest_infranoise.sessions import notes
from pytest_infranoise.units import plural

if TYPE_CHECKING:
    from pytest_infranoise.journal import Run
    from pytest_infranoise.merge import Part

_NAMED = 3
_SHARD = re.compile(r"(\d+)/(\d+)")


def merged_meta(parts: Sequence[Part], run_id: str, now: str) -> dict[str, Any]:
    """Return the merged run's ``run.json``: all that was planned, and of what is not united the first part's."""
    metas = [part.run.meta for part in parts]
    planned = dict.fromkeys(tuple(part.key(key).to_json().values()) for part in parts for key in part.run.planned)
    hashes = _task_hashes(parts)
    set_aside = _set_aside(parts, hashes)
    ends = [str(meta.get("finished") or "") for meta in metas]
    return {
        **metas[0],
        "run": run_id,
        "created": now,
        "finished": max(ends) if all(ends) else None,
        "cut_short": next((f"{part.id}: {part.run.meta['cut_short']}" for part in parts if _cut(part)), None),
        "outcome_selection": next((meta["outcome_selection"] for meta in metas if _selected(meta)), None),
        "planned": [list(key) for key in planned],
        "tasks": _tasks(metas),
        "configs": _union(metas, "configs"),
        "agents": _union(metas, "agents"),
        "samples": 1 + max((key[-1] for key in planned), default=-1),
        "seed": _common([meta.get("seed") for meta in metas]),
        **{key: _common([meta.get(key) for meta in metas]) for key in ("order", "capacity")},
        "enforcement": "; ".join(dict.fromkeys(meta["enforcement"] for meta in metas if meta.get("enforcement"))),
        "schedule": _schedule(metas),
        "shard": None,
        "workers": max((int(meta.get("workers") or 0) for meta in metas), default=0),
        "images": {name: image for meta in metas for name, image in (meta.get("images") or {}).items()},
        "task_hashes": hashes,
        "preflight": None,
        "sessions": [session for meta in metas for session in meta.get("sessions") or ()],
        "set_aside": set_aside,
        "config_notes": list(dict.fromkeys(note for meta in metas for note in meta.get("config_notes") or ())),
        "parts": [entry for part in parts for entry in _entries(part)],
        "run_notes": list(_notes(parts, set_aside)),
    }


def _cut(part: Part) -> bool:
    return bool(part.run.meta.get("cut_short"))


def _selected(meta: Mapping[str, Any]) -> bool:
    return bool(meta.get("outcome_selection"))


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _schedule(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the runs have in common; when trials started was measured in each run by itself."""
    schedules = [meta.get("schedule") or {} for meta in metas]
    return {name: _common([schedule.get(name) for schedule in schedules]) for name in SCHEDULE}


def _union(metas: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    found: dict[tuple[str, str], Any] = {}
    for meta in metas:
        for entry in meta.get(name) or ():
            found.setdefault((entry["name"], entry.get("model") or ""), entry)
    return list(found.values())


def _tasks(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    tasks = [meta.get("tasks") or {} for meta in metas]
    return {
        "collected": sorted({name for entry in tasks for name in entry.get("collected", ())}),
        "skipped": {name: why for entry in tasks for name, why in entry.get("skipped", {}).items()},
        "broken": max((int(entry.get("broken", 0)) for entry in tasks), default=0),
    }


def _hashes_of(part: Part) -> dict[str, str]:
    """Return the content hash of each task of a part; that of its records where ``run.json`` has none yet."""
    seen = {record.key.task: record.task_hash for record in part.run.records if record.task_hash}
    return {**seen, **(part.run.meta.get("task_hashes") or {})}


def _task_hashes(parts: Sequence[Part]) -> dict[str, str]:
    """Return what every task is in the merged run: as the part has it that was worked on last."""
    latest = sorted(parts, key=_last_session)
    return {name: task_hash for part in latest for name, task_hash in _hashes_of(part).items()}


def _last_session(part: Part) -> str:
    meta = part.run.meta
    sessions = meta.get("sessions") or ()
    return max([str(meta.get("created") or ""), *(str(session.get("started") or "") for session in sessions)])


def _set_aside(parts: Sequence[Part], hashes: Mapping[str, str]) -> dict[str, int]:
    records = (record for part in parts for record in (*part.run.records, *part.run.retries, *part.run.set_aside))
    number = Counter(one.key.task for one in records if one.task_hash not in ("", hashes.get(one.key.task)))
    return dict(sorted(number.items()))


def _entries(part: Part) -> Iterator[dict[str, Any]]:
    """Yield what is kept of each run that a part was made of."""
    run = part.run
    inner = run.meta.get("parts")
    if inner:
        for entry in inner:
            yield {
                **entry,
                "first_sample": entry["first_sample"] + part.first_sample,
                "slot": entry["slot"] + part.first_slot,
            }
        return
    keys = ("created", "finished", "seed", "shard", "samples", "host", "engine", "git", "versions")
    yield {
        "run": part.id,
        "path": str(run.path.resolve()),
        "slot": part.first_slot,
        "first_sample": part.first_sample,
        "planned": len(run.planned),
        "recorded": len(run.records),
        "compared": _compared(run),
        "damaged": run.damaged,
        "schedule": {name: (run.meta.get("schedule") or {}).get(name) for name in (*SCHEDULE, "remark")},
        **{key: run.meta.get(key) for key in keys},
    }


def _compared(run: Run) -> list[str]:
    """Return what a run put side by side, in words: its agents and configs, which its shards have in common.

    Marked functions may be so few that a shard has none of them.
    """
    functions = {one["name"] for one in run.meta.get("agents") or () if one.get("kind") == "marked-function"}
    return sorted({f"{key.agent} under {key.config}" for key in run.planned if key.agent not in functions})


def _notes(parts: Sequence[Part], set_aside: Mapping[str, int]) -> Iterator[str]:
    entries = [entry for part in parts for entry in _entries(part)]
    slots = len({entry["slot"] for entry in entries})
    yield f"merged from {plural(len(entries), 'run')} in {plural(slots, 'slot')}: " + ", ".join(
        entry["run"] for entry in entries
    )
    yield from _missing_shards(entries)
    yield from _uneven_shards(entries)
    for part in parts:
        yield from (f"{part.id}: {note}" for note in notes(part.run.meta.get("sessions") or (), {}))
    hosts = {(entry.get("host") or {}).get("name") for entry in entries}
    sizes = {_size(entry.get("engine") or {}) for entry in entries}
    if len(sizes) > 1:
        yield f"made on hosts that differ: {'; '.join(sorted(sizes))}"
    elif len(hosts) > 1:
        yield f"made on {plural(len(hosts), 'host')} of one size"
    yield from _scheduled(entries)
    damaged = sum(int(entry.get("damaged") or 0) for entry in entries)
    if damaged:
        yield f"{plural(damaged, 'journal line')} of the merged runs could not be read"
    if len({part.run.meta.get("baseline") for part in parts}) > 1:
        yield "the merged runs had different baselines; here it is the first one's"
    if set_aside:
        names = list(set_aside)
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        yield (
            f"{plural(sum(set_aside.values()), 'record')} of an older version of the task set aside and counted "
            f"nowhere: {shown}; their trials are missing until the older runs are resumed and merged again"
        )


def _scheduled(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield in what way it was decided differently who ran when, and beside whom."""
    schedules = [(entry["run"], entry.get("schedule") or {}) for entry in entries]
    for name, words in (("admit", "were admitted by"), ("order", "had the order")):
        found = list(dict.fromkeys(schedule[name] for _, schedule in schedules if schedule.get(name)))
        if len(found) > 1:
            yield f"trials of the merged runs {words} {' and '.join(found)}, each run's by its own"
    for run, schedule in schedules:
        if schedule.get("remark"):
            yield f"{run}: order: {schedule['remark']}"


def _size(engine: Mapping[str, Any]) -> str:
    return (
        f"{float(engine.get('cpus') or 0):g} CPUs, {int(engine.get('memory') or 0) / 1024**3:.1f} GiB, "
        f"cgroup v{engine.get('cgroup_version')}"
    )


def _uneven_shards(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how the shards of one whole differ: one that was grown has trials that the others have not."""
    wholes: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for entry in entries:
        match = _SHARD.fullmatch(str(entry.get("shard") or ""))
        if match is not None and int(match[2]) > 1:
            wholes.setdefault((int(entry["slot"]), int(match[2])), []).append(entry)
    for shards in wholes.values():
        # Runs that were merged before may not say it.
        samples = {str(entry["shard"]): entry["samples"] for entry in shards if entry.get("samples")}
        if len(set(samples.values())) > 1:
            told = ", ".join(f"{number} of shard {shard}" for shard, number in sorted(samples.items()))
            yield f"incomplete: the shards were made for different numbers of samples ({told})"
        compared = [set(entry.get("compared") or ()) for entry in shards]
        whole = set().union(*compared)
        for entry, there in zip(shards, compared, strict=True):
            lacking = sorted(whole - there)
            if there and lacking:
                shown = ", ".join(lacking[:_NAMED]) + (" and more" if len(lacking) > _NAMED else "")
                yield f"incomplete: shard {entry['shard']} has no trials of {shown}, which others of its whole have"


def _missing_shards(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    there: dict[tuple[int, int], set[int]] = {}
    for entry in entries:
        match = _SHARD.fullmatch(str(entry.get("shard") or ""))
        if match is not None:
            there.setdefault((int(entry["slot"]), int(match[2])), set()).add(int(match[1]))
    for (_, count), numbers in sorted(there.items()):
        missing = sorted({*range(1, count + 1)} - numbers)
        if missing:
            shards = ", ".join(f"{number}/{count}" for number in missing)
            yield f"incomplete: shard {shards} is not among them, and its trials are not planned here"
