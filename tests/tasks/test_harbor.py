"""Harbor's task directories: what is read from them, what is told of mistakes, what is skipped and why."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.model import Healthcheck
from pytest_infranoise.model import HostVariable
from pytest_infranoise.model import Reads
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.harbor import load
from pytest_infranoise.tasks.host_environment import unset_variables
from pytest_infranoise.tasks.loaders import load as load_any
from tests.tasks.foreign import GRADE
from tests.tasks.foreign import HARBOR
from tests.tasks.foreign import IMAGE
from tests.tasks.foreign import harbor_task
from tests.tasks.foreign import write

MIB = 1024**2
GIB = 1024**3
CSV = Path(__file__).parents[3] / "shared" / "data" / "terminal_bench_2_tasks.csv"
DEFAULTS = DefaultResources((1, 2), (2 * GIB, 6 * GIB))


def loaded(root: Path, defaults: DefaultResources = NO_DEFAULTS) -> Task:
    task = load(root, defaults)
    assert task is not None
    return task


def mistakes(root: Path) -> str:
    with pytest.raises(TaskError) as caught:
        load(root)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(str(root)) and "; " in line for line in lines)
    return "\n".join(line.replace(f"{root}/", "") for line in lines)


def changed(old: str, new: str) -> str:
    assert old in HARBOR
    return HARBOR.replace(old, new)


def test_a_task_of_terminal_bench_2(tmp_path: Path) -> None:
    root = harbor_task(tmp_path / "job")
    task = loaded(root)
    assert (task.name, task.file, task.instruction) == ("job", root / "task.toml", "Write done.\n")
    assert (task.image, task.build, task.files) == (IMAGE, None, None)
    assert task.spec == Spec(1, 64 * MIB)
    assert (task.timeouts.agent, task.timeouts.verifier) == (20, 20)
    assert (task.network, task.environment, task.user, task.workdir) == (True, {}, None, "")
    assert task.tags == ("one", "easy", "files")
    assert (task.storage, task.build_timeout) == (10 * GIB, 600)
    assert task.unsupported is None
    assert (task.verifier.files, task.verifier.target, task.verifier.user) == (root / "tests", "/tests", "")
    assert task.verifier.reads is Reads.REWARD_FILES
    assert task.solution is not None
    assert task.solution.uploads[0].target == "/solution"


def test_newest_schema(tmp_path: Path) -> None:
    toml = """
