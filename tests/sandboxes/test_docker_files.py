from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from docker import APIClient

from pytest_infranoise.sandboxes.archives import Entry
from pytest_infranoise.sandboxes.archives import entries_of
from pytest_infranoise.sandboxes.archives import pack
from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import SandboxError

from .conftest import MIB

engine_test = pytest.mark.engine
ODD_NAMES = [
    "with space",
    "ünï",
    "-dash",
    "new\nline",
    "q'\"uote",
    "back\\slash",
    ".hidden",
    ".wh.whiteout",
    "n" * 200,
]


def stat(sandbox: DockerSandbox, path: str) -> str:
    return sandbox.exec(["stat", "-c", "%a %u %g %F", path]).output.decode().strip()


@engine_test
@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_go_in_and_come_out(shared_sandbox: DockerSandbox, name: str) -> None:
    content = os.urandom(1000)

    shared_sandbox.write(f"/made/{name}/{name}", content)

    assert shared_sandbox.read(f"/made/{name}/{name}") == content


@engine_test
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1024**2])
def test_sizes(shared_sandbox: DockerSandbox, size: int) -> None:
    content = os.urandom(size)

    shared_sandbox.write("/tmp/sized", content)

    assert shared_sandbox.read("/tmp/sized") == content


@engine_test
def test_written_files_are_roots_with_the_mode_asked_for(shared_sandbox: DockerSandbox) -> None:
    shared_sandbox.write("/roots/own/plain", b"x")
    shared_sandbox.write("/roots/own/run", b"x", 0o700)
    shared_sandbox.write("/roots/own/run", b"y", 0o755)

    assert stat(shared_sandbox, "/roots/own/plain") == "644 0 0 regular file"
    assert stat(shared_sandbox, "/roots/own/run") == "755 0 0 regular file"
    assert stat(shared_sandbox, "/roots/own") == "755 0 0 directory"


@engine_test
def test_directories_that_are_there_stay_as_they_are(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    shared_sandbox.exec(["sh", "-c", "mkdir -m 750 /there && chown 7:8 /there && echo kept >/there/kept"])
    (tmp_path / "new").write_text("new")

    shared_sandbox.upload(tmp_path, "/there")
    shared_sandbox.write("/tmp/scratch", b"")

    assert stat(shared_sandbox, "/there") == "750 7 8 directory"
    assert stat(shared_sandbox, "/tmp") == "1777 0 0 directory"
    assert shared_sandbox.read("/there/kept") == b"kept\n"
    assert shared_sandbox.read("/there/new") == b"new"


@engine_test
def test_a_directory_goes_in_as_it_is(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "deep" / "er" / "run.sh").chmod(0o755)
    (tmp_path / "secret").write_text("s")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "link").symlink_to("deep/er/run.sh")
    (tmp_path / "dangling").symlink_to("/nowhere")
    (tmp_path / os.fsdecode(b"latin-\xe9")).write_text("not utf-8")
    (tmp_path / "twin").hardlink_to(tmp_path / "secret")

    shared_sandbox.upload(tmp_path, "/up/load")

    assert shared_sandbox.exec(["/up/load/link"]).output == b"ran\n"
    assert stat(shared_sandbox, "/up/load/empty") == "700 0 0 directory"
    assert stat(shared_sandbox, "/up/load/secret") == "600 0 0 regular file"
    assert shared_sandbox.read("/up/load/twin") == b"s"
    assert shared_sandbox.exec(["readlink", "/up/load/dangling"]).output == b"/nowhere\n"
    assert shared_sandbox.exec(
        ["sh", "-c", "cat /up/load/latin-*; ls /up/load/latin-* | od -An -tx1"]
    ).output.split()[2:][-2:] == [b"e9", b"0a"]


