"""Looking at a phase from the side while it runs, and ending it when there is a reason.

Two reasons are known: a kernel kill where a policy has it end the whole trial, and a host that runs short of
memory. Whatever ends a phase so is no deadline: the trial goes no further, and nothing is verified.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.trials.evidence import CutOff

KERNEL_SECONDS = 0.1  # between looks at counters that cost the container nothing
ENGINE_SECONDS = 1.0  # between looks that are a call to the engine
_KILL_AGAIN = 0.2


def _no_matter() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """Something to look at every so many seconds; it returns why the phase has to end, or None.

    ``refused`` is told when the phase was over already, so that nothing came of the last reason.
    """

    seconds: float
    at: Callable[[], CutOff | None]
    refused: Callable[[], None] = _no_matter


@contextmanager
def watched(looks: Sequence[Look], cut: Callable[[CutOff], bool], kill: Callable[[], None]) -> Iterator[None]:
    """Look at things while the context lasts.

    Args:
        looks: what to look at; with none, no thread is started.
        cut: told a reason to end the phase; whether it is ended.
        kill: kills what runs, then and again until the context ends: a command may just be starting.
    """
    if not looks:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(looks, cut, kill, over), name="infranoise-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(
    looks: Sequence[Look], cut: Callable[[CutOff], bool], kill: Callable[[], None], over: threading.Event
) -> None:
    due = {place: time.monotonic() + look.seconds for place, look in enumerate(looks)}
    while not over.wait(max(0.0, min(due.values()) - time.monotonic())):
        place = min(due, key=lambda place: due[place])
        try:
            reason = looks[place].at()
        except (SandboxError, OSError):
            reason = None  # the phase's own calls will find out why; the next look may see again
        due[place] = time.monotonic() + looks[place].seconds
        if reason is None:
            continue
        if not cut(reason):
            looks[place].refused()
            continue
        kill()
        while not over.wait(_KILL_AGAIN):
            kill()
        return


def kernel_kills(sandbox: Sandbox) -> Look:
    """Return the look for the first process of a container that the kernel kills for memory.

    On the engine's own machine the counter is read; elsewhere that takes a command in the container, which is run
    only once the engine has told of something.
    """
    nearby = bool(getattr(sandbox, "on_this_machine", False))

    def at() -> CutOff | None:
        if not nearby and not any(event.action == "oom" for event in sandbox.state().events):
            return None
        if not nearby and sandbox.counters().oom_kills is None:
            return CutOff(None, "the engine told of a kernel kill for memory")
        return CutOff(None, "the kernel killed a process for memory") if sandbox.counters().oom_kills else None

    return Look(KERNEL_SECONDS if nearby else ENGINE_SECONDS, at)
