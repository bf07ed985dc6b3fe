"""Benchmarks written as marked test functions: the matrix, the records, and what the letters say."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_infranoise.journal import Run
from tests.sessions import check_nothing_left
from tests.sessions import last_run
from tests.suite import BASE_IMAGE
from tests.suite import make_task

WORKERS = pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
MARK = f"@pytest.mark.infranoise(image='{BASE_IMAGE}', pull='never', cpus=0.5, memory='64M', network=False)"
ONE = ["--resource-config=1x,uncapped", "--infranoise-samples=1"]


def collected(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    return [line for line in pytester.runpytest("--co", "-q", *arguments).outlines if "::" in line]


def bench(pytester: pytest.Pytester, source: str, name: str = "test_bench.py") -> Path:
    path = pytester.path / name
    path.write_text("import pytest\n" + source.replace("@MARK", MARK), "utf-8")
    return path


def verdicts(run: Run) -> dict[str, str]:
    return {
        f"{record.key.task.partition('::')[2]}-{record.key.config}": record.cause or record.reason or record.verdict
        for record in run.records
    }


def test_ids_have_config_and_sample_after_the_users_own_parameters(pytester: pytest.Pytester) -> None:
    bench(
        pytester,
        """
@MARK
def test_plain(infranoise_sandbox): ...

class TestGroup:
    @MARK
    @pytest.mark.parametrize("size", ["small", "a-"])
    def test_sized(self, infranoise_sandbox, size): ...

def test_ordinary(): ...
""",
    )

    assert collected(pytester, *ONE) == [
        "test_bench.py::test_plain[1x-0]",
        "test_bench.py::test_plain[uncapped-0]",
        *(
            f"test_bench.py::TestGroup::test_sized[{size}-{config}-0]"
            for size in ("small", "a-")
            for config in ("1x", "uncapped")
        ),
        "test_bench.py::test_ordinary",
    ]


@pytest.mark.parametrize(
    ("selection", "number"),
    [
        (["-k", "1x-0"], 3),
        (["-m", "infranoise(config='uncapped')"], 3),
        (["-m", "infranoise(task='test_bench.py::test_one', sample=0)"], 2),
        (["-m", "infranoise(task='test_bench.py::test_two[b]')"], 2),
        (["-m", "infranoise(agent='python')"], 6),
        (["-m", "not infranoise"], 1),
        (["test_bench.py::test_two[a-1x-0]"], 1),
    ],
)
def test_trials_are_selected_as_tests_are(pytester: pytest.Pytester, selection: list[str], number: int) -> None:
    bench(
        pytester,
        """
@MARK
def test_one(infranoise_sandbox): ...

@MARK
@pytest.mark.parametrize("letter", "ab")
def test_two(infranoise_sandbox, letter): ...

def test_ordinary(): ...
""",
    )

    assert len(collected(pytester, *ONE, *selection)) == number


def test_marks_of_module_and_class_are_defaults(pytester: pytest.Pytester) -> None:
    bench(
        pytester,
        """
pytestmark = pytest.mark.infranoise(image="one", cpus=1, memory="64M")

@pytest.mark.infranoise(memory={"floor": "32M", "ceiling": "96M"})
class TestGroup:
    @pytest.mark.infranoise(cpus=2, timeout=5, environment={"A": "b"})
    def test_it(self, infranoise_sandbox): "What it asks."
