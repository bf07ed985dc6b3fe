"""What lets a signal handler end a trial at any moment but those in which that would lose its record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TrialExpired(BaseException):
    """The time that somebody else gave the trial is over; neither agents nor verifiers can catch it by accident."""


class Expiry:
    """Whether the trial that this process runs may be ended just now.

    A handler asks ``shielded``, and raises what ``expire`` returns or tries again later. ``waited`` are the seconds
    that the trial waited for others, which are none of the time that it was given.
    """

    def __init__(self) -> None:
        self.shielded = False
        self.expired = False
        self.waited = 0.0

    def restart(self) -> None:
        """Begin anew, with another trial."""
        self.shielded = self.expired = False
        self.waited = 0.0

    def expire(self, text: str) -> TrialExpired:
        """Note that time is over, and return what to raise."""
        # Until the runner has caught it and is shielded again, the trial is nobody else's to end.
        self.expired = True
        return TrialExpired(text)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Keep the trial from being ended."""
        before, self.shielded = self.shielded, True
        try:
            yield
        finally:
            self.shielded = before

    @contextmanager
    def expose(self) -> Iterator[None]:
        """Let the trial be ended inside of ``shield``."""
        before = self.shielded
        try:
            self.shielded = False
            yield
        finally:
            self.shielded = before

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Keep the trial from being ended while it waits for others, and count for how long it does."""
        begun = time.monotonic()
        with self.shield():
            try:
                yield
            finally:
                self.waited += time.monotonic() - begun
