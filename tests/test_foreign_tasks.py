"""Foreign task directories in a pytest session: how they are collected, planned, refused and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.foreign import HARBOR
from tests.tasks.foreign import harbor_task
from tests.tasks.foreign import terminal_bench_task

DEFAULTS = ("--infranoise-default-cpus", "0.5", "--infranoise-default-memory", "64M")
WORKERS = pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Path:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nsamples = 1\nresource-configs = ['1x']\n", "utf-8")
    return root


@pytest.fixture
def no_engine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine in reach: whoever tries to use one fails."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{pytester.path}/no-engine.sock")


@pytest.mark.usefixtures("no_engine")
def test_both_formats_are_collected(pytester: pytest.Pytester, suite: Path) -> None:
    harbor_task(suite / "h", f'{HARBOR}\n[task]\nname = "org/thing"\n')
    terminal_bench_task(suite / "t")
    (suite / "t" / "tests" / "test_outputs.py").write_text("raise SystemExit('imported on the host')\n")
    result = pytester.runpytest("--co", "-q", "suite", *DEFAULTS)
    assert [line for line in result.outlines if "::" in line] == [
        "suite/h/task.toml::1x-0",
        "suite/t/task.yaml::1x-0",
    ]
    result = pytester.runpytest("--co", "-q", "suite", *DEFAULTS, "-m", "infranoise(task='org__thing')")
    assert [line for line in result.outlines if "::" in line] == ["suite/h/task.toml::1x-0"]


@pytest.mark.usefixtures("no_engine")
def test_mistakes_are_collection_errors(pytester: pytest.Pytester, suite: Path) -> None:
    harbor_task(suite / "a", HARBOR.replace("20.0", "{timeout}"))
    terminal_bench_task(suite / "b", compose="services: [")
    result = pytester.runpytest("suite", *DEFAULTS)
    result.stdout.fnmatch_lines(
        [
            "*ERROR collecting suite/a/task.toml*",
            "*a/task.toml: line 11: is a template: the placeholder '{timeout}' was never filled in; fill it in*",
            "*ERROR collecting suite/b/task.yaml*",
            "*b/docker-compose.yaml: line *: is not valid YAML*",
        ]
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.usefixtures("no_engine")
def test_resources_are_never_unlimited(pytester: pytest.Pytester, suite: Path) -> None:
    terminal_bench_task(suite / "t")
    result = pytester.runpytest("suite")
    result.stdout.fnmatch_lines(
        ["*t/task.yaml: neither it nor docker-compose.yaml states CPUs; give --infranoise-*"]
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--infranoise-default-memory", "lots"],
            "*--infranoise-default-memory: 'lots' is not an amount of memory*",
        ),
        (
            ["--infranoise-default-cpus", "2..1"],
            "*--infranoise-default-cpus: '2..1' is no sensible floor and ceiling*",
        ),
        (["-o", "infranoise_default_cpus=x"], "*ini value infranoise_default_cpus: 'x' is not a number of CPUs*"),
    ],
)
def test_defaults_that_are_none(pytester: pytest.Pytester, suite: Path, arguments: list[str], line: str) -> None:
    result = pytester.runpytest("suite", *arguments)
    result.stderr.fnmatch_lines([line])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.usefixtures("no_engine")
def test_defaults_of_the_settings_file(pytester: pytest.Pytester, suite: Path) -> None:
    terminal_bench_task(suite / "t")
    with (suite / "infranoise.toml").open("a", encoding="utf-8") as file:
        file.write("default-cpus = 1\ndefault-memory = '2G..6G'\n")
    result = pytester.runpytest("--co", "-q", "suite")
    assert [line for line in result.outlines if "::" in line] == ["suite/t/task.yaml::1x-0"]


@pytest.mark.usefixtures("no_engine")
@WORKERS
def test_unset_variables_stop_everything(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    harbor_task(suite / "h", f'{HARBOR}\n[verifier.env]\nJUDGE = "${{NOT_SET_HERE}}"\n')
    result = pytester.runpytest("suite", *workers)
    result.stderr.fnmatch_lines(["*h/task.toml: verifier environment: JUDGE: *NOT_SET_HERE*is not set here*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.engine
@WORKERS
def test_a_mixed_dataset(
    pytester: pytest.Pytester, suite: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    monkeypatch.setenv("HOST_SIDE_KEY", "hush-hush-42")
    harbor_task(suite / "h", f'{HARBOR}\n[environment.env]\nKEY = "${{HOST_SIDE_KEY}}"\n')
    terminal_bench_task(suite / "t")
    harbor_task(suite / "u", f"{HARBOR}\ngpus = 1\n")
    result = pytester.runpytest_subprocess("suite", "-rs", *DEFAULTS, *workers)
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*not supported: GPUs (environment.gpus = 1)*"])
    assert result.stdout.str().count("storage limits of 1 task are not enforced") == 1
    for path in (pytester.path / ".infranoise").rglob("*"):
        assert not path.is_file() or b"hush-hush" not in path.read_bytes()
