"""What ``run.json`` says of a run that several sessions worked on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from pytest_infranoise.journal import Run
from pytest_infranoise.units import plural

_NAMED = 3


def entry(meta: Mapping[str, Any], *, trials: int, again: int) -> dict[str, Any]:
    """Return a session's own entry: its times, where and by what it was run, and how many trials it was to run.

    ``again`` of its ``trials`` had a record already.
    """
    keys = ("workers", "host", "versions", "git")
    facts = {key: meta.get(key) for key in keys}
    return {"started": meta.get("created"), "finished": None, "trials": trials, "again": again, **facts}


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
    sessions = [*(old.get("sessions") or [_first_session(before)]), mine]
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


def _first_session(run: Run) -> dict[str, Any]:
    return {
        "started": run.meta.get("created"),
        "finished": run.meta.get("finished"),
        "trials": len(run.planned),
        "again": 0,
        **{key: run.meta.get(key) for key in ("workers", "host", "versions", "git")},
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


def notes(sessions: Sequence[Mapping[str, Any]], set_aside: Mapping[str, int]) -> list[str]:
    """Return what a reader of the numbers has to know of how they came together, a line each."""
    lines = []
    if len(sessions) > 1:
        text = f"run in {len(sessions)} sessions"
        versions = dict.fromkeys((one.get("versions") or {}).get("pytest-infranoise") for one in sessions)
        known = [version for version in versions if version]
        lines.append(f"{text}, by versions {' and '.join(known)} of pytest-infranoise" if len(known) > 1 else text)
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


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
