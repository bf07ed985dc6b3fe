"""Collecting and planning; nothing here needs an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.suite import make_task

WORKERS = pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty suite, with no engine in reach: whoever tries to use one fails."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{pytester.path}/no-engine.sock")
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\n", "utf-8")
    return root


def collected_ids(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    result = pytester.runpytest("--co", "-q", "suite", *arguments)
    return [line for line in result.outlines if "::" in line]


def test_ids_are_task_config_and_sample(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")

    assert collected_ids(pytester, "--infranoise-samples", "2") == [
        f"suite/hello/task.yaml::{config}-{sample}" for config in ("1x", "3x", "uncapped") for sample in (0, 1)
    ]


def test_the_agent_is_in_the_id_once_there_are_several(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")

    assert collected_ids(
        pytester,
        *("--infranoise-samples", "1", "--resource-config", "1x"),
        *("--infranoise-agent", "oracle", "--infranoise-agent", "nop"),
    ) == ["suite/hello/task.yaml::oracle-1x-0", "suite/hello/task.yaml::nop-1x-0"]


@pytest.mark.parametrize(
    ("selection", "number"),
    [
        (["-k", "hello"], 9),
        (["-k", "3x-1"], 2),
        (["-k", "net-io"], 9),
        (["-m", "infranoise(config='3x')"], 6),
        (["-m", "infranoise(task='hello', sample=0)"], 3),
        (["-m", "infranoise_tag(name='net-io')"], 9),
        (["suite/hello/task.yaml::3x-0"], 1),
        (["suite/hello"], 9),
        (["suite/hello/task.yaml"], 9),
    ],
)
def test_trials_are_selected_as_tests_are(
    pytester: pytest.Pytester, suite: Path, selection: list[str], number: int
) -> None:
    make_task(suite, "hello", tags=["net-io"])
    make_task(suite, "other")
    arguments = selection if selection[0].startswith("suite/") else ["suite", *selection]

    result = pytester.runpytest("--co", "-q", *arguments)

    assert sum("::" in line for line in result.outlines) == number


def test_what_is_meant_for_the_container_never_reaches_the_host(pytester: pytest.Pytester, suite: Path) -> None:
    task = make_task(suite, "hello")
    for place in (task / "verifier", task / "tests"):
        place.mkdir(exist_ok=True)
        (place / "test_outputs.py").write_text("raise SystemExit('imported on the host')", "utf-8")
        (place / "conftest.py").write_text("raise SystemExit('imported on the host')", "utf-8")

    assert len(collected_ids(pytester)) == 9


def test_another_tools_task_file_is_left_to_pytest(pytester: pytest.Pytester, suite: Path) -> None:
    foreign = suite / "pipeline"
    foreign.mkdir()
    (foreign / "task.yaml").write_text("name: build\nsteps: [compile]\n", "utf-8")
    (foreign / "test_pipeline.py").write_text("def test_it(): pass\n", "utf-8")

    result = pytester.runpytest("suite")

    result.assert_outcomes(passed=1)
    assert "infranoise" not in result.stdout.str().split("test session starts")[1].partition("collected")[2]


@WORKERS
def test_one_broken_task_is_one_error_and_nothing_runs(
    pytester: pytest.Pytester, suite: Path, workers: list[str]
) -> None:
    make_task(suite, "fine")
    make_task(suite, "broken", resources={"cpus": 1, "memory": "lots"})
    ordinary = pytester.makepyfile("def test_ordinary(): pass")

    result = pytester.runpytest_subprocess(ordinary, "suite", *workers)

    assert result.ret == pytest.ExitCode.INTERRUPTED
    output = result.stdout.str()
    assert output.count("ERROR collecting") == 1
    result.stdout.fnmatch_lines(["*suite/broken/task.yaml*resources.memory*lots*", "*1 error during collection*"])
    assert "passed" not in output
    assert not (pytester.path / ".infranoise" / "runs").exists() or not list(
        (pytester.path / ".infranoise" / "runs").iterdir()
    )


@WORKERS
@pytest.mark.parametrize(
    ("tasks", "arguments", "message"),
    [
        ([("a", {"name": "same"}), ("b", {"name": "same"})], [], "b/task.yaml: name: 'same' is also the name of*"),
        ([("a", {})], ["--infranoise-agent", "gpt"], "unknown agent 'gpt'; known agents: oracle, nop,*"),
        ([("a", {})], ["--infranoise-agent", "scripted"], "a/task.yaml: the task has no strategies*scripted*"),
        ([("a", {"oracle": None})], [], "a/task.yaml: the task has no oracle*"),
        ([("a", {})], ["-x", "--infranoise-gate", "missing <= 0", "--sw"], "*gates are refused with --sw*"),
    ],
    ids=["duplicate", "unknown-agent", "no-strategies", "no-oracle", "gates-with-sw"],
)
def test_a_mistake_in_the_plan_is_one_clear_error_before_anything_starts(
    pytester: pytest.Pytester,
    suite: Path,
    tasks: list[tuple[str, dict[str, Any]]],
    arguments: list[str],
    message: str,
    workers: list[str],
) -> None:
    for name, fields in tasks:
        make_task(suite, name, **fields)

    result = pytester.runpytest_subprocess("suite", *arguments, *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{message}"])
    assert "INTERNALERROR" not in result.stdout.str()
    assert not list(pytester.path.glob(".infranoise/runs/*"))


@WORKERS
def test_no_engine_is_one_clear_error(pytester: pytest.Pytester, suite: Path, workers: list[str]) -> None:
    make_task(suite, "hello")

    result = pytester.runpytest_subprocess("suite", *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *no Docker Engine*no-engine.sock*"])
    assert not list(pytester.path.glob(".infranoise/runs/*"))


def test_without_an_agent_the_known_ones_are_listed(pytester: pytest.Pytester, suite: Path) -> None:
    (suite / "infranoise.toml").unlink()
    make_task(suite, "hello")

    result = pytester.runpytest("suite")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no agent chosen; give --infranoise-agent*known agents: oracle*"])


def test_a_broken_settings_file_is_one_error_with_its_path(pytester: pytest.Pytester, suite: Path) -> None:
    (suite / "infranoise.toml").write_text("agnet = 'nop'\n", "utf-8")
    make_task(suite, "one")
    make_task(suite, "two")

    result = pytester.runpytest("suite")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.str().count("did you mean 'agent'?") == 1


def test_a_settings_file_below_the_given_path_is_not_silently_ignored(
    pytester: pytest.Pytester, suite: Path
) -> None:
    make_task(suite, "hello")

    result = pytester.runpytest(".")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *suite/infranoise.toml: applies to task 'hello' but not to the paths*"])


def test_a_ceiling_that_docker_refuses_names_task_and_config(pytester: pytest.Pytester, suite: Path) -> None:
    pytester.makeconftest(
        """
        import dataclasses
        from pytest_infranoise.model import Spec
        from pytest_infranoise.tasks import native

        def pytest_infranoise_load_task(path):
            task = native.load(path)
            return task and dataclasses.replace(task, spec=Spec(1, 5 * 1024 * 1024))
        """
    )
    make_task(suite, "tiny")

    result = pytester.runpytest("suite")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*task 'tiny' under config '1x' has a memory ceiling of 5 MiB, below*"])


def test_what_a_loader_cannot_run_is_skipped_with_its_reason(pytester: pytest.Pytester, suite: Path) -> None:
    pytester.makeconftest(
        """
        import dataclasses
        from pytest_infranoise.tasks import native

        def pytest_infranoise_load_task(path):
            task = native.load(path)
            return task and dataclasses.replace(task, unsupported="needs a GPU")
        """
    )
    make_task(suite, "gpu")

    result = pytester.runpytest("suite", "-rs")

    result.assert_outcomes(skipped=9)
    result.stdout.fnmatch_lines(["*needs a GPU*"])


@WORKERS
@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("raise RuntimeError('boom')", "agent 'mine': making it failed: RuntimeError: boom"),
        ("return 'mine'", "agent 'mine': pytest_infranoise_make_agent returned 'str', which has no setup*"),
    ],
)
def test_a_broken_agent_hook_is_one_clear_error(
    pytester: pytest.Pytester, suite: Path, hook: str, message: str, workers: list[str]
) -> None:
    make_task(suite, "hello")
    pytester.makeconftest(f"def pytest_infranoise_make_agent(context):\n    {hook}\n")

    result = pytester.runpytest_subprocess("suite", "--infranoise-agent", "mine", *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert "INTERNALERROR" not in result.stdout.str()


def test_a_named_agent_of_an_unknown_kind_names_its_file(pytester: pytest.Pytester, suite: Path) -> None:
    (suite / "infranoise.toml").write_text(
        "agent = 'mine'\n[agents.mine]\nkind = 'comand'\ncommand = 'x'\n", "utf-8"
    )
    make_task(suite, "hello")

    result = pytester.runpytest("suite")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *suite/infranoise.toml: agents.mine.kind: 'comand' is no kind of agent*"])


def test_ini_lists_of_configs_may_have_commas_and_spaces(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")
    pytester.makeini("[pytest]\ninfranoise_resource_config = 1x, 2x\ninfranoise_samples = 1\n")

    assert [name.rpartition("::")[2] for name in collected_ids(pytester)] == ["1x-0", "2x-0"]


@pytest.mark.parametrize("selection", [["-m", "not infranoise"], ["-k", "test_unit"]])
@pytest.mark.parametrize("toml", ["agent = 'gpt'\n", "samples = 1\n", "agnet = 'nop'\n"])
def test_other_tests_can_be_picked_in_a_repository_with_tasks(
    pytester: pytest.Pytester, suite: Path, toml: str, selection: list[str]
) -> None:
    (suite / "infranoise.toml").write_text(toml, "utf-8")
    make_task(suite, "hello")
    pytester.makepyfile(test_unit="def test_it(): pass")

    pytester.runpytest(".", *selection).assert_outcomes(passed=1)
    # The file lies below the paths given, which is a mistake as soon as a trial is selected.
    result = pytester.runpytest(".", "--infranoise-agent", "oracle")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *infranoise.toml: applies to task 'hello' but not to the paths given*"])


@pytest.mark.parametrize("selection", [[], ["-k", "hello"], ["-m", "infranoise"]])
def test_no_agent_is_a_mistake_when_nothing_else_was_picked(
    pytester: pytest.Pytester, suite: Path, selection: list[str]
) -> None:
    (suite / "infranoise.toml").unlink()
    make_task(suite, "hello")
    pytester.makepyfile(test_unit="def test_it(): pass")

    result = pytester.runpytest(".", *selection)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no agent chosen*"])


def test_an_agents_mistake_needs_a_selected_trial(pytester: pytest.Pytester, suite: Path) -> None:
    make_task(suite, "hello")
    pytester.makepyfile(test_unit="def test_it(): pass")

    pytester.runpytest(".", "suite", "--infranoise-agent", "gpt", "-m", "not infranoise").assert_outcomes(
        passed=1, deselected=9
    )


@WORKERS
def test_a_trial_selected_twice_is_refused(pytester: pytest.Pytester, suite: Path, workers: list[str]) -> None:
    make_task(suite, "hello")

    result = pytester.runpytest_subprocess("suite/hello", "suite/hello", "--keep-duplicates", *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: trial suite/hello/task.yaml::* is selected twice; leave out --keep-dup*"])


def test_hooks_in_conftest_files_around_a_task_see_its_trials(pytester: pytest.Pytester, suite: Path) -> None:
    hook = "def pytest_itemcollected(item): item.user_properties.append(('seen', {!r}))\n"
    pytester.makeconftest(
        hook.format("root")
        + "def pytest_collection_finish(session):\n"
        + "    for item in session.items: print(item.name, [value for _, value in item.user_properties])\n"
    )
    (suite / "conftest.py").write_text(hook.format("suite"), "utf-8")
    (pytester.mkdir("elsewhere") / "conftest.py").write_text(hook.format("elsewhere"), "utf-8")
    make_task(suite, "hello")
    make_task(pytester.path / "elsewhere", "other")

    result = pytester.runpytest_inprocess(
        "suite", "elsewhere", "--infranoise-samples", "1", "-k1x", "--co", "-q", "-s", "--infranoise-agent=nop"
    )

    seen = [line for line in result.outlines if line.startswith("1x-0 ")]
    assert sorted(seen) == ["1x-0 ['elsewhere', 'root']", "1x-0 ['suite', 'root']"]
