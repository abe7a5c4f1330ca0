"""What all client connections of one process share: limits, the memory for request bodies, and the clock that ends the slow ones."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.wire.front import FrontProtocol

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FrontLimits:
    """Limits of one client connection; `_s` are seconds, the rest bytes or counts. May be replaced while connections are open."""

    header_bytes: int = 65536
    headers: int = 200
    max_body_bytes: int = 64 << 20
    header_timeout_s: float = 10
    body_timeout_s: float = 60
    keepalive_s: float = 120
    write_stall_s: float = 60


class BodyBudget:
    """The memory that all request bodies together may hold, in bytes."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, n: int) -> bool:
        """Take `n` bytes; False, and nothing taken, when they do not fit."""
        if self.used + n > self.limit:
            return False
        self.used += n
        return True

    def give(self, n: int) -> None:
        """Give `n` taken bytes back."""
        self.used -= n


class FrontShared:
    """One per process. The owner calls `sweep` a few times a second, and `drain` when the process is to end.

    Connections have no timers of their own: a timer per request costs more than looking at all connections four times a second.
    """

    def __init__(
        self,
        limits: FrontLimits,
        budget: BodyBudget,
        *,
        now: Callable[[], float] = time.monotonic,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.limits = limits
        self.budget = budget
        self.connections: set[FrontProtocol] = set()
        self.draining = False
        self.now = now
        self.call_soon = call_soon or asyncio.get_running_loop().call_soon

    def sweep(self, now: float) -> None:
        """Let each connection look at its deadlines. `now` is in the seconds of `self.now`."""
        for front in tuple(self.connections):
            try:
                front.check(now)
            except Exception:
                # One connection's fault must not stop the clock of all others.
                _log.exception("A client connection failed in the sweep and was dropped.")
                front.transport.abort()

    def drain(self) -> None:
        """Take no further requests on open connections: idle ones close now, the others with their answer."""
        self.draining = True
        self.sweep(self.now())
