from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from docker import APIClient

from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes import cgroups
from pytest_infranoise.sandboxes import execs
from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.execs import Output
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import ExecResult

from .conftest import BASE_IMAGE
from .conftest import MIB
from .conftest import SMALL
from .conftest import Build
from .conftest import MakeSandbox
from .conftest import request_for

pytestmark = pytest.mark.engine


def shell(sandbox: DockerSandbox, script: str, timeout: float | None = 60) -> ExecResult:
    return sandbox.exec(["sh", "-c", script], timeout=timeout)


@pytest.fixture(params=["host", "container"])
def here_or_elsewhere(request: pytest.FixtureRequest, make_sandbox: MakeSandbox) -> Iterator[DockerSandbox]:
    """A sandbox as on an engine of this machine, and as on one whose processes cannot be seen."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "container":
            patch.setattr(cgroups, "locate", lambda pid, container: None)
        yield make_sandbox()


@pytest.mark.parametrize("code", [0, 1, 126, 127, 137, 255])
def test_the_exit_code_is_the_commands_own(shared_sandbox: DockerSandbox, code: int) -> None:
    result = shell(shared_sandbox, f"echo out; echo err >&2; exit {code}")

    assert (result.exit_code, result.started, result.timed_out, result.lost) == (code, True, False, None)
    assert sorted(result.output.split()) == [b"err", b"out"]
    assert not result.truncated


def test_words_arrive_as_they_were_given(shared_sandbox: DockerSandbox) -> None:
    words = ["two words", "", "'\"$HOME`id`\\", "*", "-n", "ünïcode\n", "a=b"]

    result = shared_sandbox.exec(["printf", "<%s>", *words])

    assert result.output.decode() == "".join(f"<{word}>" for word in words)


def test_user_workdir_and_environment(shared_sandbox: DockerSandbox) -> None:
    result = shared_sandbox.exec(
        ["sh", "-c", 'id -u; pwd; printf "%s\\n" "$SECRET"; cat /proc/self/oom_score_adj'],
        user="1000",
        workdir="/usr/bin",
        environment={"SECRET": "a = b'c"},
    )

    assert result.output.decode().splitlines() == ["1000", "/usr/bin", "a = b'c", "900"]


def test_a_session_of_its_own_and_the_first_victim(shared_sandbox: DockerSandbox) -> None:
    result = shell(
        shared_sandbox, "read pid name state parent group session rest </proc/self/stat; echo $pid $session"
    )

    pid, session = result.output.split()
    assert pid == session
    holder, command = shell(shared_sandbox, "cat /proc/1/oom_score_adj /proc/self/oom_score_adj").output.split()
    assert 0 < int(holder) < int(command)


def test_the_wrapper_leaves_no_traces(shared_sandbox: DockerSandbox) -> None:
    result = shared_sandbox.exec(["sh", "-c", "env; set -- *; echo $#; printf '%s' \"$IFS\" | od -An -c; echo $0"])

    assert b"infranoise" not in result.output
    assert result.output.split(b"\n")[-3].split() == [b"\\t", b"\\n"]


@pytest.mark.parametrize("name", ["nosuch", "/nosuch", "/etc/passwd", "/usr", ""])
def test_a_command_that_is_not_there_did_not_start(shared_sandbox: DockerSandbox, name: str) -> None:
    result = shared_sandbox.exec([name, "argument"])

    assert (result.exit_code, result.started, result.lost) == (127, False, None)
    assert result.output.decode() == f"{name}: not found, or not executable\n"


@pytest.mark.parametrize(
    ("options", "text"), [({"user": "nosuch"}, "nosuch"), ({"workdir": "/nosuch/place"}, "/nosuch/place")]
)
def test_what_the_engine_could_not_start_is_told(
    shared_sandbox: DockerSandbox, options: dict[str, str], text: str
) -> None:
    result = shared_sandbox.exec(["true"], **options)  # type: ignore[arg-type]

    assert not result.started
    assert result.lost is not None
    assert text in result.lost


def test_scripts_without_a_first_line_run_as_in_a_shell(shared_sandbox: DockerSandbox) -> None:
    shared_sandbox.write("/tmp/bare", b"echo run\n", 0o755)

    assert shared_sandbox.exec(["/tmp/bare"]).output == b"run\n"


def test_bash_as_the_shell(build: Build, make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nRUN ln -sf bash /bin/sh\n")
    sandbox = make_sandbox(request_for(image=build(tmp_path)))

    assert sandbox.exec(["nosuch"]).started is False
    assert shell(sandbox, "cat /proc/self/oom_score_adj; exit 3").exit_code == 3
    shell(sandbox, "setsid sleep 600 >/dev/null 2>&1 &")
    assert sandbox.kill_processes()
    assert shell(sandbox, "cat /proc/[0-9]*/cmdline").output.count(b"600") == 0


def test_a_timeout_leaves_it_running(here_or_elsewhere: DockerSandbox) -> None:
    sandbox = here_or_elsewhere
    result = shell(sandbox, "echo begun; setsid sleep 600 & trap '' TERM; sleep 500", timeout=0.5)

    assert (result.exit_code, result.timed_out, result.lost) == (None, True, None)
    assert result.output == b"begun\n"
    assert result.seconds >= 0.5
    running = shell(sandbox, "cat /proc/[0-9]*/cmdline").output
    assert b"sleep\x00600\0" in running
    assert b"sleep\x00500\0" in running


def test_an_end_just_before_the_deadline_counts(shared_sandbox: DockerSandbox) -> None:
    for _ in range(5):
        result = shell(shared_sandbox, "sleep 0.2; exit 3", timeout=0.3)
        assert (result.exit_code, result.timed_out) in {(3, False), (None, True)}


def test_a_background_child_delays_nothing(here_or_elsewhere: DockerSandbox) -> None:
    quick = shell(here_or_elsewhere, "exit 3")
    result = shell(here_or_elsewhere, "echo said; sleep 600 & exit 3")

    assert (result.exit_code, result.output) == (3, b"said\n")
    # The engine itself would hold the stream open for 2 seconds after the end.
    assert result.seconds - quick.seconds < 1.5
    assert shell(here_or_elsewhere, "cat /proc/[0-9]*/cmdline").output.count(b"600") == 1


def test_an_end_that_the_engine_tells_late_is_no_timeout(sandbox: DockerSandbox) -> None:
    # The engine is busy with the end of this one for 2 seconds, and has no time for that of the next.
    shell(sandbox, "sleep 600 & exit 0")

    result = shell(sandbox, "exit 3", timeout=1)

    assert (result.exit_code, result.timed_out) == (3, False)


def test_output_closed_early_is_not_the_end(here_or_elsewhere: DockerSandbox) -> None:
    result = shell(here_or_elsewhere, "exec >/dev/null 2>&1; sleep 0.7; exit 5")

    assert result.exit_code == 5
    assert result.seconds > 0.7


def test_a_server_survives_the_exec_that_started_it(sandbox: DockerSandbox) -> None:
    shell(sandbox, "nohup setsid sh -c 'while :; do date +%N >/tmp/beat; sleep 0.05; done' >/dev/null 2>&1 &")

    beats = {shell(sandbox, "cat /tmp/beat").output for _ in range(4)}

    assert len(beats) > 1


def test_large_and_odd_output(shared_sandbox: DockerSandbox, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "agent.log"
    script = r'binmode STDOUT; print "first"; print "\xff\x00" x 3000000; print "last"'

    result = shared_sandbox.exec(["perl", "-e", script], log=log)

    assert result.exit_code == 0
    assert result.truncated
    assert len(result.output) == execs.OUTPUT_KEPT
    assert result.output.endswith(b"\xff\x00last")
    written = log.read_bytes()
    assert written.startswith(b"first\xff\x00")
    assert written[execs.LOG_CAP :] == b"\n[%d more bytes were not kept]\n" % (6000009 - execs.LOG_CAP)


def test_output_of_exactly_what_is_kept(tmp_path: Path) -> None:
    output = Output(tmp_path / "log")
    for _ in range(execs.OUTPUT_KEPT // 8):
        output.add(b"12345678")
    output.close()

    assert len(output.tail()) == output.total == execs.OUTPUT_KEPT
    assert (tmp_path / "log").stat().st_size == execs.OUTPUT_KEPT


def counted(before: Counters, after: Counters) -> tuple[int, int]:
    assert before.oom_kills is not None
    assert after.oom_kills is not None
    assert before.pids_denied is not None
    assert after.pids_denied is not None
    return after.oom_kills - before.oom_kills, after.pids_denied - before.pids_denied


HOG = "my @held; for (1..60) { push @held, 'x' x 4000000; select undef, undef, undef, 0.01 } print 'fine'"


def test_a_kill_for_memory_is_counted_and_the_container_lives(here_or_elsewhere: DockerSandbox) -> None:
    sandbox = here_or_elsewhere
    before = sandbox.counters()

    direct = sandbox.exec(["perl", "-e", HOG], timeout=60)
    swallowed = sandbox.exec(["sh", "-c", 'perl -e "$0" || true', HOG], timeout=60)
    after = sandbox.counters()

    assert (direct.exit_code, swallowed.exit_code) == (137, 0)
    assert counted(before, after) == (2, 0)
    assert after.memory_peak is not None
    assert after.memory_peak >= 0.98 * 64 * MIB
    assert sandbox.holder_is_init
    assert sandbox.state().running


def test_memory_is_sampled_while_a_command_runs(sandbox: DockerSandbox) -> None:
    sandbox.sampled_anonymous_peak(reset=True)

    sandbox.exec(["perl", "-e", "my $held = 'x'; $held x= 30000000; select undef, undef, undef, 0.5"])
    peak = sandbox.sampled_anonymous_peak()

    assert peak is not None
    assert peak > 30_000_000
    now = sandbox.counters()
    assert now.anonymous is not None
    assert now.anonymous < 10_000_000
    assert sandbox.sampled_anonymous_peak() == now.anonymous


@pytest.mark.skipif(os.getuid() != 0, reason="only root may reset a cgroup's peak")
def test_the_peak_can_be_counted_anew(backend: object, sandbox: DockerSandbox) -> None:
    if "v1" not in sandbox.limits().source:
        assert not sandbox.reset_peak()
        return
    sandbox.exec(["perl", "-e", "my $held = 'x'; $held x= 30000000"])
    before = sandbox.counters().memory_peak

    assert sandbox.reset_peak()

    after = sandbox.counters().memory_peak
    assert before is not None
    assert after is not None
    assert after < before


def test_denied_processes_are_counted(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(request_for(replace(SMALL, pids_ceiling=20)))
    before = sandbox.counters()

    shell(sandbox, "for i in $(seq 30); do sleep 5 & done 2>/dev/null")

    kills, denials = counted(before, sandbox.counters())
    assert kills == 0
    assert denials > 0


def test_throttling_is_counted(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(request_for(Allocation(0.1, 0.1, 32 * MIB, 64 * MIB)))
    before = sandbox.counters()

    shell(sandbox, "while :; do :; done", timeout=1)
    after = sandbox.counters()

    assert (after.throttled_periods or 0) > (before.throttled_periods or 0)
    assert (after.throttled_seconds or 0) > (before.throttled_seconds or 0)
    assert (after.cpu_seconds or 0) > (before.cpu_seconds or 0)


def kill_by_engine(engine: APIClient, container: str) -> None:
    engine.kill(container)


def kill_behind_the_engine(engine: APIClient, container: str) -> None:
    os.kill(engine.inspect_container(container)["State"]["Pid"], signal.SIGKILL)


def remove_altogether(engine: APIClient, container: str) -> None:
    engine.remove_container(container, force=True)


def pause(engine: APIClient, container: str) -> None:
    engine.pause(container)


KILLERS = [kill_by_engine, remove_altogether]
if os.getuid() == 0:
    KILLERS.append(kill_behind_the_engine)


@pytest.mark.parametrize("end", KILLERS)
def test_a_container_ended_from_outside_is_lost(
    here_or_elsewhere: DockerSandbox, engine: APIClient, end: Callable[[APIClient, str], None]
) -> None:
    sandbox = here_or_elsewhere
    sandbox.counters()
    killer = threading.Timer(0.4, end, [engine, sandbox.id])
    killer.start()

    with pytest.raises(ContainerLost):
        shell(sandbox, "echo begun; sleep 600")
    killer.join()

    with pytest.raises(ContainerLost):
        shell(sandbox, "true")
    with pytest.raises(ContainerLost):
        sandbox.kill_processes()
    state = sandbox.state()
    assert not state.running
    assert not state.event_gap
    assert "die" in [event.action for event in state.events]
    assert sandbox.remove()
    assert sandbox.counters() == Counters()
    assert sandbox.last_counters.oom_kills == 0


def test_a_paused_container_takes_no_command(sandbox: DockerSandbox, engine: APIClient) -> None:
    pause(engine, sandbox.id)
    try:
        with pytest.raises(ContainerLost, match="paused"):
            shell(sandbox, "true")
    finally:
        engine.unpause(sandbox.id)

    assert shell(sandbox, "true").exit_code == 0


def test_a_restarted_container_is_another_one(sandbox: DockerSandbox, engine: APIClient) -> None:
    before = sandbox.identity()

    engine.restart(sandbox.id, timeout=0)

    assert sandbox.identity() != before
    assert sandbox.identity().id == before.id
    with pytest.raises(ContainerLost):
        shell(sandbox, "true")


def test_an_interrupt_ends_the_waiting_and_not_the_command(
    sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "sample", interrupt)
    with pytest.raises(KeyboardInterrupt):
        shell(sandbox, "sleep 600")
    monkeypatch.undo()

    assert shell(sandbox, "cat /proc/[0-9]*/cmdline").output.count(b"600") >= 1
    assert "infranoise-exec" not in {thread.name for thread in threading.enumerate()}


def test_pieces_of_one_stream_never_land_in_a_line_of_the_other(tmp_path: Path) -> None:
    output = Output(tmp_path / "log")
    for data, stream in ((b"one li", 1), (b"an er", 2), (b"ne\nand more", 1), (b"ror\n", 2), (b", unended", 1)):
        output.add(data, stream)
    expected = b"one line\nan error\nand more, unended"
    assert output.tail() == expected
    output.close()
    assert output.tail() == expected
    assert output.total == len(expected)
    assert (tmp_path / "log").read_bytes() == expected


def test_a_line_without_an_end_is_not_held_back_for_ever(tmp_path: Path) -> None:
    output = Output(tmp_path / "log")
    for _ in range(5):
        output.add(b"x" * 30_000)
    assert (tmp_path / "log").stat().st_size >= 90_000
    output.close()
    assert (tmp_path / "log").stat().st_size == 150_000