""",
    )
    pytester.makeconftest(
        """
        import pytest
        from pytest_infranoise.collect import SPEC

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            task = items[0].stash[SPEC].task
            print(task.image, task.spec, task.timeouts.agent, dict(task.environment), task.instruction)
        """
    )

    result = pytester.runpytest("--co", "-q", "-s", *ONE)

    spec = "Spec(cpus=2.0, memory=33554432, cpus_ceiling=None, memory_ceiling=100663296)"
    assert f"one {spec} 5.0 {{'A': 'b'}} What it asks." in result.outlines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("imgae='a', cpus=1, memory='64M'", "infranoise: imgae: *did you mean image?"),
        ("image='a', cpus=1", "infranoise: memory: is missing; write e.g. memory='512M'"),
        ("image='a', cpus=-1, memory='64M'", "infranoise: cpus: -1 is too small; *"),
        ("image='a', cpus={'flor': 1}, memory='64M'", "infranoise: cpus.flor: *did you mean floor?"),
        (
            "image='a', cpus=1, memory='64M', environment={'INFRANOISE_X': ''}",
            "infranoise: environment*reserved*",
        ),
        ("cpus=1, memory='64M'", "infranoise: image: is missing; *"),
        ("build='.', cpus=1, memory='64M'", "infranoise: build: '.' holds no Dockerfile; *"),
        ("image='a', build='.', cpus=1, memory='64M'", "infranoise: image: is given together with build; *"),
        ("'a', cpus=1, memory='64M'", "infranoise takes no positional arguments; *"),
        ("task='a'", "infranoise: task: is an unknown key*"),
    ],
)
def test_a_mistake_in_a_mark_is_told_with_its_remedy(
    pytester: pytest.Pytester, arguments: str, message: str
) -> None:
    bench(pytester, f"@pytest.mark.infranoise({arguments})\ndef test_x(infranoise_sandbox): ...")

    result = pytester.runpytest()

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*test_bench.py: test_x: {message}"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@MARK\ndef test_x(): ...", "is marked with infranoise and does not take infranoise_sandbox; *"),
        ("def test_x(infranoise_sandbox): ...", "takes infranoise_sandbox without a mark that says of what; *"),
    ],
)
def test_a_mark_and_the_fixture_belong_together(pytester: pytest.Pytester, source: str, message: str) -> None:
    bench(pytester, source)

    result = pytester.runpytest()

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*test_bench.py: test_x: {message}"])


@WORKERS
def test_a_mistake_in_a_mark_is_one_error_and_nothing_runs(pytester: pytest.Pytester, workers: list[str]) -> None:
    bench(pytester, "@pytest.mark.infranoise(image='a', cpus=1)\ndef test_x(infranoise_sandbox): ...")
    bench(pytester, "def test_ordinary(): ...", "test_ordinary.py")

    result = pytester.runpytest_subprocess(*workers)

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*test_x: infranoise: memory: is missing*", "*1 error during collection*"])
    assert "passed" not in result.stdout.str()
    assert not list(pytester.path.glob(".infranoise/runs/*"))


def test_what_is_skipped_is_not_planned(pytester: pytest.Pytester) -> None:
    bench(
        pytester,
        """
@MARK
@pytest.mark.skipif(True, reason="not on this machine")
def test_skipped(infranoise_sandbox): ...

@MARK
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.skip(reason="too large"))])
def test_sized(infranoise_sandbox, size): ...
""",
    )

    result = pytester.runpytest("-rs", *ONE, "-k", "test_skipped or 2")

    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(skipped=4, deselected=2)
    for reason in ("not on this machine", "too large"):
        result.stdout.fnmatch_lines([f"SKIPPED [[]2[]] *: {reason}"])


def test_a_floor_that_no_engine_takes_names_the_function(pytester: pytest.Pytester) -> None:
    bench(pytester, MARK + "\ndef test_x(infranoise_sandbox): ...")

    result = pytester.runpytest("--resource-config", "tiny:memory=1M..1M,cpus=1x..1x")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *test_bench.py*test_x*tiny*memory*"])


def test_runs_without_marks_load_and_register_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_ordinary(request):
            assert not request.config.pluginmanager.hasplugin("infranoise-marked")
            for name in ("pytest_infranoise.tasks.marks", "pytest_infranoise.trials.function", "docker"):
                assert name not in sys.modules
        """
    )

    assert pytester.runpytest_subprocess().ret == 0


@pytest.fixture
def engine(pytester: pytest.Pytester) -> Iterator[None]:
    """Nothing is left on the engine afterwards."""
    yield
    check_nothing_left(pytester.path)


HOLD = """
def hold(sandbox, mib):
    return sandbox.exec(["perl", "-e", "$x = 'x' x ($ARGV[0] * 1024 * 1024); print length $x", str(mib)])
"""

VERDICTS = (
    HOLD
    + """
@MARK
def test_right(infranoise_sandbox):
    assert infranoise_sandbox.exec(["sh", "-c", "echo done > answer.txt; pwd"]).output == b"/app\\n"
    assert infranoise_sandbox.read("/app/answer.txt") == b"done\\n"

@MARK
def test_wrong(infranoise_sandbox):
    assert infranoise_sandbox.exec(["false"]).exit_code == 0

@MARK
def test_hungry(infranoise_sandbox):
    assert hold(infranoise_sandbox, 150).exit_code == 0

@MARK
def test_hungry_and_robust(infranoise_sandbox):
    hold(infranoise_sandbox, 150)

@MARK
def test_hungry_and_broken(infranoise_sandbox):
    int(hold(infranoise_sandbox, 150).output)

@MARK
def test_broken(infranoise_sandbox):
    {}["absent"]

@MARK
def test_failed_by_hand(infranoise_sandbox):
    pytest.fail("not good enough")

@pytest.mark.infranoise(timeout=2)
@MARK
def test_slow(infranoise_sandbox):
    infranoise_sandbox.exec(["sleep", "60"])
"""
)

