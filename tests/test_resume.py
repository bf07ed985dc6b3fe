"""Going on with a run: what it was begun with holds, and every trial gets one record however sessions end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import closing
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.agent_identity import agent_entry
from pytest_infranoise.config_grammar import describe_config
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import write_meta
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.resume import engine_contradictions
from pytest_infranoise.run_lock import is_running
from pytest_infranoise.sandboxes.docker import DockerBackend
from tests.builders import RUN
from tests.builders import meta_of
from tests.builders import record
from tests.sessions import check_nothing_left
from tests.sessions import last_run
from tests.suite import SOLVE
from tests.suite import hold_memory
from tests.suite import make_task
from tests.test_session import start_session
from tests.test_session import wait_for_trial

SLEEP_2 = "sleep 2; echo done > answer.txt\n"
RESUME = ["suite", "--infranoise-resume", "last"]
INFRANOISE = Path(sys.executable).with_name("infranoise")
engine = pytest.mark.engine


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x', 'uncapped']\n", "utf-8")
    return root


@pytest.fixture(autouse=True)
def own_ledger(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(pytester.path / "state"))


# The second trial stays where it is, in the agent phase, until it may go on.
WAITS = """
import time
from pathlib import Path

from pytest_infranoise.agents.builtin import OracleAgent

run, trials = OracleAgent.run, []

def waits(self, *arguments, **named):
    trials.append(1)
    while len(trials) == 2 and not Path({go!r}).exists():
        time.sleep(0.02)
    return run(self, *arguments, **named)

