"""What the engine says of a container's inside, with nothing in there asked."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.sandboxes import archives
from pytest_infranoise.sandboxes import changes
from pytest_infranoise.sandboxes.archives import nanoseconds
from pytest_infranoise.sandboxes.archives import tree_digests
from pytest_infranoise.sandboxes.changes import entries
from pytest_infranoise.sandboxes.changes import list_processes
from pytest_infranoise.sandboxes.changes import overlay_changes
from pytest_infranoise.sandboxes.changes import read_changes
from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.protocol import DISGUISED
from pytest_infranoise.sandboxes.protocol import Inspectable
from pytest_infranoise.sandboxes.protocol import SandboxError

from .conftest import MIB
from .conftest import MakeSandbox
from .conftest import request_for

engine_test = pytest.mark.engine


def run(sandbox: DockerSandbox, script: str) -> None:
    done = sandbox.exec(["sh", "-c", script], workdir="/")
    assert done.exit_code == 0, done.output


@engine_test
def test_a_container_can_be_looked_into(shared_sandbox: DockerSandbox) -> None:
    assert isinstance(shared_sandbox, Inspectable)
    assert shared_sandbox.workdir.startswith("/")


@engine_test
def test_stat(shared_sandbox: DockerSandbox) -> None:
    run(shared_sandbox, "mkdir -p /s/d; printf abc >/s/f; chmod 640 /s/f; ln -s nowhere /s/l; mkfifo /s/p")
    run(shared_sandbox, "touch -d '2001-09-09 01:46:40.123456789Z' /s/f")
    file = shared_sandbox.stat("/s/f")
    assert file is not None
    assert (file.kind, file.size, file.mode) == ("file", 3, 0o640)
    assert file.modified == 10**18 + 123456789
    kinds = {path: stat.kind if (stat := shared_sandbox.stat(path)) else None for path in ("/s/d", "/s/p", "/s/no")}
    assert kinds == {"/s/d": "directory", "/s/p": "other", "/s/no": None}
    link = shared_sandbox.stat("/s/l")
    assert link is not None
    assert (link.kind, link.link.rpartition("/")[2]) == ("link", "nowhere")


@engine_test
def test_digest(shared_sandbox: DockerSandbox) -> None:
    content = os.urandom(5 * MIB + 1)
    shared_sandbox.write("/digest/of", content)
    assert shared_sandbox.digest("/digest/of") == sha256(content).hexdigest()
    run(shared_sandbox, "ln -s of /digest/link")
    assert [shared_sandbox.digest(f"/digest/{name}") for name in ("link", "none", "")] == [None] * 3


@engine_test
def test_digests_of_a_directory_that_somebody_prepared(shared_sandbox: DockerSandbox) -> None:
    run(
        shared_sandbox,
        "mkdir -p /tree/sub; cd /tree; printf a >a; ln a sub/same; ln -s /etc/passwd link; ln -s /etc sub/etc; "
        "mkfifo pipe; mknod zero c 1 5; chmod 4755 a; printf b >'sub/odd\nname'",
    )
    a, b = sha256(b"a").hexdigest(), sha256(b"b").hexdigest()
    assert shared_sandbox.digests("/tree", MIB) == {"a": a, "sub/same": a, "sub/odd\nname": b}
    assert shared_sandbox.digests("/tree/a", MIB) is None
    assert shared_sandbox.digests("/no-tree", MIB) is None


@engine_test
def test_a_directory_that_is_too_much(shared_sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a terabyte that takes no space is not read to its end."""
    run(shared_sandbox, "mkdir /bomb; truncate -s 1T /bomb/sparse; mkdir /many; cd /many; touch 1 2 3 4 5 6 7 8 9")
    assert shared_sandbox.digests("/bomb", MIB) is None
    monkeypatch.setattr(archives, "MAX_ENTRIES", 9)
    assert shared_sandbox.digests("/many", MIB) is None
    monkeypatch.setattr(archives, "MAX_ENTRIES", 10)  # the directory is one
    assert len(shared_sandbox.digests("/many", MIB) or ()) == 9


