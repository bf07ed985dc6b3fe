from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.kernel_log import DEVICE
from pytest_infranoise.sandboxes.kernel_log import KernelLog
from pytest_infranoise.sandboxes.kernel_log import parse_kill
from pytest_infranoise.sandboxes.protocol import EnforcementError
from pytest_infranoise.sandboxes.protocol import LoggedKill

from .conftest import request_for

MINE, OTHER = "6a56a1b6cc7d" + "0" * 52, "77ab01c0ffee" + "1" * 52
SYSTEMD = f"/system.slice/docker-{MINE}.scope"
HEAD = "6,9977,1421837689,-;"


def line(
    limit: str = f"oom_memcg=/docker/{MINE}",
    place: str = f"/docker/{MINE}",
    process: str = "perl",
    head: str = HEAD,
) -> str:
    """Return what kernels since 5.0 write."""
    return (
        f"{head}oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={MINE},mems_allowed=0,{limit},"
        f"task_memcg={place},task={process},pid=31251,uid=0\n SUBSYSTEM=memory\n"
    )


@pytest.mark.parametrize(
    ("record", "limit"),
    [
        (line(), "own"),
        (line(limit="oom_memcg=/docker"), "parent"),
        (line(limit="global_oom"), "host"),
        (
            line().replace("nodemask=(null)", "nodemask=0,2-3").replace("mems_allowed=0", "mems_allowed=0-1,3"),
            "own",
        ),
        # systemd's names, a container in a container, and a limit that was set inside.
        (line(limit=f"oom_memcg={SYSTEMD}", place=f"{SYSTEMD}/init"), "own"),
        (line(limit=f"oom_memcg=/docker/{OTHER}", place=f"/docker/{OTHER}/docker/{MINE}"), "parent"),
        (line(limit=f"oom_memcg=/docker/{MINE}/inner", place=f"/docker/{MINE}/inner"), "own"),
    ],
)
def test_whose_limit_was_met(record: str, limit: str) -> None:
    kill = parse_kill(record, MINE)
    assert kill is not None
    assert (kill.limit, kill.process) == (limit, "perl")


@pytest.mark.parametrize(
    "record",
    [
        line(place=f"/docker/{OTHER}", limit=f"oom_memcg=/docker/{OTHER}"),
        line(place=f"/docker/{OTHER}", limit=f"oom_memcg=/docker/{OTHER}", process=f"x,task_memcg=/docker/{MINE}"),
        line(head="12,9977,1421837689,-;"),  # written by a process
        f"{HEAD}Memory cgroup out of memory: Killed process 31251 (perl) total-vm:161072kB, anon-rss:64384kB",
        f"{HEAD}perl invoked {line(head='')}",
        "",
        ";",
    ],
)
def test_what_is_no_kill_in_this_container(record: str) -> None:
    assert parse_kill(record, MINE) is None


def test_a_process_that_is_called_like_the_rest_of_the_line() -> None:
    name = "a,oom_memcg=/"
    assert parse_kill(line(process=name), MINE) == LoggedKill("own", name)


@given(st.text() | st.text().map(lambda text: HEAD + "oom-kill:constraint=" + text), st.text(min_size=1))
def test_no_text_is_too_odd(record: str, container: str) -> None:
    parse_kill(record, container)


def test_no_log_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        KernelLog(str(tmp_path / "nowhere"))
    empty = tmp_path / "empty"
    empty.write_text("")
    log = KernelLog(str(empty))
    assert log.kills(MINE) == ()
    log.close()
    assert log.kills(MINE) == ()


def open_files(path: str) -> int:
    """Return how many descriptors of this process are of a file."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the directory itself
            found += str(descriptor.readlink()) == path
    return found


def test_a_log_that_nobody_closes_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("")
    logs = [KernelLog(str(file)) for _ in range(3)]
    logs[0].close()
    logs[0].close()
    assert open_files(str(file)) == 2
    logs.clear()
    gc.collect()
    assert open_files(str(file)) == 0


@pytest.mark.engine
def test_containers_that_never_come_to_be_leave_no_log_open(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EnforcementError("no limits")

    made = backend.create(request_for())
    gc.collect()
    before = open_files(DEVICE)
    if not before:
        pytest.skip(f"{DEVICE} cannot be read here")
    for place, method in ((DockerSandbox, "await_holder"), (backend, "_check")):
        monkeypatch.setattr(place, method, fail)
        with pytest.raises(EnforcementError):
            backend.create(request_for())
        monkeypatch.undo()
    gc.collect()
    assert open_files(DEVICE) == before
    assert made.remove()
    assert open_files(DEVICE) == before - 1
