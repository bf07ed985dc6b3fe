"""What a session that goes on with a run still has to run: nothing lost, nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import write_meta
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.past import NO_PAST
from pytest_infranoise.past import Past
from pytest_infranoise.past import past_of
from pytest_infranoise.shards import Shard
from pytest_infranoise.shards import parse_shard
from tests.builders import key
from tests.builders import meta_of
from tests.builders import record

PLANNED = [key(task, config, sample) for task, config, sample in product("ab", ("1x", "3x"), range(2))]
HASHES = {"a": "hash-of-a", "b": "hash-of-b"}
places = st.sampled_from(PLANNED)
verdicts = st.sampled_from([Verdict.PASS, Verdict.FAIL, Verdict.INFRA_ERROR])
# How each trial of a session goes, as long as the session lives: it may be killed in the middle of one.
sessions = st.lists(
    st.tuples(st.integers(0, 9), st.booleans(), st.lists(verdicts, min_size=8, max_size=8)), max_size=4
)


def run_session(run_dir: Path, name: str, lives_for: int, torn: bool, ends: Sequence[Verdict]) -> list[TrialKey]:
    """Do what a session does to the journal: run what is wanted, until it is killed."""
    past = past_of(read_run(run_dir))
    wanted = [place for place in PLANNED if past.wants(place, HASHES[place.task])]
    journal = Journal(run_dir, name)
    for place, end in list(zip(wanted, ends, strict=False))[:lives_for]:
        number = past.attempt(place)
        journal.started(place, number)
        journal.finished(record(place, end, attempt=number, task_hash=HASHES[place.task]))
    if lives_for < len(wanted):
        journal.started(wanted[lives_for], past.attempt(wanted[lives_for]))
        if torn:
            with journal.path.open("ab") as file:
                file.write(b'{"event": "finished", "agent"')
    return wanted[:lives_for]


@settings(deadline=None)
@given(sessions, st.booleans())
def test_however_sessions_are_killed_every_trial_ends_up_with_one_record(
    tmp_path_factory: pytest.TempPathFactory, killed: list[tuple[int, bool, list[Verdict]]], same_name: bool
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    write_meta(run_dir, meta_of(PLANNED, task_hashes=HASHES))
    ran: Counter[TrialKey] = Counter()
    for number, (lives_for, torn, ends) in enumerate([*killed, (len(PLANNED), False, [Verdict.PASS] * 8)]):
        ran.update(run_session(run_dir, "main" if same_name else f"main-{number}", lives_for, torn, ends))

        run = read_run(run_dir)
        assert len(run.planned) == len(run.records) + len(run.missing)

    assert ran == Counter(PLANNED)
    assert {record.key for record in run.records} == set(PLANNED)
    assert run.retries == run.set_aside == ()
    assert run.missing == ()


@settings(deadline=None)
@given(st.dictionaries(places, st.lists(st.tuples(verdicts, st.sampled_from(["old", "new"])), max_size=3)))
def test_records_of_a_changed_task_are_set_aside_and_its_trials_run_again(
    tmp_path_factory: pytest.TempPathFactory, history: dict[TrialKey, list[tuple[Verdict, str]]]
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    write_meta(run_dir, meta_of(PLANNED, task_hashes={"a": "new", "b": "new"}))
    journal = Journal(run_dir, "main")
    for place, attempts in history.items():
        for number, (end, task_hash) in enumerate(attempts):
            journal.finished(record(place, end, attempt=number, task_hash=task_hash))

    run = read_run(run_dir)
    past = past_of(run)

    written = [one for attempts in history.values() for one in attempts]
    assert len(run.records) + len(run.retries) + len(run.set_aside) == len(written)
    assert {one.task_hash for one in (*run.records, *run.retries)} <= {"new"}
    assert {one.task_hash for one in run.set_aside} <= {"old"}
    for place in PLANNED:
        hashes = [task_hash for _, task_hash in history.get(place, [])]
        assert past.wants(place, "new") == ("new" not in hashes) == (place in run.missing)
        assert past.wants(place, "old") == ("old" not in hashes)
        assert past.attempt(place) == len(hashes)


@pytest.mark.parametrize(
    ("ends", "again"),
    [
        ([Verdict.PASS], False),
        ([Verdict.FAIL], False),
        ([Verdict.INFRA_ERROR], True),
        ([Verdict.INFRA_ERROR, Verdict.PASS], False),
        ([Verdict.INFRA_ERROR, Verdict.INFRA_ERROR], True),
    ],
)
def test_only_a_trial_whose_last_record_is_an_infra_error_is_run_again(
    tmp_path: Path, ends: list[Verdict], again: bool
) -> None:
    write_meta(tmp_path, meta_of(PLANNED, task_hashes=HASHES))
    for number, end in enumerate(ends):
        Journal(tmp_path, "main").finished(record(PLANNED[0], end, attempt=number, task_hash="hash-of-a"))
    run = read_run(tmp_path)

    assert past_of(run, rerun_infra=True).wants(PLANNED[0], "hash-of-a") is again
    assert past_of(run).wants(PLANNED[0], "hash-of-a") is False
    assert past_of(run, rerun_infra=True).attempt(PLANNED[0]) == len(ends)
    # Whatever came later, the estimate is the first attempt.
    assert [one.verdict for one in run.records] == ends[:1]


def test_a_record_that_does_not_know_its_task_counts(tmp_path: Path) -> None:
    write_meta(tmp_path, meta_of(PLANNED, task_hashes=HASHES))
    Journal(tmp_path, "controller").finished(record(PLANNED[0], Verdict.INFRA_ERROR, task_hash=""))
    run = read_run(tmp_path)

    assert [one.key for one in run.records] == [PLANNED[0]]
    assert not past_of(run).wants(PLANNED[0], "hash-of-a")


@given(
    st.dictionaries(places, st.integers(1, 5)),
    st.dictionaries(places, st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3)), min_size=1, max_size=3)),
    st.booleans(),
)
def test_workers_read_what_the_controller_froze(
    tmp_path_factory: pytest.TempPathFactory,
    following: dict[TrialKey, int],
    seen: dict[TrialKey, list[tuple[int, str]]],
    rerun_infra: bool,
) -> None:
    from pytest_infranoise.past import Seen

    attempts = {place: tuple(Seen(*one, "pass") for one in several) for place, several in seen.items()}
    past = Past(attempts, following, rerun_infra)
    file = tmp_path_factory.getbasetemp() / "past.json"
    past.write(file)

    assert Past.read(file) == past


def test_without_a_past_everything_is_wanted_as_a_first_attempt() -> None:
    assert NO_PAST.wants(PLANNED[0], "any")
    assert NO_PAST.attempt(PLANNED[0]) == 0


# Shards

keys = st.builds(
    TrialKey, st.text(max_size=5), st.just(""), st.text(max_size=9), st.text(max_size=5), st.integers(0, 99)
)


@given(keys, st.integers(1, 20))
def test_every_trial_is_in_exactly_one_shard(place: TrialKey, count: int) -> None:
    assert [Shard(number, count).has(place) for number in range(1, count + 1)].count(True) == 1


@given(keys, st.integers(1, 20), st.text(max_size=5), st.text(max_size=5))
def test_all_configs_and_agents_of_a_sample_share_a_shard(
    place: TrialKey, count: int, config: str, agent: str
) -> None:
    for number in range(1, count + 1):
        assert Shard(number, count).has(place) == Shard(number, count).has(
            replace(place, config=config, agent=agent)
        )


def test_samples_of_a_task_go_round_the_shards() -> None:
    shares = [sum(Shard(number, 4).has(key(sample=sample)) for sample in range(8)) for number in (1, 2, 3, 4)]

    assert shares == [2, 2, 2, 2]


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "1/0", "1/1001", "-1/4", "a/b", "1/4/2"])
def test_what_is_no_shard_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write I/N"):
        parse_shard(text)


def test_a_shard_is_read_as_it_is_written() -> None:
    assert str(parse_shard(" 2/4 ")) == "2/4"
