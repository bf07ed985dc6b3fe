from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import RunNotFound
from pytest_infranoise.journal import artifacts_dir
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import write_meta
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict

texts = st.text(max_size=20)
keys = st.builds(TrialKey, texts, texts, texts, texts, st.integers(0, 9))
records = st.builds(
    Record,
    run=texts,
    key=keys,
    attempt=st.integers(0, 2),
    task_hash=texts,
    verdict=st.sampled_from(Verdict),
    rule=texts,
    summary=texts,
    cause=st.none() | st.sampled_from(Cause),
    reason=st.none() | st.sampled_from(FailReason),
    flags=st.lists(st.sampled_from(Flag)).map(tuple),
    reward=st.none() | st.floats(0, 1),
    details=st.dictionaries(texts, texts),
)


def make_record(key: TrialKey, attempt: int = 0) -> Record:
    return Record("run", key, attempt, "hash", Verdict.PASS, "2 complete pass", "passed")


def key(sample: int, config: str = "1x") -> TrialKey:
    return TrialKey("scripted", "", "task", config, sample)


@given(records)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_planned_is_recorded_plus_missing(tmp_path: Path) -> None:
    planned = [key(sample) for sample in range(4)]
    write_meta(tmp_path, {"planned": [list(entry.to_json().values()) for entry in planned]})
    journal = Journal(tmp_path, "gw0")
    for sample in (0, 1):
        journal.started(key(sample), 0)
        journal.finished(make_record(key(sample)))
    journal.started(key(2), 0)

    run = read_run(tmp_path)

    assert {record.key for record in run.records} == {key(0), key(1)}
    assert set(run.missing) == {key(2), key(3)}
    assert [entry.key for entry in run.unfinished] == [key(2)]
    assert run.damaged == 0


def test_the_first_attempt_is_the_record_and_later_ones_are_retries(tmp_path: Path) -> None:
    write_meta(tmp_path, {"planned": []})
    Journal(tmp_path, "gw1").finished(make_record(key(0), attempt=1))
    Journal(tmp_path, "gw0").finished(make_record(key(0), attempt=0))

    run = read_run(tmp_path)

    assert [record.attempt for record in run.records] == [0]
    assert [record.attempt for record in run.retries] == [1]


def test_a_record_written_twice_counts_once(tmp_path: Path) -> None:
    write_meta(tmp_path, {"planned": []})
    journal = Journal(tmp_path, "gw0")
    first = make_record(key(0))
    journal.finished(first)
    Journal(tmp_path, "controller").finished(dataclasses.replace(first, verdict=Verdict.FAIL))

    assert len(read_run(tmp_path).records) == 1
    assert read_run(tmp_path).retries == ()


@given(st.integers(1, 400))
def test_a_line_cut_anywhere_costs_that_line_only(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    write_meta(run_dir, {"planned": []})
    journal = Journal(run_dir, "gw0")
    journal.finished(make_record(key(0)))
    whole = journal.path.read_bytes()
    journal.finished(make_record(key(1)))
    journal.path.write_bytes(journal.path.read_bytes()[: len(whole) + cut])
    after_cut = {record.key for record in read_run(run_dir).records}
    # The next process of that name appends to what the kill left.
    journal.finished(make_record(key(2)))

    run = read_run(run_dir)

    assert key(0) in after_cut
    assert {key(0), key(2)} <= {record.key for record in run.records}
    assert run.damaged <= 1


def test_a_finished_record_survives_sigkill(tmp_path: Path) -> None:
    write_meta(tmp_path, {"planned": []})
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pytest_infranoise.journal import Journal\n"
        "from pytest_infranoise.model import Record, TrialKey, Verdict\n"
        "key = TrialKey('scripted', '', 'task', '1x', 0)\n"
        "journal = Journal(Path(sys.argv[1]), 'gw0')\n"
        "journal.started(key, 0)\n"
        "journal.finished(Record('run', key, 0, 'hash', Verdict.PASS, 'rule', 'passed'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)

    assert done.returncode == -9
    assert [record.key for record in read_run(tmp_path).records] == [key(0)]


def test_an_unknown_schema_is_counted_and_not_guessed(tmp_path: Path) -> None:
    write_meta(tmp_path, {"planned": []})
    line = {"event": "finished", **make_record(key(0)).to_json(), "schema": 99}
    (tmp_path / "trials-gw0.jsonl").write_text(json.dumps(line) + "\n", "ascii")

    run = read_run(tmp_path)

    assert run.records == ()
    assert run.damaged == 1


def test_runs_are_found_by_path_by_id_and_by_being_the_newest(tmp_path: Path) -> None:
    for name in ("20260101-000000-a", "20260102-000000-b"):
        write_meta(tmp_path / name, {"planned": []})

    assert find_run(tmp_path, None).name == "20260102-000000-b"
    assert find_run(tmp_path, "20260101-000000-a") == tmp_path / "20260101-000000-a"
    assert find_run(Path("elsewhere"), str(tmp_path / "20260101-000000-a")).name == "20260101-000000-a"
    assert find_run(Path("elsewhere"), str(tmp_path)).name == "20260102-000000-b"
    with pytest.raises(RunNotFound, match="no run 'nothing'"):
        find_run(tmp_path, "nothing")
    with pytest.raises(RunNotFound, match="no run in"):
        find_run(tmp_path / "empty", None)


@given(texts, texts, texts)
def test_artifacts_stay_in_the_run_directory(
    tmp_path_factory: pytest.TempPathFactory, agent: str, task: str, config: str
) -> None:
    run_dir = tmp_path_factory.getbasetemp() / "artifacts-run"
    path = artifacts_dir(run_dir, TrialKey(agent, "", task, config, 0), 0)

    assert path.resolve().is_relative_to((run_dir / "artifacts").resolve())
    assert path.resolve().parent != (run_dir / "artifacts").resolve()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (TrialKey("a-b", "", "task", "1x", 0), TrialKey("a", "b", "task", "1x", 0)),
        (TrialKey("a", "b/c", "task", "1x", 0), TrialKey("a", "b_c", "task", "1x", 0)),
        (TrialKey("a", "", "t/ask", "1x", 0), TrialKey("a", "", "t_ask", "1x", 0)),
        (TrialKey("a b", "", "task", "1x", 0), TrialKey("a_b", "", "task", "1x", 0)),
        (TrialKey("a", "1x-0", "task", "1x", 0), TrialKey("a", "", "task", "1x-0-1x", 0)),
    ],
)
def test_no_two_trials_share_their_artifacts(tmp_path: Path, one: TrialKey, two: TrialKey) -> None:
    assert artifacts_dir(tmp_path, one, 0) != artifacts_dir(tmp_path, two, 0)
