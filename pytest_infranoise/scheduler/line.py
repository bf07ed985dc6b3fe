"""The line in which trials wait: who may start now, given what runs and what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_infranoise.scheduler.budget import NOTHING
from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.budget import Need
from pytest_infranoise.scheduler.budget import total

# With more, large floors start late and small ones early: a task's size is then confounded with the time of day.
MOST_OVERTAKES = 5
# How far behind the head one may come from. Choosing from few is as good as from many, and keeps the order.
LOOK_AHEAD = 8


@dataclass(frozen=True, slots=True)
class Place:
    """One item in the line.

    Args:
        index: what the item is called outside.
        need: what it reserves.
        config: the config that it has to itself in a line with ``alone``; empty when it may run beside any.
        block: nobody overtakes one who stands in another block.
    """

    index: int
    need: Need = NOTHING
    config: str = ""
    block: int = 0


class Line:
    """Items waiting and running within a capacity. Pure: it neither starts anything nor looks at a clock.

    The head goes first as soon as it fits. Within ``look_ahead`` of it, the item that takes most of the host is
    preferred among those that fit, so that what is left over can be filled by small ones; but nobody is overtaken
    more than ``overtakes`` times. With ``overtakes`` None the first that fits is taken, however far behind, which
    suits a line that is sorted by size. With ``alone`` only items of one config run at a time.
    """

    def __init__(
        self,
        places: Sequence[Place],
        capacity: Capacity,
        *,
        overtakes: int | None = MOST_OVERTAKES,
        look_ahead: int = LOOK_AHEAD,
        alone: bool = False,
    ) -> None:
        self._places = {place.index: place for place in places}
        self._waiting = list(places)
        self._running: dict[int, Place] = {}
        self._overtaken = dict.fromkeys(self._places, 0)
        self._capacity = capacity
        self._overtakes = overtakes
        self._look_ahead = look_ahead
        self._alone = alone

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[int, ...]:
        """What runs."""
        return tuple(self._running)

    @property
    def reserved(self) -> Need:
        """What everything that runs has reserved."""
        return total(place.need for place in self._running.values())

    def overtaken(self, index: int) -> int:
        """Return how often an item was overtaken."""
        return self._overtaken[index]

    def next(self, others: Need = NOTHING) -> int | None:
        """Take the item that may start now; None when none may. ``others`` is in use by somebody else."""
        position = self._position(self.reserved + others)
        if position is None:
            return None
        for place in self._waiting[:position]:
            self._overtaken[place.index] += 1
        chosen = self._waiting.pop(position)
        self._running[chosen.index] = chosen
        return chosen.index

    def _position(self, used: Need) -> int | None:
        ahead = len(self._waiting) if self._overtakes is None else self._look_ahead
        configs = {place.config for place in self._running.values() if place.config} if self._alone else set()
        too_large: set[Need] = set()
        found: int | None = None
        largest = -1.0
        for position, place in enumerate(self._waiting[:ahead]):
            if place.block != self._waiting[0].block:
                break
            if place.need not in too_large and not (place.need + used).fits(self._capacity):
                too_large.add(place.need)
            if place.need not in too_large and (not configs or place.config in ("", *configs)):
                if self._overtakes is None:
                    return position
                if place.need.share(self._capacity) > largest:
                    found, largest = position, place.need.share(self._capacity)
            if self._overtakes is not None and self._overtaken[place.index] >= self._overtakes:
                break
        return found

    def done(self, index: int) -> None:
        """Give back what an item had reserved.

        Raises:
            KeyError: it does not run.
        """
        del self._running[index]

    def put_back(self, index: int) -> None:
        """Let an item wait again that ran already; at the head, for it has waited its turn."""
        place = self._places[index]
        head = self._waiting[0].block if self._waiting else place.block
        self._waiting.insert(0, Place(index, place.need, place.config, head))

    def clear(self) -> list[int]:
        """Let nobody wait any more; returns who did."""
        left = [place.index for place in self._waiting]
        self._waiting.clear()
        return left
