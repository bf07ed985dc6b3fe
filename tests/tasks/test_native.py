from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.model import Spec
from pytest_infranoise.model import Strategy
from pytest_infranoise.model import Timeouts
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.native import EXAMPLE
from pytest_infranoise.tasks.native import json_schema
from pytest_infranoise.tasks.native import load
from tests.tasks.tasks import ABSENT
from tests.tasks.tasks import GOOD
from tests.tasks.tasks import MIB
from tests.tasks.tasks import loaded
from tests.tasks.tasks import mistakes
from tests.tasks.tasks import write_files
from tests.tasks.tasks import write_task


def test_defaults(tmp_path: Path) -> None:
    root = write_task(tmp_path / "a-task")
    task = loaded(root)
    assert (task.name, task.instruction, task.file) == ("a-task", "Do it.\n", root / "task.yaml")
    assert (task.image, task.build, task.pull) == ("debian:bookworm-slim", None, "missing")
    assert task.spec == Spec(cpus=1, memory=64 * MIB)
    assert task.timeouts == Timeouts(60, 600, 120)
    assert (task.network, task.workdir, task.user, task.keep_processes) == (True, "/app", None, False)
    assert (task.pids_ceiling, task.shm_ceiling) == (4096, 64 * MIB)
    assert task.verifier.command == "sh verify.sh"
    assert task.verifier.files == root / "verifier"
    assert (task.files, task.setup, task.oracle, task.strategies, task.tags) == (None, None, None, (), ())


def test_every_key(tmp_path: Path) -> None:
    root = write_task(
        tmp_path / "dir",
        name="named",
        image=ABSENT,
        build="environment",
        pull="never",
        resources={
            "cpus": {"floor": 0.5, "ceiling": 2},
            "memory": {"floor": "64M", "ceiling": 192 * MIB},
            "pids": 100,
            "shm": "1G",
        },
        timeouts={"agent": 2.5},
        network=False,
        environment={"A_1": "x y"},
        user=1000,
        workdir="/home/me",
        files="app",
        setup="make",
        verifier={"files": "verifier", "command": "perl check.pl", "user": "nobody"},
        oracle="solution.sh",
        strategies={"a": {"script": "solution.sh", "odds": 0.7}, "b": {"script": "solution.sh", "odds": 0.3}},
        tags=["x", "y", "x"],
        keep_processes=True,
    )
    task = loaded(root)
    assert (task.name, task.image, task.build, task.pull) == ("named", None, root / "environment", "never")
    assert task.spec == Spec(0.5, 64 * MIB, cpus_ceiling=2, memory_ceiling=192 * MIB)
    assert (task.pids_ceiling, task.shm_ceiling) == (100, 1024 * MIB)
    assert task.timeouts == Timeouts(60, 2.5, 120)
    assert (task.network, task.environment, task.user, task.workdir) == (False, {"A_1": "x y"}, "1000", "/home/me")
    assert (task.files, task.setup, task.oracle) == (root / "app", "make", root / "solution.sh")
    assert (task.verifier.command, task.verifier.user) == ("perl check.pl", "nobody")
    script = root / "solution.sh"
    assert task.strategies == (Strategy("a", script, 0.7), Strategy("b", script, 0.3))
    assert (task.tags, task.keep_processes) == (("x", "y"), True)


def test_odds_may_be_rounded(tmp_path: Path) -> None:
    three = {name: {"script": "solution.sh", "odds": 0.333333333} for name in "abc"}
    assert len(loaded(write_task(tmp_path / "a", strategies=three)).strategies) == 3


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_task(tmp_path / "a-task")
    monkeypatch.chdir(root)
    assert loaded(Path()).name == "a-task"
    assert loaded(Path("verifier/..")).verifier.files == root / "verifier"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"instruction: x\nmax_agent_timeout_sec: 360\n",
        b"# infranoise: 1\nname: x\n",
        b"metadata:\n  infranoise: 1\n",
        b"name: [broken\n",
        b"name: about infranoise: [broken\n",
        b"- infranoise\n",
        b"infranoise\n",
        b"name: a\nname: b\nuses: infranoise\n",
        b"kind: !custom {infranoise: 1}\n---\nkind: other\n",
        b"\xff\xfe\x00infranoise",
        b"name: infranoise\n" + b"#" * 2 * MIB,
    ],
)
def test_files_of_others_are_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "task.yaml").write_bytes(content)
    assert load(tmp_path) is None