schema_version = "1.4"
source = "somewhere"
artifacts = ["/app/out"]
[task]
name = "some-org/the.task"
keywords = ["k"]
[agent]
timeout_sec = 90.5
user = 1000
[verifier]
timeout_sec = 30
user = "nobody"
env = { JUDGE = "${JUDGE_KEY}", MODE = "x" }
[environment]
cpus = 0.5
memory_mb = 3072
storage_mb = 10240
network_mode = "no-network"
workdir = "/work"
gpus = 0
[environment.env]
A = "plain"
B = "${HOST_B:-}"
[environment.healthcheck]
command = "test -e /ready"
start_period_sec = 2.5
retries = 5
[solution.env]
C = "${HOST_C}"
[anything.else]
x = 1
"""
    root = write(harbor_task(tmp_path / "job", toml), {"environment/Dockerfile": f"FROM {IMAGE}\n"})
    task = loaded(root)
    assert task.name == "some-org__the.task"
    assert (task.image, task.build) == (None, root / "environment")
    assert task.spec == Spec(0.5, 3 * GIB)
    assert (task.timeouts.agent, task.timeouts.verifier) == (90.5, 30)
    assert (task.network, task.workdir, task.user, task.agent_user) == (False, "/work", None, "1000")
    assert task.environment == {"A": "plain", "B": HostVariable("HOST_B", "")}
    assert (task.verifier.user, task.verifier.environment["JUDGE"]) == ("nobody", HostVariable("JUDGE_KEY"))
    assert task.healthcheck == Healthcheck("test -e /ready", start_period=2.5, retries=5)
    assert task.timeouts.setup == 360 + 2.5 + 5 * 35
    assert task.tags == ("k",)


def test_an_image_wins_over_a_dockerfile(tmp_path: Path) -> None:
    root = write(harbor_task(tmp_path / "job"), {"environment/Dockerfile": "FROM scratch\n"})
    assert (loaded(root).image, loaded(root).build, loaded(root).files) == (IMAGE, None, None)


def test_without_dockerfile_the_environment_is_uploaded(tmp_path: Path) -> None:
    root = write(harbor_task(tmp_path / "job"), {"environment/data": "x"})
    assert loaded(root).files == root / "environment"


def test_marks_of_origin_are_not_shown(tmp_path: Path) -> None:
    text = "<!-- canary GUID 1 -->\n# a CANARY too\n\n# Title\ncanary\n"
    assert loaded(harbor_task(tmp_path / "job", instruction=text)).instruction == "# Title\ncanary\n"


def test_no_solution(tmp_path: Path) -> None:
    root = harbor_task(tmp_path / "job")
    (root / "solution" / "solve.sh").unlink()
    assert loaded(root).solution is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('memory = "2G"', 2 * GIB),
        ('memory = "2048M"\nmemory_mb = 2048', 2 * GIB),
        ('memory = " 1.5g "', 1536 * MIB),
        ('memory = "8192K"', 8 * MIB),
        ("memory_mb = 2048", 2 * GIB),
        ("memory_mb = 2048.0", 2 * GIB),
    ],
)
def test_memory(tmp_path: Path, text: str, size: int) -> None:
    assert loaded(harbor_task(tmp_path / "job", changed('memory = "64M"', text))).spec.memory == size


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('memory = "2G"\nmemory_mb = 4096', "environment.memory: '2G' is 2048 MiB, but memory_mb is 4096; remove"),
        ('memory = "2GB"', "environment.memory: '2GB' is not an amount; write e.g. 2G"),
        ("memory = 2", "environment.memory: 2 is not text"),
        ("memory_mb = 2.5", "environment.memory_mb: 2.5 is not a whole number; write e.g. 3"),
        ("memory_mb = 0", "environment.memory_mb: 0 B is less than a container can start with"),
        ("memory_mb = -1", "environment.memory_mb: -1 is no sensible value"),
        ("memory_mb = true", "environment.memory_mb: true is not a number"),
        ("memory_mb = inf", "environment.memory_mb: inf is not a number"),
        ("", "environment.memory_mb: is missing; add it, or give --infranoise-default-memory"),
    ],
)
def test_bad_memory(tmp_path: Path, text: str, line: str) -> None:
    assert line in mistakes(harbor_task(tmp_path / "job", changed('memory = "64M"', text)))


def test_missing_resources_come_from_the_user(tmp_path: Path) -> None:
    toml = HARBOR.replace("cpus = 1\n", "").replace('memory = "64M"', "")
    root = harbor_task(tmp_path / "job", toml)
    told = mistakes(root)
    assert "environment.cpus: is missing; add it, or give --infranoise-default-cpus" in told
    assert "environment.memory_mb: is missing" in told
    assert loaded(root, DEFAULTS).spec == Spec(1, 2 * GIB, 2, 6 * GIB)
    assert loaded(root, DefaultResources((1, 1), (GIB, GIB))).spec == Spec(1, GIB)


def test_stated_resources_win_over_the_users(tmp_path: Path) -> None:
    assert loaded(harbor_task(tmp_path / "job"), DEFAULTS).spec == Spec(1, 64 * MIB)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("", True),
        ("allow_internet = true", True),
        ("allow_internet = false", False),
        ('network_mode = "no-network"', False),
        ('network_mode = "no-network"\nallow_internet = false', False),
    ],
)
def test_network(tmp_path: Path, text: str, network: bool) -> None:
    assert loaded(harbor_task(tmp_path / "job", f"{HARBOR}\n{text}")).network is network


ENV = "[environment]\n"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            ENV,
            f'{ENV}network_mode = "public"\nallow_internet = false\n',
            "environment.allow_internet: is false, but",
        ),
        (ENV, f'{ENV}network_mode = "off"\n', "environment.network_mode: 'off' is not known; write public or"),
        (ENV, f"{ENV}allow_internet = 1\n", "environment.allow_internet: 1 is not true or false"),
        (ENV, f'{ENV}workdir = "app"\n', "environment.workdir: 'app' is not an absolute path"),
        (ENV, f'{ENV}env = ["A=1"]\n', "environment.env: ['A=1'] is not a table"),
        (ENV, f"{ENV}env = {{ A = 1 }}\n", "environment.env.A: 1 is not text"),
        (ENV, f'{ENV}env = {{ "A B" = "1" }}\n', "environment.env: 'A B' cannot be the name of a variable"),
        (ENV, f"{ENV}healthcheck = {{ retries = 3 }}\n", "environment.healthcheck.command: is missing"),
        ("cpus = 1", "cpus = 0", "environment.cpus: 0 is no sensible value; write at least 0.01"),
        ("cpus = 1", 'cpus = "1"', "environment.cpus: '1' is not a number"),
        ("cpus = 1", "cpus = nan", "environment.cpus: nan is not a number"),
        (f'docker_image = "{IMAGE}"', 'docker_image = "No Image"', "'No Image' is not an image reference"),
        (f'docker_image = "{IMAGE}"', "", "environment.docker_image: there is neither an image nor"),
        ("[agent]", '[agent]\nuser = "a b"', "agent.user: 'a b' is not a user"),
        ("[agent]\ntimeout_sec = 20.0", "[agent]\ntimeout_sec = 0", "agent.timeout_sec: 0 is no sensible value"),
        ("[agent]\ntimeout_sec = 20.0", "[agent]\ntimeout_sec = inf", "agent.timeout_sec: inf is not a number"),
        (HARBOR, "agent = 3\n[environment]\ncpus = 1", "agent: 3 is not a table"),
        ('version = "1.0"', "version = 1.0", "version: 1.0 is not text"),
        ('version = "1.0"', '[task]\nname = "plain"', "task.name: 'plain' is not ORG/NAME"),
        ('version = "1.0"', '[task]\nname = "a/../b"', "task.name: 'a/../b' is not ORG/NAME"),
        ('version = "1.0"', f'[task]\nname = "a/{"b" * 200}"', "task.name: "),
        ('storage = "10G"', 'storage = "much"', "environment.storage: 'much' is not an amount"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert line in mistakes(harbor_task(tmp_path / "job", changed(old, new)))


def test_all_mistakes_are_told(tmp_path: Path) -> None:
    root = harbor_task(tmp_path / "job", HARBOR.replace("cpus = 1", "cpus = 0").replace("20.0", "-1"))
    assert len(mistakes(root).splitlines()) == 3


@pytest.mark.parametrize("end", [20, 120, 260])
def test_cut_off(tmp_path: Path, end: int) -> None:
    lines = HARBOR[:end].rpartition("\n")[0]
    root = harbor_task(tmp_path / "job", f'{lines}\nkey = "')
    assert mistakes(root).startswith("task.toml: is not valid TOML: ")
    root = harbor_task(tmp_path / "job", lines)
    assert "environment.memory_mb: is missing" in mistakes(root)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("20.0", "{max_timeout}", "task.toml: line 11: is a template: the placeholder '{max_timeout}'"),
        ('"easy"', '"{difficulty}"', "task.toml: metadata.difficulty: is a template"),
        ('"easy"', '"{{ difficulty }}"', "task.toml: metadata.difficulty: is a template"),
        (f'"{IMAGE}"', '"<IMAGE>"', "task.toml: environment.docker_image: is a template"),
        ('version = "1.0"', '[task]\nname = "org/{{ID}}__{task_id}"', "task.toml: task.name: is a template"),
        ("[environment]", "{% if big %}\n[environment]", "is a template: the placeholder '{% if big %}'"),
    ],
)
def test_templates(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert line in mistakes(harbor_task(tmp_path / "job", changed(old, new)))


def test_instruction_that_is_a_template(tmp_path: Path) -> None:
    assert "instruction.md: is a template" in mistakes(harbor_task(tmp_path / "job", instruction="{instruction}\n"))


def test_missing_files(tmp_path: Path) -> None:
    root = harbor_task(tmp_path / "job")
    (root / "tests" / "test.sh").unlink()
    assert "tests: 'tests/test.sh' does not exist" in mistakes(root)
    (root / "tests").rmdir()
    assert "tests: 'tests' does not exist; a Harbor task keeps its test.sh in tests/" in mistakes(root)
    (root / "instruction.md").unlink()
    assert "instruction.md: 'instruction.md' does not exist" in mistakes(root)


def test_links_that_lead_out(tmp_path: Path) -> None:
    root = harbor_task(tmp_path / "job")
    (root / "tests" / "secret").symlink_to("/etc/passwd")
    assert "leads out of 'tests'" in mistakes(root)


@pytest.mark.parametrize("name", ["two words", "-dash", "new\nline", "ü", "x" * 200])
def test_hostile_directory_names(tmp_path: Path, name: str) -> None:
    root = harbor_task(tmp_path / name)
    with pytest.raises(TaskError, match="cannot be a task's name"):
        load(root)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpus = 1", "GPUs (environment.gpus = 1)"),
        ('os = "Windows"', "an operating system other than Linux (environment.os = 'Windows')"),
        (
            'network_mode = "allowlist"\nallowed_hosts = ["x.org"]',
            "a list of allowed hosts (environment.allowed_hosts)",
        ),
        ('mcp_servers = [{ name = "a" }]', "MCP servers (environment.mcp_servers)"),
        ('skills_dir = "/skills"', "skills for the agent (environment.skills_dir)"),
        ('tpu = { type = "v4", topology = "2x2" }', "TPUs (environment.tpu)"),
        ("[verifier.environment]\ncpus = 1", "a container of its own for the verifier ([verifier.environment])"),
        ('[[verifier.collect]]\ncommand = "x"', "commands between agent and verifier ([[verifier.collect]])"),
        ('[[steps]]\nname = "one"', "several steps ([[steps]])"),
    ],
)
def test_unsupported(tmp_path: Path, text: str, reason: str) -> None:
    task = loaded(harbor_task(tmp_path / "job", f"{HARBOR}\n{text}\n"))
    assert task.unsupported == f"not supported: {reason}"
    assert task.name == "job"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "[verifier]",
            '[verifier]\nenvironment_mode = "separate"',
            'verifier (verifier.environment_mode = "separate")',
        ),
        ("[verifier]", '[verifier]\nnetwork_mode = "no-network"', "a network of the verifier's own"),
        ("[agent]", '[agent]\nnetwork_mode = "no-network"', "a network of the agent's own"),
        ('version = "1.0"', 'schema_version = "2.0"', "schema_version '2.0' is not 1.0 to 1.4"),
        ('version = "1.0"', 'version = "1.9"', "version '1.9' is not 1.0 to 1.4"),
    ],
)
def test_unsupported_elsewhere(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert reason in (loaded(harbor_task(tmp_path / "job", changed(old, new))).unsupported or "")


def test_shared_verifier_and_the_same_network_are_supported(tmp_path: Path) -> None:
    toml = changed("[verifier]", '[verifier]\nenvironment_mode = "shared"\nnetwork_mode = "public"')
    assert loaded(harbor_task(tmp_path / "job", toml)).unsupported is None


def test_unsupported_files(tmp_path: Path) -> None:
    root = harbor_task(tmp_path / "job")
    compose = "services:\n  main: {}\n  db: {image: postgres}\n"
    write(root, {"environment/docker-compose.yaml": compose, "trajectory.json": "{}"})
    assert loaded(root).unsupported == (
        "not supported: several services (environment/docker-compose.yaml: main, db); "
        "a conversation to begin with (trajectory.json)"
    )
    write(root, {"environment/docker-compose.yaml": "services:\n  main: {privileged: true}\n"})
    assert "changes to the container in environment/docker-compose.yaml" in (loaded(root).unsupported or "")


def test_unsupported_needs_no_other_value(tmp_path: Path) -> None:
    toml = HARBOR.replace("cpus = 1", "gpus = 8").replace('memory = "64M"', "")
    assert loaded(harbor_task(tmp_path / "job", toml)).unsupported is not None


def test_what_is_not_harbors(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(write(tmp_path / "a", {"task.toml": "[build]\ncommand = 'make'\n"})) is None
    assert load(write(tmp_path / "b", {"task.toml": "no toml at all"})) is None
    (tmp_path / "c" / "task.toml").mkdir(parents=True)
    assert load(tmp_path / "c") is None
    os.mkfifo(tmp_path / "task.toml")
    assert load(tmp_path) is None


def test_only_known_places_are_looked_at_for_reports(tmp_path: Path) -> None:
    assert loaded(harbor_task(tmp_path / "a")).verifier.options["writes_ctrf"] is False
    test = f"{GRADE}\nuvx pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA\n"
    assert loaded(harbor_task(tmp_path / "b", test=test)).verifier.options["writes_ctrf"] is True
    test = f"{GRADE}\npytest --junitxml=/logs/verifier/results.xml /tests\n"
    verifier = loaded(harbor_task(tmp_path / "c", test=test)).verifier
    assert verifier.options["junit"] == "/logs/verifier/results.xml"
    assert "/logs/verifier/results.xml" in verifier.stale
    places = ("$OUT/results.xml", "/app/results.xml", "/logs/verifier/../../app/results.xml")
    for number, place in enumerate(places):
        test = f"{GRADE}\npytest --junitxml={place} /tests\n"
        assert "junit" not in loaded(harbor_task(tmp_path / f"other-{number}", test=test)).verifier.options


@pytest.mark.parametrize(
    ("line", "shows"),
    [
        ("pytest /tests/test_outputs.py -rA", True),
        ("uvx --with pytest==8.4.1 pytest /tests/test_outputs.py", True),
        ("if ! python3 -m pytest -q tests; then", True),
        ("pytest tests 2>&1 || status=1", True),
        ("uvx \\\n  -p 3.13 \\\n  pytest tests", True),
        ("pytest tests > /logs/verifier/out.txt", False),
        ("pytest tests | tail -1", False),
        ("pytest -qq tests", False),
        ("found=$(pytest tests)", False),
        ("pip install pytest", False),
        ("# pytest tests", False),
        ("uvx --with pytest==8.4.1 \\\n  pytest tests &> log", False),
        ("python3 /tests/check.py", False),
        ("exec > /logs/verifier/out.txt\npytest tests", False),
    ],
)
def test_whether_pytest_s_last_line_would_be_seen(tmp_path: Path, line: str, shows: bool) -> None:
    task = loaded(harbor_task(tmp_path / "a", test=f"#!/bin/bash\n{line}\n"))
    assert task.verifier.options["shows_pytest"] is shows


def test_variables_that_are_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    extra = '[environment.env]\nA = "${NOT_SET_HERE}"\nB = "${NOT_SET_HERE:-x}"\nC = "a ${NOT_SET_HERE}"\n'
    task = loaded(harbor_task(tmp_path / "job", HARBOR + extra))
    assert list(unset_variables(task)) == [
        f"{task.file}: environment: A: takes its value from ${{NOT_SET_HERE}}, "
        "which is not set here; set NOT_SET_HERE"
    ]
    assert task.environment["C"] == "a ${NOT_SET_HERE}"
    monkeypatch.setenv("NOT_SET_HERE", "hush")
    assert list(unset_variables(task)) == []
    assert "hush" not in repr(task)


def test_strategies_of_our_own(tmp_path: Path) -> None:
    table = '[metadata.infranoise.strategies]\nhalf = { script = "s/a.sh", odds = 0.5 }\n'
    root = write(harbor_task(tmp_path / "job", HARBOR + table), {"s/a.sh": "true\n"})
    assert "metadata.infranoise.strategies: the odds add up to 0.5" in mistakes(root)
    write(root, {"task.toml": f'{HARBOR}{table}rest = {{ script = "s/a.sh", odds = 0.5 }}\n'})
    assert [strategy.name for strategy in loaded(root).strategies] == ["half", "rest"]
    write(root, {"task.toml": HARBOR + table.replace("s/a.sh", "../a.sh")})
    assert "metadata.infranoise.strategies.half: '../a.sh' leads out" in mistakes(root)


def test_the_native_file_comes_first(tmp_path: Path) -> None:
    root = write(harbor_task(tmp_path / "job"), {"task.yaml": "other: tool\n"})
    task = load_any(root)
    assert task is not None
    assert task.file == root / "task.toml"


def size(key: str, text: str) -> str:
    """Return a size as these tasks write it: with a unit in the old key, as a number in the new one."""
    return f"{key}_mb = {text}" if text.isdecimal() else f'{key} = "{text}"'


def bytes_in(text: str) -> int:
    return int(text) * MIB if text.isdecimal() else int(float(text[:-1]) * {"M": MIB, "G": GIB}[text[-1]])


@pytest.mark.skipif(not CSV.exists(), reason=f"{CSV} is not there")
def test_all_of_terminal_bench_2(tmp_path: Path) -> None:
    with CSV.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 89
    for row in rows:
        toml = f"""
