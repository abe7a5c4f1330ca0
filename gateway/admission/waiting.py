"""Requests that no replica can take right now, first come first served. Pure: time is passed in.

Whoever can only be served by certain replicas (a pinned request, a very long prompt) stands in a lane with its like: a replica that
becomes free must not stay idle because the oldest request waits for another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


class Waiter(Protocol):
    """A request that waits; `expired` is called once when its time is up. `lane`: equal for those the same replicas can serve."""

    model: str
    lane: Hashable

    def expired(self) -> None: ...


W = TypeVar("W", bound=Waiter)


class Place(NamedTuple):
    """Where a waiter stands: `number` in order of arrival, `until` in seconds."""

    number: int
    until: float


class WaitingRoom(Generic[W]):
    """One bounded room for all models; a place is an entry in an ordered dict, so leaving is O(1) from anywhere."""

    __slots__ = ("_arrivals", "_lanes", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting = 0
        self._arrivals = 0
        self._lanes: dict[str, dict[Hashable, dict[W, Place]]] = {}

    def enter(self, waiter: W, until: float) -> bool:
        """Let a request wait until the given time; False when the room is full."""
        if self.waiting >= self.size:
            return False
        self._arrivals += 1
        self._lanes.setdefault(waiter.model, {}).setdefault(waiter.lane, {})[waiter] = Place(self._arrivals, until)
        self.waiting += 1
        return True

    def leave(self, waiter: W) -> None:
        """Take a request out, wherever it stands; no harm when it is not there."""
        lanes = self._lanes.get(waiter.model, {})
        lane = lanes.get(waiter.lane, {})
        if lane.pop(waiter, None) is None:
            return
        self.waiting -= 1
        if not lane:
            del lanes[waiter.lane]
        if not lanes:
            del self._lanes[waiter.model]

    def heads(self, model: str) -> list[W]:
        """Of each lane the request that has waited longest for this model, the oldest first."""
        firsts = (next(iter(lane.items())) for lane in self._lanes.get(model, {}).values())
        return [waiter for waiter, _ in sorted(firsts, key=lambda first: first[1].number)]

    def models(self) -> list[str]:
        """The models somebody waits for."""
        return list(self._lanes)

    def overdue(self, now: float) -> Iterator[W]:
        """Take out, and yield, everyone whose time is up."""
        everyone = (entry for lanes in self._lanes.values() for lane in lanes.values() for entry in lane.items())
        for waiter in [waiter for waiter, place in everyone if place.until <= now]:
            self.leave(waiter)
            yield waiter
