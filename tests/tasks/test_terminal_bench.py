"""Terminal-Bench 1's task directories, and its way of reading pytest's summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.model import HostVariable
from pytest_infranoise.model import Reads
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.defaults import parse_cpus
from pytest_infranoise.tasks.defaults import parse_memory_range
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.loaders import load as load_any
from pytest_infranoise.tasks.terminal_bench import load
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.pytest_summary import errors_met
from pytest_infranoise.trials.pytest_summary import grade
from pytest_infranoise.trials.pytest_summary import read
from pytest_infranoise.trials.readers import Reading
from tests.tasks.foreign import COMPOSE
from tests.tasks.foreign import IMAGE
from tests.tasks.foreign import TERMINAL_BENCH
from tests.tasks.foreign import terminal_bench_task
from tests.tasks.foreign import write

MIB = 1024**2
GIB = 1024**3
DEFAULTS = DefaultResources((1, 2), (2 * GIB, 6 * GIB))


def loaded(root: Path, defaults: DefaultResources = DEFAULTS) -> Task:
    task = load(root, defaults)
    assert task is not None
    return task


def mistakes(root: Path, defaults: DefaultResources = DEFAULTS) -> str:
    with pytest.raises(TaskError) as caught:
        load(root, defaults)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(str(root)) and "; " in line for line in lines)
    return "\n".join(line.replace(f"{root}/", "") for line in lines)


def unsupported(root: Path) -> str:
    return loaded(root).unsupported or ""


def client(*lines: str) -> str:
    """Return a compose file whose service has these lines too."""
    return COMPOSE + "".join(f"    {line}\n" for line in lines)


def test_a_task(tmp_path: Path) -> None:
    root = terminal_bench_task(tmp_path / "job")
    task = loaded(root)
    assert (task.name, task.file) == ("job", root / "task.yaml")
    assert task.instruction == "Write done to the file /app/answer."
    assert (task.image, task.build) == (None, root)
    assert task.spec == Spec(1, 2 * GIB, 2, 6 * GIB)
    assert (task.timeouts.agent, task.timeouts.verifier) == (20, 20)
    assert (task.environment, task.user, task.workdir) == ({"TEST_DIR": "/tests"}, None, "")
    assert (task.network, task.unsupported, task.tags) == (True, None, ("easy", "files", "one"))
    assert (task.verifier.files, task.verifier.target, task.verifier.user) == (root / "tests", "/tests", None)
    assert task.verifier.reads is Reads.PYTEST_SUMMARY
    assert [upload.target for upload in task.verifier.uploads] == ["/tests/run-tests.sh"]
    assert task.solution is not None
    assert task.solution.command.endswith(" -l -i -c 'bash /oracle/solution.sh'")
    assert task.verifier.command.endswith(" -l -i -c 'bash /tests/run-tests.sh'")


def test_times_that_are_not_stated(tmp_path: Path) -> None:
    text = "\n".join(line for line in TERMINAL_BENCH.splitlines() if "timeout" not in line)
    times = loaded(terminal_bench_task(tmp_path / "job", text)).timeouts
    assert (times.agent, times.verifier) == (360, 60)


def test_resources_are_never_unlimited(tmp_path: Path) -> None:
    told = mistakes(terminal_bench_task(tmp_path / "job"), NO_DEFAULTS)
    assert "task.yaml: neither it nor docker-compose.yaml states CPUs; give --infranoise-default-cpus" in told
    assert "task.yaml: neither it nor docker-compose.yaml states memory; give --infranoise-default-memory" in told


@pytest.mark.parametrize(
    "lines",
    [
        ("cpus: 1.5", "mem_limit: 512m"),
        ("deploy:", "  resources:", "    limits:", "      cpus: '1.5'", "      memory: 512M"),
    ],
)
def test_limits_of_the_compose_file(tmp_path: Path, lines: tuple[str, ...]) -> None:
    root = terminal_bench_task(tmp_path / "job", compose=client(*lines))
    assert loaded(root, NO_DEFAULTS).spec == Spec(1.5, 512 * MIB)


def test_what_a_compose_file_may_say(tmp_path: Path) -> None:
    compose = f"""
services:
  client:
    image: {IMAGE}
    command: sleep infinity
    working_dir: /srv
    user: nobody
    shm_size: 128m
    ports: ["80:80"]
    environment:
      A: "1"
      B: ${{HOST_B}}
      C:
      D: true
      E: cost $$5
