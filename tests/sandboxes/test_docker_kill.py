from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_infranoise.sandboxes import cgroups
from pytest_infranoise.sandboxes import processes
from pytest_infranoise.sandboxes.container import DockerSandbox

from .conftest import MIB
from .conftest import SMALL
from .conftest import MakeSandbox
from .conftest import request_for

pytestmark = pytest.mark.engine

LIST = """for entry in /proc/[0-9]*; do
    read -r pid name state parent rest <"$entry/stat" || continue
    case $state in Z|X) ;; *) echo "$pid $name $parent" ;; esac
done 2>/dev/null"""


@pytest.fixture(params=["host", "container"])
def sandbox(request: pytest.FixtureRequest, make_sandbox: MakeSandbox) -> Iterator[DockerSandbox]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "container":
            patch.setattr(cgroups, "locate", lambda pid, container: None)
        yield make_sandbox(request_for(replace(SMALL, pids_ceiling=40)))


def left_in(sandbox: DockerSandbox) -> set[str]:
    """Return the names of what runs, but for the holder, its sleep and the listing itself."""
    result = sandbox.exec(["sh", "-c", LIST])
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.decode().splitlines()]
    return {name for pid, name, parent in lines if pid != "1" and parent not in ("0", "1")}


def test_nothing_to_kill(sandbox: DockerSandbox) -> None:
    assert sandbox.kill_processes()
    assert sandbox.kill_processes()
    assert left_in(sandbox) == set()


def test_everything_dies_however_it_was_started(sandbox: DockerSandbox) -> None:
    script = """trap '' TERM HUP INT
    setsid sh -c 'sleep 601; sleep 602' >/dev/null 2>&1 &
    (setsid sh -c 'sleep 606; sleep 607' >/dev/null 2>&1 &)
    (nohup setsid sleep 603 >/dev/null 2>&1 &)
    sleep 604"""
    sandbox.exec(["sh", "-c", script], timeout=0.5)
    sandbox.exec(["sleep", "605"], user="1000", timeout=0.5)
    before = sandbox.identity()

    assert sandbox.kill_processes()

    assert b"sleep\x0060" not in sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).output
    assert sandbox.identity() == before


def test_work_that_goes_on_after_the_timeout_is_over(sandbox: DockerSandbox) -> None:
    script = "setsid sh -c 'sleep 1.5; echo late >/tmp/late' >/dev/null 2>&1 & sleep 600"
    sandbox.exec(["sh", "-c", script], timeout=0.5)

    assert sandbox.kill_processes()

    assert sandbox.exec(["sh", "-c", "sleep 2; cat /tmp/late"]).exit_code == 1


BOMB = "$SIG{CHLD} = 'IGNORE'; setpgrp; while (1) { fork }"


def test_a_fork_bomb_at_the_ceiling(sandbox: DockerSandbox) -> None:
    sandbox.exec(["perl", "-e", BOMB], timeout=1)
    denied = sandbox.counters().pids_denied
    assert denied is None or denied > 0

    assert sandbox.kill_processes()

    assert left_in(sandbox) == set()
    assert sandbox.state().running


# Always one process, which ends as soon as it has made the next one: a list of processes is old when it is read.
CHAIN = "use POSIX; setsid; while (1) { my $pid = fork; POSIX::_exit(0) if $pid }"


def start_chain(sandbox: DockerSandbox) -> None:
    started = sandbox.exec(["sh", "-c", 'perl -e "$0" >/dev/null 2>&1 & true', CHAIN])
    assert started.exit_code == 0


