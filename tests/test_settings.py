from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.config_grammar import parse_config
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.policies import Policies
from pytest_infranoise.settings import read_settings
from pytest_infranoise.settings_file import SettingsFile
from pytest_infranoise.settings_file import read_settings_file

# Any option shows in a run that collects nothing of ours: reading them is all that is looked at here.
pytestmark = pytest.mark.usefixtures("plain_test")


@pytest.fixture
def plain_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_something(): pass")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resource-config", "2y"], "*unknown resource config '2y'; write Kx*"),
        (["--resource-config", "0.5x"], "*'0.5x': a ceiling below the floor of 1x*"),
        (["--resource-config", "1x,1.0x"], "*resource config '1x' is given twice*"),
        (["--resource-config", "1x,"], "*unknown resource config ''*"),
        (["--infranoise-samples", "0"], "*samples: 0 is not between 1 and 10000*"),
        (["--infranoise-samples", "1000000000"], "*samples: 1000000000 is not between 1 and 10000*"),
        (["--infranoise-run-dir", "/dev/null/runs"], "*--infranoise-run-dir: /dev/null is no directory*"),
        (["--infranoise-pass-threshold", "0"], "*--infranoise-pass-threshold: 0 is not above 0*"),
        (["--infranoise-pass-threshold", "nan"], "*--infranoise-pass-threshold: nan is not above 0*"),
        (["--infranoise-margin", "0"], "*--infranoise-margin: 0 is not between 0.1 and 50 percentage points*"),
        (["--infranoise-margin", "0.03"], "*--infranoise-margin: 0.03 is not between*(3 is 3 points)"),
        (["--infranoise-margin", "nan"], "*--infranoise-margin: nan is not between*"),
        (["--infranoise-alpha", "5"], "*--infranoise-alpha: 5 is not between 0.0001 and 0.2"),
        (["--infranoise-min-cut", "50"], "*--infranoise-min-cut: 50 is not a share above 0 and at most 1*"),
        (["--infranoise-target", "tasks"], "*--infranoise-target: 'tasks' is neither benchmark nor population"),
        (
            ["--infranoise-baseline", "uncaped"],
            "*--infranoise-baseline: no resource config 'uncaped' in this run; did you mean 'uncapped'? configs: *",
        ),
        (["--infranoise-agent", "command:"], "*agent 'command' needs its text*"),
        (["--infranoise-agent", "nop", "--infranoise-agent", "nop"], "*agent 'nop' is given twice*"),
        (["--infranoise-gate", "speed <= 2%"], "*speed*"),
        (["--infranoise-gate", "infra-rate[9x] <= 2%"], "*9x*"),
        (["--infranoise-gate", "equivalent(9x,1x)"], "*no resource config '9x'*"),
        (
            ["--infranoise-gate", "calibrated", "--resource-config", "1x,uncapped"],
            "*gate 'calibrated' can never hold: no config has a memory ceiling above that of the baseline 1x",
        ),
        (
            ["--infranoise-gate", "calibrated[3x]", "--infranoise-baseline", "3x"],
            "*gate 'calibrated*' can never hold: *baseline 3x",
        ),
        (["--infranoise-gate", "missing <= 0", "--lf"], "*gates are refused with --lf*"),
        (["--infranoise-gate", "missing <= 0", "--sw-skip"], "*gates are refused with --sw-skip*"),
        (["--infranoise-gate", "missing <= 0", "--sw-reset"], "*gates are refused with --sw-reset*"),
        (["-o", "infranoise_samples=many"], "*ini value infranoise_samples is not a number: *'many'*"),
        (["--infranoise-retries", "11"], "*--infranoise-retries: '11' is not a whole number from 0 to 10*"),
        (["--infranoise-memory-reserve", "lots"], "*--infranoise-memory-reserve: 'lots' is no amount of memory*"),
        (["--infranoise-allow-host-port", "http"], "*--infranoise-allow-host-port: 'http' is no list of ports*"),
        (["--infranoise-allow-host-port", "80,"], "*--infranoise-allow-host-port: '80,' is no list of ports*"),
        (
            ["--infranoise-allow-host-port", "00655350"],
            "*--infranoise-allow-host-port: '00655350' is no list of ports*",
        ),
        (["--infranoise-allow-host-port", "0"], "*--infranoise-allow-host-port: '0' is no list of ports*"),
        (["--infranoise-allow-host-port", "65536"], "*--infranoise-allow-host-port: '65536' is no list of ports*"),
        (["--infranoise-memory-reserve", "100%"], "*--infranoise-memory-reserve: '100%' is not above 0 %*"),
        (["-o", "infranoise_retries=some"], "*ini value infranoise_retries: *"),
        (["--resource-config", "ram:memory=5x,1x"], "*'1x' sets none of memory, cpus, time; repeat the option*"),
    ],
)
def test_a_wrong_option_is_one_clear_line_and_status_4(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = pytester.runpytest_inprocess(*arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: infranoise: " + message.lstrip("*") if message[0] != "*" else message])
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["plain", "n1"])
def test_a_wrong_option_in_a_process_of_its_own(pytester: pytest.Pytester, workers: list[str]) -> None:
    result = pytester.runpytest_subprocess("--infranoise-samples", "0", *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.strip()]
    assert line.startswith("ERROR: infranoise: --infranoise-samples: 0 is not")
    assert "INTERNALERROR" not in result.stdout.str()


def test_a_broken_settings_file_is_nobodys_business_without_trials(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("infranoise.toml").write_text("agent = ", "utf-8")

    pytester.runpytest().assert_outcomes(passed=1)
    assert not pytester.path.joinpath(".infranoise").exists()


def test_no_output_and_no_files_without_trials(pytester: pytest.Pytester) -> None:
    for workers in ([], ["-n1"]):
        result = pytester.runpytest_subprocess(*workers)

        assert result.ret == 0
        assert "infranoise" not in "\n".join(line for line in result.outlines if not line.startswith("plugins:"))
    assert not pytester.path.joinpath(".infranoise").exists()


def test_nothing_heavy_is_imported_without_trials(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_imports():
            heavy = {"docker", "scipy", "numpy", "yaml", "pydantic", "filelock", "psutil", "click", "requests"}
            assert not heavy & set(sys.modules)
        """
    )

    # Without the plugins of this environment, some of which have heavy tastes of their own.
    result = pytester.runpytest_subprocess("-p", "infranoise", "--disable-plugin-autoload")

    result.assert_outcomes(passed=1)


def test_results_can_be_talked_about_without_numpy() -> None:
    modules = ("plugin", "settings", "results", "findings", "gates", "gate_grammar", "cli", "journal")
    code = "import sys\n" + "".join(f"import pytest_infranoise.{module}\n" for module in modules)
    code += "print({'numpy', 'scipy', 'docker'} & set(sys.modules))"

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert told.strip() == "set()"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent = ", "not valid TOML"),
        ("agnet = 'nop'", "unknown key 'agnet'; did you mean 'agent'?"),
        ("samples = true", "samples: True is not a whole number of at least 1"),
        ("samples = 0", "samples: 0 is not a whole number"),
        ("pass-threshold = 2", "pass-threshold: 2 is not above 0 and at most 1"),
        ("margin = 0.03", "margin: 0.03 is not between 0.1 and 50 percentage points"),
        ("margin = '3pp'", "margin: '3pp' is not between"),
        ("alpha = true", "alpha: True is not between"),
        ("min-cut = 0", "min-cut: 0 is not a share above 0"),
        ("target = 'all'", "target: 'all' is neither benchmark nor population"),
        ("baseline = 1", "baseline: 1 is not the name of a config"),
        ("gates = 'missing <= 0'", "gates: 'missing <= 0' is not a list of gates"),
        ("resource-configs = ['9y']", "resource-configs: unknown resource config '9y'"),
        ("resource-configs = ['ram']\n[configs.rma]\nmemory = '2x'", "config 'ram'; did you mean 'rma'?"),
        ("[configs.ram]\nmemory = 2", "configs.ram.memory: 2 is not a text"),
        ("[configs.ram]\nextends = 'ram'", "configs: ram -> ram extend each other in a circle"),
        ("agents = 3", "agents: write one table for each agent"),
        ("[agents.mine]\nkind = 'command'", "agents.mine.command: missing"),
        ("[agents.mine]\nmodle = 'x'", "agents.mine: unknown key 'modle'; did you mean 'model'?"),
        ("[agents.mine]\nenv = 'KEY'", "agents.mine.env: 'KEY' is not a list"),
    ],
)
def test_every_mistake_in_a_settings_file_names_file_field_and_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "infranoise.toml"
    file.write_text(text, "utf-8")

    read = read_settings_file([tmp_path])

    assert read.values == {}
    assert len(read.errors) == 1
    assert read.errors[0].startswith(f"{file}: ")
    assert message in read.errors[0]


def test_a_settings_file_defines_configs(tmp_path: Path) -> None:
    (tmp_path / "infranoise.toml").write_text(
        "resource-configs = ['1x,ram', 'b:time=2x']\n[configs.ram]\nextends = '1x'\nmemory = '5x'", "utf-8"
    )

    read = read_settings_file([tmp_path])

    assert read.errors == ()
    assert read.configs == {"ram": parse_config("ram:memory=1x..5x")}


# A task whose directory has nothing but what is needed to be collected.
TASK = """\
infranoise: 1
instruction: Do it.
image: infranoise/base:bookworm
resources: {cpus: 1, memory: {floor: 64M, ceiling: 96M}}
verifier: {files: verifier, command: "true"}
"""


def suite(pytester: pytest.Pytester, toml: str) -> Path:
    tasks = pytester.path / "tasks"
    (tasks / "job" / "verifier").mkdir(parents=True)
    (tasks / "job" / "task.yaml").write_text(TASK, "utf-8")
    (tasks / "job" / "verifier" / "verify.sh").write_text("true\n", "utf-8")
    (tasks / "infranoise.toml").write_text(toml, "utf-8")
    return tasks


def test_configs_are_chosen_by_name_and_described_by_option(pytester: pytest.Pytester) -> None:
    suite(pytester, "agent = 'nop'\nsamples = 1\n[configs.slow]\nextends = '3x'\ntime = '2x'")
    options = ["--resource-config", "1x,slow", "--resource-config", "ram:memory=1x..5x,cpus=1x..1x"]

    result = pytester.runpytest_inprocess("tasks", "--co", "-q", *options)

    result.stdout.fnmatch_lines(["tasks/job/task.yaml::1x-0", "tasks/job/task.yaml::slow-0", "*::ram-0"])


@pytest.mark.parametrize("workers", [[], ["-n1"]])
def test_a_config_that_no_task_can_have_stops_everything(pytester: pytest.Pytester, workers: list[str]) -> None:
    suite(pytester, "agent = 'nop'")

    result = pytester.runpytest_subprocess("tasks", "--resource-config", "low:memory=1x..32M", *workers)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *task.yaml: resources.memory: task 'job' under config 'low' has a memory *"]
    )
    assert "passed" not in result.stdout.str()


def test_a_name_in_the_ini_file_concerns_only_tests_that_are_trials(pytester: pytest.Pytester) -> None:
    suite(pytester, "agent = 'nop'\nsamples = 1\n[configs.ram]\nmemory = '5x'")
    ini = ["-o", "infranoise_resource_config=ram 1x", "-o", "infranoise_gate=infra-rate[ram] <= 5%"]

    # The file that defines the name lies beside the tasks, and does not apply to other tests.
    pytester.runpytest_inprocess(
        "test_a_name_in_the_ini_file_concerns_only_tests_that_are_trials.py", *ini
    ).assert_outcomes(passed=1)
    pytester.runpytest_inprocess("tasks", "--co", "-q", *ini).stdout.fnmatch_lines(["*::ram-0", "*::1x-0"])

    ini[1] = "infranoise_resource_config=rma"
    result = pytester.runpytest_inprocess("tasks", "--co", *ini)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*ini value infranoise_resource_config: unknown resource config 'rma'; did you mean*"]
    )


def test_a_name_typed_beside_a_broken_file_is_told_with_what_is_wrong_in_it(pytester: pytest.Pytester) -> None:
    suite(pytester, "[configs.ram]\nmemroy = '5x'")

    result = pytester.runpytest_inprocess("tasks", "--co", "--resource-config", "ram")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown resource config 'ram'; *infranoise.toml: *unknown key 'memroy'*"])


def test_trials_with_the_same_id_are_refused(pytester: pytest.Pytester) -> None:
    agents = "".join(f"[agents.{name}]\nkind = 'nop'\n" for name in ("a", "a-b"))
    suite(pytester, f"agent = ['a', 'a-b']\n{agents}")

    options = ["--resource-config", "b-c:time=2x", "--resource-config", "c:time=2x"]
    result = pytester.runpytest_inprocess("tasks", "--co", *options)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*agent 'a' with config 'b-c' and agent 'a-b' with config 'c' would have the same test ids*"]
    )


def test_the_nearest_settings_file_counts(tmp_path: Path) -> None:
    (tmp_path / "infranoise.toml").write_text("agent = 'nop'", "utf-8")
    inner = tmp_path / "suite" / "task"
    inner.mkdir(parents=True)
    assert read_settings_file([inner]).values == {"agent": "nop"}

    (tmp_path / "suite" / "infranoise.toml").write_text("agent = 'oracle'", "utf-8")
    assert read_settings_file([inner]).values == {"agent": "oracle"}

    (tmp_path / "suite" / "task" / "pyproject.toml").write_text("[tool.infranoise]\nsamples = 7", "utf-8")
    assert read_settings_file([inner]).values == {"samples": 7}
    assert "several settings files" in read_settings_file([inner, tmp_path]).errors[0]


def test_what_the_system_refuses_to_show_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.infranoise]\nsamples = 7", "utf-8")

    def refuse(path: Path, *args: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    assert read_settings_file([tmp_path, tmp_path / ("long" * 999)]).values == {"samples": 7}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_file", refuse)
        assert read_settings_file([tmp_path]) == SettingsFile()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert read_settings_file([tmp_path]) == SettingsFile()
    own = tmp_path / "infranoise.toml"
    own.touch()
    assert read_settings_file([tmp_path]).errors == (f"{own}: cannot be read: Permission denied",)


def test_settings_that_are_no_table_are_a_mistake_for_trials_alone(pytester: pytest.Pytester) -> None:
    tasks = suite(pytester, "")
    (tasks / "infranoise.toml").unlink()
    (tasks / "pyproject.toml").write_text("[[tool.infranoise]]\nsamples = 1", "utf-8")
    ordinary = tasks / "test_ordinary.py"
    ordinary.write_text("def test_it(): pass\n", "utf-8")

    pytester.runpytest(str(ordinary)).assert_outcomes(passed=1)
    result = pytester.runpytest("tasks", "--infranoise-agent", "nop")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *pyproject.toml: infranoise: write one table: *tool.infranoise*"])


def test_a_tool_that_is_no_table_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("tool = 1 # [tool.infranoise]", "utf-8")

    assert "pyproject.toml: tool: write one table" in read_settings_file([tmp_path]).errors[0]


@pytest.mark.parametrize(
    ("ini", "arguments", "message"),
    [
        ("infranoise_gate = missing <= 0", ["--lf"], "ini value infranoise_gate: gates are refused with --lf*"),
        ("infranoise_gate = infra-rate[9x] <= 2%", [], "ini value infranoise_gate: *9x*"),
        (
            "infranoise_resource_config = 0.5x",
            [],
            "ini value infranoise_resource_config: *'0.5x': a ceiling below*",
        ),
        ("infranoise_samples = 0", [], "ini value infranoise_samples: 0 is not between 1 and 10000*"),
        ("infranoise_samples = 1000000000", [], "ini value infranoise_samples: 1000000000 is not between*"),
        ("infranoise_pass_threshold = 2", [], "ini value infranoise_pass_threshold: 2 is not above 0 *"),
        ("infranoise_margin = 0", [], "ini value infranoise_margin: 0 is not between 0.1 and 50*"),
        ("infranoise_alpha = 1", [], "ini value infranoise_alpha: 1 is not between*"),
        ("infranoise_min_cut = 2", [], "ini value infranoise_min_cut: 2 is not a share*"),
        ("infranoise_target = all", [], "ini value infranoise_target: 'all' is neither*"),
        ("infranoise_baseline = 9x", [], "ini value infranoise_baseline: no resource config '9x'*"),
        ("infranoise_agent =\n  nop\n  nop", [], "ini value infranoise_agent: agent 'nop' is given twice*"),
    ],
)
def test_a_mistake_in_an_ini_value_concerns_trials_alone(
    pytester: pytest.Pytester, ini: str, arguments: list[str], message: str
) -> None:
    suite(pytester, "agent = 'nop'")
    ordinary = pytester.makepyfile(test_ordinary="def test_it(): pass")
    pytester.makeini(f"[pytest]\n{ini}\n")

    pytester.runpytest(ordinary, *arguments).assert_outcomes(passed=1)
    result = pytester.runpytest("tasks", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{message}"])


def test_too_many_samples_in_a_settings_file_concern_trials_alone(pytester: pytest.Pytester) -> None:
    tasks = suite(pytester, "agent = 'nop'\nsamples = 10001")
    (tasks / "test_ordinary.py").write_text("def test_it(): pass\n", "utf-8")

    pytester.runpytest("tasks/test_ordinary.py").assert_outcomes(passed=1)
    result = pytester.runpytest("tasks")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *infranoise.toml: samples: 10001 is not between 1 and 10000"])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\ninfranoise_samples = 2\ninfranoise_pass_threshold = 0.5\ninfranoise_seed = 7"),
        ("pytest.toml", "[pytest]\ninfranoise_samples = 2\ninfranoise_pass_threshold = 0.5\ninfranoise_seed = 7"),
    ],
)
def test_numbers_are_native_in_toml(pytester: pytest.Pytester, file: str, text: str) -> None:
    pytester.path.joinpath(file).write_text(text, "utf-8")

    settings = read_settings(pytester.parseconfig())

    assert (settings.samples, settings.pass_threshold, settings.seed) == (2, 0.5, 7)


@pytest.mark.parametrize(
    ("arguments", "ini", "toml", "expected"),
    [
        ([], "", "", (0.03, 0.05, 0.5, "benchmark", "1x")),
        (
            [
                *("--infranoise-margin", "2.5", "--infranoise-alpha", "0.1", "--infranoise-min-cut", "0.8"),
                *("--infranoise-target", "population", "--infranoise-baseline", "3x"),
            ],
            "infranoise_margin = 7",
            "alpha = 0.01",
            (0.025, 0.1, 0.8, "population", "3x"),
        ),
        (
            [],
            "infranoise_margin = 5\ninfranoise_alpha = 0.01\ninfranoise_min_cut = 1\n"
            "infranoise_target = population\ninfranoise_baseline = uncapped",
            "margin = 9\nbaseline = '3x'",
            (0.05, 0.01, 1.0, "population", "uncapped"),
        ),
        (
            [],
            "",
            "margin = 7\nalpha = 0.1\nmin-cut = 0.3\ntarget = 'population'\nbaseline = '3x'",
            (0.07, 0.1, 0.3, "population", "3x"),
        ),
    ],
)
def test_what_is_to_be_shown_is_decided_before_the_run(
    pytester: pytest.Pytester,
    arguments: list[str],
    ini: str,
    toml: str,
    expected: tuple[float, float, float, str, str],
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    pytester.path.joinpath("infranoise.toml").write_text(toml, "utf-8")

    settings = read_settings(pytester.parseconfig(*arguments, "."))

    design = settings.design
    assert (design.margin, design.alpha, design.min_cut, design.target, settings.baseline.name) == expected


def test_a_value_of_another_type_in_toml_is_one_clear_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.path.joinpath("pytest.toml").write_text("[pytest]\ninfranoise_samples = 'two'", "utf-8")
    config = pytester.parseconfig()
    with pytest.raises(pytest.UsageError, match=r"infranoise_samples is not a number: .* expects an int"):
        read_settings(config)

    def getini(name: str) -> object:  # as pytest 9.0 does
        raise TypeError(f"config option {name!r} expects a list")

    with monkeypatch.context() as patched:
        patched.setattr(config, "getini", getini)
        with pytest.raises(pytest.UsageError, match=r"infranoise: config option .* expects a list"):
            read_settings(config)


@given(st.floats(1, 1e6))
def test_any_multiple_is_one_config_with_a_canonical_name(factor: float) -> None:
    (config,) = parse_configs([f"{factor:.3f}x"])

    assert config.cpus.ceiling == config.memory.ceiling == float(f"{factor:.3f}")
    assert parse_configs([f"{factor:.3f}0x"]) == (config,)


@given(st.text(max_size=20).filter(lambda text: text not in ("uncapped",) and not text.strip().endswith("x")))
def test_anything_else_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(ValueError, match="resource config"):
        parse_configs([f"no{text}"])


@pytest.mark.parametrize(
    ("toml", "arguments", "policies"),
    [
        ("", [], Policies()),
        ("", ["--infranoise-oom-child", "fail", "--infranoise-oom-mode", "group"], Policies("fail", "group")),
        (
            "",
            ["--infranoise-retries", "2", "--infranoise-memory-reserve", "1G"],
            Policies(retries=2, memory_reserve=1024**3),
        ),
        (
            "",
            ["-o", "infranoise_retries=2", "-o", "infranoise_memory_reserve=2.5%"],
            Policies(retries=2, memory_reserve=0.025),
        ),
        ("", ["-o", "infranoise_oom_child=fail", "-o", "infranoise_oom_mode=group"], Policies("fail", "group")),
        (
            "oom-child = 'fail'\nretries = 3\nmemory-reserve = 0\noom-mode = 'group'",
            [],
            Policies("fail", "group", 3, 0),
        ),
        ("retries = 3", ["-o", "infranoise_retries=0"], Policies(retries=0)),
        ("", ["--infranoise-allow-host-port", "3128, 80,3128"], Policies(allow_host_port=(80, 3128))),
        ("", ["-o", "infranoise_allow_host_port=8081"], Policies(allow_host_port=(8081,))),
        ("allow-host-port = 3128", [], Policies(allow_host_port=(3128,))),
        ("allow-host-port = [65535, 1]", [], Policies(allow_host_port=(1, 65535))),
        ("retries = 3", ["-o", "infranoise_retries=0", "--infranoise-retries", "1"], Policies(retries=1)),
    ],
)
def test_policies_are_taken_from_the_nearest_place(
    pytester: pytest.Pytester, toml: str, arguments: list[str], policies: Policies
) -> None:
    suite(pytester, f"agent = 'nop'\n{toml}")
    config = pytester.parseconfig("tasks", *arguments)

    settings = read_settings(config)

    assert settings.policies == policies
    assert settings.toml_errors == ()


@pytest.mark.parametrize(
    ("toml", "arguments", "message"),
    [
        ("oom-child = 'ignore'", [], "*infranoise.toml: oom-child: 'ignore' is neither infra nor fail"),
        ("retries = true", [], "*infranoise.toml: retries: 'True' is not a whole number from 0 to 10"),
        (
            "",
            ["-o", "infranoise_oom_mode=both"],
            "*ini value infranoise_oom_mode: 'both' is neither single nor group",
        ),
    ],
)
def test_a_wrong_policy_that_was_not_typed_concerns_only_trials(
    pytester: pytest.Pytester, toml: str, arguments: list[str], message: str
) -> None:
    suite(pytester, f"agent = 'nop'\n{toml}")
    ordinary = "test_a_wrong_policy_that_was_not_typed_concerns_only_trials.py"

    pytester.runpytest_inprocess(ordinary, *arguments).assert_outcomes(passed=1)
    result = pytester.runpytest_inprocess("tasks", "--co", *arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@given(st.integers(2**20, 2**45))
def test_the_reserve_is_a_small_share_by_default_and_what_was_asked_otherwise(memory: int) -> None:
    assert Policies().reserve_of(memory) == min(int(memory * 0.05), 500 * 1024**2)
    assert Policies(memory_reserve=0).reserve_of(memory) == 0
    assert Policies(memory_reserve=7).reserve_of(memory) == 7
    assert Policies(memory_reserve=0.5).reserve_of(memory) == memory // 2