"""
    task = loaded(terminal_bench_task(tmp_path / "job", compose=compose))
    assert (task.image, task.build, task.workdir, task.user) == (IMAGE, None, "/srv", "nobody")
    assert task.shm_ceiling == 128 * MIB
    assert task.environment == {
        "A": "1",
        "B": HostVariable("HOST_B"),
        "C": HostVariable("C"),
        "D": "true",
        "E": "cost $5",
    }


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("privileged: true",), "services.client.privileged"),
        (("cap_add: [NET_ADMIN]",), "services.client.cap_add"),
        (("network_mode: host",), "services.client.network_mode"),
        (("platform: linux/arm64",), "platform 'linux/arm64'"),
        (("entrypoint: /start.sh",), "services.client.entrypoint"),
    ],
)
def test_unsupported_in_the_service(tmp_path: Path, lines: tuple[str, ...], reason: str) -> None:
    assert unsupported(terminal_bench_task(tmp_path / "job", compose=client(*lines))) == f"not supported: {reason}"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"sleep infinity"', '"/start.sh"', "a command of the container's own (services.client.command)"),
        ("TEST_DIR=${T_BENCH_TEST_DIR}", "X=a-${OTHER}", "a template in services.client.environment.X"),
        ("dockerfile: Dockerfile", "dockerfile: Other", "a Dockerfile of another name ('Other')"),
        ("dockerfile: Dockerfile", "args: {A: 1}", "services.client.build.args"),
        (
            "      - ${T_BENCH_TASK_LOGS",
            "      - ./data:/data\n      - ${T_BENCH_TASK_LOGS",
            "volume './data:/data'",
        ),
        ("  client:", "  db: {image: postgres}\n  client:", "several services (db, client)"),
        ("services:", "volumes: {a: {}}\nservices:", "volumes in docker-compose.yaml"),
    ],
)
def test_unsupported_compose_files(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in COMPOSE
    root = terminal_bench_task(tmp_path / "job", compose=COMPOSE.replace(old, new))
    assert unsupported(root) == f"not supported: {reason}"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("parser_name: pytest", "parser_name: swelancer", "parser_name = 'swelancer'"),
        ("same_shell: false", "same_shell: true", "tests in the agent's own shell (run_tests_in_same_shell)"),
        (
            "instruction: |-\n",
            "descriptions:\n- key: base\n  description: |-\n  ",
            "instructions at several levels",
        ),
    ],
)
def test_unsupported_tasks(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in TERMINAL_BENCH
    assert reason in unsupported(terminal_bench_task(tmp_path / "job", TERMINAL_BENCH.replace(old, new)))


def test_a_solution_of_keystrokes_leaves_the_task_without_oracle(tmp_path: Path) -> None:
    root = write(terminal_bench_task(tmp_path / "job"), {"solution.yaml": "- command: ls\n"})
    (root / "solution.sh").unlink()
    assert (loaded(root).solution, loaded(root).unsupported) == (None, None)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "max_agent_timeout_sec: 20.0",
            "max_agent_timeout_sec: soon",
            "max_agent_timeout_sec: 'soon' is not a number",
        ),
        ("max_test_timeout_sec: 20.0", "max_test_timeout_sec: -1", "max_test_timeout_sec: -1 is no sensible value"),
        ("same_shell: false", "same_shell: maybe", "run_tests_in_same_shell: 'maybe' is not true or false"),
        ("parser_name: pytest", "parser_name: pytest\nparser_name: pytest", "parser_name: is given twice"),
        ("instruction: |-\n", "other: |-\n", "instruction: is missing"),
        ("easy", "{{ difficulty }}", "is a template: the placeholder '{{ difficulty }}'"),
        ("easy", "'{difficulty}'", "difficulty: is a template"),
        ("easy", "{difficulty}", "difficulty: is a template: the placeholder '{difficulty}'"),
        ("max_agent_timeout_sec: 20.0", "max_agent_timeout_sec: {limit}", "max_agent_timeout_sec: is a template"),
        ("tags:", "tags: [", "is not valid YAML"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in TERMINAL_BENCH
    assert line in mistakes(terminal_bench_task(tmp_path / "job", TERMINAL_BENCH.replace(old, new)))


@pytest.mark.parametrize(
    ("compose", "line"),
    [
        ("services: [", "is not valid YAML"),
        ("", "'docker-compose.yaml' is an empty file"),
        ("version: 3", "docker-compose.yaml: has no services"),
        ("services: {client: 3}", "docker-compose.yaml: service 'client' is not a mapping"),
        ("services: {main: {build: .}}", "docker-compose.yaml: the one service is 'main'; call it client"),
        ("services: {client: {}}", "services.client: there is neither image nor build"),
        ("services: {client: {build: ../x}}", "'../x' leads out of the task's directory"),
        ("services: {client: {image: 'No Image'}}", "services.client: 'No Image' is not an image reference"),
        ("services: {client: {build: ., mem_limit: lots}}", "a limit cannot be read"),
        ("services: {client: {build: ., mem_limit: 1k}}", "are no sensible limits"),
        ("services: {client: {build: ., environment: ['A B=1']}}", "'A B' cannot be the name of a variable"),
    ],
)
def test_mistakes_in_compose_files(tmp_path: Path, compose: str, line: str) -> None:
    assert line in mistakes(terminal_bench_task(tmp_path / "job", compose=compose))


def test_missing_files(tmp_path: Path) -> None:
    root = terminal_bench_task(tmp_path / "job")
    for name in ("run-tests.sh", "docker-compose.yaml"):
        (root / name).rename(root / "away")
        assert f"{name!r} does not exist" in mistakes(root)
        (root / "away").rename(root / name)
    (root / "Dockerfile").unlink()
    assert "'Dockerfile' does not exist" in mistakes(root)
    (root / "tests" / "test_outputs.py").unlink()
    (root / "tests").rmdir()
    assert "'tests' does not exist" in mistakes(root)
    write(root, {"run-tests.sh": "make check\n", "Dockerfile": f"FROM {IMAGE}\n"})
    assert loaded(root).verifier.files is None


def test_what_is_not_terminal_benchs(tmp_path: Path) -> None:
    for text in ("infranoise: 1\n", "instruction: something of another tool\n", "- a list\n", "a: [", ""):
        assert load(write(tmp_path / "other", {"task.yaml": text})) is None
    native = write(terminal_bench_task(tmp_path / "job"), {"task.yaml": "infranoise: 1\n"})
    assert load(native) is None
    with pytest.raises(TaskError, match="resources"):
        load_any(native)


@pytest.mark.parametrize("name", ["two words", "-dash", "x" * 200])
def test_hostile_directory_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="cannot be a task's name"):
        load(terminal_bench_task(tmp_path / name), DEFAULTS)


@pytest.mark.parametrize(("text", "range_"), [("1", (1, 1)), ("1..2", (1, 2)), ("0.5..1", (0.5, 1))])
def test_default_cpus(text: str, range_: tuple[float, float]) -> None:
    assert parse_cpus(text) == range_


@pytest.mark.parametrize("text", ["", "x", "2..1", "0", "nan", "1..inf", "1...2"])
def test_bad_default_cpus(text: str) -> None:
    with pytest.raises(ValueError, match=r"give e\.g\."):
        parse_cpus(text)


def test_default_memory() -> None:
    assert parse_memory_range("2G") == (2 * GIB, 2 * GIB)
    assert parse_memory_range("64M..1.5G") == (64 * MIB, 1536 * MIB)
    for text in ("", "x", "2G..1G", "1M", "..2G"):
        with pytest.raises(ValueError, match=r"give e\.g\."):
            parse_memory_range(text)


HEAD = "===== short test summary info ====="
LAST = "===== {} in 0.12s ====="


def summary(*lines: str, last: str) -> str:
    return "\n".join(["collected 3 items", "", HEAD, *lines, LAST.format(last), ""])


@pytest.mark.parametrize(
    ("lines", "last", "reward", "tests"),
    [
        (["PASSED t.py::test_a"], "1 passed", 1, 1),
        (["PASSED t.py::test_a", "FAILED t.py::test_b - assert 1 == 2"], "1 failed, 1 passed", 0, 2),
        (["PASSED t.py::test_a[x - y]", "PASSED t.py::test_a[z]"], "2 passed, 3 warnings", 1, 2),
        (["PASSED t.py::test_a", "ERROR t.py::test_b - fixture"], "1 passed, 1 error", 0, 2),
        (["PASSED t.py::test_a", "XFAIL t.py::test_b - reason"], "1 passed, 1 xfailed", 1, 2),
        (["PASSED t.py::test_a", "XPASS t.py::test_b"], "1 passed, 1 xpassed", 0, 2),
        (["PASSED t.py::test_a", "SKIPPED [1] t.py:3: no network"], "1 passed, 1 skipped", 1, 2),
        (["PASSED t.py::test_a"], "1 failed, 1 passed", 0, 1),
        (["ERROR t.py - ImportError: no module"], "1 error", 0, 1),
        (["ERROR t.py", "SKIPPED [1] u.py:3: no network"], "1 skipped, 1 error", 0, 2),
        (["ERROR t.py", "ERROR u.py", "!!! Interrupted: 2 errors during collection !!!"], "2 errors", 0, 2),
        ([], "2 warnings, 1 error", 0, 1),
    ],
)
def test_summaries(lines: list[str], last: str, reward: float, tests: int) -> None:
    artefact = grade(summary(*lines, last=last))
    assert (artefact.status, artefact.reward, artefact.tests) == (ArtefactStatus.COMPLETE, reward, tests)


def test_colours_and_quiet_endings() -> None:
    green, plain = "\x1b[32m", "\x1b[0m"
    text = f"{HEAD}\n{green}PASSED{plain} t.py::test_a\n{green}1 passed{plain} in 75.10s (0:01:15)\n"
    assert grade(text).reward == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", ArtefactStatus.MISSING),
        ("PASSED t.py::test_a\n1 passed in 0.1s\n", ArtefactStatus.MISSING),
        (f"{HEAD}\nPASSED t.py::test_a\n", ArtefactStatus.MALFORMED),
        (f"{HEAD}\nPASSED t.py::test_a\nKilled\n", ArtefactStatus.MALFORMED),
        (summary(last="no tests ran"), ArtefactStatus.NO_TESTS),
        (summary("ERROR t.py - ImportError: no module", last="no tests ran"), ArtefactStatus.NO_TESTS),
        (f"{HEAD}\nERROR t.py\n", ArtefactStatus.MALFORMED),
        ("ImportError while loading conftest '/tests/conftest.py'.\n", ArtefactStatus.MISSING),
        (summary("SKIPPED [1] t.py:3: no network", last="1 skipped"), ArtefactStatus.NO_TESTS),
    ],
)
def test_no_verdict_in_a_summary(text: str, status: ArtefactStatus) -> None:
    assert (grade(text).status, grade(text).reward) == (status, None)


@given(st.text())
def test_any_text_is_no_pass(text: str) -> None:
    assert grade(text).reward != 1
    assert grade(f"{HEAD}\n{text}").reward != 1


@pytest.mark.parametrize(
    ("output", "last"),
    [
        ("1 error in 0.14s", "1 error in 0.14s"),
        ("x\n=== \x1b[31m1 error\x1b[0m in 0.14s ===\r\nbye\n", "1 error in 0.14s"),
        (
            "== 1 failed, 3 passed, 12 errors in 61.00s (0:01:01) ==\n",
            "1 failed, 3 passed, 12 errors in 61.00s (0:01:01)",
        ),
        ("1 error in 0.14s\n1 passed in 0.20s\n", None),
        ("1 passed in 0.20s\n1 error in 0.14s\n", "1 error in 0.14s"),
        ("1 error in 0.14s\nno tests ran in 0.01s\n", None),
        ("1 failed, 2 passed in 0.1s\n", None),
        ("  1 error in 0.14s\n", None),
        ("there was 1 error in 0.14s\n", None),
        ("", None),
    ],
)
def test_errors_that_pytest_met(output: str, last: str | None) -> None:
    found = errors_met(output)
    assert (found and found.strip()) == (last and last.partition(" in ")[0])


def test_real_summary(pytester: pytest.Pytester) -> None:
    """What the pytest of today prints is understood."""
    pytester.makepyfile(
        test_it="""
        import pytest
        def test_good(): pass
        def test_bad(): assert 0, "a - b"
        @pytest.mark.xfail
        def test_expected(): assert 0
        @pytest.mark.skip
        def test_skipped(): pass
        """
    )
    result = pytester.runpytest_subprocess("-rA", "-p", "no:infranoise")
    artefact = grade(result.stdout.str())
    assert (artefact.reward, artefact.tests) == (0, 4)
    assert artefact.text == "3 of 4 tests passed; not: test_it.py::test_bad"
    assert grade(pytester.runpytest_subprocess("-rA", "-k", "good").stdout.str()).reward == 1


@pytest.mark.parametrize(
    "stop",
    [
        "raise KeyboardInterrupt",
        # A shell's background job, as a test run in CI may be, hands an ignored SIGINT down.
        "import os, signal; signal.signal(2, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT)",
        "import pytest; pytest.exit('bye', returncode=0)",
        "import pytest; pytest.exit('bye')",
    ],
)
def test_a_run_that_was_stopped_is_no_pass(pytester: pytest.Pytester, stop: str) -> None:
    pytester.makepyfile(f"def test_a(): pass\ndef test_b():\n    {stop}\ndef test_c(): assert 0\n")
    output = pytester.runpytest_subprocess("-rA", "-p", "no:infranoise").stdout.str()
    assert "1 passed" in output
    artefact = grade(output)
    assert (artefact.status, artefact.reward) == (ArtefactStatus.MALFORMED, None)


@pytest.mark.parametrize("options", [["-x"], ["--maxfail=1"], []])
def test_a_run_that_failures_stopped_is_a_fail(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile("def test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pass\n")
    assert grade(pytester.runpytest_subprocess("-rA", "-p", "no:infranoise", *options).stdout.str()).reward == 0


def test_a_pass_needs_the_whole_output() -> None:
    sandbox: Any = None
    output = summary("PASSED t::a", last="1 passed").encode()
    assert read(Reading(sandbox, "", "", output)).reward == 1
    assert read(Reading(sandbox, "", "", output, cut=True)).status is ArtefactStatus.MALFORMED
    failed = summary("FAILED t::a", last="1 failed").encode()
    assert read(Reading(sandbox, "", "", failed, cut=True)).reward == 0
