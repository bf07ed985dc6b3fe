"""What signals do to a session with trials: one ends it in good order, and another one does not break that off."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

_AGAIN = b"\ninfranoise: stopping already: containers are being removed; Ctrl-C once more breaks that off\n"


class Interrupts:
    """The signal handlers of one process; ``install`` and ``undo`` are its life.

    SIGTERM, and SIGHUP of a closed terminal, end the session as Ctrl-C does: with nothing left behind. Who presses
    Ctrl-C twice, because it takes a moment, would leave containers and no summary. So the second one is only
    answered, by whoever is to ``tell``; the third is obeyed.
    """

    def __init__(self, *, tell: bool) -> None:
        self._tell = tell
        self._terminal: int | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._stopping = False
        self._repeated = 0

    def install(self) -> None:
        """Take over the signals that nobody else has an opinion about."""
        usual = {
            signal.SIGINT: signal.default_int_handler,
            # Whoever ignores a signal, as nohup does, means it.
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        # Outside of the main thread it cannot be done: whoever runs pytest there has his own ideas.
        with contextlib.suppress(ValueError):
            for number, handler in usual.items():
                if signal.getsignal(number) is handler:
                    self._before[number] = signal.signal(number, self._interrupt)
        if self._tell:
            # Now, because while a test runs its output is captured.
            with contextlib.suppress(OSError):
                self._terminal = os.dup(1)

    def undo(self) -> None:
        """Give everything back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _interrupt(self, signum: int, frame: object) -> None:
        if not self._stopping:
            self._stopping = True
            raise KeyboardInterrupt(signal.Signals(signum).name)
        if signum != signal.SIGINT:
            return
        self._repeated += 1
        if self._repeated > 1:
            raise KeyboardInterrupt
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.write(self._terminal, _AGAIN)
