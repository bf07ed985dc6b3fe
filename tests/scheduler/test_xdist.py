"""The scheduler against workers that are none: they write down what they are sent."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.budget import Need
from pytest_infranoise.scheduler.line import Line
from pytest_infranoise.scheduler.line import Place
from pytest_infranoise.scheduler.xdist import LateScheduling
from pytest_infranoise.scheduler.xdist import Outside
from pytest_infranoise.scheduler.xdist import TrialScheduling

CAPACITY = Capacity(8.0, 1000)


@dataclass(eq=False)
class Node:
    """A worker as xdist's controller sees it; ``broken`` is one whose channel is closed already."""

    name: str
    sent: list[list[int]] = field(default_factory=list)
    shutting_down: bool = False
    broken: bool = False
    woken: threading.Event = field(default_factory=threading.Event)
    events: list[Any] = field(default_factory=list)

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=self.name)

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        if self.broken:
            raise OSError("cannot send to <Channel closed>")
        self.sent.append(list(indices))

    def notify_inproc(self, eventname: str, **kwargs: object) -> None:
        assert eventname == "unscheduled"
        assert kwargs["node"] is self
        self.events.append(kwargs["indices"])
        self.woken.set()


class Config:
    """The one hook that is called when workers collect different things."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.hook = self

    def pytest_collectreport(self, report: Any) -> None:
        self.reports.append(report)


def ids(number: int) -> list[str]:
    return [f"suite/t{index}/task.yaml::1x-0" for index in range(number)]


def made(
    memory: Sequence[int], workers: int, outside: Any = None, **options: Any
) -> tuple[TrialScheduling, list[Node], Config]:
    """Return a scheduler whose workers have collected trials of these sizes, and which has begun."""
    config: Any = Config()
    places = [Place(index, Need(0.1, size)) for index, size in enumerate(memory)]
    arguments = () if outside is None else (outside,)
    found = TrialScheduling(config, workers, lambda names: Line(places, CAPACITY, **options), *arguments)
    nodes = [Node(f"gw{number}") for number in range(workers)]
    for node in nodes:
        found.add_node(node)
    for node in nodes:
        assert not found.collection_is_completed
        assert not found.tests_finished
        found.add_node_collection(node, ids(len(memory)))
    assert found.collection_is_completed
    found.schedule()
    return found, nodes, config


def running(nodes: Sequence[Node], scheduler: TrialScheduling) -> Iterator[tuple[Node, int]]:
    for node in nodes:
        index = scheduler._running.get(node)
        if index is not None:
            yield node, index


@given(
    st.lists(st.integers(1, 1000), max_size=30),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
    st.floats(0, 0.3),
)
def test_every_item_is_sent_once_and_workers_die_at_will(
    memory: list[int], workers: int, draw: random.Random, mortality: float
) -> None:
    scheduler, nodes, _ = made(memory, workers)
    ended: list[int] = []
    while not scheduler.tests_finished:
        busy = list(running(nodes, scheduler))
        assert busy
        assert sum(memory[index] for _, index in busy) <= CAPACITY.memory
        node, index = draw.choice(busy)
        assert node.sent[-1] == [index, len(memory)]
        ended.append(index)
        if draw.random() < mortality:
            assert scheduler.remove_node(node) == ids(len(memory))[index]
            nodes.remove(node)
            replacement = Node(f"{node.name}+")
            nodes.append(replacement)
            scheduler.add_node(replacement)
            assert scheduler.collection_is_completed
            scheduler.add_node_collection(replacement, ids(len(memory)))
            scheduler.schedule()
        else:
            scheduler.mark_test_complete(node, index)
            scheduler.mark_test_complete(node, len(memory))  # the tick, as soon as the next item comes

    assert sorted(ended) == list(range(len(memory)))
    assert scheduler.waiting == 0


def test_a_worker_has_one_item_at_a_time_and_a_tick_behind_it() -> None:
    scheduler, nodes, _ = made([100] * 5, 2)

    assert [node.sent for node in nodes] == [[[0, 5]], [[1, 5]]]
    scheduler.mark_test_complete(nodes[1], 1)
    assert [node.sent for node in nodes] == [[[0, 5]], [[1, 5], [2, 5]]]


def test_what_does_not_fit_waits_though_workers_are_free() -> None:
    scheduler, nodes, _ = made([600, 600, 600], 3)

    assert [len(node.sent) for node in nodes] == [1, 0, 0]
    scheduler.mark_test_complete(nodes[0], 0)
    assert sum(len(node.sent) for node in nodes) == 2


def test_nothing_is_sent_to_workers_that_shut_down() -> None:
    scheduler, nodes, _ = made([100] * 9, 2)
    for node in nodes:
        node.shutting_down = True
    scheduler.mark_test_complete(nodes[0], 0)
    scheduler.mark_test_complete(nodes[1], 1)

    assert [len(node.sent) for node in nodes] == [1, 1]
    assert [scheduler.remove_node(node) for node in nodes] == [None, None]
    assert scheduler.waiting == 7
    assert scheduler.has_pending


def test_draining_lets_what_runs_end_and_starts_nothing() -> None:
    made_of, nodes, _ = made([100] * 9, 2)
    scheduler: Any = made_of

    told: list[str] = []
    scheduler.ends = told.append
    scheduler.drain("the disk is full")
    scheduler.drain("and something else")

    assert scheduler.drained == "the disk is full"
    assert told == ["the disk is full"]
    assert not scheduler.tests_finished
    scheduler.mark_test_complete(nodes[0], 0)
    scheduler.mark_test_pending(ids(9)[0])
    assert not scheduler.tests_finished
    scheduler.mark_test_complete(nodes[1], 1)
    assert scheduler.tests_finished
    assert [len(node.sent) for node in nodes] == [1, 1]


def test_an_item_that_runs_again_is_sent_again() -> None:
    scheduler, nodes, _ = made([100] * 2, 1)
    assert scheduler.remove_node(nodes[0]) == ids(2)[0]
    scheduler.mark_test_pending(ids(2)[0])
    late = Node("gw1")
    scheduler.add_node(late)
    scheduler.add_node_collection(late, ids(2))
    scheduler.schedule()

    assert late.sent == [[0, 2]]
    scheduler.mark_test_complete(late, 0)
    assert late.sent == [[0, 2], [1, 2]]


def test_what_cannot_be_sent_to_a_dead_worker_goes_to_another() -> None:
    scheduler, nodes, _ = made([100] * 3, 2)
    nodes[0].broken = True
    scheduler.mark_test_complete(nodes[0], 0)
    assert scheduler.remove_node(nodes[0]) is None

    scheduler.mark_test_complete(nodes[1], 1)

    assert nodes[1].sent == [[1, 3], [2, 3]]


def test_workers_that_collected_different_items_run_nothing() -> None:
    config: Any = Config()
    scheduler = TrialScheduling(config, 2, lambda names: Line([Place(0), Place(1)], CAPACITY))
    nodes = [Node("gw0"), Node("gw1")]
    for node, names in zip(nodes, (ids(2), ids(2)[::-1]), strict=True):
        scheduler.add_node(node)
        scheduler.add_node_collection(node, names)
    scheduler.schedule()

    assert scheduler.tests_finished
    assert [node.sent for node in nodes] == [[], []]
    [report] = config.reports
    assert report.failed
    assert scheduler.drained is not None


def test_a_late_worker_that_collected_something_else_ends_the_session() -> None:
    scheduler, nodes, config = made([100] * 4, 1)
    scheduler.remove_node(nodes[0])
    late = Node("gw1")
    scheduler.add_node(late)
    scheduler.add_node_collection(late, ids(3))
    scheduler.schedule()

    assert scheduler.tests_finished
    assert late.sent == []
    assert [report.nodeid for report in config.reports] == ["gw1"]


def test_an_unknown_worker_cannot_be_removed() -> None:
    scheduler, _, _ = made([100], 1)

    with pytest.raises(KeyError):
        scheduler.remove_node(Node("gw9"))


@dataclass
class Neighbour:
    """Another session's part of the ledger."""

    outside: Outside = field(default_factory=Outside)

    def __call__(self) -> Outside:
        return self.outside


