"""Several runs as one: every planned trial and every record of every part, once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.analysis import analyse
from pytest_infranoise.cli import main
from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import write_meta
from pytest_infranoise.merge import MergeError
from pytest_infranoise.merge import merge
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.run_lock import session_lock
from pytest_infranoise.shards import Shard
from tests.builders import config_meta
from tests.builders import key
from tests.builders import meta_of
from tests.builders import record

NOW = "2026-02-05T00:00:00+00:00"
WHOLE = [key(task, config, sample) for sample, task, config in product(range(3), "abc", ("1x", "3x"))]


def write_part(root: Path, name: str, planned: list[TrialKey], records: list[Record], **meta: Any) -> Path:
    facts = {"run": name, "created": f"2026-02-0{1 + int(name[-1]) % 4}T00:00:00+00:00", **meta}
    run_dir = root / name
    write_meta(run_dir, meta_of(planned, **facts))
    for entry in records:
        Journal(run_dir, "main").finished(replace(entry, run=name))
    return run_dir


def merged(root: Path, *parts: Path) -> Run:
    merge(parts, root / "merged", "merged", NOW)
    return read_run(root / "merged")


plans = st.lists(st.sampled_from(WHOLE), unique=True, max_size=8)
ends = st.sampled_from([Verdict.PASS, Verdict.FAIL, Verdict.INFRA_ERROR, None])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(plans, st.lists(ends, min_size=8, max_size=8)), min_size=2, max_size=4), st.booleans())
def test_nothing_is_lost_and_nothing_is_there_twice(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[list[TrialKey], list[Verdict | None]]], nested: bool
) -> None:
    root = tmp_path_factory.mktemp("merge")
    paths = []
    expected: Counter[tuple[str, TrialKey, Verdict]] = Counter()
    for number, (planned, verdicts) in enumerate(parts):
        pairs = list(zip(planned, verdicts, strict=False))
        records = [record(place, end, task_hash="same") for place, end in pairs if end is not None]
        paths.append(write_part(root, f"part-{number}", planned, records))
        expected.update((f"part-{number}", entry.key, entry.verdict) for entry in records)
    if nested:
        merge(paths[:2], root / "inner", "inner", NOW)
        paths = [root / "inner", *paths[2:]]
    if len(paths) < 2:
        return

    run = merged(root, *paths)

    assert len(run.planned) == len(set(run.planned)) == sum(len(planned) for planned, _ in parts)
    assert len(run.planned) == len(run.records) + len(run.missing)
    found = Counter(
        (one.run, replace(one.key, sample=one.details["source"]["sample"]), one.verdict) for one in run.records
    )
    assert found == expected
    assert {one.details["source"]["run"] == one.run for one in run.records} <= {True}
    assert run.retries == ()
    analysis = analyse(run)
    assert (analysis.planned, analysis.recorded, analysis.unplanned) == (len(run.planned), len(run.records), 0)


def test_shards_are_put_together_as_if_they_had_been_one_run(tmp_path: Path) -> None:
    paths = []
    for number in (1, 2, 3):
        mine = [place for place in WHOLE if Shard(number, 3).has(place)]
        paths.append(
            write_part(
                tmp_path, f"s{number}", mine, [record(place) for place in mine], shard=f"{number}/3", samples=3
            )
        )

    run = merged(tmp_path, *paths)

    assert set(run.planned) == set(WHOLE)
    assert {one.key for one in run.records} == set(WHOLE)
    assert {one.details["slot"] for one in run.records} == {0}
    assert run.meta["samples"] == 3
    assert not any("incomplete" in note for note in run.meta["run_notes"])


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    paths = [write_part(tmp_path, f"s{number}", [WHOLE[number]], [], shard=f"{number}/3") for number in (1, 3)]

    assert any("incomplete: shard 2/3" in note for note in merged(tmp_path, *paths).meta["run_notes"])


@pytest.mark.parametrize(
    ("more", "notes"),
    [
        ({}, []),
        ({"samples": None}, []),
        (
            {"samples": 5},
            ["incomplete: the shards were made for different numbers of samples (3 of shard 1/2, 5 of"],
        ),
        (
            {"config": "5x"},
            ["incomplete: shard 1/2 has no trials of scripted under 5x, which others of its whole have"],
        ),
    ],
)
def test_a_shard_that_was_grown_alone_is_named(tmp_path: Path, more: dict[str, Any], notes: list[str]) -> None:
    first, second = ([place for place in WHOLE if Shard(number, 2).has(place)] for number in (1, 2))
    paths = [write_part(tmp_path, "s1", first, [], shard="1/2", samples=3)]
    second += [replace(place, config=more["config"]) for place in second[:1] if "config" in more]
    paths.append(write_part(tmp_path, "s2", second, [], shard="2/2", samples=more.get("samples", 3)))

    found = [note for note in merged(tmp_path, *paths).meta["run_notes"] if note.startswith("incomplete")]

    assert len(found) == len(notes)
    assert all(note.startswith(start) for note, start in zip(found, notes, strict=True))


def test_the_same_trials_on_other_days_are_further_samples_in_slots_of_their_own(tmp_path: Path) -> None:
    days = [write_part(tmp_path, f"d{day}", WHOLE[:4], [record(one) for one in WHOLE[:4]]) for day in (0, 1, 2)]

    run = merged(tmp_path, *reversed(days))

    by_slot: dict[int, set[int]] = {}
    for one in run.records:
        by_slot.setdefault(one.details["slot"], set()).add(one.key.sample)
    assert by_slot == {0: {0}, 1: {1}, 2: {2}}
    assert [part["run"] for part in run.meta["parts"]] == ["d0", "d1", "d2"]
    assert len(run.records) == 12


def test_two_days_of_shards_stay_two_slots(tmp_path: Path) -> None:
    paths = []
    for day, number in product((0, 1), (1, 2)):
        mine = [place for place in WHOLE if Shard(number, 2).has(place)]
        facts = {"created": f"2026-02-0{1 + day}T0{number}:00:00", "shard": f"{number}/2"}
        paths.append(write_part(tmp_path, f"{day}-{number}", mine, [record(place) for place in mine], **facts))

    run = merged(tmp_path, *paths)

    assert run.meta["samples"] == 6
    assert {(one.details["slot"], one.key.sample // 3) for one in run.records} == {(0, 0), (1, 1)}
    assert len(run.records) == 2 * len(WHOLE)


def agents(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "scripted", "model": "", "kind": "command", **fields}]


@pytest.mark.parametrize(
    ("one", "other", "complaint"),
    [
        (
            {"configs": [config_meta("3x")]},
            {"configs": [{**config_meta("3x"), "memory": {"floor": 1.0, "ceiling": 5.0}}]},
            "resource config '3x' is memory=1x..3x,cpus=1x..3x in .*p0 and memory=1x..5x,cpus=1x..3x in .*p1",
        ),
        (
            {"configs": [config_meta("3x")]},
            {"configs": [{**config_meta("3x"), "time": 2.0}]},
            "memory=1x..3x,cpus=1x..3x in .* and memory=1x..3x,cpus=1x..3x,time=2x in",
        ),
        ({"agents": agents(model="m1")}, {"agents": agents(model="m2")}, "agent 'scripted' is .*m1 in .*m2 in"),
        ({"agents": agents(fingerprint="f1")}, {"agents": agents(fingerprint="f2")}, "options f1 in .* options f2"),
        ({"design": {"margin": 0.03}}, {"design": {"margin": 0.05}}, "design's 'margin' is 0.03 in .* and 0.05 in"),
        ({"pass_threshold": 1.0}, {"pass_threshold": 0.5}, "the pass threshold is 1.0 in .* and 0.5 in"),
        (
            {"policy": {"oom_child": "infra"}},
            {"policy": {"oom_child": "fail"}},
            "policy on kills of child processes is infra in .* and fail in",
        ),
        (
            {"defaults": {"cpus": [1.0, 1.0], "memory": None}},
            {"defaults": {"cpus": [2.0, 2.0], "memory": None}},
            r"the default of 'cpus' is \[1.0, 1.0\] in .* and \[2.0, 2.0\] in",
        ),
    ],
)
def test_what_has_one_name_and_is_not_one_thing_is_refused(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], complaint: str
) -> None:
    paths = [write_part(tmp_path, f"p{number}", WHOLE[:2], [], **meta) for number, meta in enumerate((one, other))]

    with pytest.raises(MergeError, match=complaint):
        merged(tmp_path, *paths)

    assert not list(tmp_path.glob("merged*"))


def test_a_run_cannot_count_twice(tmp_path: Path) -> None:
    one, other = (write_part(tmp_path, f"p{number}", WHOLE[:2], []) for number in (0, 1))
    merge([one, other], tmp_path / "inner", "inner", NOW)

    for paths in ([one, one], [tmp_path / "inner", other]):
        with pytest.raises(MergeError, match="it would count twice"):
            merged(tmp_path, *paths)


def test_a_run_that_somebody_is_at_work_on_is_refused(tmp_path: Path) -> None:
    one, other = (write_part(tmp_path, f"p{number}", WHOLE[:2], []) for number in (0, 1))
    lock = session_lock(other)
    assert lock.acquire()
    try:
        with pytest.raises(MergeError, match="p1: a session is at work on it"):
            merged(tmp_path, one, other)
    finally:
        lock.release()


def test_records_of_an_older_version_of_a_task_are_set_aside_and_their_trials_missing(tmp_path: Path) -> None:
    planned = WHOLE[:2]
    one = write_part(tmp_path, "p0", planned, [record(place, task_hash="old") for place in planned])
    other = write_part(tmp_path, "p1", planned, [record(place, task_hash="new") for place in planned])

    run = merged(tmp_path, one, other)

    assert {entry.task_hash for entry in run.records} == {"new"}
    assert {entry.task_hash for entry in run.set_aside} == {"old"}
    assert len(run.planned) == len(run.records) + len(run.missing) == 4
    assert any("2 records of an older version of the task set aside" in note for note in run.meta["run_notes"])


def test_retries_unfinished_attempts_and_what_was_cut_short_come_along(tmp_path: Path) -> None:
    records = [record(WHOLE[0], Verdict.INFRA_ERROR), record(WHOLE[0], Verdict.PASS, attempt=1)]
    one = write_part(tmp_path, "p0", WHOLE[:2], records, cut_short="stopped at the first failure")
    Journal(one, "main").started(WHOLE[1], 0)
    other = write_part(tmp_path, "p1", WHOLE[:2], [record(place) for place in WHOLE[:2]], finished=None)

    run = merged(tmp_path, one, other)

    assert [entry.verdict for entry in run.retries] == [Verdict.PASS]
    assert [entry.key for entry in run.unfinished] == [WHOLE[1]]
    assert run.meta["cut_short"] == "p0: stopped at the first failure"
    assert run.meta["finished"] is None


@pytest.mark.parametrize(
    ("differing", "note"),
    [
        (
            {"admit": "ceiling"},
            "trials of the merged runs were admitted by floor and ceiling, each run's by its own",
        ),
        ({"order": "blocks"}, "trials of the merged runs had the order shuffled and blocks, each run's by its own"),
        ({"remark": "large floors went first"}, "p1: order: large floors went first"),
        ({}, None),
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_who_ran_beside_whom_is_nobody_s_alone(
    tmp_path: Path, differing: dict[str, str], note: str | None, nested: bool
) -> None:
    alike = {"order": "shuffled", "admit": "floor", "correlation": {"memory": 0.1, "cpus": None}}
    schedules = [alike, {**alike, **differing}, alike][: 3 if nested else 2]
    parts = [
        write_part(tmp_path, f"p{number}", WHOLE[:2], [], schedule=schedule, enforcement=f"Docker {number % 2}")
        for number, schedule in enumerate(schedules)
    ]
    if nested:
        merge(parts[:2], tmp_path / "inner", "inner", NOW)
        parts = [tmp_path / "inner", parts[2]]

    meta = merged(tmp_path, *parts).meta

    assert [line for line in meta["run_notes"] if "order" in line or "admitted" in line] == ([note] if note else [])
    for name in ("order", "admit"):
        assert meta["schedule"][name] == (None if name in differing else alike[name])
    # When trials started is what one run measured, and not another.
    assert meta["schedule"].keys() == {"order", "admit", "host_cpus", "host_memory"}
    assert "Docker 0; Docker 1" in meta["enforcement"]


class TestCommand:
    def test_a_merged_run_can_be_reported_and_is_the_newest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        runs = tmp_path / ".infranoise" / "runs"
        for number in (0, 1):
            write_part(runs, f"20250101-00000{number}", WHOLE, [record(place) for place in WHOLE])

        done = CliRunner().invoke(main, ["merge", "20250101-000000", "20250101-000001"])
        report = CliRunner().invoke(main, ["report"], env={"COLUMNS": "200"})

        assert done.exit_code == report.exit_code == 0, done.output + report.output
        assert "merged from 2 runs in 2 slots: 20250101-000000, 20250101-000001" in done.stdout
        assert "planned 36 = recorded 36 + missing 0" in report.stdout
        assert "merged from 2 runs in 2 slots" in report.stdout

    def test_a_directory_in_use_is_left_alone(self, tmp_path: Path) -> None:
        paths = [str(write_part(tmp_path, f"p{number}", WHOLE, [])) for number in (0, 1)]

        done = CliRunner().invoke(main, ["merge", *paths, "-o", paths[0]])

        assert done.exit_code == 2
        assert "is in use" in done.stderr
        assert read_run(Path(paths[0])).meta["run"] == "p0"

    def test_what_is_no_run_is_one_clear_line(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(main, ["merge", "here", "there", "--run-dir", str(tmp_path)])

        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "no run 'here'" in done.stderr
