"""Trials of foreign formats on a real engine: files where those have them, verdicts as theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import Task
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.loaders import load
from tests.tasks.foreign import GRADE
from tests.tasks.foreign import HARBOR
from tests.tasks.foreign import IMAGE
from tests.tasks.foreign import RUN_TESTS
from tests.tasks.foreign import harbor_task
from tests.tasks.foreign import terminal_bench_task
from tests.tasks.foreign import write
from tests.trials.lab import MIB
from tests.trials.lab import Lab
from tests.trials.test_runner import HOG
from tests.trials.test_runner import PASS
from tests.trials.test_runner import fail
from tests.trials.test_runner import infra
from tests.trials.test_runner import outcome

pytestmark = pytest.mark.engine

ANSWER = "mkdir -p /app; echo done > /app/answer"
DEFAULTS = DefaultResources((1, 2), (64 * MIB, 192 * MIB))
REWARD = "/logs/verifier/reward"


def loaded(root: Path) -> Task:
    task = load(root, DEFAULTS)
    assert task is not None
    assert task.unsupported is None
    return task


def harbor(lab: Lab, test: str = GRADE, *, extra: str = "", timeout: float = 20) -> Task:
    toml = HARBOR.replace("[agent]\ntimeout_sec = 20.0", f"[agent]\ntimeout_sec = {timeout}")
    return loaded(harbor_task(lab.path / "job", toml + extra, test=f"#!/bin/bash\n{test}"))


def verifier_error(record: Record) -> None:
    assert outcome(record) == infra(Cause.VERIFIER_ERROR), record.summary
    assert record.reward is None


def oracle(lab: Lab, task: Task) -> Record:
    trial = replace(lab.trial(task), agent=AgentChoice("agent", "oracle"))
    return lab.run_trial(trial, make_builtin(AgentContext(trial.agent, task, trial.key, lab.seed)))


def test_harbor_pass_and_fail(lab: Lab) -> None:
    task = harbor(lab)
    record = lab.do(ANSWER, task)
    assert (*outcome(record), record.rule, record.reward) == (*PASS, "2 complete pass", 1.0)
    assert record.details["artefact"]["source"] == "reward.txt"
    assert outcome(lab.do("exit 0", task, sample=1)) == fail(FailReason.TESTS_FAILED)


def test_harbor_oracle(lab: Lab) -> None:
    assert outcome(oracle(lab, harbor(lab))) == PASS


def test_harbor_paths(lab: Lab) -> None:
    """The agent sees neither tests nor solution; logs are there for everybody, tests only for the verifier."""
    test = f"ls -d /tests/test.sh /logs/agent /logs/artifacts && [ ! -e /solution ] && echo 1 > {REWARD}.txt"
    record = lab.do(
        "ls /tests /solution; touch /logs/agent/a /logs/artifacts/b /logs/verifier/c", harbor(lab, test)
    )
    assert outcome(record) == PASS
    assert lab.log("agent").count("No such file") == 2


def test_harbor_memory_at_1x_and_uncapped(lab: Lab) -> None:
    task = harbor(lab)
    solve = f"[ $({HOG} | wc -c) = {200 * MIB} ] && {{ {ANSWER}; }}; exit 0"
    killed = lab.do(solve, task, memory=64)
    assert outcome(killed) == infra(Cause.RESOURCE_KILL)
    assert killed.flags == (Flag.OOM_KILLS,)
    assert outcome(lab.do(solve, task, memory=None, sample=1)) == PASS


def test_harbor_work_after_the_deadline_does_not_count(lab: Lab) -> None:
    late = f"(setsid sh -c 'sleep 3; {ANSWER}' &) ; sleep 60"
    task = harbor(lab, f"sleep 5; {GRADE}", timeout=1)
    record = lab.do(late, task)
    assert outcome(record) == fail(FailReason.AGENT_TIMEOUT)
    assert Flag.TIMED_OUT in record.flags


def test_harbor_work_before_the_deadline_counts(lab: Lab) -> None:
    record = lab.do(f"{ANSWER}; sleep 60", harbor(lab, timeout=2))
    assert outcome(record) == PASS
    assert record.flags == (Flag.TIMED_OUT,)


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("exit 0", "wrote no verdict"),
        ("curl: command not found; exit 127", "wrote no verdict"),
        (f": > {REWARD}.txt", "cannot be read"),
        (f"echo maybe > {REWARD}.txt", "cannot be read"),
        (f"echo nan > {REWARD}.txt", "cannot be read"),
        (f"echo 1 > {REWARD}.txt; echo '{{' > {REWARD}.json", "cannot be read"),
        (f"echo 1 > {REWARD}.json", "cannot be read"),
        (f"mkdir {REWARD}.txt", "cannot be read"),
        (f"echo 1 > {REWARD}.txt; mkdir {REWARD}.json", "cannot be read"),
        (f"echo 1 > {REWARD}.txt; ln -s reward.txt {REWARD}.json", "cannot be read"),
        (f"echo 1 > {REWARD}.txt; printf '{{\"reward\": 1%70000s}}' '' > {REWARD}.json", "cannot be read"),
        (f'echo \'{{"style": 1, "speed": 1}}\' > {REWARD}.json', "cannot be read"),
    ],
)
def test_harbor_no_verdict_is_no_fail(lab: Lab, test: str, why: str) -> None:
    record = lab.do("exit 0", harbor(lab, test))
    verifier_error(record)
    assert why in record.summary


def test_harbor_json_wins(lab: Lab) -> None:
    task = harbor(lab, f"""echo 0 > {REWARD}.txt; echo '{{"reward": 1.0, "style": 0.2}}' > {REWARD}.json; exit 1""")
    record = lab.do("exit 0", task)
    assert (*outcome(record), record.reward) == (*PASS, 1.0)
    assert record.details["artefact"]["source"] == "reward.json"


def test_harbor_verifier_that_does_not_end(lab: Lab) -> None:
    task = harbor(lab, f"echo 0 > {REWARD}.txt; sleep 60")
    task = replace(task, timeouts=replace(task.timeouts, verifier=1.0))
    record = lab.do("exit 0", task)
    verifier_error(record)
    assert "timed out" in record.summary


FORGERIES = {
    "files": f"echo 1 > {REWARD}.txt; echo '{{\"reward\": 1}}' > {REWARD}.json",
    "directories": f"mkdir -p {REWARD}.txt/x {REWARD}.json/x",
    "links": f"echo 1 > /tmp/one; ln -s /tmp/one {REWARD}.txt; ln -s /tmp/one {REWARD}.json",
    "link in the way": f"mkdir /tmp/logs; echo 1 > /tmp/logs/reward.txt; rm -r {REWARD[:-7]}; "
    f"ln -s /tmp/logs {REWARD[:-7]}",
    "nothing there": "rm -r /logs",
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=list(FORGERIES))
def test_harbor_verdicts_of_the_agent_do_not_count(lab: Lab, forge: str) -> None:
    assert outcome(lab.do(forge, harbor(lab))) == fail(FailReason.TESTS_FAILED)
    verifier_error(lab.do(forge, harbor(lab, "exit 0"), sample=1))


def test_harbor_tests_are_ours_alone(lab: Lab) -> None:
    """What an agent puts where the tests will be is gone; what the image has there stays."""
    task = harbor(lab, f"[ -e /tests/mine ] && echo 0 > {REWARD}.txt || echo 1 > {REWARD}.txt")
    assert outcome(lab.do("mkdir /tests; touch /tests/mine /tests/test.sh", task)) == PASS
    root = write(harbor_task(lab.path / "own", HARBOR.replace(f'docker_image = "{IMAGE}"', "")), {})
    write(root, {"environment/Dockerfile": f"FROM {IMAGE}\nRUN mkdir /tests && echo data > /tests/fixture\n"})
    write(root, {"tests/test.sh": f"#!/bin/bash\ngrep -q data /tests/fixture && echo 1 > {REWARD}.txt\n"})
    assert outcome(lab.do("exit 0", loaded(root))) == PASS


def test_harbor_a_zero_without_the_report_of_the_tests(lab: Lab) -> None:
    """The script could not fetch its runner and writes 0 all the same."""
    report = "/logs/verifier/ctrf.json"
    summary = '{"results": {"summary": {"tests": 3}}}'
    run = f"no-such-runner --ctrf {report} && echo 1 > {REWARD}.txt || echo 0 > {REWARD}.txt"
    record = lab.do("exit 0", harbor(lab, run))
    verifier_error(record)
    assert "ran no test" in record.summary
    forged = lab.do(f"echo '{summary}' > {report}", harbor(lab, run), sample=1)
    verifier_error(forged)
    ran = f"# --ctrf {report}\necho '{summary}' > {report}; echo 0 > {REWARD}.txt"
    failed = lab.do("exit 0", harbor(lab, ran), sample=2)
    assert outcome(failed) == fail(FailReason.TESTS_FAILED)
    assert failed.details["artefact"]["tests"] == 3


def test_harbor_a_report_of_skipped_tests(lab: Lab) -> None:
    """pytest ends with 0 when everything was skipped, and so the script writes a 1."""
    report = "/logs/verifier/ctrf.json"
    summary = '{"results": {"summary": {"tests": 2, "skipped": %d}}}'
    run = f"echo '{summary}' > {report}; echo 1 > {REWARD}.txt"
    record = lab.do("exit 0", harbor(lab, run % 2))
    verifier_error(record)
    assert "ran no test" in record.summary
    some = lab.do("exit 0", harbor(lab, run % 1), sample=1)
    assert outcome(some) == PASS
    assert some.details["artefact"]["tests"] == 1


def test_harbor_a_report_that_is_too_long_to_read_is_there(lab: Lab) -> None:
    report = "/logs/verifier/ctrf.json"
    run = f"# pytest --ctrf {report}\nhead -c 17000000 /dev/zero > {report}; echo 0 > {REWARD}.txt"
    assert outcome(lab.do("exit 0", harbor(lab, run))) == fail(FailReason.TESTS_FAILED)


def test_harbor_a_zero_without_pytest_s_last_line(lab: Lab) -> None:
    """No report was asked for; whether pytest was ever started shows in what it prints."""
    run = f"if %s; then echo 1 > {REWARD}.txt; else echo 0 > {REWARD}.txt; fi"
    record = lab.do("exit 0", harbor(lab, run % "no-such-runner pytest /tests/test_outputs.py"))
    verifier_error(record)
    assert "no last line of pytest" in record.details["artefact"]["text"]
    pytest = "pytest() { echo '== 1 failed in 0.10s =='; false; }\n"
    failed = lab.do("exit 0", harbor(lab, pytest + run % "pytest /tests/test_outputs.py"), sample=1)
    assert outcome(failed) == fail(FailReason.TESTS_FAILED)
    hidden = lab.do("exit 0", harbor(lab, run % "no-such-runner pytest -qq /tests"), sample=2)
    assert outcome(hidden) == fail(FailReason.TESTS_FAILED)


def test_harbor_users_and_workdir(lab: Lab) -> None:
    toml = HARBOR.replace("[agent]", '[agent]\nuser = "nobody"').replace(
        "[environment]", '[environment]\nworkdir = "/tmp"'
    )
    test = f"#!/bin/bash\n[ $(id -un) = root ] && [ $(pwd) = /tmp ] && echo 1 > {REWARD}.txt\n"
    record = lab.do("id -un; pwd", loaded(harbor_task(lab.path / "job", toml, test=test)))
    assert outcome(record) == PASS
    assert lab.log("agent") == "nobody\n/tmp\n"


def test_harbor_environments_and_secrets(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SIDE_KEY", "hush-hush-42")
    extra = '[environment.env]\nPLAIN = "p"\nKEY = "${HOST_SIDE_KEY}"\nLEVEL = "${NOT_SET_HERE:-7}"\n'
    extra += '[verifier.env]\nJUDGE = "${HOST_SIDE_KEY}"\n'
    test = f'echo "judge $JUDGE"; [ "$JUDGE$LEVEL" = hush-hush-427 ] && echo 1 > {REWARD}.txt'
    record = lab.do('echo "$PLAIN $LEVEL $KEY judge=$JUDGE"', harbor(lab, test, extra=extra))
    assert outcome(record) == PASS
    assert lab.log("agent") == "p 7 *** judge=\n"
    assert lab.log("verifier") == "judge ***\n"
    for path in lab.run_dir.rglob("*"):
        assert not path.is_file() or b"hush-hush" not in path.read_bytes()


def test_harbor_healthcheck(lab: Lab) -> None:
    check = '[environment.healthcheck]\ninterval_sec = 0.1\nretries = 3\ncommand = "{}"\n'
    third = "echo x >> /tmp/n; [ $(wc -l < /tmp/n) -ge 3 ]"
    record = lab.do(f"{ANSWER}; cat /tmp/n", harbor(lab, extra=check.format(third)))
    assert outcome(record) == PASS
    assert lab.log("agent") == "x\nx\nx\n"
    never = lab.do(ANSWER, harbor(lab, extra=check.format("echo not yet; exit 1")), sample=1)
    assert outcome(never) == infra(Cause.SETUP_FAILED)
    assert "failed 3 times in a row: not yet" in never.summary


def test_harbor_healthcheck_that_exceeds_its_time_is_killed(lab: Lab) -> None:
    """With all of its session, and nothing else: what it started as a service goes on."""
    hangs = "[ -e /tmp/n ] && exit 0; touch /tmp/n; setsid sleep 7002 & (exec -a x timeout 7001 sleep 7001) | cat"
    check = f'[environment.healthcheck]\ninterval_sec = 0\ntimeout_sec = 1\nretries = 2\ncommand = "{hangs}"\n'
    look = "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$file; echo; done"
    record = lab.do(f"{ANSWER}; {look}", harbor(lab, extra=check))
    assert outcome(record) == PASS
    assert "7001" not in lab.log("agent")
    assert "infranoise-healthcheck" not in lab.log("agent")
    assert "sleep 7002" in lab.log("agent")


def test_harbor_files_beside_an_image_go_into_its_workdir(lab: Lab) -> None:
    task = harbor(lab)
    write(task.root, {"environment/data.txt": "here\n"})
    task = loaded(task.root)
    assert outcome(lab.do(f"cat data.txt && {ANSWER}", task)) == PASS
    assert lab.log("agent") == "here\n"


def bench(lab: Lab, run_tests: str = RUN_TESTS) -> Task:
    return loaded(terminal_bench_task(lab.path / "bench", run_tests=run_tests))


def test_terminal_bench_pass_and_fail(lab: Lab) -> None:
    task = bench(lab)
    record = lab.do(f"pwd; ls /tests; {ANSWER}", task)
    assert (*outcome(record), record.reward, record.details["artefact"]["tests"]) == (*PASS, 1.0, 2)
    assert "/app" in lab.log("agent")
    failed = lab.do("exit 0", task, sample=1)
    assert outcome(failed) == fail(FailReason.TESTS_FAILED)
    assert "test_answer" in failed.details["artefact"]["text"]


def test_terminal_bench_tests_are_run_by_root_in_a_login_shell(lab: Lab) -> None:
    """As in Terminal-Bench; the agent is the image's user, whose own profile is nobody's but its own."""
    run = """#!/bin/bash
