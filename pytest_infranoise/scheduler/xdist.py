"""Trials under pytest-xdist: each worker gets one item at a time, and only when its floor fits.

A worker of xdist starts an item only once it knows the next one, so every scheduler has to keep two items on each
worker, and the second may wait there behind a long trial while other workers have nothing to do. Here the next
one is always a hidden item that does nothing (``Tick``): the trial starts at once, and nothing waits behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

import pytest

from pytest_infranoise.scheduler.budget import NOTHING
from pytest_infranoise.scheduler.budget import Need

if TYPE_CHECKING:
    from pytest_infranoise.scheduler.line import Line

# How soon to look again whether another session has made room; nobody tells.
_LOOK_AGAIN_SECONDS = 0.5
# In place of items that came back from a worker: there are none, somebody only wants to be woken.
_PULSE = [-1]


class Worker(Protocol):
    """As much of xdist's handle of a worker as is used here."""

    @property
    def gateway(self) -> Any:
        """The connection; its id is the worker's name."""

    @property
    def shutting_down(self) -> bool:
        """Whether it takes nothing any more."""

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Append items to what it has in hand."""

    def notify_inproc(self, eventname: str, **kwargs: object) -> None:
        """Put an event into the queue that xdist's loop reads."""


class Tick(pytest.Item):
    """The item behind the last one: what a worker has in hand while it waits to be told what to do next.

    It is appended to a worker's items after xdist has sent their ids, so that nobody counts it.
    """

    def runtest(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What other sessions do on the same engine.

    ``need`` is what they hold or wait for. ``queued`` says that a trial of this session waits in the ledger.
    """

    need: Need = NOTHING
    queued: bool = False


def nobody_else() -> Outside:
    """Return the answer of an engine that nobody else uses."""
    return Outside()


class TrialScheduling:
    """A scheduler of xdist's, for a session with trials.

    ``make_line`` is called with the ids of everything collected. The ledger has the last word on what may start;
    ``outside`` looks into it, so that no worker is sent to wait there that could do something else. When nothing
    fits because of other sessions, one trial is sent to wait there all the same: its turn comes by that.
    """

    def __init__(
        self,
        config: pytest.Config,
        workers: int,
        make_line: Callable[[Sequence[str]], Line],
        outside: Callable[[], Outside] = nobody_else,
    ) -> None:
        self.config = config
        self.drained: str | None = None
        self._workers = workers
        self._make_line = make_line
        self._outside = outside
        self._line: Line | None = None
        # What the first worker has collected, and its name.
        self._collection: list[str] = []
        self._first = ""
        # What each worker runs, and what each has collected; of the latter all are kept until the last has come,
        # even if a worker is gone by then.
        self._running: dict[Worker, int | None] = {}
        self._collected: dict[Worker, list[str]] = {}
        self._deaf: set[Worker] = set()
        self._looking = False
        # What to do whenever somebody has asked to be woken.
        self.pulse: Callable[[], None] = lambda: None
        # Who is told, and why, when nothing is to start any more.
        self.ends: Callable[[str], None] = lambda reason: None

    @property
    def nodes(self) -> list[Worker]:
        """The workers."""
        return list(self._running)

    @property
    def collection_is_completed(self) -> bool:
        """Whether all workers of the beginning have collected."""
        return self._line is not None or len(self._collected) >= self._workers

    @property
    def tests_finished(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return self._line is not None and not self.has_pending

    @property
    def has_pending(self) -> bool:
        """Whether anything waits or runs."""
        return self._line is not None and bool(self._line.waiting or self._line.running)

    @property
    def waiting(self) -> int:
        """How many items nobody has begun."""
        return self._line.waiting if self._line is not None else 0

    def add_node(self, node: Worker) -> None:
        """Take in a worker that has not collected yet."""
        self._running[node] = None

    def add_node_collection(self, node: Worker, collection: Sequence[str]) -> None:
        """Take in what a worker has collected."""
        self._collected[node] = list(collection)
        if self._line is not None and self._differs(node):
            self.drain(f"worker {node.gateway.id} has collected other items than the first one")

    def schedule(self) -> None:
        """Begin, or take a worker that came later into service."""
        if self._line is None:
            first = next(iter(self._collected))
            self._first, self._collection = first.gateway.id, self._collected[first]
            self._line = self._make_line(self._collection)
            differing = [node for node in self._collected if self._differs(node)]
            if differing:
                self.drain("the workers have not collected the same items")
        self._dispatch()

    def _differs(self, node: Worker) -> bool:
        """Whether a worker has collected other items than the first one; told as a failed collection."""
        if self._collected[node] == self._collection:
            self._collected[node] = self._collection  # the same object, for there may be very many of it
            return False
        from xdist.report import report_collection_diff

        name = node.gateway.id
        text = (
            report_collection_diff(self._collection, self._collected[node], self._first, name)
            or f"{self._first} and {name} have collected the same items in different orders"
        )
        report = pytest.CollectReport(nodeid=name, outcome="failed", longrepr=text, result=[])
        self.config.hook.pytest_collectreport(report=report)
        return True

    def mark_test_complete(self, node: Worker, item_index: int, duration: float = 0) -> None:
        """Let the next one start in the place of one that is over."""
        if self._line is None or item_index == len(self._collection):  # the tick
            return
        if self._running.get(node) != item_index:  # of a worker that was given up
            return
        self._running[node] = None
        self._line.done(item_index)
        self._dispatch()

    def mark_test_pending(self, item: str) -> None:
        """Let an item run again."""
        if self._line is not None and self.drained is None:
            self._line.put_back(self._collection.index(item))
            self._dispatch()

    def remove_node(self, node: Worker) -> str | None:
        """Let go of a worker; returns what it was running.

        Raises:
            KeyError: there is no such worker.
        """
        index = self._running.pop(node)
        if self._line is None:
            return None
        self._collected.pop(node, None)
        self._deaf.discard(node)
        if index is None:
            return None
        self._line.done(index)
        self._dispatch()
        return self._collection[index]

    def remove_pending_tests_from_node(self, node: Worker, indices: Sequence[int]) -> None:
        """Look whether something can start by now; nothing ever waits at a worker that could be taken back."""
        if list(indices) == _PULSE:
            self.pulse()
            return
        self._looking = False
        self._dispatch()

    def wake(self) -> None:
        """Have ``pulse`` called by xdist's own loop; may be asked for in any thread."""
        for node in list(self._running)[:1]:
            node.notify_inproc("unscheduled", node=node, indices=_PULSE)

    def drain(self, reason: str) -> None:
        """Start nothing any more; what runs goes on to its end, and then the session ends."""
        if self.drained is None:
            self.drained = reason
            self.ends(reason)
        if self._line is not None:
            self._line.clear()

    def _dispatch(self) -> None:
        line = self._line
        free = [node for node, running in self._running.items() if running is None and self._serves(node)]
        if line is None or not line.waiting or not free:
            return
        outside = self._outside()
        for node in free:
            if outside.queued:
                break
            index = line.next(outside.need)
            if index is None and outside.need != NOTHING:
                index = line.next()
                outside = Outside(outside.need, queued=index is not None)
            if index is None:
                return
            self._start(line, index, node)
        if outside.queued and line.waiting:
            self._look_again(free[0])

    def _start(self, line: Line, index: int, node: Worker) -> None:
        try:
            node.send_runtest_some([index, len(self._collection)])
        except OSError:
            # It has just died and xdist is about to say so; what never reached it can go to another one.
            self._deaf.add(node)
            line.done(index)
            line.put_back(index)
        else:
            self._running[node] = index

    def _serves(self, node: Worker) -> bool:
        usable = node not in self._deaf and not node.shutting_down
        return usable and self._collected.get(node) is self._collection

    def _look_again(self, node: Worker) -> None:
        """Have ``remove_pending_tests_from_node`` called in a moment, by xdist's own loop."""
        if self._looking:
            return
        self._looking = True
        timer = threading.Timer(_LOOK_AGAIN_SECONDS, _wake, (node,))
        timer.daemon = True
        timer.start()


def _wake(node: Worker) -> None:
    node.notify_inproc("unscheduled", node=node, indices=[])


class LateScheduling:
    """Stands in for a scheduler until the first worker has collected, and then for whichever was chosen.

    xdist asks for a scheduler before anything is collected. Whoever has no trials must not notice that somebody
    stood in, so from then on this looks like the scheduler that the user asked for.
    """

    def __init__(self, usual: Any, choose: Callable[[Any], Any]) -> None:
        self._usual = usual
        self._choose = choose
        self._chosen: Any = None
        self._early: list[Worker] = []

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of what this stands for, which xdist prints."""
        return type(self if self._chosen is None else self._chosen)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen if self._chosen is not None else self._usual, name)

    @property
    def nodes(self) -> list[Worker]:
        """The workers."""
        nodes: list[Worker] = self._early if self._chosen is None else self._chosen.nodes
        return list(nodes)

    @property
    def collection_is_completed(self) -> bool:
        """Whether all workers of the beginning have collected."""
        return self._chosen is not None and self._chosen.collection_is_completed

    @property
    def tests_finished(self) -> bool:
        """Whether there is nothing to do any more."""
        return self._chosen is not None and self._chosen.tests_finished

    @property
    def has_pending(self) -> bool:
        """Whether anything waits or runs."""
        return self._chosen is not None and self._chosen.has_pending

    def add_node(self, node: Worker) -> None:
        """Take in a worker that has not collected yet."""
        if self._chosen is None:
            self._early.append(node)
        else:
            self._chosen.add_node(node)

    def remove_node(self, node: Worker) -> str | None:
        """Let go of a worker; returns what it was running.

        Raises:
            KeyError: there is no such worker.
        """
        if self._chosen is not None:
            crashed: str | None = self._chosen.remove_node(node)
            return crashed
        if node not in self._early:
            raise KeyError(node)
        self._early.remove(node)
        return None

    def add_node_collection(self, node: Worker, collection: Sequence[str]) -> None:
        """Choose the scheduler, when this is the first worker that has collected."""
        if self._chosen is None:
            self._chosen = self._choose(self._usual)
            for early in self._early:
                self._chosen.add_node(early)
        self._chosen.add_node_collection(node, collection)