@engine_test
def test_a_single_file_goes_to_the_path_given(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("content")

    shared_sandbox.upload(tmp_path / "here", "/single/there")

    assert shared_sandbox.read("/single/there") == b"content"


@engine_test
def test_uploads_follow_links_to_directories(shared_sandbox: DockerSandbox) -> None:
    shared_sandbox.exec(["sh", "-c", "mkdir -p /real && ln -sfn /real /alias"])

    shared_sandbox.write("/alias/file", b"x")

    assert shared_sandbox.read("/real/file") == b"x"


@engine_test
def test_nothing_turns_a_directory_into_a_file(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    shared_sandbox.write("/solid/inside", b"kept")
    shared_sandbox.write("/flat", b"kept")
    shared_sandbox.exec(["ln", "-s", "/ring", "/ring"])
    (tmp_path / "x").touch()

    with pytest.raises(SandboxError):
        shared_sandbox.write("/solid", b"")
    with pytest.raises(SandboxError):
        shared_sandbox.upload(tmp_path, "/flat")
    with pytest.raises(SandboxError) as caught:
        shared_sandbox.upload(tmp_path, "/ring/below")
    assert type(caught.value) is SandboxError  # what an agent can bring about is no engine's or user's fault

    assert shared_sandbox.read("/solid/inside") == b"kept"
    assert shared_sandbox.read("/flat") == b"kept"


@engine_test
@pytest.mark.parametrize(
    ("make", "path"),
    [
        ("true", "/not/there"),
        ("mkdir /a-directory", "/a-directory"),
        ("ln -s /etc/passwd /a-link", "/a-link"),
        ("mkfifo /a-pipe", "/a-pipe"),
        ("true", "/dev/null"),
        ("head -c 1001 /dev/zero >/too-long", "/too-long"),
        ("true", "/etc/passwd/below-a-file"),
        ("ln -s /circle /circle", "/circle/x"),
        ("true", "/" + "n" * 300),
    ],
)
def test_only_regular_files_within_the_limit_are_read(shared_sandbox: DockerSandbox, make: str, path: str) -> None:
    assert shared_sandbox.exec(["sh", "-c", make]).exit_code == 0

    with pytest.raises(FileMissing):
        shared_sandbox.read(path, limit=1000)


@engine_test
def test_a_file_of_exactly_the_limit_is_read(shared_sandbox: DockerSandbox) -> None:
    shared_sandbox.write("/exact", b"x" * 1000)

    assert len(shared_sandbox.read("/exact", limit=1000)) == 1000


@engine_test
@pytest.mark.parametrize("target", ["relative/file", "", "/up/../file"])
def test_paths_must_be_absolute(shared_sandbox: DockerSandbox, target: str) -> None:
    with pytest.raises(ConfigError, match="absolute"):
        shared_sandbox.write(target, b"")


@engine_test
def test_files_go_in_where_no_command_could(sandbox: DockerSandbox) -> None:
    # The engine unpacks by itself: a container full to its memory ceiling still takes files.
    sandbox.exec(["perl", "-e", "my $held = 'x'; $held x= 58000000; sleep 600"], timeout=1)

    sandbox.write("/infranoise/verifier/big", os.urandom(5 * MIB))

    assert len(sandbox.read("/infranoise/verifier/big", limit=5 * MIB)) == 5 * MIB


@engine_test
def test_files_of_a_container_that_is_gone(sandbox: DockerSandbox, engine: APIClient) -> None:
    engine.remove_container(sandbox.id, force=True)

    with pytest.raises(ContainerLost):
        sandbox.read("/etc/passwd")
    with pytest.raises(ContainerLost):
        sandbox.write("/x", b"")


def test_archives_hold_no_trace_of_their_maker(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("b")
    (tmp_path / "a").mkdir()
    stream = io.BytesIO()

    pack([*entries_of(tmp_path, "in"), Entry("made", 0o600, content=b"m")], stream)

    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == ["in/a", "in/b", "made"]
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}


def test_what_is_no_file_is_not_packed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match="pipe"):
        list(entries_of(tmp_path, ""))


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        list(entries_of(tmp_path / "nothing", "x"))
