"""The line that says how far a session is: what it says, and that nothing of it stays on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyte
import pytest

from pytest_infranoise.live import State
from pytest_infranoise.live import Tally
from pytest_infranoise.live import render
from pytest_infranoise.model import Record
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.outcomes import attach
from tests.sessions import check_nothing_left
from tests.suite import make_task

ROWS, COLUMNS = 24, 100
SLOW = "sleep 3; echo done > answer.txt\n"
BUSY = State(4, "suite/hello/task.yaml::1x-0", 65, 10, 2, 1, 20, seconds_left=3900, end="14:32")


def test_the_line_says_less_where_there_is_less_room() -> None:
    whole = (
        "4 running, oldest 1m (suite/hello/task.yaml::1x-0); 10 pass, 2 fail, 1 infra; "
        "20 remaining, expected end 14:32 (in 1h05m)"
    )
    lines = [render(BUSY, width) for width in range(len(whole) + 2)]
    assert lines[-1] == lines[-2] == whole
    assert all(len(line) <= width for width, line in enumerate(lines))
    assert [len(line) for line in lines] == sorted(len(line) for line in lines)
    assert lines[80] == "4 running, oldest 1m; 10 pass, 2 fail, 1 infra; 20 remaining, expected end 14:32"
    assert lines[60] == "4 running; 10 pass, 2 fail, 1 infra; 20 remaining"


def test_before_anything_is_over_no_end_is_foretold() -> None:
    early = replace(BUSY, seconds_left=None, end="")
    assert render(early, 200).endswith("; 20 remaining")
    idle = replace(early, running=0, oldest="")
    assert render(idle, 200) == "0 running; 10 pass, 2 fail, 1 infra; 20 remaining"


def report(nodeid: str, verdict: Verdict | None = None) -> pytest.TestReport:
    made = pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, "call")
    if verdict is not None:
        attach(made, Record("r", TrialKey("a", "", nodeid, "1x", 0), 0, "", verdict, "", ""))
    return made


def test_what_is_counted() -> None:
    now = [100.0]
    tally = Tally([f"t{number}" for number in range(6)], lambda: now[0])
    assert tally.state() == State(0, "", 0, 0, 0, 0, 6)
    for name in ("t0", "t1", "ordinary"):
        tally.begins(name)
        now[0] += 5
    state = tally.state()
    assert (state.running, state.oldest, state.oldest_seconds, state.remaining) == (2, "t0", 15, 4)
    assert state.seconds_left is None

    tally.reported(report("t0"))
    tally.reported(report("t0", Verdict.FAIL))
    tally.reported(report("ordinary", Verdict.FAIL))
    tally.ends("t0")
    tally.ends("ordinary")
    state = tally.state()
    assert (state.running, state.failed, state.passed, state.remaining) == (1, 1, 0, 4)
    # One took 15 s; four are to come and one is half done.
    assert state.seconds_left == pytest.approx(15 * 4.5)

    tally.begins("t2")
    tally.ends("t2")  # without a verdict: a config-error, or interrupted
    tally.reported(report("t1", Verdict.INFRA_ERROR))
    state = tally.state()
    assert (state.running, state.passed, state.failed, state.infra, state.remaining) == (0, 0, 1, 1, 3)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Iterator[Path]:
    root = pytester.path / "suite"
    root.mkdir()
    (root / "infranoise.toml").write_text("agent = 'oracle'\nresource-configs = ['1x']\n", "utf-8")
    make_task(root, "slow", solution=SLOW)
    make_task(root, "wrong", solution="echo wrong > answer.txt\n")
    yield root
    check_nothing_left(pytester.path)


def in_terminal(directory: Path, *arguments: str) -> tuple[str, list[str], list[str]]:
    """Run a session in a terminal.

    Returns:
        Everything that was written; every line that ever was on the screen; the lines that stayed.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        command = [sys.executable, "-m", "pytest", *arguments]
        os.execve(sys.executable, command, {**os.environ, "TERM": "xterm", "PY_COLORS": "1"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10_000)
    stream = pyte.ByteStream(screen)
    written = b""
    seen: set[str] = set()
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other side is gone
            break
        # Piece by piece, as a slow terminal would show it.
        for piece in re.split(rb"(?<=\x1b8)", data):
            stream.feed(piece)
            seen.update(line.rstrip() for line in screen.display)
        written += data
    os.waitpid(pid, 0)
    os.close(terminal)
    above = ["".join(row[column].data for column in range(COLUMNS)) for row in screen.history.top]
    return written.decode("utf-8", "replace"), sorted(seen), [line.rstrip() for line in [*above, *screen.display]]


LIVE = re.compile(r"\d+ running(, oldest .*)?; \d+ pass, \d+ fail, \d+ infra")


@pytest.mark.engine
@pytest.mark.usefixtures("suite")
def test_in_a_terminal_the_line_is_seen_and_does_not_stay(pytester: pytest.Pytester) -> None:
    _, seen, stayed = in_terminal(pytester.path, "suite", "--infranoise-samples=2", "-n2")

    live = [line for line in seen if LIVE.match(line)]
    ages = {age for line in live for age in re.findall(r"oldest (\d+s)", line)}
    assert len(ages) > 1  # drawn again while nothing else happens
    assert any("expected end" in line for line in live)
    assert all(LIVE.match(line) for line in seen if " running" in line)
    assert not any(" running" in line for line in stayed)
    dots = [line for line in stayed if re.fullmatch(r"[.F]+ +\[100%\]", line)]
    assert len(dots) == 1
    assert sorted(dots[0].split()[0]) == [".", ".", "F", "F"]
    assert any(re.fullmatch("=+ infranoise =+", line) for line in stayed)


@pytest.mark.engine
@pytest.mark.usefixtures("suite")
def test_a_worker_that_dies_leaves_nothing_of_the_line_on_the_screen(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os
        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(item):
            if "wrong" in item.nodeid:
                os._exit(1)
        """
    )

    _, seen, stayed = in_terminal(pytester.path, "suite", "--infranoise-samples=2", "-n2")

    assert any(LIVE.match(line) for line in seen)
    assert not any(" running" in line and "while" not in line for line in stayed)
    assert any("replacing crashed worker" in line for line in stayed)


@pytest.mark.engine
@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("arguments", [["-n2", "-q"], ["-n2", "-v"], ["-n2", "-s"], []], ids=" ".join)
def test_where_the_line_has_no_place_there_is_none(pytester: pytest.Pytester, arguments: list[str]) -> None:
    written, _, _ = in_terminal(pytester.path, "suite", "--infranoise-samples=1", *arguments)

    assert " running" not in written
    assert "\x1b8" not in written


@pytest.mark.engine
def test_without_trials_a_terminal_sees_what_it_saw_before(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_ordinary(): ...")

    written, _, _ = in_terminal(pytester.path, "-n2")

    assert "1 passed" in written
    assert " running" not in written
    assert "\x1b8" not in written


FUNCTION = """
import time
import pytest

@pytest.mark.infranoise(image="infranoise/base:bookworm", pull="never", cpus=0.5, memory="64M")
def test_slow(infranoise_sandbox):
    print("of the trial's own")
    time.sleep(3)
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "options"),
    [("task", []), ("task", ["-v"]), ("task", ["--capture=sys"]), ("task", ["-n1"]), ("function", [])],
)
def test_the_heart_beats_while_one_trial_runs(
    pytester: pytest.Pytester, suite: Path, kind: str, options: list[str]
) -> None:
    if kind == "function":
        (suite / "test_slow.py").write_text(FUNCTION, "utf-8")
    arguments = ["suite", "-k", "slow and " + ("task" if kind == "task" else "test_slow"), "--infranoise-samples=1"]

    output = pytester.runpytest_subprocess(*arguments, *options, "--infranoise-heartbeat=0.01").stdout.str()

    assert "1 passed" in output
    ages = re.findall(r"^infranoise: 1 running, oldest (\d+)s \(.*slow.*\); 0 pass, .* remaining$", output, re.M)
    assert len(ages) == output.count("1 running")
    assert len(set(ages)) > 1


@pytest.mark.engine
@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_elsewhere_there_is_a_heartbeat(pytester: pytest.Pytester, workers: list[str]) -> None:
    arguments = ["suite", "--infranoise-samples=2", *workers]

    beating = pytester.runpytest_subprocess(*arguments, "--infranoise-heartbeat=0.01")

    beats = [line for line in beating.outlines if re.match(r"infranoise: \d+ running", line)]
    assert beats
    assert all(LIVE.search(line) for line in beats)
    assert "\x1b" not in beating.stdout.str()
    quiet = ["--infranoise-heartbeat=0.01", "-q", "-k", "1x-0"]
    output = pytester.runpytest_subprocess(*arguments, *quiet).stdout.str()
    assert " running, oldest" not in output
