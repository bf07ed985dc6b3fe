"""What lets a signal handler end a trial at any moment but those in which that would lose its record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TrialExpired(BaseException):
    """The time that somebody else gave the trial is over; neither agents nor verifiers can catch it by accident."""


class Expiry:
    """Whether the trial that this process runs may be ended just now.

    A handler asks ``shielded``, and raises what ``expire`` returns or tries again later.
    """

    def __init__(self) -> None:
        self.shielded = False
        self.expired = False

    def restart(self) -> None:
        """Begin anew, with another trial."""
        self.shielded = self.expired = False

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
