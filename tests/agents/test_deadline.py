from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.logs import PhaseLog
from pytest_infranoise.agents.secrets import Masker
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import FileMissing
from tests.agents.sandbox import MemorySandbox

EVERY_CALL: dict[str, Callable[[DeadlineSandbox], object]] = {
    "exec": lambda box: box.exec(["true"]),
    "upload": lambda box: box.upload(Path(__file__), "/x"),
    "write": lambda box: box.write("/x", b""),
    "read": lambda box: box.read("/x"),
    "kill_processes": lambda box: box.kill_processes(),
    "counters": lambda box: box.counters(),
    "limits": lambda box: box.limits(),
    "identity": lambda box: box.identity(),
    "state": lambda box: box.state(),
}


@pytest.mark.parametrize("name", EVERY_CALL)
def test_every_call_passes_before_the_deadline_and_none_after(name: str) -> None:
    sandbox = MemorySandbox()
    sandbox.files["/x"] = b""
    box = DeadlineSandbox(sandbox, 60)
    EVERY_CALL[name](box)
    assert not box.expired
    with pytest.raises(DeadlineExceeded, match="0 s are over"):
        EVERY_CALL[name](DeadlineSandbox(sandbox, 0))


def test_no_call_outlives_the_deadline() -> None:
    sandbox = MemorySandbox()
    box = DeadlineSandbox(sandbox, 0.05)
    with pytest.raises(DeadlineExceeded):
        box.exec(["sleep", "60"], timeout=100)
    assert box.expired
    assert sandbox.calls[0]["timeout"] <= 0.05
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            box.write("/answer", b"done")
    assert sandbox.files == {}


def test_a_timeout_of_the_callers_own_is_its_own_affair() -> None:
    box = DeadlineSandbox(MemorySandbox(), 60)
    assert box.exec(["sleep", "60"], timeout=0.01).timed_out
    assert not box.expired
    box.write("/answer", b"done")


def test_time_can_be_given_anew() -> None:
    box = DeadlineSandbox(MemorySandbox(), 0)
    box.restart(60)
    box.exec(["true"])


def test_the_first_failure_is_kept_though_the_caller_swallows_it() -> None:
    failures = iter([ContainerLost("exec", "gone"), EngineLost("exec", "gone too")])

    def fail(argv: Sequence[str]) -> ExecResult:
        raise next(failures)

    box = DeadlineSandbox(MemorySandbox(fail), 60)
    for kind in (ContainerLost, EngineLost):
        with pytest.raises(kind):
            box.exec(["true"])
    assert isinstance(box.trouble, ContainerLost)


def test_the_callers_own_mistakes_are_not_trouble() -> None:
    def fail(argv: Sequence[str]) -> ExecResult:
        raise ConfigError("exec", "no such user")

    box = DeadlineSandbox(MemorySandbox(fail), 60)
    with pytest.raises(FileMissing):
        box.read("/nothing")
    with pytest.raises(ConfigError):
        box.exec(["true"])
    assert box.trouble is None


def test_lost_commands_are_noted_and_missing_ones_are_not() -> None:
    results = [
        ExecResult(127, b"", 0.0, started=False),
        ExecResult(126, b"", 0.0, started=False, lost="OCI runtime exec failed"),
        ExecResult(None, b"", 0.0, lost="stream ended"),
    ]
    box = DeadlineSandbox(MemorySandbox(lambda argv: results.pop(0)), 60)
    box.exec(["nosuchcommand"])
    assert (box.lost, box.unstarted) == (None, False)
    box.exec(["true"])
    box.exec(["true"])
    assert (box.lost, box.unstarted) == ("OCI runtime exec failed", True)


def test_output_goes_to_the_phases_log_and_commands_run_in_its_directory(tmp_path: Path) -> None:
    sandbox = MemorySandbox(lambda argv: ExecResult(0, argv[0].encode() + b" tr0ub4dor&3\n", 0.0))
    box = DeadlineSandbox(sandbox, 60, PhaseLog(tmp_path / "agent.log", Masker(["tr0ub4dor&3"])), "/app")
    box.exec(["one"])
    box.exec(["two"], workdir="/tmp")
    box.exec(["three"], log=tmp_path / "own.log")
    assert (tmp_path / "agent.log").read_text() == "one ***\ntwo ***\n"
    assert [call["workdir"] for call in sandbox.calls] == ["/app", "/tmp", "/app"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.log", "own.log"]


def test_only_the_runner_removes_the_container() -> None:
    with pytest.raises(PermissionError):
        DeadlineSandbox(MemorySandbox(), 60).remove()