def test_room_that_another_session_holds_is_left_to_it() -> None:
    neighbour = Neighbour(Outside(Need(0, 700)))

    _, nodes, _ = made([400, 200, 100, 300], 4, neighbour)

    # Nothing else fits beside them, so nobody is sent to wait in the ledger but the one whose turn it is.
    sent = [message[0] for node in nodes for message in node.sent]
    assert sent == [3, 0]


def test_while_one_waits_in_the_ledger_no_other_is_sent_there_and_somebody_looks_again() -> None:
    neighbour = Neighbour(Outside(Need(0, 1000)))
    scheduler, nodes, _ = made([400, 200, 100], 2, neighbour)
    assert [len(node.sent) for node in nodes] == [1, 0]
    neighbour.outside = Outside(Need(0, 1000), queued=True)

    assert nodes[0].woken.wait(60)
    scheduler.remove_pending_tests_from_node(nodes[0], [])
    assert [len(node.sent) for node in nodes] == [1, 0]

    neighbour.outside = Outside()
    scheduler.remove_pending_tests_from_node(nodes[0], [])
    assert [len(node.sent) for node in nodes] == [1, 1]


class Usual:
    """A scheduler of somebody else's."""

    extra = "its own"

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.collected: list[Node] = []

    def add_node(self, node: Node) -> None:
        self.nodes.append(node)

    def remove_node(self, node: Node) -> str:
        self.nodes.remove(node)
        return "crashed"

    def add_node_collection(self, node: Node, collection: Sequence[str]) -> None:
        self.collected.append(node)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self.collected)

    tests_finished = has_pending = collection_is_completed


