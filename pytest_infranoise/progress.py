"""Lines about work that takes minutes: enough of them to see that it goes on, never a flood."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import Future
from concurrent.futures import wait
from typing import TypeVar

_Result = TypeVar("_Result")
_Name = TypeVar("_Name")

POLL_SECONDS = 0.5
_FIRST = 2.0  # seconds until the first line
_EVERY = 10.0  # seconds between lines at first; later a quarter of the time gone by
_NAMED = 3


class Progress:
    """What is done of a number of things, and what is being done; safe to tell from several threads.

    Args:
        say: prints one line; called from the thread that calls ``tick`` only.
        what: what is counted, for the beginning of every line.
        total: how many there are.
        clock: tells the time in seconds.
    """

    def __init__(
        self, say: Callable[[str], None], what: str, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._what = what
        self._total = total
        self._clock = clock
        self._began = clock()
        self._due = self._began + _FIRST
        self._running: dict[str, float] = {}
        self._done = 0
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """The time since the beginning."""
        return self._clock() - self._began

    def begins(self, name: str) -> None:
        """Take something up, by the words that say so ("building task-a")."""
        with self._lock:
            self._running[name] = self._clock()

    def ends(self, name: str) -> None:
        """Something that was taken up is over, but not yet all of its thing."""
        with self._lock:
            self._running.pop(name, None)

    def done(self) -> None:
        """One thing more is done."""
        with self._lock:
            self._done += 1

    def tick(self) -> None:
        """Say how far it is, if it is time for that and there is something going on."""
        now = self._clock()
        with self._lock:
            if now < self._due or not self._running:
                return
            line = self._line(now)
        self._due = now + max(_EVERY, (now - self._began) / 4)
        self._say(line)

    def _line(self, now: float) -> str:
        oldest = sorted(self._running.items(), key=lambda item: item[1])
        running = [f"{name} ({now - began:.0f} s)" for name, began in oldest[:_NAMED]]
        if len(oldest) > _NAMED:
            running.append(f"{len(oldest) - _NAMED} more")
        return (
            f"infranoise: {self._what}: {self._done} of {self._total} done in {now - self._began:.0f} s; "
            f"{', '.join(running)}"
        )


def as_completed(
    futures: dict[Future[_Result], _Name], progress: Progress
) -> Iterator[tuple[_Name, Future[_Result]]]:
    """Yield futures with their names as they get done, and keep saying how far it is."""
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in finished:
            progress.done()
            yield futures[future], future
        progress.tick()