say() { echo "=== short test summary info ==="; echo "$1 t.py::test_it"; echo "=== 1 $2 in 0.05s ==="; exit; }
found="$(id -un) $(pwd) $FROM_PROFILE $FROM_BASHRC $SHELL $TERM $(cat /tests/test_outputs.py)"
echo "found: $found"
[ "$found" = "root /app p b /bin/bash screen def test_answer(): ..." ] && say PASSED passed || say FAILED failed
"""
    dockerfile = f"""FROM {IMAGE}
RUN useradd --create-home --shell /bin/bash worker && mkdir /app && chown worker /app
RUN echo 'export FROM_PROFILE=p' >>/root/.profile && echo 'export FROM_BASHRC=b; PS1=x' >>/root/.bashrc \
    && echo '. /root/.bashrc' >>/root/.profile
WORKDIR /app
USER worker
"""
    root = terminal_bench_task(lab.path / "bench", run_tests=run)
    task = loaded(write(root, {"Dockerfile": dockerfile}))
    record = lab.do("id -un", task)
    assert outcome(record) == PASS, lab.log("verifier")
    assert lab.log("agent") == "worker\n"
    write(root, {"run-tests.sh": run.replace("found: ", "wanted: ").replace("root /app", "nobody /app")})
    summary = "=== short test summary info ===\nPASSED t.py::test_it\n=== 1 passed in 0.05s ==="
    forge = f"for file in ~/.profile ~/.bash_profile ~/.bashrc; do echo 'echo \"{summary}\"; exit' >$file; done"
    assert outcome(lab.do(forge, loaded(root), sample=1)) == fail(FailReason.TESTS_FAILED)


def test_terminal_bench_oracle(lab: Lab) -> None:
    assert outcome(oracle(lab, bench(lab))) == PASS


def test_terminal_bench_memory(lab: Lab) -> None:
    task = bench(lab)
    solve = f"[ $({HOG} | wc -c) = {200 * MIB} ] && {{ {ANSWER}; }}; exit 0"
    assert outcome(lab.do(solve, task, memory=64)) == infra(Cause.RESOURCE_KILL)
    assert outcome(lab.do(solve, task, memory=None, sample=1)) == PASS


@pytest.mark.parametrize(
    "run_tests",
    [
        "echo 'E: Unable to fetch some archives'; exit 100",
        "echo '=== short test summary info ==='; echo 'PASSED a.py::test_one'; kill -9 $$",
        "sleep 60",
    ],
)
def test_terminal_bench_no_result_is_no_fail(lab: Lab, run_tests: str) -> None:
    task = bench(lab, f"#!/bin/bash\n{run_tests}\n")
    task = replace(task, timeouts=replace(task.timeouts, verifier=5.0))
    verifier_error(lab.do(ANSWER, task))


def test_terminal_bench_summary_after_much_output(lab: Lab) -> None:
    noise = "head -c 3000000 /dev/zero | tr '\\\\0' '.'; echo\n"
    record = lab.do(ANSWER, bench(lab, RUN_TESTS.replace("cd ", noise + "cd ", 1)))
    assert outcome(record) == PASS


def test_what_was_read_is_kept(lab: Lab) -> None:
    lab.do("exit 0", harbor(lab))
    (kept,) = (lab.run_dir / "artifacts").rglob("reward.txt")
    assert kept.read_text() == "0\n"
