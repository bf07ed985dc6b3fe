"""What ``run.json`` says of a run that several sessions worked on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from math import isclose
from typing import Any

from pytest_infranoise.journal import Run
from pytest_infranoise.units import format_memory
from pytest_infranoise.units import plural

SCHEDULE = ("order", "admit", "host_cpus", "host_memory")
_NAMED = 3
_SAME_MEMORY = 0.01  # the kernel's own part differs a little from boot to boot


def entry(meta: Mapping[str, Any], *, trials: int, again: int) -> dict[str, Any]:
    """Return a session's own entry: its times, where, how and by what it was run, and how many trials it had.

    ``again`` of its ``trials`` had a record already.
    """
    return {"started": meta.get("created"), "finished": None, "trials": trials, "again": again, **_facts(meta)}


def _facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is a session's own, and in ``run.json`` itself only that of the last one; None where unknown."""
    schedule, policy, engine = (meta.get(key) or {} for key in ("schedule", "policy", "engine"))
    return {
        **{key: meta.get(key) for key in ("workers", "host", "versions", "git", "capacity")},
        "schedule": {key: schedule[key] for key in SCHEDULE if key in schedule} or None,
        "policy": {key: policy[key] for key in ("retries", "memory_reserve", "allow_host_port") if key in policy},
        "engine": {key: engine[key] for key in ("id", "version") if key in engine},
    }


def continued(
    before: Run | None, meta: Mapping[str, Any], mine: Mapping[str, Any], named_images: Iterable[str] = ()
) -> dict[str, Any]:
    """Return what ``run.json`` says from now on: nothing that was planned is dropped, what was first stays first.

    Args:
        before: the run as it was; None for a new one.
        meta: what this session would say of a run of its own.
        mine: this session's entry.
        named_images: the tasks whose image is not built here: the same name may stand for another one by now.
    """
    if before is None:
        return {**meta, "sessions": [dict(mine)], "set_aside": {}, "run_notes": []}
    old = before.meta
    hashes = {**(old.get("task_hashes") or {}), **meta["task_hashes"]}
    set_aside = _set_aside(before, hashes)
    planned = _union(old.get("planned", ()), meta["planned"])
    images = old.get("images") or {}
    now = {task: image for task, image in (meta.get("images") or {}).items() if task in {*named_images}}
    changed = [task for task, image in now.items() if images.get(task, image) != image]
    mine = {**mine, "added": len(planned) - len(before.planned), "new_images": sorted(changed)}
    sessions = [*_earlier(before), mine]
    return {
        **old,
        **meta,
        "created": old.get("created", meta["created"]),
        "planned": planned,
        "tasks": {
            "collected": sorted({*old.get("tasks", {}).get("collected", ()), *meta["tasks"]["collected"]}),
            "skipped": {**old.get("tasks", {}).get("skipped", {}), **meta["tasks"]["skipped"]},
            "broken": meta["tasks"]["broken"],
        },
        "configs": _by_name(old.get("configs", ()), meta["configs"]),
        "agents": _by_name(old.get("agents", ()), meta["agents"]),
        "images": {**images, **(meta.get("images") or {})},
        "task_hashes": hashes,
        "preflight": _preflights(old.get("preflight"), meta.get("preflight")),
        "isolation": _isolation(old.get("isolation"), meta.get("isolation")),
        "outcome_selection": old.get("outcome_selection"),
        "cut_short": old.get("cut_short") or _never_ended(old),
        "sessions": sessions,
        "set_aside": set_aside,
        "run_notes": notes(sessions, set_aside),
    }


def _union(old: Iterable[Sequence[Any]], new: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(key) for key in dict.fromkeys(tuple(key) for key in (*old, *new))]


