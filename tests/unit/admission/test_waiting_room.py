"""The waiting room: bounded, in turn, and nobody stands in the way of those who wait for something else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.admission.waiting import WaitingRoom


@dataclass(eq=False)
class Guest:
    """Somebody who waits."""

    model: str = "m"
    lane: str = ""

    def expired(self) -> None:
        raise AssertionError("the room tells nobody by itself")


@pytest.fixture
def room() -> WaitingRoom[Guest]:
    return WaitingRoom(4)


def test_the_first_to_come_is_the_first_to_go(room: WaitingRoom[Guest]) -> None:
    """Each model has its own order."""
    a, b, other = Guest(), Guest(), Guest("other")
    assert all(room.enter(guest, 9) for guest in (a, other, b))
    assert (room.heads("m"), room.heads("other"), room.heads("nobody's")) == ([a], [other], [])
    room.leave(a)
    assert (room.heads("m"), room.waiting, sorted(room.models())) == ([b], 2, ["m", "other"])


def test_each_lane_has_a_head_and_the_oldest_is_the_first(room: WaitingRoom[Guest]) -> None:
    """Also when a lane was empty in between."""
    pinned, free, pinned_too, late = Guest(lane="r1"), Guest(), Guest(lane="r1"), Guest()
    for guest in (pinned, free, pinned_too):
        room.enter(guest, 9)
    assert room.heads("m") == [pinned, free]
    room.leave(free)
    room.leave(pinned)
    room.enter(late, 9)
    assert room.heads("m") == [pinned_too, late]


def test_a_full_room_takes_nobody_until_somebody_leaves(room: WaitingRoom[Guest]) -> None:
    """All models and lanes together."""
    guests = [Guest(), Guest("other"), Guest(lane="r1"), Guest()]
    assert [room.enter(guest, 9) for guest in (*guests, Guest())] == [True] * 4 + [False]
    room.leave(guests[2])
    assert room.enter(Guest(), 9)


def test_leaving_twice_or_without_having_come_does_no_harm(room: WaitingRoom[Guest]) -> None:
    """The count stays right."""
    guest = Guest()
    room.leave(guest)
    room.enter(guest, 9)
    room.leave(guest)
    room.leave(guest)
    assert (room.waiting, room.models()) == (0, [])


def test_those_whose_time_is_up_are_taken_out(room: WaitingRoom[Guest]) -> None:
    """From every lane, in the middle too; the others stay."""
    times = {Guest(): 1.0, Guest(lane="r1"): 3.0, Guest("other"): 2.0, Guest(): 5.0}
    for guest, until in times.items():
        room.enter(guest, until)
    assert {times[guest] for guest in room.overdue(2.0)} == {1.0, 2.0}
    assert (room.waiting, [times[guest] for guest in room.heads("m")]) == (2, [3.0, 5.0])
    assert list(room.overdue(2.0)) == []