def test_names_in_an_archive_lead_nowhere() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("d/../../etc/passwd", "/d/absolute", "d/plain"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
        for kind, name in ((tarfile.SYMTYPE, "d/link"), (tarfile.LNKTYPE, "d/hard"), (tarfile.CHRTYPE, "d/device")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    stream.seek(0)
    x = sha256(b"x").hexdigest()
    assert tree_digests(stream, 100) == {"../../etc/passwd": x, "d/absolute": x, "plain": x}


def test_an_archive_that_breaks_off() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo("d/f")
        info.size = 5000
        archive.addfile(info, io.BytesIO(b"x" * 5000))
    with pytest.raises(tarfile.TarError):
        tree_digests(io.BytesIO(stream.getvalue()[:2000]), MIB)


def test_times_of_the_engine() -> None:
    assert nanoseconds("2001-09-09T01:46:40Z") == 10**18
    assert nanoseconds("2001-09-09T03:46:40.5+02:00") == 10**18 + 5 * 10**8
    for wrong in ("", "yesterday", "2001-09-09 01:46:40"):
        with pytest.raises(ValueError, match="no time"):
            nanoseconds(wrong)


CHANGES = """printf x >>/usr/bin/env; rm /usr/bin/yes; mkdir -p /new/dir; : >/new/dir/file; : >"/new/a\\"b{}\\\\c"
ln -sf bash /usr/bin/sh; chmod 700 /usr/bin/wc; cp /usr/bin/cat /tmp/cat; printf x >>/tmp/cat
truncate -r /usr/bin/cat /tmp/cat; printf y | dd of=/tmp/cat bs=1 seek=99 conv=notrunc 2>&-
touch -r /usr/bin/cat /tmp/cat; cp /tmp/cat /usr/bin/cat; touch -r /tmp/cat /usr/bin/cat"""


@engine_test
def test_changes_are_the_same_whoever_is_asked(
    sandbox: DockerSandbox, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sandbox, CHANGES)
    inspected = backend._engine.client.inspect_container(sandbox.id)

    def wanted(path: str) -> bool:
        return path.startswith(("/usr/bin/", "/new"))

    asked = read_changes(backend._engine, sandbox.id, wanted)
    assert asked == {
        "/usr/bin/env": "modified",
        "/usr/bin/sh": "modified",
        "/usr/bin/wc": "modified",
        "/usr/bin/yes": "deleted",
        "/new": "added",
        "/new/dir": "added",
        "/new/dir/file": "added",
        '/new/a"b{}\\c': "added",
    }
    monkeypatch.setattr(changes, "overlay_changes", lambda layers, wanted: None)
    assert sandbox.changes(wanted) == asked | {"/usr/bin/wc": "touched"}
    monkeypatch.undo()
    seen = overlay_changes(inspected["GraphDriver"]["Data"], wanted)
    if seen is None:
        pytest.skip("the engine's storage cannot be read here")
    # Size and time were restored: for the engine it is the same file.
    assert seen == asked | {"/usr/bin/wc": "touched", "/usr/bin/cat": "modified"}
    assert sandbox.changes(wanted) == seen


@engine_test
def test_a_directory_that_is_gone(
    sandbox: DockerSandbox, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine names it, and the storage what was in it."""
    run(sandbox, "rm -r /usr/share/perl5/Debconf")

    def wanted(path: str) -> bool:
        return path.startswith("/usr/share/perl5/Debconf")

    assert read_changes(backend._engine, sandbox.id, wanted) == {"/usr/share/perl5/Debconf": "deleted"}
    found = sandbox.changes(wanted)
    monkeypatch.setattr(changes, "overlay_changes", lambda layers, wanted: None)
    if found == sandbox.changes(wanted):
        pytest.skip("the engine's storage cannot be read here")
    assert found["/usr/share/perl5/Debconf/Db.pm"] == "deleted"
    assert set(found.values()) == {"deleted"}
    assert not any(path.endswith("Debconf") for path in found)


@engine_test
def test_digests_that_cost_no_copy(sandbox: DockerSandbox) -> None:
    run(
        sandbox,
        "cp /usr/bin/cat /usr/local/bin/cat; ln -s cat /usr/local/bin/tac; mknod /usr/local/bin/device c 1 3",
    )
    found = sandbox.digest_at_hand("/usr/local/bin/cat", MIB)
    if found is None:
        pytest.skip("the engine's storage cannot be read here")
    assert found == sandbox.digest("/usr/local/bin/cat")
    names = ("/usr/local/bin/tac", "/usr/local/bin/device", "/usr/local/bin", "/usr/bin/cat", "/none")
    assert [sandbox.digest_at_hand(name, MIB) for name in names] == [None] * len(names)
    assert sandbox.digest_at_hand("/usr/local/bin/cat", 10) is None


@engine_test
def test_where_commands_look_for_programs(make_sandbox: MakeSandbox) -> None:
    path = "/opt/own/bin:/usr/bin:/bin"
    request = replace(request_for(), environment={"MANPATH": "/man", "PATH": path, "XPATH": "/x"})
    assert make_sandbox(request).search_path == path
    assert make_sandbox().search_path.split(":")[-1] == "/bin"


def test_storage_that_cannot_be_read() -> None:
    assert overlay_changes({}, bool) is None
    assert overlay_changes({"UpperDir": "/no/such/place", "LowerDir": "/neither"}, bool) is None


_lists = st.lists(
    st.fixed_dictionaries({"Path": st.text(), "Kind": st.integers(0, 2)}),
    max_size=5,
)


def _cut(text: bytes, size: int) -> Iterator[bytes]:
    for begin in range(0, len(text), size):
        yield text[begin : begin + size]


@given(_lists, st.integers(1, 20), st.booleans())
def test_a_list_in_pieces(values: list[dict[str, object]], size: int, ascii_only: bool) -> None:
    text = json.dumps(values, ensure_ascii=ascii_only, separators=(",", ":")).encode("utf-8", "surrogatepass")
    assert list(entries(_cut(text, size))) == json.loads(text)


@pytest.mark.parametrize(
    "text", ['[{"Path":"/a","Kind":1}', '[{"Path":"/a"', "<html>", '[{"Path":"/a","Kind":1},x]']
)
def test_a_list_that_is_none(text: str) -> None:
    with pytest.raises(SandboxError, match="changes"):
        list(entries([text.encode()]))


@engine_test
def test_processes_are_the_same_whoever_is_asked(sandbox: DockerSandbox, backend: DockerBackend) -> None:
    assert sandbox.processes() == {}
    assert list_processes(backend._engine, sandbox.id, sandbox._init_pid) == {}
    begin = "mkdir /held; cd /held; setsid sleep 301 >/held/file 2>&1 & setsid sleep 302 >/dev/null 2>&1 &"
    # With the holder's own there are three.
    run(sandbox, f'{begin} until [ "$(cat /proc/[0-9]*/comm | grep -c sleep)" = 3 ]; do :; done')
    seen = sorted(text for text in sandbox.processes().values() if "sleep 30" in text)
    assert seen == ["sleep 301 [in /held] [holds /held/file]", "sleep 302 [in /held]"]
    asked = sorted(
        text
        for text in list_processes(backend._engine, sandbox.id, sandbox._init_pid).values()
        if "sleep 30" in text
    )
    assert asked == ["sleep 301", "sleep 302"]
    assert sandbox.kill_processes()
    assert sandbox.processes() == list_processes(backend._engine, sandbox.id, sandbox._init_pid) == {}


def pretend(script: str) -> str:
    """Return commands that leave a Perl script behind whose command line is that of the holder's sleep."""
    make = f"mkdir -p /tmp/p; cd /tmp/p; printf '{script}' >2147483647"
    return f"{make}; setsid bash -c 'exec -a sleep perl 2147483647' &"


@engine_test
@pytest.mark.parametrize("from_outside", [True, False])
def test_a_process_that_looks_like_the_holders_own(
    sandbox: DockerSandbox, backend: DockerBackend, from_outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'open F, ">", "/tmp/p/runs"; close F; sleep 300'
    marked = "setsid sh -c ': infranoise-holder; sleep 303' >/dev/null 2>&1 &"
    begun = 'until [ -e /tmp/p/runs ] && [ "$(cat /proc/[0-9]*/comm | grep -c ^sleep)" = 3 ]; do :; done'
    plain = "setsid sleep 2147483647 >/dev/null 2>&1 &"
    run(sandbox, f"{{ {pretend(script)} }} >/dev/null 2>&1; {marked} {plain} {begun}")
    for seen in (sandbox.processes(), list_processes(backend._engine, sandbox.id, sandbox._init_pid)):
        texts = sorted(text.partition(" [")[0] for text in seen.values() if "sleep 303" not in text[:9])
        assert texts == ["sh -c : infranoise-holder; sleep 303", "sleep 2147483647", "sleep 2147483647"]
    if not from_outside:
        monkeypatch.setattr(sandbox, "_kill_from_host", lambda: False)
    assert sandbox.kill_processes()
    assert sandbox.processes() == {}
    # The holder goes on: with its first sleep killed it has another one.
    run(sandbox, 'until grep -q "^sleep" /proc/[0-9]*/cmdline; do :; done')
    assert sandbox.processes() == {}
    give_up = time.monotonic() + 30  # what was killed is in the engine's list until the kernel is done with it
    while list_processes(backend._engine, sandbox.id, sandbox._init_pid) and time.monotonic() < give_up:
        pass
    assert list_processes(backend._engine, sandbox.id, sandbox._init_pid) == {}


@engine_test
def test_a_holder_that_was_made_to_start_another_program(sandbox: DockerSandbox) -> None:
    """Its own sleep was killed while something else was called sleep; what is found later is innocent."""
    assert sandbox.processes() == {}
    script = 'open F, ">", "/runs"; close F; sleep 300 while 1'
    make = f"printf '{script}' >/2147483647; cp /usr/bin/perl /usr/local/bin/sleep"
    kill = "for entry in /proc/[0-9]*; do read -r n <$entry/comm; [ $n = sleep ] && kill -9 ${entry#/proc/}; done"
    run(sandbox, f"{make}; {kill}; until [ -e /runs ]; do :; done; rm /usr/local/bin/sleep")
    (seen,) = sandbox.processes().values()
    assert seen.startswith(f"sleep 2147483647 {DISGUISED}")
    assert sandbox.kill_processes()
    run(sandbox, 'until grep -q "^sleep" /proc/[0-9]*/cmdline; do :; done')
    assert sandbox.processes() == {}
