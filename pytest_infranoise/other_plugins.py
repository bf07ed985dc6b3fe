"""What other plugins would do to trials, where they are installed.

pytest-timeout raises what ``pytest.fail`` does wherever the code just is, which would be put down to whoever was
running: its timer is set here instead, so that the expiry is what it is, an infra-error. Its other method ends the
process, and the record with it. pytest-rerunfailures would turn a failed trial into a passed one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_infranoise.collect import is_trial
from pytest_infranoise.fixtures import PROCESS

_TIMEOUT = "timeout"
_RERUNS = "rerunfailures"
# Seconds until a trial that must not be ended just now is looked at again.
_AGAIN = 0.5
_SOON = 0.001  # seconds; none would set no timer at all


def problems(config: pytest.Config, trials: Sequence[pytest.Item]) -> list[str]:
    """Return what other plugins are told to do that trials do not survive."""
    found: list[str] = []
    if trials and config.pluginmanager.hasplugin(_TIMEOUT):
        found += dict.fromkeys(text for item in trials if (text := _thread_method(item)))
    if trials and config.pluginmanager.hasplugin(_RERUNS):
        found += _reruns(config)
    return found


def _thread_method(item: pytest.Item) -> str | None:
    config, marker = item.config, item.get_closest_marker("timeout")
    marked = None
    if marker is not None:
        marked = marker.kwargs.get("method", marker.args[1] if len(marker.args) > 1 else None)
    typed, ini = config.getoption("timeout_method", None), config.getini("timeout_method")
    if (marked or typed or ini) != "thread":
        return None
    if marked:
        source = f"{item.nodeid}: method='thread' in its timeout mark"
    else:
        source = "--timeout-method=thread" if typed else "ini value timeout_method = thread"
    return (
        f"{source}: pytest-timeout would end the whole process when time is over, with the trial's record lost and "
        "its container left running; use the method signal for trials"
    )


def _reruns(config: pytest.Config) -> list[str]:
    reason = "would run failed trials again and count the last attempt, which makes pass@1 something else"
    if config.getoption("force_reruns", None):
        return [
            f"--force-reruns {reason}; use --reruns, which leaves trials alone, or run ordinary tests in a session "
            "of their own"
        ]
    given = config.getoption("reruns", None) or config.getini("reruns")
    if given and config.getoption("reruns_mode", "strict") == "append":
        return [f"--reruns-mode=append {reason}; leave it out, or run ordinary tests in a session of their own"]
    return []


def take_over(config: pytest.Config) -> None:
    """Set pytest-timeout's timers for trials, where it is installed."""
    if config.pluginmanager.hasplugin(_TIMEOUT) and not config.pluginmanager.hasplugin(TrialTimer.NAME):
        config.pluginmanager.register(TrialTimer(), TrialTimer.NAME)


class TrialTimer:
    """pytest-timeout's timer for trials; whatever is no trial keeps its own."""

    NAME = "infranoise-timer"

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Set an alarm that ends a trial as an infra-error."""
        if not is_trial(item) or threading.current_thread() is not threading.main_thread():
            return None
        import pytest_timeout

        expiry = item.config.stash[PROCESS].expiry

        def expire(signum: int, frame: object) -> None:
            if not settings.disable_debugger_detection and pytest_timeout.is_debugging():
                return
            left = begun + settings.timeout + expiry.waited - time.monotonic()
            if left > 0 or expiry.shielded:
                signal.setitimer(signal.ITIMER_REAL, max(left, _SOON) if left > 0 else _AGAIN)
                return
            raise expiry.expire(f"timeout: the {settings.timeout:g} s that pytest-timeout gave the test are over")

        def cancel() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

        expiry.restart()
        begun = time.monotonic()
        item.cancel_timeout = cancel  # type: ignore[attr-defined]  # where pytest-timeout looks for it
        signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        return True
