"""How late the event loop runs what is due: the one figure that shows blocking work anywhere in the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gateway.telemetry.histogram import LAG, Histogram

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class LoopLag:
    """Asks to be called every `interval_s` and notes by how many seconds it was late.

    `clock` must be finer than the loop's own time, which uvloop gives in whole milliseconds.
    """

    WORST_OF_S = 60.0

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float = 0.25, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self.interval_s = interval_s
        self.histogram = Histogram(LAG)
        self._clock = clock
        self._due = 0.0
        self._worst = (0.0, 0.0)
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure until `stop`."""
        self._since = self._clock()
        self._again()

    def stop(self) -> None:
        """End measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def worst(self) -> float:
        """The worst of the last one to two minutes, in seconds; reading it does not reset it."""
        return max(self._worst)

    def observe(self, now: float) -> None:
        """The call that was due at the time noted came at `now`."""
        lag = max(0.0, now - self._due)
        self.histogram.observe(lag)
        before, current = self._worst
        if now - self._since >= self.WORST_OF_S:
            self._since = now
            before, current = current, 0.0
        self._worst = (before, max(current, lag))

    def _again(self) -> None:
        self._due = self._clock() + self.interval_s
        self._timer = self._loop.call_later(self.interval_s, self._called)

    def _called(self) -> None:
        self.observe(self._clock())
        self._again()
