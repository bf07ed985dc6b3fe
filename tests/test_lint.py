"""The command that finds what is wrong with a dataset; and files of SWE-bench instances as pytest collects them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result

from pytest_infranoise.cli import main
from tests.suite import make_task
from tests.tasks.foreign import HARBOR
from tests.tasks.foreign import harbor_task
from tests.tasks.foreign import terminal_bench_task
from tests.tasks.instances import ABSENT
from tests.tasks.instances import instance
from tests.tasks.instances import write_instances

CLEAN = "on no stated host (floors are checked with --cpus and --memory): 0 problems"


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty dataset, with no engine in reach."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.chdir(tmp_path)
    Path("dataset").mkdir()
    return Path("dataset")


def lint(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["lint", *map(str, arguments)])


class TestFindings:
    def test_nothing_wrong_in_any_format(self, dataset: Path) -> None:
        make_task(dataset, "native")
        harbor_task(dataset / "nested" / "harbor")
        terminal_bench_task(dataset / "terminal-bench")
        write_instances(Path("swe.jsonl"), instance(), instance(instance_id="acme__adder-2"))

        result = lint(dataset, "swe.jsonl", "--default-cpus", "1", "--default-memory", "1G")

        assert result.stdout.splitlines() == [f"planned under 1x, 3x, uncapped {CLEAN}", *summary(5, 5, 0, 0)]
        assert result.exit_code == 0

    def test_every_mistake_of_every_task(self, dataset: Path) -> None:
        make_task(dataset, "a", resources={"cpus": 0, "memory": "lots"})
        make_task(dataset, "b")
        harbor_task(dataset / "c", HARBOR.replace('memory = "64M"', 'memory = "64M"\nmemory_mb = 128'))
        (dataset / "d").mkdir()
        (dataset / "d" / "instruction.md").touch()
        (dataset / "d" / "task.toml").write_text(HARBOR[: HARBOR.index("cpus") + 2], "utf-8")
        write_instances(
            dataset / "e.jsonl", instance(patch=ABSENT), instance(instance_id="b2"), '{"instance_id": "cut'
        )

        result = lint(dataset, dataset / "e.jsonl")

        lines = result.stdout.splitlines()
        assert [line.partition(";")[0] for line in lines[:6]] == [
            "dataset/a/task.yaml: resources.cpus: 0 is too small",
            "dataset/a/task.yaml: resources.memory: 'lots' is not an amount of memory",
            *(line.partition(";")[0] for line in lines[2:4]),
            "dataset/e.jsonl: line 1: patch: is missing",
            "dataset/e.jsonl: line 3: is not valid JSON: Unterminated string starting at (column 17)",
        ]
        assert lines[2].startswith("dataset/c/task.toml: environment.memory")
        assert lines[3].startswith("dataset/d/task.toml: ")
        assert all("; " in line for line in lines[:6])
        assert lines[-1:] == summary(7, 2, 0, 5)
        assert result.exit_code == 1

    def test_what_is_skipped_is_no_mistake(self, dataset: Path) -> None:
        harbor_task(dataset / "gpu", HARBOR + "gpus = 1\n")
        write_instances(Path("swe.jsonl"), instance(log_parser="parse_log_jest"))

        result = lint(dataset, "swe.jsonl")

        assert result.stdout.splitlines() == [
            "dataset/gpu/task.toml: task 'gpu' is skipped: not supported: GPUs (environment.gpus = 1)",
            "swe.jsonl: task 'acme__adder-1' is skipped: log_parser 'parse_log_jest': the results of these tests "
            "cannot be read",
            f"planned under 1x, 3x, uncapped {CLEAN}",
            *summary(2, 0, 2, 0),
        ]
        assert result.exit_code == 0

    def test_tasks_without_an_oracle_are_named(self, dataset: Path) -> None:
        make_task(dataset, "a", oracle=None)
        make_task(dataset, "b")
        make_task(dataset, "c", oracle=None)

        result = lint(dataset)

        assert "note: without an oracle, so that a preflight can only try nop: a, c" in result.stdout.splitlines()
        assert result.exit_code == 0

    def test_names_that_are_there_twice(self, dataset: Path) -> None:
        make_task(dataset, "a", name="same")
        make_task(dataset, "b", name="same")

        result = lint(dataset)

        assert result.stdout.splitlines() == [
            "dataset/b/task.yaml: name: 'same' is also the name of dataset/a/task.yaml; rename one of them",
            f"planned under 1x, 3x, uncapped {CLEAN[:-10]}1 problem",
            *summary(2, 1, 0, 0),
        ]
        assert result.exit_code == 1

    def test_no_task_at_all(self, dataset: Path) -> None:
        (dataset / "task.yaml").write_text("kind: something else\n")

        result = lint(dataset)

        lines = result.stdout.splitlines()
        assert lines[0] == "note: dataset/task.yaml: is in no format that is known here, so there is no task in it"
        assert lines[-1:] == summary(0, 0, 0, 0)
        assert result.exit_code == 1

    def test_a_file_that_holds_no_task(self, dataset: Path) -> None:
        Path("notes.txt").write_text("nothing\n")

        result = lint("notes.txt")

        assert "notes.txt: is neither a task file nor JSON lines of SWE-bench instances; " in result.stdout
        assert result.exit_code == 1

    def test_an_exception_of_a_loader_is_told_like_a_mistake(
        self, dataset: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def load(*arguments: object) -> None:
            raise ZeroDivisionError("in\na loader")

        monkeypatch.setattr("pytest_infranoise.tasks.loaders.load", load)

        result = lint(dataset)

        assert result.stdout.splitlines()[0] == "dataset: ZeroDivisionError: in\\na loader"
        assert result.exit_code == 1


class TestSearch:
    def test_as_pytest_does(self, dataset: Path) -> None:
        for place in (
            "b",
            "a/deep/er",
            ".hidden/x",
            "node_modules/x",
            "build/x",
            "env/x",
            "inside/task-of-its-own",
        ):
            make_task(dataset, place, name=place.replace("/", "-").strip("."))
        (dataset / "env" / "pyvenv.cfg").touch()
        make_task(dataset, "b/verifier/inner", name="inner")  # within a task there are no tasks

        assert lint(dataset).stdout.splitlines()[-1:] == summary(3, 3, 0, 0)
        assert lint(dataset / "build").stdout.splitlines()[-1:] == summary(1, 1, 0, 0)

    def test_each_once(self, dataset: Path) -> None:
        make_task(dataset, "a")
        (dataset / "link").symlink_to("a", target_is_directory=True)
        (dataset / "loop").symlink_to(".", target_is_directory=True)

        assert lint(dataset, dataset / "a", dataset / "a" / "task.yaml").stdout.splitlines()[-1:] == summary(
            1, 1, 0, 0
        )

    def test_instances_that_were_not_meant(self, dataset: Path) -> None:
        make_task(dataset, "a")
        write_instances(dataset / "swe.jsonl", instance())
        write_instances(dataset / "predictions.jsonl", {"instance_id": "x", "model_patch": ""})

        result = lint(dataset)

        assert result.stdout.splitlines()[0] == (
            "note: dataset/swe.jsonl: has SWE-bench instances, which are only taken when the file is given by name"
        )
        assert result.stdout.splitlines()[-1:] == summary(1, 1, 0, 0)
        (dataset / "infranoise.toml").touch()
        assert lint(dataset).stdout.splitlines()[-1:] == summary(2, 2, 0, 0)


class TestPlanning:
    def test_against_a_stated_host(self, dataset: Path) -> None:
        make_task(dataset, "small", resources={"cpus": 1, "memory": "64M"})
        make_task(dataset, "wide", resources={"cpus": 8, "memory": "64M"})
        make_task(dataset, "large", resources={"cpus": 1, "memory": "60G"})

        result = lint(dataset, "--cpus", "4", "--memory", "60G", "--resource-config", "1x,3x")

        assert result.stdout.splitlines() == [
            "dataset/large/task.yaml: task 'large' under configs '1x', '3x' has a memory floor of 60 GiB, more "
            "than the 57 GiB this host can give; lower the floor or use a larger host",
            "dataset/wide/task.yaml: task 'wide' under configs '1x', '3x' has a CPU floor of 8, more than the 4 "
            "this host can give; lower the floor or use a larger host",
            *(line for line in result.stdout.splitlines() if line.startswith("note: ")),
            "planned under 1x, 3x on 4 CPUs and 60 GiB: 2 problems",
            *summary(3, 1, 0, 0),
        ]
        assert result.exit_code == 1

    def test_ceilings_above_the_host_are_allowed_and_named(self, dataset: Path) -> None:
        make_task(dataset, "a", resources={"cpus": 2, "memory": "64M"})

        result = lint(dataset, "--cpus", "2", "--memory", "1G", "--resource-config", "1x,3x")

        assert "note: CPU ceilings at or above the host's 2 CPUs throttle nothing: " in result.stdout
        assert result.exit_code == 0

    @pytest.mark.parametrize(
        ("options", "host", "problems"),
        [
            (["--cpus", "4"], "4 CPUs", 1),
            (["--memory", "1G"], "1 GiB", 0),
            (["--cpus", "16"], "16 CPUs", 0),
        ],
    )
    def test_half_a_host(self, dataset: Path, options: list[str], host: str, problems: int) -> None:
        make_task(dataset, "wide", resources={"cpus": 8, "memory": "64M"})

        lines = lint(dataset, *options).stdout.splitlines()

        assert lines[-2].startswith(f"planned under 1x, 3x, uncapped on {host}: {problems} problem")

    def test_a_config_that_a_task_contradicts(self, dataset: Path) -> None:
        make_task(dataset, "a", resources={"cpus": 1, "memory": "1G"})

        result = lint(dataset, "--resource-config", "low:memory=1x..512M,cpus=1x..1x")

        assert (
            "task 'a' under config 'low' has a memory floor of 1 GiB, above its ceiling of 512 MiB" in result.stdout
        )
        assert result.stdout.splitlines()[-1:] == summary(1, 0, 0, 0)
        assert result.exit_code == 1

    def test_configs_of_the_settings_file(self, dataset: Path) -> None:
        make_task(dataset, "a")
        toml = dataset / "infranoise.toml"
        toml.write_text("resource-configs = ['1x', 'wide']\n[configs.wide]\ncpus = '1x..7x'\n")
        assert lint(dataset).stdout.splitlines()[0] == f"planned under 1x, wide {CLEAN}"
        assert lint(dataset, "--resource-config", "wide").stdout.splitlines()[0] == f"planned under wide {CLEAN}"

    def test_mistakes_in_the_settings_file_are_told_with_the_others(self, dataset: Path) -> None:
        make_task(dataset, "a")
        (dataset / "infranoise.toml").write_text("samples = 0\n")

        result = lint(dataset)

        assert f"{(dataset / 'infranoise.toml').resolve()}: samples: 0 is not " in result.stdout
        assert result.stdout.splitlines()[-1:] == summary(1, 1, 0, 0)
        assert result.exit_code == 1

    def test_resources_that_are_missing(self, dataset: Path) -> None:
        harbor_task(dataset / "a", HARBOR.replace("cpus = 1\n", ""))

        result = lint(dataset)
        assert "dataset/a/task.toml: environment.cpus: is missing; " in result.stdout
        assert result.exit_code == 1
        # The option as the message names it.
        assert lint(dataset, "--infranoise-default-cpus", "1..2").exit_code == 0

    def test_resources_from_the_settings_file(self, dataset: Path) -> None:
        harbor_task(dataset / "a", HARBOR.replace("cpus = 1\n", ""))
        toml = dataset / "infranoise.toml"
        toml.write_text("default-cpus = 2\n")

        assert lint(dataset).exit_code == 0
        toml.write_text("default-cpus = '2..1'\n")
        assert "infranoise.toml: default-cpus: '2..1' is no sensible floor and ceiling in CPUs; give" in (
            lint(dataset).stdout
        )

    @pytest.mark.parametrize(
        "options",
        [
            ["--resource-config", "0.5x"],
            ["--resource-config", "nobody"],
            ["--cpus", "0"],
            ["--cpus", "nan"],
            ["--memory", "lots"],
            ["--memory", "0"],
            ["--default-cpus", "2..1"],
            ["--default-memory", "x"],
        ],
    )
    def test_wrong_options(self, dataset: Path, options: list[str]) -> None:
        make_task(dataset, "a")
        result = lint(dataset, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert options[1].split("..")[0] in result.stderr


def test_a_path_that_is_not_there(dataset: Path) -> None:
    assert lint("nowhere").exit_code == 2


def test_neither_pytest_nor_an_engine_is_loaded(dataset: Path) -> None:
    make_task(dataset, "a")
    code = (
        "import sys; from pytest_infranoise.cli import main; main(['lint', 'dataset'], standalone_mode=False); "
        "assert not {'pytest', 'docker', 'scipy'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1:] == summary(1, 1, 0, 0)


def summary(tasks: int, ready: int, skipped: int, broken: int) -> list[str]:
    noun = "task" if tasks == 1 else "tasks"
    unplanned = tasks - ready - skipped - broken
    text = f"{unplanned} not to be run as planned, " if unplanned else ""
    return [f"{tasks} {noun}: {ready} ready, {text}{skipped} skipped, {broken} broken"]


class TestCollection:
    """Files of instances as pytest items."""

    OPTIONS = ("--infranoise-agent", "nop", "--infranoise-samples", "1", "--resource-config", "1x,3x")

    @pytest.fixture
    def file(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{pytester.path}/no-engine.sock")
        return write_instances(pytester.path / "swe.jsonl", instance(), instance(instance_id="acme__adder-2"))

    def ids(self, pytester: pytest.Pytester, *arguments: str) -> list[str]:
        result = pytester.runpytest("--co", "-q", *self.OPTIONS, *arguments)
        return [line for line in result.outlines if "::" in line]

    def test_ids_are_file_instance_config_and_sample(self, pytester: pytest.Pytester, file: Path) -> None:
        assert self.ids(pytester, "swe.jsonl") == [
            f"swe.jsonl::acme__adder-{number}::{config}-0" for number in (1, 2) for config in ("1x", "3x")
        ]

    @pytest.mark.parametrize(
        ("selection", "number"),
        [
            (["swe.jsonl::acme__adder-2"], 2),
            (["swe.jsonl::acme__adder-2::3x-0"], 1),
            (["swe.jsonl", "-k", "adder-1"], 2),
            (["swe.jsonl", "-m", "infranoise(task='acme__adder-1', config='1x')"], 1),
        ],
    )
    def test_selection(self, pytester: pytest.Pytester, file: Path, selection: list[str], number: int) -> None:
        assert len(self.ids(pytester, *selection)) == number

    def test_only_where_somebody_means_it(self, pytester: pytest.Pytester, file: Path) -> None:
        pytester.makepyfile("def test_theirs(): ...")
        assert len(self.ids(pytester)) == 1
        (pytester.path / "infranoise.toml").touch()
        assert len(self.ids(pytester)) == 5

    def test_other_json_lines_are_left_alone(self, pytester: pytest.Pytester) -> None:
        write_instances(pytester.path / "predictions.jsonl", {"instance_id": "x", "model_patch": ""})
        assert self.ids(pytester, "predictions.jsonl") == []

    def test_a_wrong_line_is_one_error(self, pytester: pytest.Pytester, file: Path) -> None:
        write_instances(file, instance(), instance(instance_id="b", patch=ABSENT), "{")
        result = pytester.runpytest("swe.jsonl", *self.OPTIONS)
        result.assert_outcomes(errors=2)
        result.stdout.fnmatch_lines(
            [
                "*swe.jsonl: line 2: patch: is missing; add it",
                "*swe.jsonl: line 3: is not valid JSON: *",
            ]
        )

    @pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
    def test_what_is_unsupported_is_skipped(
        self, pytester: pytest.Pytester, file: Path, workers: list[str]
    ) -> None:
        write_instances(file, instance(eval_type="fail_only"))
        result = pytester.runpytest_subprocess("swe.jsonl", "-rs", *self.OPTIONS, *workers)
        result.assert_outcomes(skipped=2)
        result.stdout.fnmatch_lines(["*eval_type fail_only*"])

    def test_resources_from_the_options(self, pytester: pytest.Pytester, file: Path) -> None:
        write_instances(file, instance(infranoise=ABSENT))
        result = pytester.runpytest("--co", "swe.jsonl", *self.OPTIONS)
        result.stdout.fnmatch_lines(["*swe.jsonl: line 1: infranoise.resources: is missing; give *"])
        defaults = ("--infranoise-default-cpus", "1", "--infranoise-default-memory", "2G")
        assert len(self.ids(pytester, "swe.jsonl", *defaults)) == 2