EXPECTED = {
    "test_right-1x": "pass",
    "test_right-uncapped": "pass",
    "test_wrong-1x": "tests-failed",
    "test_wrong-uncapped": "tests-failed",
    "test_hungry-1x": "resource-kill",
    "test_hungry-uncapped": "pass",
    "test_hungry_and_robust-1x": "pass",
    "test_hungry_and_robust-uncapped": "pass",
    "test_hungry_and_broken-1x": "resource-kill",
    "test_hungry_and_broken-uncapped": "pass",
    "test_broken-1x": "verifier-error",
    "test_broken-uncapped": "verifier-error",
    "test_failed_by_hand-1x": "tests-failed",
    "test_failed_by_hand-uncapped": "tests-failed",
    "test_slow-1x": "agent-timeout",
    "test_slow-uncapped": "agent-timeout",
}


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
@WORKERS
def test_verdicts(pytester: pytest.Pytester, workers: list[str]) -> None:
    bench(pytester, VERDICTS)

    result = pytester.runpytest_subprocess(*ONE, *workers, "--junitxml=junit.xml", "--infranoise-gate=missing <= 0")

    assert result.ret == 0
    run = last_run(pytester)
    assert verdicts(run) == EXPECTED
    assert run.missing == ()
    assert run.meta["agents"] == [{"name": "python", "model": "", "kind": "marked-function"}]
    robust = {record.key.config: record.flags for record in run.records if "robust" in record.key.task}
    assert robust == {"1x": ("oom-kills",), "uncapped": ()}
    result.stdout.fnmatch_lines(["*6 failed, 6 passed, 4 infra-error*"])
    output = result.stdout.str()
    assert "assert 1 == 0" in output
    assert "test_bench.py::test_hungry[[]1x-0]".replace("[[]", "[") + "  resource-kill: 1 kernel kill" in output
    _check_junit(pytester.path / "junit.xml")


