"""The child process of an agent that works on the host, without an engine behind it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.host import AgentFailed
from pytest_infranoise.agents.host import HostedAgent
from pytest_infranoise.agents.host import check_picklable
from pytest_infranoise.agents.logs import PhaseLog
from pytest_infranoise.agents.secrets import Masker
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from tests.agents import agents
from tests.agents.sandbox import MemorySandbox

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def sandbox() -> MemorySandbox:
    return MemorySandbox()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Any]:
    hosted: list[HostedAgent] = []

    def make(agent: Any) -> HostedAgent:
        hosted.append(HostedAgent(agent, tmp_path / "host.log"))
        return hosted[-1]

    yield make
    for agent in hosted:
        agent.close()


def wait_until_gone(pids: list[int]) -> None:
    """Wait for processes that were killed; a zombie that nobody reaps is as dead as can be."""
    give_up = time.monotonic() + 20
    while alive := [pid for pid in pids if _alive(pid)]:
        assert time.monotonic() < give_up, f"still alive: {alive}"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_child_and_its_children_die_at_the_deadline(sandbox: MemorySandbox, host: Any) -> None:
    agent = host(agents.Sleeper())
    agent.setup(DeadlineSandbox(sandbox, 30))
    box = DeadlineSandbox(sandbox, 2)
    with pytest.raises(DeadlineExceeded):
        agent.run("x", box)
    assert box.expired
    wait_until_gone([int(pid) for pid in sandbox.files["/app/children"].split()])


def test_no_time_at_all(sandbox: MemorySandbox, host: Any) -> None:
    with pytest.raises(DeadlineExceeded):
        host(agents.Sleeper()).run("x", DeadlineSandbox(sandbox, 0))


def test_a_raising_agent_can_be_asked_again(sandbox: MemorySandbox, host: Any) -> None:
    agent = host(agents.Raising())
    with pytest.raises(AgentFailed, match="KeyError: 'choices'"):
        agent.run("x", DeadlineSandbox(sandbox, 30))
    agent.setup(DeadlineSandbox(sandbox, 30))


@pytest.mark.parametrize("error", agents.FOREIGN)
def test_an_exception_of_others_that_is_called_like_one_of_ours(
    sandbox: MemorySandbox, host: Any, error: str
) -> None:
    box = DeadlineSandbox(sandbox, 30)
    with pytest.raises(AgentFailed, match=rf"(?s)in run.*google\.api_core\.exceptions\.{error}: 504: no answer"):
        host(agents.Throwing({"error": error})).run("x", box)
    assert not box.expired
    assert box.trouble is None


@pytest.mark.parametrize("error", [agents.OwnTimeout, agents.OwnLoss])
def test_what_others_make_of_ours_is_the_nearest_of_ours(
    sandbox: MemorySandbox, host: Any, error: type[Exception]
) -> None:
    with pytest.raises(error.__bases__[0]) as raised:
        host(agents.Throwing({"error": error.__name__})).run("x", DeadlineSandbox(sandbox, 30))
    assert type(raised.value) is error.__bases__[0]
    assert "no answer" in str(raised.value)


def test_a_dead_agent(sandbox: MemorySandbox, host: Any) -> None:
    agent = host(agents.Dying())
    with pytest.raises(AgentFailed, match="exit status 5"):
        agent.run("x", DeadlineSandbox(sandbox, 30))
    with pytest.raises(AgentFailed):
        agent.run("x", DeadlineSandbox(sandbox, 30))


def test_what_it_prints_can_go_where_nothing_is_left(tmp_path: Path, sandbox: MemorySandbox) -> None:
    log = PhaseLog(tmp_path / "agent-host.log", Masker(["tr0ub4dor&3"]))
    with log.part() as part:
        hosted = HostedAgent(agents.Printing(), part)
        try:
            hosted.run("tr0ub4dor&3", DeadlineSandbox(sandbox, 30))
        finally:
            hosted.close()
    assert log.path.read_text() == "printed ***\nwarned ***\n"


def test_what_cannot_be_pickled() -> None:
    assert check_picklable(agents.HostAgent()) is None
    problem = check_picklable(agents.NotPicklable())
    assert problem is not None
    assert "NotPicklable runs on the host" in problem
    assert "on_host = False" in problem


def test_the_child_dies_when_this_process_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
            from pathlib import Path
            from pytest_infranoise.agents.deadline import DeadlineSandbox
            from pytest_infranoise.agents.host import HostedAgent
            from tests.agents.agents import Sleeper
            from tests.agents.sandbox import MemorySandbox

            class Telling(MemorySandbox):
                def write(self, target, content, mode=0o644):
                    print(content.decode(), flush=True)

            if __name__ == "__main__":
                HostedAgent(Sleeper(), Path("host.log")).run("x", DeadlineSandbox(Telling(), 60))
        """)
    )
    parent = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    wait_until_gone(pids)