OracleAgent.run = waits
"""


def labelled(run: str) -> list[str]:
    """Return what is on the engine of a run."""
    with closing(DockerBackend("test")) as backend:
        return list(backend.labelled(f"infranoise.run={run}"))


@pytest.fixture
def nothing_left(pytester: pytest.Pytester) -> Iterator[None]:
    yield
    check_nothing_left(pytester.path)


def written(run: Run) -> Counter[tuple[str, int]]:
    """Return every finished line of all journals by trial and attempt."""
    lines: Counter[tuple[str, int]] = Counter()
    for file in run.path.glob("trials-*.jsonl"):
        for line in file.read_text("ascii").splitlines():
            entry = json.loads(line)
            if entry["event"] == "finished":
                lines[str(TrialKey.from_json(entry)), entry["attempt"]] += 1
    return lines


def check_accounts(run: Run, planned: int) -> None:
    assert len(run.planned) == planned == len(run.records) + len(run.missing)
    assert set(written(run).values()) <= {1}


# Sessions that are killed, on a real engine


@engine
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("whole", "workers"),
    [(True, []), (True, ["-n2"]), (False, ["-n2"])],
    ids=["everything-plain", "everything-n2", "controller-n2"],
)
def test_a_killed_session_is_resumed_and_grows_and_every_trial_has_one_record(
    pytester: pytest.Pytester, suite: Path, workers: list[str], whole: bool
) -> None:
    make_task(suite, "one", solution=SLEEP_2, network=True)
    make_task(suite, "two", solution=SLEEP_2)
    session = start_session(pytester, "suite", "--infranoise-samples", "1", *workers)
    wait_for_trial(pytester, session, "gw0" if workers else "main")
    (os.killpg if whole else os.kill)(session.pid, signal.SIGKILL)
    session.wait()
    before = last_run(pytester)
    check_accounts(before, 4)
    assert before.missing
    assert before.meta["finished"] is None

    # At once: workers that are not dead yet must not run beside the new ones.
    result = pytester.runpytest_subprocess(*RESUME, "--infranoise-samples", "2", "-k", "not 1x-1", *workers)

    run = last_run(pytester)
    assert run.path == before.path
    assert result.ret == 0
    check_accounts(run, 6)
    assert run.missing == ()
    assert {entry.verdict for entry in run.records} == {Verdict.PASS}
    assert run.retries == ()
    # What had a record was not run again; what had begun was, under another number.
    assert {entry.key: entry for entry in run.records}.items() >= {
        entry.key: entry for entry in before.records
    }.items()
    attempts = {entry.key: entry.attempt for entry in run.records}
    assert {key for key, attempt in attempts.items() if attempt} == {entry.key for entry in run.unfinished}
    assert run.meta["seed"] == before.meta["seed"]
    assert run.meta["cut_short"] is None
    # A worker may have ended its trial after its controller was gone.
    later = sum(entry.worker.endswith("-s2") for entry in run.records)
    assert later <= 6 - len(before.records)
    assert [one["trials"] for one in run.meta["sessions"]] == [4, later]
    result.stdout.fnmatch_lines(["*planned 6 = recorded 6 + missing 0*", "run in 2 sessions"])


@engine
@pytest.mark.usefixtures("nothing_left")
def test_only_one_session_is_at_work_on_a_run(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "slow", solution=SLEEP_2)
    session = start_session(pytester, "suite", "--infranoise-samples", "2")
    wait_for_trial(pytester, session, "main")

    result = pytester.runpytest_subprocess(*RESUME)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --infranoise-resume: another session is at work on *"])
    assert session.wait() == 0
    check_accounts(last_run(pytester), 4)
    assert last_run(pytester).meta["sessions"][0]["finished"]


@engine
@pytest.mark.usefixtures("nothing_left")
def test_a_copy_of_a_run_is_not_resumed_while_the_original_is_alive(pytester: pytest.Pytester, suite: Path) -> None:
    go = pytester.path / "go"
    pytester.makeconftest(WAITS.format(go=str(go)))
    make_task(suite, "hello", network=True, timeouts={"agent": 600})
    session = start_session(pytester, "suite", "--infranoise-samples", "2")
    wait_for_trial(pytester, session, "main")
    original = last_run(pytester).path
    held = len(labelled(original.name))
    shutil.copytree(original, pytester.path / "copy")

    result = pytester.runpytest_subprocess("suite", "--infranoise-resume", "copy")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: --infranoise-resume: another session is at work on run {original.name}, *"]
    )
    # A container and a network, and both still there.
    assert len(labelled(original.name)) == held >= 2
    go.touch()
    assert session.wait() == 0
    check_accounts(read_run(original), 4)
    assert {entry.verdict for entry in read_run(original).records} == {Verdict.PASS}

    resumed = pytester.runpytest_subprocess("suite", "--infranoise-resume", "copy")

    assert resumed.ret == 0
    check_accounts(read_run(pytester.path / "copy"), 4)


@engine
@pytest.mark.usefixtures("nothing_left")
def test_infra_errors_run_again_keep_their_first_attempts_as_the_estimate(
    pytester: pytest.Pytester, suite: Path
) -> None:
    make_task(suite, "hungry", solution="set -e\n" + hold_memory(150) + SOLVE)
    make_task(suite, "wrong", solution="echo wrong > answer.txt\n")
    pytester.runpytest_subprocess("suite", "--infranoise-samples", "1")
    before = last_run(pytester)

    result = pytester.runpytest_subprocess(*RESUME, "--infranoise-rerun-infra", "-n2")

    run = last_run(pytester)
    killed = {entry.key for entry in before.records if entry.verdict is Verdict.INFRA_ERROR}
    assert {str(key) for key in killed} == {"hungry::oracle-1x-0"}
    assert run.records == before.records
    assert [(entry.key, entry.attempt) for entry in run.retries] == [(key, 1) for key in killed]
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "1 trial run again after an infra-error: rates are of first attempts" in result.stdout.str()
    check_accounts(run, 4)


@engine
@pytest.mark.usefixtures("nothing_left")
def test_records_of_a_changed_task_are_set_aside(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "same")
    changed = make_task(suite, "changed", solution="echo wrong > answer.txt\n")
    pytester.runpytest_subprocess("suite", "--infranoise-samples", "1")
    (changed / "solution.sh").write_text(SOLVE, "utf-8")

    result = pytester.runpytest_subprocess(*RESUME)

    run = last_run(pytester)
    assert result.ret == 0
    check_accounts(run, 4)
    assert {entry.verdict for entry in run.records} == {Verdict.PASS}
    assert {(entry.key.task, entry.verdict) for entry in run.set_aside} == {("changed", Verdict.FAIL)}
    assert {entry.attempt for entry in run.records if entry.key.task == "changed"} == {1}
    assert "2 records set aside and counted nowhere" in result.stdout.str().replace("\n  ", " ")


@engine
@pytest.mark.usefixtures("nothing_left")
def test_shards_share_the_trials_and_are_merged(pytester: pytest.Pytester, suite: Path) -> None:
    for name in "abc":
        make_task(suite, name)
    arguments = ["suite", "--infranoise-samples", "2", "--infranoise-seed", "5"]
    for number, workers in ((1, []), (2, ["-n2"])):
        done = pytester.runpytest_subprocess(*arguments, "--infranoise-shard", f"{number}/2", *workers)
        assert done.ret == 0
    shards = [read_run(path.parent) for path in pytester.path.glob(".infranoise/runs/*/run.json")]
    assert not set(shards[0].planned) & set(shards[1].planned)

    merged = pytester.run(INFRANOISE, "merge", *[str(run.path) for run in shards], "-o", "whole")
    report = pytester.run(INFRANOISE, "report", "whole")

    assert merged.ret == report.ret == 0
    run = read_run(pytester.path / "whole")
    assert {(key.task, key.config, key.sample) for key in run.planned} == set(
        product("abc", ("1x", "uncapped"), (0, 1))
    )
    check_accounts(run, 12)
    assert "planned 12 = recorded 12 + missing 0" in report.stdout.str()
    assert "seed 5" in report.stdout.str()


@engine
@pytest.mark.usefixtures("nothing_left")
def test_another_share_of_the_host_is_kept_of_each_session_and_told(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")
    first = pytester.runpytest_subprocess(
        "suite", "--infranoise-samples=1", "--infranoise-admit=ceiling", "--infranoise-host-memory=300M"
    )
    assert first.ret == 0

    result = pytester.runpytest_subprocess(*RESUME, "--infranoise-samples=2", "--infranoise-host-memory=200M")

    assert result.ret == 0
    run = last_run(pytester)
    sizes = [300 * 1024**2, 200 * 1024**2]
    assert [one["capacity"]["memory"] for one in run.meta["sessions"]] == sizes
    assert [one["schedule"]["host_memory"] for one in run.meta["sessions"]] == sizes
    assert {entry.details["admission"]["admit"] for entry in run.records} == {"ceiling"}
    output = " ".join(result.stdout.str().split())
    assert "300 MiB in session 1; " in output
    assert "200 MiB in session 2" in output


# Runs made up: what is refused, and what is left to do


def make_run(pytester: pytest.Pytester, recorded: int | None = None, **changes: Any) -> Path:
    """Write the run of a suite with one task, under the oracle and two configs, of which so many have a record."""
    planned = [
        TrialKey("oracle", "", "hello", config, sample) for sample in (0, 1) for config in ("1x", "uncapped")
    ]
    facts: dict[str, Any] = {
        "configs": [describe_config(config) for config in parse_configs(["1x,uncapped"])],
        "agents": [agent_entry(AgentChoice("oracle", kind="oracle"))],
        "defaults": {"cpus": None, "memory": None},
        "shard": None,
        **changes,
    }
    run_dir = pytester.path / ".infranoise" / "runs" / RUN
    write_meta(run_dir, meta_of(planned, baseline=facts["configs"][0]["name"], **facts))
    for place in planned[:recorded]:
        Journal(run_dir, "main").finished(record(place, task_hash=""))
    return run_dir


@pytest.fixture
def hello(suite: Path) -> Path:
    make_task(suite, "hello")
    return suite


@pytest.mark.usefixtures("hello")
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_nothing_left_to_run_needs_no_engine_and_is_summed_up(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    run_dir = make_run(pytester, finished=None)
    journals = {file.name: file.read_bytes() for file in run_dir.glob("trials-*")}

    result = pytester.runpytest_subprocess(*RESUME, *workers)

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*planned 4 = recorded 4 + missing 0*"])
    assert read_run(run_dir).meta["finished"]
    assert {file.name: file.read_bytes() for file in run_dir.glob("trials-*")} == journals


@pytest.mark.usefixtures("hello")
def test_nothing_left_that_was_selected_is_not_green_while_trials_are_missing(pytester: pytest.Pytester) -> None:
    make_run(pytester, recorded=2)

    assert pytester.runpytest_subprocess(*RESUME, "-k", "1x-0").ret == 20


@pytest.mark.usefixtures("hello")
def test_collecting_only_shows_what_is_left_and_changes_nothing(pytester: pytest.Pytester) -> None:
    run_dir = make_run(pytester, recorded=3)
    before = {file.name: file.read_bytes() for file in run_dir.iterdir()}

    result = pytester.runpytest_subprocess(*RESUME, "--co", "-q", "--infranoise-samples", "3")

    shown = [line for line in result.outlines if "::" in line]
    assert sorted(line.partition("::")[2] for line in shown) == ["1x-2", "uncapped-1", "uncapped-2"]
    after = {file.name: file.read_bytes() for file in run_dir.iterdir() if not file.name.endswith(".lock")}
    assert after == before


TOML = "agent = 'oracle'\n[configs.ram]\nmemory = '1x..5x'\n"
RAM = parse_configs(["ram:memory=1x..2x"])[0]


@pytest.mark.parametrize(
    ("arguments", "changes", "complaints"),
    [
        (["--infranoise-seed", "8"], {}, ["--infranoise-seed is 8 and was 7 when the run began"]),
        (["--infranoise-baseline", "uncapped"], {}, ["--infranoise-baseline is uncapped and was 1x when the run*"]),
        (
            ["--infranoise-margin", "5", "--infranoise-alpha", "0.1"],
            {"design": {"margin": 0.03, "alpha": 0.05, "min_cut": 0.5, "target": "benchmark"}},
            ["--infranoise-margin is 5.0 and was 3.0 *", "--infranoise-alpha is 0.1 and was 0.05 *"],
        ),
        (["--infranoise-pass-threshold", "0.5"], {}, ["--infranoise-pass-threshold is 0.5 and was 1.0 *"]),
        (
            ["--infranoise-oom-child", "fail", "--infranoise-oom-mode", "group"],
            {"policy": {"oom_child": "infra", "oom_mode": "single", "retries": 0}},
            ["--infranoise-oom-child is fail and was infra *", "--infranoise-oom-mode is group and was single *"],
        ),
        (
            ["--infranoise-order", "shuffled", "--infranoise-admit", "floor"],
            {"schedule": {"order": "blocks", "admit": "ceiling"}},
            ["--infranoise-order is shuffled and was blocks *", "--infranoise-admit is floor and was ceiling *"],
        ),
        (["--infranoise-samples", "1"], {}, ["--infranoise-samples is 1 and was 2; samples can only be added"]),
        (["--infranoise-shard", "1/2"], {}, ["--infranoise-shard is 1/2 and was not given when the run began"]),
        (
            ["--infranoise-default-cpus", "2"],
            {"defaults": {"cpus": [1.0, 1.5], "memory": None}},
            ["--infranoise-default-cpus is 2.0..2.0 and was 1.0..1.5 when the run began"],
        ),
        (
            ["--resource-config", "big:memory=1x..9x"],
            {"configs": [{**describe_config(RAM), "name": "big"}]},
            ["resource config 'big' is memory=1x..9x,cpus=1x..1x and was memory=1x..2x,cpus=1x..1x *"],
        ),
        # Also when the name is defined in infranoise.toml, and nobody typed anything.
        (
            [],
            {"configs": [describe_config(RAM)]},
            ["resource config 'ram' is memory=1x..5x,* and was memory=1x..2x,* when the run began*"],
        ),
        (
            ["--infranoise-agent", "command:true"],
            {"agents": [agent_entry(AgentChoice("command", "command", options={"command": "false"}))]},
            ["agent 'command' is *command 'true'* and was *command 'false'* when the run began*"],
        ),
        (
            ["--infranoise-seed", "8", "--infranoise-samples", "1"],
            {},
            ["--infranoise-samples is 1 *", "--infranoise-seed is 8 *"],
        ),
        ([], {"schema": 99}, ["*its schema is 99, this version goes on with 1"]),
        ([], {"parts": [{"run": "a"}]}, ["* was merged; resume the runs it was made of, and merge them again"]),
        (["--lf"], {}, ["*leave out --lf*"]),
    ],
)
def test_what_contradicts_the_run_is_one_error_with_both_values(
    pytester: pytest.Pytester,
    hello: Path,
    arguments: list[str],
    changes: Mapping[str, Any],
    complaints: list[str],
) -> None:
    (hello / "infranoise.toml").write_text(TOML, "utf-8")
    run_dir = make_run(pytester, recorded=0, **changes)
    if "schema" in changes:
        meta = json.loads((run_dir / "run.json").read_text("ascii"))
        (run_dir / "run.json").write_text(json.dumps({**meta, "schema": 99}), "ascii")

    result = pytester.runpytest_subprocess(*RESUME, *arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--infranoise-resume*: {complaint}" for complaint in complaints])
    # Nothing is held back, and nothing was begun.
    assert not is_running(run_dir)
    assert "sessions" not in read_run(run_dir).meta


def test_what_the_user_does_not_say_is_the_run_s(pytester: pytest.Pytester, hello: Path) -> None:
    (hello / "infranoise.toml").write_text(
        "agent = 'nop'\nsamples = 1\nseed = 3\norder = 'packed'\nadmit = 'floor'\n", "utf-8"
    )
    pytester.makeini("[pytest]\ninfranoise_host_cpus = 1\ninfranoise_host_memory = 1G\n")
    configs = [describe_config(config) for config in parse_configs(["1x", "own:memory=1x..7x,time=2x"])]
    policy = {
        "oom_child": "fail",
        "oom_mode": "group",
        "retries": 2,
        "memory_reserve": 123456789,
        "memory_reserve_asked": True,
        "allow_host_port": [3128],
    }
    schedule = {"order": "blocks", "admit": "ceiling", "host_cpus": 1.5, "host_memory": 987654321}
    # Its last session had no trial with a network left.
    make_run(pytester, recorded=0, configs=configs, policy=policy, schedule=schedule, isolation={"network": False})
    pytester.makeconftest(
        """
        from pytest_infranoise.collect import SETTINGS

        def pytest_collection_finish(session):
            found = session.config.stash[SETTINGS]
            print("SETTINGS", [one.name for one in found.configs], found.configs[1].time, found.samples, found.seed,
                  [one.name for one in found.agents], found.policies.oom_child, found.policies.oom_mode,
                  found.policies.retries, found.policies.memory_reserve)
            print("SCHEDULE", found.schedule.order, found.schedule.admit, found.schedule.host_cpus,
                  found.schedule.host_memory, found.policies.allow_host_port)
        """
    )

    result = pytester.runpytest_subprocess(*RESUME, "--co", "-s", "--resource-config", "3x", "-q")

    assert "SETTINGS ['1x', 'own', '3x'] 2.0 2 7 ['oracle'] fail group 2 123456789" in result.stdout.str()
    assert "SCHEDULE blocks ceiling 1.5 987654321 (3128,)" in result.stdout.str()

    # How much of the host is there for it may change; who runs beside whom may not.
    other = ["--infranoise-host-cpus", "2", "--infranoise-host-memory", "2G", "--infranoise-allow-host-port", "80"]
    typed = pytester.runpytest_subprocess(*RESUME, "--co", "-s", "-q", *other)

    assert f"SCHEDULE blocks ceiling 2.0 {2 * 1024**3} (80,)" in typed.stdout.str()


def test_a_run_that_does_not_say_how_it_was_scheduled_can_be_resumed_in_any_way(
    pytester: pytest.Pytester, hello: Path
) -> None:
    make_run(pytester, recorded=0)

    result = pytester.runpytest_subprocess(
        *RESUME, "--co", "--infranoise-order=packed", "--infranoise-admit=ceiling"
    )

    assert result.ret == 0


def test_rerunning_infra_errors_needs_a_run(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--infranoise-rerun-infra")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --infranoise-rerun-infra: say of which run: *"])


def test_no_such_run_is_one_clear_error(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--infranoise-resume", "nosuch")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --infranoise-resume: no run 'nosuch'*"])


class TestAgents:
    def test_a_command_is_kept_unless_it_may_hold_a_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "s3cr3t-value")
        monkeypatch.setenv("PLAIN", "passed-by-name")

        def entry(command: str) -> dict[str, Any]:
            return agent_entry(AgentChoice("command", "command", options={"command": command, "env": ["PLAIN"]}))

        assert entry("agent --fast")["command"] == "agent --fast"
        for command in ("agent s3cr3t-value", "MY_TOKEN=abc agent", "agent --x passed-by-name"):
            assert "command" not in entry(command)
            assert "s3cr3t" not in json.dumps(entry(command))
            assert entry(command)["fingerprint"] == entry(command)["fingerprint"] != entry("x")["fingerprint"]

    def test_a_command_that_was_not_kept_has_to_be_given_again(
        self, pytester: pytest.Pytester, hello: Path
    ) -> None:
        agent = AgentChoice("command", "command", options={"command": "KEY=1 true"})
        make_run(pytester, recorded=0, agents=[agent_entry(agent)])

        refused = pytester.runpytest_subprocess(*RESUME, "--co")
        accepted = pytester.runpytest_subprocess(*RESUME, "--co", "--infranoise-agent", "command:KEY=1 true")

        assert refused.ret == pytest.ExitCode.USAGE_ERROR
        refused.stderr.fnmatch_lines(["*it may hold a secret; give it again: --infranoise-agent 'command:TEXT'"])
        assert accepted.ret == 0


def test_an_engine_of_another_size_is_told_from_one_that_is_alike() -> None:
    memory = 8 * 1024**3
    before = {"cgroup_version": "1", "cpus": 2.0, "memory": memory, "version": "20.10"}

    assert engine_contradictions(before, {**before, "version": "29.1", "memory": memory - 4096}) == []
    assert engine_contradictions({}, before) == []
    for change in ({"cpus": 4.0}, {"cgroup_version": "2"}, {"memory": 4 * 1024**3}):
        assert len(engine_contradictions(before, {**before, **change})) == 1


def test_a_run_keeps_what_it_was_begun_with(pytester: pytest.Pytester) -> None:
    from pytest_infranoise.sessions import continued
    from pytest_infranoise.sessions import entry

    run = read_run(make_run(pytester, recorded=2))
    new = TrialKey("oracle", "", "other", "3x", 0)
    mine = meta_of([new], samples=2, task_hashes={"other": "h"}, created="later", preflight=None, images={})

    meta = continued(run, mine, entry(mine, trials=1, again=0))

    assert len(meta["planned"]) == 5
    assert [one["name"] for one in meta["configs"]] == ["1x", "uncapped", "3x"]
    assert meta["tasks"]["collected"] == ["hello", "other"]
    assert meta["run_notes"] == ["run in 2 sessions", "1 trial added to the plan later, when results could be seen"]


GIB = 1024**3
HOW: Mapping[str, Any] = {
    "schedule": {"order": "shuffled", "admit": "floor", "host_cpus": None, "host_memory": None, "remark": None},
    "capacity": {"cpus": 4.0, "memory": 8 * GIB},
    "policy": {"retries": 0, "memory_reserve": 400 * 1024**2, "allow_host_port": []},
    "host": {"name": "here", "boot": "b"},
    "engine": {"id": "one", "version": "29"},
}


def resumed_with(pytester: pytest.Pytester, first: Mapping[str, Any], *later: Mapping[str, Any]) -> dict[str, Any]:
    """Return what run.json says of a run that was begun and resumed in these ways."""
    from pytest_infranoise.sessions import continued
    from pytest_infranoise.sessions import entry

    run_dir = make_run(pytester, recorded=2, **first)
    for facts in later:
        run = read_run(run_dir)
        mine = meta_of(run.planned, task_hashes={}, created="later", preflight=None, images={}, **facts)
        write_meta(run_dir, continued(run, mine, entry(mine, trials=1, again=0)))
    return dict(read_run(run_dir).meta)


@pytest.mark.parametrize(
    ("key", "changed", "note"),
    [
        ("schedule", {"order": "blocks"}, "the order of trials: shuffled in sessions 1 and 3; blocks in session 2"),
        ("schedule", {"admit": "ceiling"}, "what is reserved for a trial: floor in sessions 1 and 3; ceiling in *"),
        (
            "capacity",
            {"memory": 3 * GIB},
            "what floors are shared out of: 4 CPUs and 8 GiB in sessions 1 and 3; 4 CPUs and 3 GiB in session 2",
        ),
        ("capacity", {"cpus": 1.5}, "what floors are shared out of: 4 *; 1.5 CPUs and 8 GiB in session 2"),
        ("policy", {"retries": 2}, "retries of infra-errors: 0 in sessions 1 and 3; 2 in session 2"),
        (
            "policy",
            {"memory_reserve": 0},
            "the host's memory reserve: 400 MiB in sessions 1 and 3; none in session 2",
        ),
        ("policy", {"allow_host_port": [80, 3128]}, "ports of *: none in sessions 1 and 3; 80, 3128 in session 2"),
        ("host", {"name": "there"}, "their machine: here in sessions 1 and 3; there in session 2"),
        ("engine", {"id": "two"}, "their engine: one in sessions 1 and 3; two in session 2"),
    ],
)
def test_what_may_differ_between_sessions_is_kept_of_each_and_told(
    pytester: pytest.Pytester, key: str, changed: Mapping[str, Any], note: str
) -> None:
    meta = resumed_with(pytester, HOW, {**HOW, key: {**HOW[key], **changed}}, HOW)

    count, *others = meta["run_notes"]
    assert count == "run in 3 sessions"
    assert [fnmatch(line, f"sessions differ in {note}") for line in others] == [True]
    kept = [{name: one[key].get(name) for name in changed} for one in meta["sessions"]]
    was = {name: HOW[key].get(name) for name in changed}
    assert kept == [was, dict(changed), was]


def test_sessions_that_are_alike_or_do_not_say_are_not_told_to_differ(pytester: pytest.Pytester) -> None:
    # Another boot, some of whose memory is the kernel's.
    rebooted = {"capacity": {"cpus": 4.0, "memory": 8 * GIB - 4096}, "host": {"name": "here", "boot": "c"}}

    assert resumed_with(pytester, HOW, {**HOW, **rebooted}, {})["run_notes"] == ["run in 3 sessions"]


def test_a_session_without_networks_leaves_what_the_others_could_reach(pytester: pytest.Pytester) -> None:
    reached = {"network": True, "host_ports": "reachable", "why": "no rules"}

    meta = resumed_with(pytester, {"isolation": reached}, {"isolation": {"network": False}})

    assert meta["isolation"] == reached
