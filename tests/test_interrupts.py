"""The signal handlers of a process that runs trials."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pytest_infranoise.interrupts import Interrupts


@pytest.fixture
def usual_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_obeyed_the_second_answered_and_the_third_obeyed(
    capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    interrupts = Interrupts(tell=True)
    interrupts.install()
    with pytest.raises(KeyboardInterrupt, match=number.name):
        os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGTERM)
    assert capfd.readouterr().out == ""
    os.kill(os.getpid(), signal.SIGINT)
    assert "stopping already" in capfd.readouterr().out
    os.kill(os.getpid(), signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    interrupts.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("usual_handlers")
def test_what_is_ignored_or_handled_by_others_stays_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handler = signal.signal(signal.SIGTERM, lambda signum, frame: None)
    assert handler is signal.SIG_DFL
    theirs = signal.getsignal(signal.SIGTERM)
    interrupts = Interrupts(tell=False)

    interrupts.install()

    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is theirs
    interrupts.undo()
    assert signal.getsignal(signal.SIGTERM) is theirs