def _by_name(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    mine = {(one["name"], one.get("model") or ""): one for one in new}
    first = [dict(mine.pop((one["name"], one.get("model") or ""), one)) for one in old]
    return [*first, *(dict(one) for one in mine.values())]


def _set_aside(run: Run, hashes: Mapping[str, str]) -> dict[str, int]:
    """Return how many records of each task are of another content than it has now."""
    records = (*run.records, *run.retries, *run.set_aside)
    changed = [
        one.key.task for one in records if one.task_hash not in ("", hashes.get(one.key.task, one.task_hash))
    ]
    return dict(sorted(Counter(changed).items()))


def _earlier(run: Run) -> list[dict[str, Any]]:
    """Return the entries of the sessions before this one; of an only one, the run says what its entry does not."""
    sessions = [dict(one) for one in run.meta.get("sessions") or [_first_session(run)]]
    return [{**_facts(run.meta), **sessions[0]}] if len(sessions) == 1 else sessions


def _first_session(run: Run) -> dict[str, Any]:
    return {
        "started": run.meta.get("created"),
        "finished": run.meta.get("finished"),
        "trials": len(run.planned),
        "again": 0,
        **_facts(run.meta),
    }


def _never_ended(old: Mapping[str, Any]) -> str | None:
    return (
        None if old.get("finished") else "a session of the run was killed, and not all of its trials were run since"
    )


def _preflights(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return both preflights as one; a task that was checked again is what it was found to be now."""
    if not old or not new:
        return dict(new or old or {}) or None
    still = {task: problem for task, problem in old["quarantined"].items() if task not in new["tasks"]}
    tasks = {**old["tasks"], **new["tasks"]}
    unchecked = sorted({*old["unchecked"], *new["unchecked"]} - tasks.keys())
    return {**new, "tasks": tasks, "quarantined": {**still, **new["quarantined"]}, "unchecked": unchecked}


def _isolation(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what containers were kept from; a session whose trials had no network has nothing to say of it."""
    return dict((new if (new or {}).get("network") else old) or new or {})


def notes(sessions: Sequence[Mapping[str, Any]], set_aside: Mapping[str, int]) -> list[str]:
    """Return what a reader of the numbers has to know of how they came together, a line each."""
    lines = []
    if len(sessions) > 1:
        text = f"run in {len(sessions)} sessions"
        versions = dict.fromkeys((one.get("versions") or {}).get("pytest-infranoise") for one in sessions)
        known = [version for version in versions if version]
        lines.append(f"{text}, by versions {' and '.join(known)} of pytest-infranoise" if len(known) > 1 else text)
    lines += _differences(sessions)
    again = sum(int(one.get("again", 0)) for one in sessions)
    if again:
        lines.append(
            f"{plural(again, 'trial')} run again after an infra-error: rates are of first attempts, later ones are "
            "kept beside them"
        )
    added = sum(int(one.get("added", 0)) for one in sessions)
    if added:
        lines.append(f"{plural(added, 'trial')} added to the plan later, when results could be seen")
    images = sorted({task for one in sessions for task in one.get("new_images", ())})
    if images:
        lines.append(f"not under one image in all sessions: {_listed(images)}")
    if set_aside:
        shown = _listed(list(set_aside))
        lines.append(
            f"{plural(sum(set_aside.values()), 'record')} set aside and counted nowhere, because the task was "
            f"changed since: {shown}"
        )
    return lines


def _differences(sessions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield in what sessions were not alike, and which were how; those that do not say are left out."""
    for what, key, name, say in _COMPARED:
        groups: list[tuple[Any, list[int]]] = []
        for number, session in enumerate(sessions, 1):
            found = session.get(key) or {}
            value = found.get(name) if name else found or None
            if value is None:
                continue
            same = next((numbers for other, numbers in groups if _alike(other, value)), None)
            if same is None:
                groups.append((value, [number]))
            else:
                same.append(number)
        if len(groups) > 1:
            told = "; ".join(f"{say(value)} in {_numbered(numbers)}" for value, numbers in groups)
            yield f"sessions differ in {what}: {told}"


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_alike(value, other.get(key)) for key, value in one.items())
    if isinstance(one, int) and isinstance(other, int):
        return isclose(one, other, rel_tol=_SAME_MEMORY)
    return bool(one == other)


def _shares(capacity: Mapping[str, Any]) -> str:
    return f"{capacity['cpus']:g} CPUs and {format_memory(capacity['memory'])}"


def _reserve(size: int) -> str:
    return format_memory(size) if size else "none"


def _ports(ports: Sequence[int]) -> str:
    return ", ".join(map(str, ports)) or "none"


# What it is called; where a session's entry has it ("" for all that is there); how it is said.
_COMPARED: Sequence[tuple[str, str, str, Callable[[Any], str]]] = (
    ("the order of trials", "schedule", "order", str),
    ("what is reserved for a trial", "schedule", "admit", str),
    ("what floors are shared out of", "capacity", "", _shares),
    ("retries of infra-errors", "policy", "retries", str),
    ("the host's memory reserve", "policy", "memory_reserve", _reserve),
    ("ports of the engine's host that trials may reach", "policy", "allow_host_port", _ports),
    ("their machine", "host", "name", str),
    ("their engine", "engine", "id", str),
)


def _numbered(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"session {numbers[0]}"
    return f"sessions {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