def test_a_chain_of_processes_is_seen_at_every_look(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox()
    if not sandbox.on_this_machine:
        pytest.skip("its processes cannot be seen from here")
    start_chain(sandbox)
    assert all(sandbox.processes() for _ in range(500))


def test_a_chain_of_processes(sandbox: DockerSandbox) -> None:
    for _ in range(4):
        start_chain(sandbox)

        assert sandbox.kill_processes()

        assert left_in(sandbox) == set()


def test_what_ended_before_it_was_looked_at_may_have_left_more() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone: set[int] = set()
    assert processes.others([ended.pid], frozenset(), None, gone) == {}
    assert gone == {ended.pid}
    assert not processes.kill_others([ended.pid], frozenset(), "0" * 64, None, gone)
    assert processes.kill_others([ended.pid], frozenset(), "0" * 64)
    with subprocess.Popen(["true"]) as waits_to_be_reaped:
        os.waitid(os.P_PID, waits_to_be_reaped.pid, os.WEXITED | os.WNOWAIT)
        for more in (True, False):
            assert processes.kill_others([waits_to_be_reaped.pid], frozenset(), "0" * 64, None, gone) is more


NESTED = """echo $$ >"$1/cgroup.procs" && exec nsenter --target "$2" --mount --pid \\
    unshare --pid --fork --kill-child sh -c 'trap "" TERM; sleep 301; :'"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a namespace in another one")
def test_process_1_of_a_namespace_within_is_not_the_containers(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox()
    if sandbox._host is None:
        pytest.skip("its processes cannot be seen from here")
    directory = sandbox._host.directories["memory"]
    nested = ["sh", "-c", NESTED, "sh", directory, str(sandbox._init_pid)]
    with subprocess.Popen(nested, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            give_up = time.monotonic() + 30
            # Process 1 in there, its child, and what made them.
            while len(seen := [text for text in sandbox.processes().values() if "301" in text]) < 3:
                assert process.poll() is None, seen
                assert time.monotonic() < give_up, seen
        finally:
            killed = sandbox.kill_processes()
            process.kill()
    assert killed
    assert sandbox.processes() == {}
    assert sandbox.state().running


def test_a_bomb_that_kills_the_holders_sleep_first(sandbox: DockerSandbox) -> None:
    sandbox.exec(["perl", "-e", f"kill 'KILL', -1; {BOMB}"], timeout=1)

    assert sandbox.kill_processes()

    assert left_in(sandbox) == set()
    assert sandbox.holder_is_init
    assert sandbox.state().running


def test_memory_full_of_processes(sandbox: DockerSandbox) -> None:
    hog = "my $held = 'x'; $held x= 52000000; sleep 600"
    assert sandbox.exec(["perl", "-e", hog], timeout=1.5).timed_out

    assert sandbox.kill_processes()

    assert left_in(sandbox) == set()


@pytest.mark.skipif(os.getuid() != 0, reason="from outside only root can kill in a container")
def test_memory_full_of_files_that_no_kill_frees(make_sandbox: MakeSandbox) -> None:
    # Not even the shell of the kill can start: its memory is not to be had.
    sandbox = make_sandbox(request_for(replace(SMALL, shm_ceiling=256 * MIB)))
    sandbox.exec(["sh", "-c", "trap '' TERM; setsid sleep 600 >/dev/null 2>&1 & sleep 0.2"])
    fill = "open my $file, '>', '/dev/shm/full'; syswrite $file, 'x' x 65536 while 1"
    sandbox.exec(["perl", "-e", fill], timeout=20)

    killed = sandbox.kill_processes()

    state = sandbox.state()
    if state.running:  # the kernel may have ended the holder itself
        assert killed
        assert sandbox._host is not None
        names = {process.name for pid in sandbox._host.processes() if (process := processes.look(pid))}
        assert names <= {"sh", "sleep"}


@pytest.mark.parametrize("way", ["_kill_from_host", "_kill_from_inside"])
def test_each_way_alone(make_sandbox: MakeSandbox, way: str) -> None:
    if way == "_kill_from_host" and os.getuid() != 0:
        pytest.skip("from outside only root can kill in a container")
    sandbox = make_sandbox()
    # Orphans that look much like the holder's own children.
    script = "trap '' TERM; (setsid sh -c 'sleep 600; :' &); (setsid sleep 600 &); sleep 600"
    sandbox.exec(["sh", "-c", script], timeout=0.5)

    assert getattr(sandbox, way)()

    assert b"600" not in sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).output
    assert sandbox.state().running


END_FIRST_THREAD = """import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=[600]).start()
print("begun", flush=True)
ctypes.CDLL(None).syscall(93 if platform.machine() == "aarch64" else 60, 0)
"""


def test_a_process_without_its_first_thread_still_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", END_FIRST_THREAD], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            while (seen := processes.look(process.pid)) is not None and seen.alive:
                pass
            assert seen is not None
            assert seen.runs
        finally:
            process.kill()
    assert processes.look(process.pid) is None


def test_other_processes_of_this_machine_are_safe() -> None:
    assert not processes.kill_others([os.getpid()], frozenset(), "0" * 64)
    assert processes.look(os.getpid()) is not None
    assert processes.look(2**22 + 1) is None
