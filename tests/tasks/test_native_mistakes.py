from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.native import load
from tests.tasks.tasks import ABSENT
from tests.tasks.tasks import GOOD
from tests.tasks.tasks import MIB
from tests.tasks.tasks import loaded
from tests.tasks.tasks import mistakes
from tests.tasks.tasks import write_task


def _strategy(name: str = "a", **entry: object) -> dict[str, Any]:
    return {"strategies": {name: {"script": "solution.sh", **entry}}}


NAME_RULE = "use up to 100 letters, digits, '.', '_' and '-', not '.' or '-' in front"
PATH_RULE = "write a path relative to the task's directory, e.g. solution.sh"

BAD: list[tuple[dict[Any, Any], str]] = [
    ({"naem": "x"}, "naem: is an unknown key; did you mean name?"),
    ({"keep-processes": True}, "keep-processes: is an unknown key; did you mean keep_processes?"),
    ({"zzz": 1}, "zzz: is an unknown key; known are infranoise, name, "),
    ({"a\nb\x1b[0m": 1}, "a\\nb\\x1b[0m: is an unknown key; known are "),
    ({"x" * 5000: 1}, f"{'x' * 200}...: is an unknown key; known are "),
    ({"[key]": 1}, "[key]: is an unknown key; known are "),
    ({7: 1}, "[7]: is a key that is not text; put it in quotes"),
    ({"name": None}, "name: the key is empty; give it a value, or remove it"),
    ({"name": 12}, "name: 12 is not text; put it in quotes"),
    ({"name": ""}, f"name: '' cannot be a name; {NAME_RULE}"),
    ({"name": "../x"}, f"name: '../x' cannot be a name; {NAME_RULE}"),
    ({"name": ".x"}, f"name: '.x' cannot be a name; {NAME_RULE}"),
    ({"name": "-x"}, f"name: '-x' cannot be a name; {NAME_RULE}"),
    ({"name": "a b"}, f"name: 'a b' cannot be a name; {NAME_RULE}"),
    ({"name": "a\n"}, f"name: 'a\\n' cannot be a name; {NAME_RULE}"),
    ({"name": "é"}, f"name: 'é' cannot be a name; {NAME_RULE}"),
    ({"name": "x" * 101}, "name: 'xxxxx"),
    ({"instruction": "twice"}, "instruction: is given here and in instruction.md; remove one of them"),
    ({"image": None}, "image: the key is empty; give it a value, or remove it"),
    ({"image": "a b"}, "image: 'a b' is not an image reference; write e.g. debian:bookworm-slim"),
    ({"image": "-v"}, "image: '-v' is not an image reference; write e.g. debian:bookworm-slim"),
    ({"image": "a" * 501}, "image: 'aaaa"),
    ({"image": 1.5}, "image: 1.5 is not text; put it in quotes"),
    ({"image": ABSENT}, "image: is missing; name an image, or with build a directory that holds a Dockerfile"),
    ({"build": "environment"}, "image: is given together with build; remove one of them"),
    ({"image": ABSENT, "build": "app"}, "build: 'app' holds no Dockerfile; put one there"),
    ({"image": ABSENT, "build": "absent"}, "build: 'absent' does not exist; make it, or correct the path"),
    ({"pull": "always"}, "pull: 'always' is not known; write 'missing' or 'never'"),
    ({"resources": ABSENT}, "resources: is missing; write e.g. resources: {cpus: 1, memory: 512M}"),
    ({"resources": None}, "resources: the key is empty; give it a value, or remove it"),
    ({"resources": "64M"}, "resources: '64M' is not a mapping; write KEY: VALUE lines"),
    ({"workdir": "app"}, "workdir: 'app' is not an absolute path; write e.g. /app"),
    ({"workdir": "/app/../etc"}, "workdir: '/app/../etc' is not an absolute path; write e.g. /app"),
    ({"workdir": "/infranoise/x"}, "workdir: '/infranoise/x' is not for tasks to work in; write e.g. /app"),
    ({"workdir": "/app\n"}, "workdir: '/app\\n' is not an absolute path; write e.g. /app"),
    ({"network": "no"}, "network: 'no' is not true or false; write true or false"),
    ({"network": 0}, "network: 0 is not true or false; write true or false"),
    ({"keep_processes": 1}, "keep_processes: 1 is not true or false; write true or false"),
    ({"environment": ["A=1"]}, "environment: ['A=1'] is not a mapping; write KEY: VALUE lines"),
    ({"environment": {"A": 1}}, "environment.A: 1 is not text; put it in quotes"),
    ({"environment": {"A": True}}, "environment.A: true is not text; put it in quotes"),
    ({"environment": {"A": "x\0"}}, "environment.A: the text has a NUL character; remove it"),
    ({"environment": {"A": "x" * 100_001}}, "environment.A: the text is longer than 100000 bytes; put it into"),
    ({"environment": {"1A": "x"}}, "environment.1A: '1A' cannot be the name of a variable; use letters, digits"),
    ({"environment": {"A=B": "x"}}, "environment.A=B: 'A=B' cannot be the name of a variable; use letters"),
    ({"environment": {"": "x"}}, "environment.: '' cannot be the name of a variable; use letters"),
    ({"environment": {"INFRANOISE_NONCE": "x"}}, "environment.INFRANOISE_NONCE: 'INFRANOISE_NONCE' is reserved; "),
    ({"user": -1}, "user: -1 is not a user; write e.g. nobody, 1000 or '1000:1000'"),
    ({"user": True}, "user: true is not a user; write e.g. nobody, 1000 or '1000:1000'"),
    ({"user": "a b"}, "user: 'a b' is not a user; write e.g. nobody, 1000 or '1000:1000'"),
    ({"files": 1}, "files: 1 is not a path; write it as text"),
    ({"files": "/etc"}, f"files: '/etc' is an absolute path; {PATH_RULE}"),
    ({"files": "app/../../x"}, f"files: 'app/../../x' leads out of the task's directory with '..'; {PATH_RULE}"),
    ({"files": " "}, f"files: ' ' is not a path; {PATH_RULE}"),
    ({"files": "a\0b"}, f"files: 'a\\x00b' is not a path; {PATH_RULE}"),
    ({"files": "x" * 300}, "files: 'xxxx"),
    ({"files": "solution.sh"}, "files: 'solution.sh' is not a directory; name a directory"),
    ({"files": "."}, "files: would give this file to the agent; keep what the agent gets in a directory of its o"),
    ({"files": "verifier"}, "files: would give the verifier's files to the agent; keep what the agent gets"),
    ({"image": ABSENT, "build": "environment", "oracle": "environment/Dockerfile"}, "build: would give the oracl"),
    (
        {"files": "app", "strategies": {"s": {"script": "app/data", "odds": 1}}},
        "files: would give the strategy s to the agent; keep what the agent gets in a directory of its own",
    ),
    ({"setup": " \n"}, "setup: there is no text; write it, or remove the key"),
    ({"setup": "x\0"}, "setup: the text has a NUL character; remove it"),
    ({"setup": "x" * 100_001}, "setup: the text is longer than 100000 bytes; put it into a file"),
    ({"verifier": None}, "verifier: the key is empty; give it a value, or remove it"),
    ({"verifier": {"files": "absent"}}, "verifier.files: 'absent' does not exist; make it, or correct the path"),
    ({"verifier": {"files": "app"}}, "verifier: in 'app': 'verify.sh' does not exist; make it, or correct the pa"),
    ({"verifier": {"command": ""}}, "verifier.command: there is no text; write it, or remove the key"),
    ({"verifier": {"user": None}}, "verifier.user: the key is empty; give it a value, or remove it"),
    ({"verifier": {"comand": "x"}}, "verifier.comand: is an unknown key; did you mean command?"),
    ({"oracle": "absent.sh"}, "oracle: 'absent.sh' does not exist; make it, or correct the path"),
    ({"oracle": "solution.sh/x"}, "oracle: 'solution.sh/x' cannot be reached; correct the path"),
    ({"oracle": "app"}, "oracle: 'app' is not a regular file but a directory; name a file"),
    ({"strategies": {}}, "strategies: nothing is in it; add an entry, or remove the key"),
    ({"strategies": {"a": {"odds": 1}}}, "strategies.a.script: is missing; add it"),
    (_strategy(), "strategies.a.odds: is missing; add it"),
    ({"strategies": {"a": "solution.sh"}}, "strategies.a: 'solution.sh' is not a mapping; write KEY: VALUE lines"),
    (_strategy(odds=1, odd=1), "strategies.a.odd: is an unknown key; did"),
    (_strategy(".a", odds=1), f"strategies..a: '.a' cannot be a name; {NAME_RULE}"),
    (_strategy(odds=0.9), "strategies: the odds add up to 0.9; change them"),
    (_strategy(odds=2), "strategies.a.odds: 2 is too large; write at most 1"),
    (_strategy(odds=0), "strategies.a.odds: 0 is too small; write more than"),
    (_strategy(odds=True), "strategies.a.odds: true is not a number; write"),
    ({"tags": "x"}, "tags: 'x' is not a list; write e.g. [one, two]"),
    ({"tags": ["ok", "a b"]}, f"tags[1]: 'a b' cannot be a name; {NAME_RULE}"),
    ({"timeouts": {"agnet": 1}}, "timeouts.agnet: is an unknown key; did you mean agent?"),
    ({"timeouts": {"agent": 0}}, "timeouts.agent: 0 is too small; write more than 0"),
    ({"timeouts": {"agent": float("inf")}}, "timeouts.agent: inf is not a number; write e.g. 1 or 0.5"),
    ({"timeouts": {"agent": float("nan")}}, "timeouts.agent: nan is not a number; write e.g. 1 or 0.5"),
    ({"timeouts": {"agent": 1e9}}, "timeouts.agent: 1000000000.0 is too large; write at most 604800"),
    ({"timeouts": {"agent": "60s"}}, "timeouts.agent: '60s' is not a number; write e.g. 1 or 0.5"),
    ({"timeouts": {"setup": True}}, "timeouts.setup: true is not a number; write e.g. 1 or 0.5"),
]  # fmt: skip

