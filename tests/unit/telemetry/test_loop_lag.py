"""Measuring how late the loop is."""

from __future__ import annotations

import asyncio

from gateway.telemetry import LoopLag
from tests.unit.telemetry.telemetry_fakes import Timers


class Clock:
    """A clock the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def started() -> tuple[LoopLag, Timers, Clock]:
    """A measurement under way."""
    clock, timers = Clock(), Timers()
    lag = LoopLag(timers, interval_s=0.25, clock=clock)  # type: ignore[arg-type]  # all it needs of a loop
    lag.start()
    return lag, timers, clock


def test_lag_is_the_time_beyond_the_interval() -> None:
    """Asked for in 0.25 s and called after 0.3 s is 0.05 s late."""
    lag, timers, clock = started()
    clock.now += 0.3
    timers.fire()
    assert round(lag.histogram.sum, 6) == 0.05
    assert round(lag.worst, 6) == 0.05


def test_it_goes_on_until_stopped() -> None:
    """One timer at a time, and none after the end."""
    lag, timers, clock = started()
    for _ in range(3):
        clock.now += 0.25
        timers.fire()
        assert len(timers.pending) == 1
    assert sum(lag.histogram.counts) == 3
    lag.stop()
    assert timers.pending == []


def test_a_call_that_comes_early_is_not_late() -> None:
    """Timers are rounded; lag is never negative."""
    lag, timers, clock = started()
    clock.now += 0.2499
    timers.fire()
    assert lag.histogram.sum == 0.0


def test_the_worst_is_forgotten_after_two_minutes_and_not_before_one() -> None:
    """A peak outlives several scrapes, whoever reads it."""
    lag, timers, clock = started()
    clock.now += 1.25
    timers.fire()
    seen = []
    for _ in range(600):
        clock.now += 0.25
        timers.fire()
        seen.append(lag.worst)
    assert seen[: 4 * 58] == [1.0] * (4 * 58)
    assert seen[4 * 121 :] == [0.0] * len(seen[4 * 121 :])


async def test_it_notices_blocking_work_on_a_real_loop() -> None:
    """What blocks the loop shows."""
    clock = Clock()
    lag = LoopLag(asyncio.get_running_loop(), interval_s=0.0, clock=clock)
    lag.start()
    clock.now += 0.5
    while not sum(lag.histogram.counts):
        await asyncio.sleep(0)
    lag.stop()
    assert lag.worst == 0.5