@pytest.mark.parametrize("key", ["infranose", "infra_noise", "Infranoise", "infranoises", "infarnoise"])
def test_a_misspelt_key_loses_no_task(tmp_path: Path, key: str) -> None:
    (tmp_path / "task.yaml").write_text(f"name: x\n{key}: 1  # version\n")
    with pytest.raises(TaskError, match=rf"task\.yaml: {key}: is an unknown key; did you mean infranoise\?"):
        load(tmp_path)


@pytest.mark.parametrize("line", ["version: 1", "infrastructure: 1", "infrared: 1", "infranose: yes", "- noise: 1"])
def test_other_keys_are_no_misspelling(tmp_path: Path, line: str) -> None:
    (tmp_path / "task.yaml").write_text(f"{line}\n")
    assert load(tmp_path) is None


def test_no_file(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(tmp_path / "absent") is None
    (tmp_path / "task.yaml").mkdir()
    assert load(tmp_path) is None
    os.mkfifo(tmp_path / "verifier")
    (tmp_path / "verifier").rename(tmp_path / "pipe")
    (tmp_path / "task.yaml").rmdir()
    (tmp_path / "task.yaml").symlink_to("pipe")
    assert load(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"infranoise: 1\nname: [x\n", "line 3: is not valid YAML: "),
        (b"name: a\n\tx\r'infranoise' : 1\n", "line 2: is not valid YAML: "),
        (b"\xef\xbb\xbfinfranoise: 1\nname: [x\n", "line 3: is not valid YAML: "),
        (b"{infranoise: 1\n", "line 2: is not valid YAML: "),
        (b"a: b\n---\ninfranoise: 1\n", "line 2: is not valid YAML: but found another document; correct it"),
        (b"infranoise: 1\nname: \xff\n", "is not UTF-8 text; save it as UTF-8"),
        ("infranoise: 1\n".encode("utf-16"), "is not UTF-8 text; save it as UTF-8"),
        (b"infranoise: 1\nname: \x00\n", "is not valid YAML: "),
        (b"infranoise: 1\n#" + b"x" * MIB, "is larger than 1 MiB; put long texts into files"),
        (b"infranoise: 1\nname: !!int ''\n", "is not valid YAML: "),
        (b"infranoise: 1\nname: !!python/object:os.system x\n", "line 2: is not valid YAML: could not determine"),
        (b"infranoise: 1\n? [x]\n: y\n", "line 2: is not valid YAML: "),
        (b"!!str {infranoise: 1}\n", "line 1: is not valid YAML: "),
        (b"!!set {infranoise}\n", "is not a mapping of keys to values; write KEY: VALUE lines"),
    ],
)
def test_unreadable_files_of_ours(tmp_path: Path, content: bytes, line: str) -> None:
    root = write_files(tmp_path / "a-task")
    (root / "task.yaml").write_bytes(content)
    [only] = mistakes(root)
    assert only.startswith(line)


def test_nested_too_deep(tmp_path: Path) -> None:
    root = write_files(tmp_path / "a-task")
    (root / "task.yaml").write_bytes(b"infranoise: 1\nname: " + b"[" * 100_000)
    [only] = mistakes(root)
    assert "nesting depth" in only or "nested too deep" in only  # as libyaml or PyYAML itself says it


@pytest.mark.parametrize("version", [0, 2, 1.0, True, None, "1", [1], "0x1"])
def test_another_version_is_all_that_is_told(tmp_path: Path, version: object) -> None:
    [only] = mistakes(write_task(tmp_path / "a", infranoise=version, unknown=1))
    assert only.startswith("infranoise: version ")
    assert only.endswith(" of the format is unknown; write 1, or update pytest-infranoise")