version = "{row["version"]}"
[metadata]
difficulty = "{row["difficulty"]}"
[agent]
timeout_sec = {row["agent_timeout"]}
[verifier]
timeout_sec = {row["verifier_timeout"]}
[environment]
build_timeout_sec = {row["build_timeout"]}
docker_image = "{row["docker_image"]}"
cpus = {row["cpus"]}
{size("memory", row["memory"])}
{size("storage", row["storage"])}
"""
        task = loaded(harbor_task(tmp_path / row["task"], toml))
        assert (task.name, task.image, task.unsupported) == (row["task"], row["docker_image"], None)
        assert task.spec == Spec(float(row["cpus"]), bytes_in(row["memory"]))
        assert task.timeouts.agent == float(row["agent_timeout"])


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(
        [
            "cpus",
            "memory_mb",
            "memory",
            "env",
            "healthcheck",
            "workdir",
            "network_mode",
            "docker_image",
            "os",
            "gpus",
        ]
    ),
)
def test_any_value_is_a_task_or_a_mistake(
    tmp_path_factory: pytest.TempPathFactory, value: object, key: str
) -> None:
    from pytest_infranoise.tasks import harbor

    root = tmp_path_factory.getbasetemp() / "any"
    if not root.exists():
        harbor_task(root)
    data = {"environment": {"docker_image": IMAGE, "cpus": 1, "memory_mb": 64, key: value}}
    try:
        name = harbor._load(root / "task.toml", data, NO_DEFAULTS).name
    except TaskError as error:
        name = str(error.file.parent.name)
    assert name == "any"