BAD_RESOURCES: list[tuple[str, object, str]] = [
    ("cpus", ABSENT, "cpus: is missing; write e.g. cpus: 1"),
    ("cpus", None, "cpus: the key is empty; give it a value, or remove it"),
    ("cpus", 0, "cpus: 0 is too small; write at least 0.01"),
    ("cpus", -1, "cpus: -1 is too small; write at least 0.01"),
    ("cpus", 5000, "cpus: 5000 is too large; write at most 4096"),
    ("cpus", float("nan"), "cpus: nan is not a number; write e.g. 1 or 0.5"),
    ("cpus", float("inf"), "cpus: inf is not a number; write e.g. 1 or 0.5"),
    ("cpus", True, "cpus: true is not a number; write e.g. 1 or 0.5"),
    ("cpus", "2", "cpus: '2' is not a number; write e.g. 1 or 0.5"),
    ("cpus", [1, 2], "cpus: [1, 2] is not a number; write e.g. 1 or 0.5"),
    ("cpus", 10**400, "cpus: 1000"),
    ("cpus", {"floor": 2, "ceiling": 1}, "cpus: the floor 2 is above the ceiling 1; raise the ceiling"),
    ("cpus", {"floor": 2}, "cpus.ceiling: is missing; add it"),
    ("cpus", {"floor": 1, "ceiling": None}, "cpus.ceiling: the key is empty; give it a value, or remove it"),
    ("cpus", {"flor": 1, "floor": 1, "ceiling": 1}, "cpus.flor: is an unknown key; did you mean floor?"),
    ("cpus", {"one amount": 1, "floor": 1, "ceiling": 1}, "cpus.one amount: is an unknown key; known are floor, "),
    ("one amount", 1, "one amount: is an unknown key; known are cpus, memory, pids, shm"),
    ("memory", ABSENT, "memory: is missing; write e.g. memory: 512M"),
    ("memory", "x", "memory: 'x' is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes"),
    ("memory", "64MM", "memory: '64MM' is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes"),
    ("memory", True, "memory: true is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes"),
    ("memory", 64.5, "memory: 64.5 is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes"),
    ("memory", -1, "memory: -1 is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes"),
    ("memory", 0, "memory: 0 is no sensible amount of memory; write e.g. 512M"),
    ("memory", "2000P", "memory: '2000P' is not an amount of memory; write"),
    ("memory", "2000T", "memory: '2000T' is no sensible amount of memory; write e.g. 512M"),
    ("memory", "9" * 500, "memory: '9999"),
    ("memory", 10**400, "memory: 1000"),
    ("memory", 64, "memory: 64 B is less than a container can start with; write at least 6M"),
    ("memory", "5M", "memory: 5 MiB is less than a container can start with; write at least 6M"),
    ("memory", {"floor": "5M", "ceiling": "6M"}, "memory.floor: 5 MiB is less than a container can start with; "),
    (
        "memory",
        {"floor": "2G", "ceiling": "1G"},
        "memory: the floor 2 GiB is above the ceiling 1 GiB; raise the ceiling",
    ),
    ("pids", 0, "pids: 0 is too small; write at least 8"),
    ("pids", 10.0, "pids: 10.0 is not a whole number; write e.g. 64"),
    ("pids", True, "pids: true is not a whole number; write e.g. 64"),
    ("shm", "lots", "shm: 'lots' is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes"),
    ("shm", 0, "shm: 0 is no sensible amount of memory; write e.g. 512M"),
    ("disk", "1G", "disk: is an unknown key; known are cpus, memory, pids, shm"),
]


