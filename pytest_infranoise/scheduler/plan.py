"""From what was planned to the line that it waits in: needs, order and what is recorded of both."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import TrialKey
from pytest_infranoise.scheduler.budget import Admit
from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.budget import need_of
from pytest_infranoise.scheduler.line import MOST_OVERTAKES
from pytest_infranoise.scheduler.line import Line
from pytest_infranoise.scheduler.line import Place
from pytest_infranoise.scheduler.order import Order
from pytest_infranoise.scheduler.order import blocks
from pytest_infranoise.scheduler.order import packed
from pytest_infranoise.scheduler.order import shuffled


class Estimates:
    """Seconds that trials are expected to take, from earlier runs: of a task in a config, else of the task."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self._usual = sum(seconds.values()) / len(seconds) if seconds else 1.0

    @staticmethod
    def names(key: TrialKey) -> tuple[str, str]:
        """Return under which names a trial's time is kept, the most specific first."""
        agent = f"{key.agent}({key.model})"
        return f"{key.task}::{agent}-{key.config}", f"{key.task}::{agent}"

    def of(self, key: TrialKey) -> float:
        """Return the seconds expected of a trial; those of the mean trial when nothing is known of it."""
        return next((self._seconds[name] for name in self.names(key) if name in self._seconds), self._usual)


@dataclass(frozen=True, slots=True)
class Policy:
    """How trials are put in line, as the user chose.

    ``as_collected`` keeps the order of collection where ``order`` is shuffled: that one is shuffled already, and
    then sorted by what the user wants to see first (``--ff``, ``--nf``).
    """

    order: Order
    admit: Admit
    seed: int
    capacity: Capacity
    estimates: Estimates = field(default_factory=lambda: Estimates({}))
    as_collected: bool = False


def order_of(trials: Sequence[tuple[TrialKey, Allocation]], policy: Policy) -> list[list[int]]:
    """Return the order to run trials in, as blocks of indices; one block unless the user asked for blocks."""
    keys = [key for key, _ in trials]
    if policy.order == "blocks":
        return blocks(keys, policy.seed)
    if policy.order == "shuffled":
        return [list(range(len(keys))) if policy.as_collected else shuffled(keys, policy.seed)]

    def work(index: int) -> float:
        key, allocation = trials[index]
        need = need_of(allocation, policy.capacity, policy.admit)
        return need.share(policy.capacity) * policy.estimates.of(key)

    return [packed(keys, policy.seed, work)]


def make_line(ids: Sequence[str], trials: Mapping[str, tuple[TrialKey, Allocation]], policy: Policy) -> Line:
    """Return the line of all collected items, called by their indices in ``ids``.

    Whatever is no trial reserves nothing and goes first, in the order of collection: beside trials it would be
    noise of our own making.
    """
    # A block of their own, because whoever stands in another one cannot overtake them.
    others = [Place(index, block=-1) for index, name in enumerate(ids) if name not in trials]
    ours = [index for index, name in enumerate(ids) if name in trials]
    asked = [trials[ids[index]] for index in ours]
    places = [
        Place(ours[trial], need_of(allocation, policy.capacity, policy.admit), key.config, block)
        for block, members in enumerate(order_of(asked, policy))
        for trial in members
        for key, allocation in (asked[trial],)
    ]
    return Line(
        [*others, *places],
        policy.capacity,
        overtakes=None if policy.order == "packed" else MOST_OVERTAKES,
        alone=policy.order == "blocks",
    )