def _check_junit(path: Path) -> None:
    cases = {}
    for case in ET.parse(path).iter("testcase"):
        kinds = [kind for kind in ("failure", "error") if case.find(kind) is not None]
        properties = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
        cases[case.get("name")] = (kinds, properties)
    assert cases["test_wrong[1x-0]"][0] == ["failure"]
    assert cases["test_right[1x-0]"][0] == []
    kinds, properties = cases["test_hungry[1x-0]"]
    assert kinds == ["failure"]
    assert properties == {
        "task": "test_bench.py::test_hungry",
        "agent": "python",
        "config": "1x",
        "sample": "0",
        "verdict": "infra-error",
        "cause": "resource-kill",
    }


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_fixtures_that_use_the_container_are_its_setup(pytester: pytest.Pytester) -> None:
    bench(
        pytester,
        HOLD
        + """
@pytest.fixture
def server(infranoise_sandbox, tmp_path):
    infranoise_sandbox.write("/app/state", b"up")
    yield infranoise_sandbox
    print("\\nTEARDOWN", infranoise_sandbox.read("/app/state"))

@pytest.fixture
def hungry(infranoise_sandbox):
    assert hold(infranoise_sandbox, 150).exit_code == 0

@pytest.fixture
def broken(infranoise_sandbox):
    assert False, "no server"

@pytest.fixture
def slow(infranoise_sandbox):
    infranoise_sandbox.exec(["sleep", "60"])

@MARK
def test_served(server, infranoise_sandbox):
    infranoise_sandbox.write("/app/state", b"used")

@MARK
def test_hungry(infranoise_sandbox, hungry): ...

@MARK
def test_broken(infranoise_sandbox, broken): ...

@pytest.mark.infranoise(setup_timeout=1)
@MARK
def test_slow(infranoise_sandbox, slow): ...
""",
    )

    result = pytester.runpytest_subprocess(*ONE, "-s", "-k", "1x", "--junitxml=junit.xml")

    run = last_run(pytester)
    assert verdicts(run) == {
        "test_served-1x": "pass",
        "test_hungry-1x": "resource-kill",
        "test_broken-1x": "setup-failed",
        "test_slow-1x": "setup-failed",
    }
    assert "TEARDOWN b'used'" in result.stdout.str()
    result.stdout.fnmatch_lines(["*1 passed, *3 infra-error*"])
    [broken] = [record for record in run.records if "broken" in record.key.task]
    assert broken.summary == "AssertionError: no server"
    cases = ET.parse(pytester.path / "junit.xml").iter("testcase")
    assert {case.get("name") for case in cases if case.find("error") is not None} == {
        "test_hungry[1x-0]",
        "test_broken[1x-0]",
        "test_slow[1x-0]",
    }


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_an_exception_of_the_test_keeps_its_traceback(pytester: pytest.Pytester) -> None:
    bench(pytester, "@MARK\ndef test_x(infranoise_sandbox):\n    raise KeyError('absent')  # here")

    result = pytester.runpytest_subprocess("--resource-config=1x", "--infranoise-samples=1")

    [record] = last_run(pytester).records
    assert (record.cause, record.rule) == ("verifier-error", "12 no verdict")
    [line] = [line for line in result.outlines if "verifier-error: " in line]
    file = pytester.path / line.partition("(traceback: ")[2].rstrip(")")
    assert "raise KeyError('absent')  # here" in file.read_text("utf-8")


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_a_container_that_is_removed_from_outside_is_no_fail(pytester: pytest.Pytester) -> None:
    bench(
        pytester,
        """
import docker

@MARK
def test_x(infranoise_sandbox):
    docker.from_env().containers.get(infranoise_sandbox.id).remove(force=True)
    assert infranoise_sandbox.exec(["true"]).exit_code == 0

@MARK
def test_y(infranoise_sandbox):
    docker.from_env().containers.get(infranoise_sandbox.id).remove(force=True)
""",
    )

    result = pytester.runpytest_subprocess("--resource-config=1x", "--infranoise-samples=1")

    assert verdicts(last_run(pytester)) == {"test_x-1x": "container-lost", "test_y-1x": "container-lost"}
    result.stdout.fnmatch_lines(["*2 infra-error*"])


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_a_trial_that_says_nothing_is_missing(pytester: pytest.Pytester) -> None:
    bench(pytester, "@MARK\ndef test_x(infranoise_sandbox): pytest.skip('later')")

    result = pytester.runpytest_subprocess(*ONE)

    assert result.ret == 20
    assert last_run(pytester).records == ()
    assert len(last_run(pytester).missing) == 2


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_a_mistake_that_shows_only_while_running_is_a_config_error(pytester: pytest.Pytester) -> None:
    bench(pytester, "@pytest.mark.infranoise(user='nobody-at-all')\n@MARK\ndef test_x(infranoise_sandbox): ...")

    result = pytester.runpytest_subprocess(*ONE)

    assert result.ret == 20
    result.stdout.fnmatch_lines(["*nobody-at-all*", "*1 skipped, 1 error*"])
    assert last_run(pytester).records == ()


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
@WORKERS
def test_functions_and_tasks_and_ordinary_tests_run_together(pytester: pytest.Pytester, workers: list[str]) -> None:
    make_task(pytester.path, "hello")
    bench(pytester, "@MARK\ndef test_x(infranoise_sandbox): ...\n\ndef test_ordinary(): ...")

    result = pytester.runpytest_subprocess(".", *ONE, "--infranoise-agent=oracle", *workers)

    assert result.ret == 0
    result.assert_outcomes(passed=5)
    run = last_run(pytester)
    assert sorted(str(record.key) for record in run.records) == [
        "hello::oracle-1x-0",
        "hello::oracle-uncapped-0",
        "test_bench.py::test_x::python-1x-0",
        "test_bench.py::test_x::python-uncapped-0",
    ]
    assert [agent["name"] for agent in run.meta["agents"]] == ["oracle", "python"]


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_lf_runs_failures_and_infra_errors_again(pytester: pytest.Pytester) -> None:
    bench(pytester, VERDICTS)
    pytester.runpytest_subprocess(*ONE, "-k", "wrong or hungry")

    result = pytester.runpytest_subprocess(*ONE, "--lf")

    bad = ("test_hungry-1x", "test_hungry_and_broken-1x", "test_wrong-1x", "test_wrong-uncapped")
    assert verdicts(last_run(pytester)) == {name: EXPECTED[name] for name in bad}
    assert "not an estimate" in result.stdout.str()


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_the_content_hash_follows_source_and_arguments(pytester: pytest.Pytester) -> None:
    hashes = []
    for mark, body in ((MARK, "..."), (MARK, "..."), (MARK, "pass"), (MARK.replace("64M", "65M"), "...")):
        bench(pytester, f"{mark}\ndef test_x(infranoise_sandbox): {body}")
        pytester.runpytest_subprocess("--resource-config=1x", "--infranoise-samples=1")
        [record] = last_run(pytester).records
        hashes.append(record.task_hash)
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
def test_the_example_of_the_documentation_runs(pytester: pytest.Pytester) -> None:
    page = (Path(__file__).parents[1] / "docs" / "python-benchmarks.md").read_text("utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    (pytester.path / "test_sorting.py").write_text(example, "utf-8")

    result = pytester.runpytest_subprocess(*ONE)

    run = last_run(pytester)
    assert run.missing == ()
    assert verdicts(run) == {
        "test_sorts[in-memory]-1x": "resource-kill",
        "test_sorts[in-memory]-uncapped": "pass",
        "test_sorts[spilling]-1x": "pass",
        "test_sorts[spilling]-uncapped": "pass",
    }
    assert result.ret == pytest.ExitCode.TESTS_FAILED
