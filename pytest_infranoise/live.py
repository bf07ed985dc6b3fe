"""How far a session is while it runs: a line kept up to date in a terminal, now and then a line elsewhere.

In a terminal the line stands below whatever pytest has printed last, and is erased before anything else is printed,
so that nothing of it stays. Where there is no terminal, as in CI, a heartbeat shows that hours of silence are work.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_infranoise.model import Verdict
from pytest_infranoise.outcomes import attached

NAME = "infranoise-live"
_PULSE_SECONDS = 1.0
# Room is made below, which may scroll, before the cursor's place is kept; both leave its column alone.
_BELOW = "\x1bD\x1b[1A\x1b7\x1b[1B\r"
_BELOW_AGAIN = "\x1b7\x1b[1B\r"
_BACK = "\x1b[K\x1b8"


@dataclass(frozen=True, slots=True)
class State:
    """How far the trials of a session are.

    ``oldest`` is the node id of the one that has run longest, for ``oldest_seconds``; ``remaining`` have not begun.
    ``seconds_left`` is what is expected at the pace so far, until ``end``, a time of day; None and "" as long as
    nothing is over.
    """

    running: int
    oldest: str
    oldest_seconds: float
    passed: int
    failed: int
    infra: int
    remaining: int
    seconds_left: float | None = None
    end: str = ""


def render(state: State, width: int) -> str:
    """Return the state as one line of at most ``width`` columns: what matters least is left out first."""
    running = f"{state.running} running"
    oldest = f"{running}, oldest {_duration(state.oldest_seconds)}" if state.running else running
    done = f"{state.passed} pass, {state.failed} fail, {state.infra} infra"
    left = f"{state.remaining} remaining"
    end = f"{left}, expected end {state.end}" if state.seconds_left is not None else left
    soon = f"{end} (in {_duration(state.seconds_left)})" if state.seconds_left is not None else left
    choices = (
        (f"{oldest} ({state.oldest})" if state.running else oldest, done, soon),
        (oldest, done, soon),
        (oldest, done, end),
        (running, done, left),
        (running, done),
    )
    lines = ["; ".join(parts) for parts in choices]
    return next((line for line in lines if len(line) <= width), lines[-1][: max(width, 0)])


def _duration(seconds: float) -> str:
    """Return seconds as ``45s``, ``12m`` or ``3h05m``."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = int(seconds // 60)
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