def test_whoever_has_no_trials_gets_the_scheduler_that_was_asked_for() -> None:
    usual = Usual()
    late: Any = LateScheduling(usual, lambda inner: inner)
    nodes = [Node("gw0"), Node("gw1"), Node("gw2")]
    for node in nodes:
        late.add_node(node)
    assert late.remove_node(nodes[0]) is None
    with pytest.raises(KeyError):
        late.remove_node(nodes[0])
    assert late.nodes == nodes[1:]
    assert usual.nodes == []
    assert [late.collection_is_completed, late.tests_finished, late.has_pending] == [False] * 3

    late.add_node_collection(nodes[1], ["one"])

    assert usual.nodes == nodes[1:]
    assert usual.collected == [nodes[1]]
    assert late.__class__ is Usual
    assert late.extra == "its own"
    assert late.collection_is_completed
    assert late.tests_finished
    assert late.has_pending
    assert late.remove_node(nodes[2]) == "crashed"
    late.add_node(nodes[0])
    assert late.nodes == [nodes[1], nodes[0]]


def test_the_choice_is_made_once() -> None:
    usual, chosen = Usual(), Usual()
    choices = iter([chosen])
    late: Any = LateScheduling(usual, lambda inner: next(choices))
    node = Node("gw0")
    late.add_node(node)
    late.add_node_collection(node, ["one"])
    late.add_node_collection(node, ["one"])

    assert chosen.collected == [node, node]
    assert usual.nodes == []


def test_who_only_wants_to_be_woken_makes_nobody_look_for_room() -> None:
    asked = []

    def outside() -> Outside:
        asked.append(1)
        return Outside()

    scheduler, nodes, _ = made([100, 100, 100], 2, outside)
    pulses: list[int] = []
    scheduler.pulse = lambda: pulses.append(1)
    before = len(asked)
    scheduler.wake()

    [indices] = nodes[0].events
    scheduler.remove_pending_tests_from_node(nodes[0], indices)

    assert pulses == [1]
    assert len(asked) == before
    for node in nodes:
        scheduler.remove_node(node)
    scheduler.wake()  # nobody is left to be woken by
    assert len(nodes[0].events) == 1