@pytest.mark.parametrize(("changes", "line"), BAD)
def test_one_mistake_is_one_line(tmp_path: Path, changes: dict[Any, Any], line: str) -> None:
    # A key that is no text cannot be passed as a keyword.
    root = write_task(tmp_path / "a")
    data = {key: value for key, value in {**GOOD, **changes}.items() if value is not ABSENT}
    (root / "task.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    found = mistakes(root)
    assert [one for one in found if one.startswith(line)] == found[:1]
    # An entry under a wrong name, or a directory of its own given away, is still looked at.
    assert len(found) == 1, found


@pytest.mark.parametrize(("key", "value", "line"), BAD_RESOURCES)
def test_one_mistake_in_resources(tmp_path: Path, key: str, value: object, line: str) -> None:
    resources = {
        name: given for name, given in {"cpus": 1, "memory": "64M", key: value}.items() if given is not ABSENT
    }
    [only] = mistakes(write_task(tmp_path / "a", resources=resources))
    assert only.startswith(f"resources.{line}")
    assert "\n" not in only


def test_all_mistakes_are_told(tmp_path: Path) -> None:
    root = write_task(
        tmp_path / "not a name",
        image=ABSENT,
        nework=False,
        resources={"cpus": True, "memory": {"floor": "1M", "ceiling": "x"}},
        strategies={"a": {"script": "absent.sh", "odds": 0.5}},
    )
    (root / "conftest.py").touch()
    (root / "instruction.md").unlink()
    (root / "verifier" / "verify.sh").unlink()
    fields = sorted(line.split(": ")[0] for line in mistakes(root))
    assert fields == [
        "a conftest.py beside it would be run by pytest on this machine; move it into the verifier's directory",
        "image",
        "instruction",
        "name",
        "nework",
        "resources.cpus",
        "resources.memory.ceiling",
        "resources.memory.floor",
        "strategies",
        "strategies.a.script",
        "verifier",
    ]


def test_the_error_survives_a_process_border(tmp_path: Path) -> None:
    root = write_task(tmp_path / "a", image=ABSENT, nework=False)
    with pytest.raises(TaskError) as caught:
        load(root)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert (again.file, again.field, len(again.others)) == (root / "task.yaml", "nework", 1)


def _link(name: str, target: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(target)

    return make


def _socket(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "app" / "s"))


BAD_FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("conftest", lambda root: (root / "conftest.py").touch(), "a conftest.py beside it would be run by pytest"),
    ("conftest link", _link("conftest.py", "nowhere"), "a conftest.py beside it would be run by pytest"),
    ("no instruction", lambda root: (root / "instruction.md").unlink(), "instruction: is missing; write it here"),
    ("empty", lambda root: (root / "instruction.md").write_text(""), "instruction: 'instruction.md' is an empty"),
    ("blank", lambda root: (root / "instruction.md").write_text(" \n"), "instruction: instruction.md holds no pl"),
    ("binary", lambda root: (root / "instruction.md").write_bytes(b"a\0"), "instruction: instruction.md holds no"),
    ("latin", lambda root: (root / "instruction.md").write_bytes(b"\xe9"), "instruction: 'instruction.md' is not"),
    ("huge", lambda root: (root / "instruction.md").write_bytes(b"x" * 2 * MIB), "instruction: 'instruction.md'"),
    ("out", _link("instruction.md", "/etc/passwd"), "instruction: 'instruction.md' is a link that leads out of t"),
    ("script out", _link("solution.sh", "/etc/passwd"), "oracle: 'solution.sh' is a link that leads out of the t"),
    ("script loop", _link("solution.sh", "solution.sh"), "oracle: 'solution.sh' cannot be reached; correct the p"),
    ("script empty", lambda root: (root / "solution.sh").write_text(""), "oracle: 'solution.sh' is an empty file"),
    ("in files", _link("app/l", "../solution.sh"), "files: 'app/l' is a link that leads out of 'app'; copy its"),
    ("absolute", _link("app/l", "/app/data"), "files: 'app/l' is a link that leads nowhere; remove it or put"),
    ("dangling", _link("app/l", "absent"), "files: 'app/l' is a link that leads nowhere; remove it or put"),
    ("circle", _link("app/l", "l"), "files: 'app/l' is a link that leads nowhere; remove it or put"),
    ("verifier out", _link("verifier/l", ".."), "verifier.files: 'verifier/l' is a link that leads out of 'verif"),
    ("pipe", lambda root: os.mkfifo(root / "app" / "p"), "files: 'app/p' is a named pipe; remove it; files, links"),
    ("socket", _socket, "files: 'app/s' is a socket; remove it; files, links and directories can be uploaded"),
    ("verify.sh", lambda root: (root / "verifier/verify.sh").rename(root / "x"), "verifier: in 'verifier': 'veri"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "line"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_files_that_a_task_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object], line: str
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    root = write_task(Path("a"), files="app", oracle="solution.sh")
    spoil(root)
    [only] = mistakes(root)
    assert only.startswith(line)


def test_a_pipe_elsewhere_in_the_directory(tmp_path: Path) -> None:
    root = write_task(tmp_path / "a")
    os.mkfifo(root / "pipe")
    assert mistakes(root) == [f"{root}: 'pipe' is a named pipe; remove it"]


def test_links_that_stay_inside(tmp_path: Path) -> None:
    root = write_task(tmp_path / "a", files="app", oracle="link.sh")
    (root / "link.sh").symlink_to("solution.sh")
    (root / "app" / "link").symlink_to("data")
    (tmp_path / "elsewhere").symlink_to(root)
    assert loaded(root).oracle == root / "solution.sh"
    assert loaded(tmp_path / "elsewhere").name == "elsewhere"


def test_a_task_file_elsewhere(tmp_path: Path) -> None:
    root = write_task(tmp_path / "a")
    (root / "task.yaml").rename(tmp_path / "task.yaml")
    (root / "task.yaml").symlink_to("../task.yaml")
    assert mistakes(root) == ["is a link that leads out of the task's directory; copy the file there"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["task.yaml", "app/data", "app", "solution.sh", "instruction.md"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    root = write_task(tmp_path / "a", files="app", oracle="solution.sh")
    (root / name).chmod(0)
    assert "cannot be read" in mistakes(root)[0]
    (root / name).chmod(0o700)