class Tally:
    """What is known of the trials of a session, from what pytest tells of each."""

    def __init__(self, trials: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._trials = trials
        self._clock = clock
        self._began: float | None = None
        self._running: dict[str, float] = {}
        self._over: set[str] = set()
        self._verdicts = dict.fromkeys(Verdict, 0)

    def begins(self, nodeid: str) -> None:
        """Note that an item has begun."""
        if nodeid in self._trials:
            now = self._clock()
            self._began = now if self._began is None else self._began
            self._running.setdefault(nodeid, now)

    def reported(self, report: Any) -> None:
        """Note what a report says; only one of a trial's has its record."""
        if report.nodeid in self._trials and (record := attached(report)) is not None:
            self._verdicts[record.verdict] += 1
            self.ends(report.nodeid)

    def ends(self, nodeid: str) -> None:
        """Note that an item is over, whatever came of it."""
        if nodeid in self._trials:
            self._running.pop(nodeid, None)
            self._over.add(nodeid)

    def state(self) -> State:
        """Return how far it is."""
        now = self._clock()
        oldest = min(self._running, key=self._running.__getitem__, default="")
        remaining = len(self._trials) - len(self._over) - len(self._running)
        left = None
        if self._over and self._began is not None:
            # Those that run are taken for half done.
            left = (now - self._began) * (remaining + len(self._running) / 2) / len(self._over)
        return State(
            running=len(self._running),
            oldest=oldest,
            oldest_seconds=now - self._running[oldest] if oldest else 0.0,
            passed=self._verdicts[Verdict.PASS],
            failed=self._verdicts[Verdict.FAIL],
            infra=self._verdicts[Verdict.INFRA_ERROR],
            remaining=remaining,
            seconds_left=left,
            end="" if left is None else time.strftime("%H:%M", time.localtime(time.time() + left)),
        )


def register(
    config: pytest.Config, trials: Collection[str], heartbeat: float, wake: Callable[[], None] | None
) -> LiveView | None:
    """Show how far the trials are, if there is somebody to see it.

    Args:
        config: pytest's.
        trials: the node ids of all trials.
        heartbeat: the minutes between lines where there is no terminal; 0 for none.
        wake: has ``LiveView.pulse`` called soon by whoever prints; None where nothing can, because the process that
            prints runs the trials itself.
    """
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    option = config.option
    if reporter is None or option.verbose < 0:
        return None
    if reporter.isatty:
        # One line per trial, or the trials' own output, leaves no place for a line that is not printed for good.
        if wake is None or option.verbose > 0 or option.capture == "no" or os.environ.get("TERM") == "dumb":
            return None
        view = LiveView(config, reporter, trials)
    else:
        if not heartbeat:
            return None
        view = LiveView(config, reporter, trials, heartbeat=60 * heartbeat)
    config.pluginmanager.register(view, NAME)
    if wake is not None:
        view.start(wake)
    else:
        view.start_aside()
    return view


class LiveView:
    """The hooks that keep the line right; every place at which others print is one."""

    def __init__(
        self, config: pytest.Config, reporter: Any, trials: Collection[str], heartbeat: float | None = None
    ) -> None:
        self._writer: Any = config.get_terminal_writer()
        self._reporter = reporter
        self._tally = Tally(trials)
        self._heartbeat = heartbeat
        self._due = time.monotonic() + (heartbeat or 0.0)
        self._drawn = False
        self._over = threading.Event()
        # Where a thread of its own prints while a trial runs, and who may print: pytest has the turn unless it runs
        # a trial.
        self._aside: threading.Thread | None = None
        self._output = -1
        self._turn = threading.Lock()
        self._mine = False

    def start(self, wake: Callable[[], None]) -> None:
        """Have the line drawn again every second; by the thread that prints, never by another."""
        seconds = _PULSE_SECONDS if self._heartbeat is None else min(_PULSE_SECONDS * 5, self._heartbeat)

        def run() -> None:
            while not self._over.wait(seconds):
                wake()

        threading.Thread(target=run, daemon=True, name=NAME).start()

    def start_aside(self) -> None:
        """Have the heart beat while this process is busy with a trial, past all that captures its output."""
        if self._heartbeat is None:
            return
        try:
            # Now, because while a test runs another file may be under its number.
            self._output = os.dup(self._writer._file.fileno())
        except (AttributeError, OSError, ValueError):  # pytest prints to no file: beats between trials have to do
            return
        self._take()
        seconds, every = min(_PULSE_SECONDS * 5, self._heartbeat), self._heartbeat

        def run() -> None:
            while not self._over.wait(seconds):
                with self._turn:
                    if not self._over.is_set():
                        self._beat_aside(every)

        self._aside = threading.Thread(target=run, daemon=True, name=NAME)
        self._aside.start()

    def _take(self) -> None:
        """Let nobody else print from now on."""
        if not self._mine and self._output >= 0:
            self._turn.acquire()
            self._mine = True

    def _give(self) -> None:
        """Let the other thread print, while a trial runs."""
        if self._mine:
            self._mine = False
            self._turn.release()

    def pulse(self) -> None:
        """Show the state of now."""
        if self._over.is_set():
            return
        if self._heartbeat is not None:
            self._beat(self._heartbeat)
        else:
            text = render(self._tally.state(), self._writer.fullwidth - 1)
            place = _BELOW_AGAIN if self._drawn else _BELOW
            dim, plain = ("\x1b[2m", "\x1b[0m") if self._reporter.hasmarkup else ("", "")
            self._reporter.write_raw(f"{place}{dim}{text}{plain}{_BACK}", flush=True)
            self._drawn = True

    def _beat(self, every: float) -> None:
        if not self._is_due(every):
            return
        if self._writer.width_of_current_line:
            self._writer.line()
        self._reporter.currentfspath = None  # so that the next result names its file again
        self._writer.line(self._told())
        self._writer.flush()

    def _beat_aside(self, every: float) -> None:
        if not self._is_due(every):
            return
        before = "\n" if self._writer.width_of_current_line else ""
        self._reporter.currentfspath = None
        self._writer._current_line = ""  # which it cannot know to be over
        with contextlib.suppress(OSError):
            os.write(self._output, f"{before}{self._told()}\n".encode())

    def _is_due(self, every: float) -> bool:
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + every
        return True

    def _told(self) -> str:
        return f"infranoise: {render(self._tally.state(), 200)}"

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            self._reporter.write_raw(f"{_BELOW_AGAIN}{_BACK}", flush=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, object, object]:
        """Note what has begun."""
        self._take()
        self._erase()
        result = yield
        self._tally.begins(nodeid)
        self.pulse()
        self._give()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Note what came out; after a report others may still have something to print."""
        self._take()
        self._erase()
        result = yield
        self._tally.reported(report)
        self._give()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> Generator[None, object, object]:
        """Note what is over."""
        self._take()
        self._erase()
        result = yield
        self._tally.ends(nodeid)
        self.pulse()
        return result

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self) -> None:
        """Make way for what xdist says of a worker."""
        self._erase()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_newgateway(self) -> None:
        """Make way for what xdist says of a new worker."""
        self._erase()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodeready(self) -> None:
        """Make way for what xdist says of a new worker."""
        self._erase()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Make way for what xdist says of a new worker."""
        self._erase()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Show nothing any more."""
        self._end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self) -> None:
        """Show nothing any more."""
        self._end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Show nothing any more."""
        self._end()

    def _end(self) -> None:
        self._over.set()
        self._erase()
        self._give()
        if self._aside is not None:
            self._aside.join()
            self._aside = None
            os.close(self._output)
            self._output = -1