def test_keys_given_twice(tmp_path: Path) -> None:
    root = write_task(tmp_path / "a")
    with (root / "task.yaml").open("a") as file:
        file.write("image: other\nenvironment: {A: x, A: y}\n")
    assert mistakes(root) == [
        "image: is given twice, in lines 2 and 6; remove one of them",
        "environment.A: is given twice, in line 7; remove one of them",
    ]


def test_anchors_and_merged_keys_are_no_repetition(tmp_path: Path) -> None:
    root = write_files(tmp_path / "a")
    (root / "task.yaml").write_text(
        "infranoise: 1\nimage: x\n"
        "resources: {cpus: &range {floor: 1, ceiling: 2}, memory: {<<: *range, floor: 64M, ceiling: 65M}}\n"
    )
    assert loaded(root).spec == Spec(1, 64 * MIB, 2, 65 * MIB)


@pytest.mark.parametrize(
    ("text", "value"),
    [("user: 1000:50", "1000:50"), ("user: 0755", "0755"), ("workdir: /2024", "/2024"), ("name: 2024-01-31", "")],
)
def test_yaml_makes_no_numbers_or_dates_of_text(tmp_path: Path, text: str, value: str) -> None:
    root = write_task(tmp_path / "a")
    with (root / "task.yaml").open("a") as file:
        file.write(text)
    task = loaded(root)
    assert {"user": task.user, "workdir": task.workdir, "name": ""}[text.split(":")[0]] == value


SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
_KEYS = st.sampled_from([*json_schema()["properties"], "floor", "script"]) | st.text(max_size=8)
_NESTED = st.dictionaries(
    st.sampled_from(
        ["floor", "ceiling", "cpus", "memory", "script", "odds", "files", "command", "user", "agent", "a", "b"]
    ),
    _VALUES,
    max_size=4,
)


def _load_or_refuse(root: Path) -> None:
    try:
        load(root)
    except TaskError as error:
        for line in str(error).split("\n"):
            assert line.startswith(str(root))
            assert line.isprintable()
            line.encode()


@SLOW
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="ignore")))
def test_arbitrary_bytes(tmp_path: Path, content: bytes) -> None:
    for prefix in (b"", b"infranoise: 1\n"):
        (tmp_path / "task.yaml").write_bytes(prefix + content)
        _load_or_refuse(tmp_path)


@SLOW
@given(data=st.dictionaries(_KEYS, _VALUES | _NESTED | st.dictionaries(st.text(max_size=3), _NESTED), max_size=6))
def test_arbitrary_mappings(tmp_path: Path, data: dict[str, object]) -> None:
    root = tmp_path / "a"
    if not root.exists():
        write_files(root)
    (root / "task.yaml").write_text(yaml.safe_dump({**GOOD, **data, "infranoise": 1}))
    _load_or_refuse(root)


def test_schema_describes_every_key() -> None:
    schema = json_schema()
    assert schema["required"] == ["infranoise", "resources"]
    objects = [schema, *schema["$defs"].values()]
    assert len(objects) == 7
    for described in objects:
        assert described["additionalProperties"] is False
        for name, field in described["properties"].items():
            target = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description") or target.get("description"), name
            assert {"type": "null"} not in field.get("anyOf", []), name


def test_the_example_is_a_task(tmp_path: Path) -> None:
    root = write_files(tmp_path / "a")
    (root / "instruction.md").unlink()
    (root / "strategies").mkdir()
    for name in ("right", "wrong"):
        (root / "strategies" / f"{name}.sh").write_text("true\n")
    [example] = json_schema()["examples"]
    assert example == EXAMPLE
    (root / "task.yaml").write_text(yaml.safe_dump(example))
    assert loaded(root).spec == Spec(1, 64 * MIB, memory_ceiling=192 * MIB)
