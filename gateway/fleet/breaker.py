"""Circuit breaker of one server: passive health from the outcome of real requests.

    closed ──`failures` in a row, or `ratio` of at least `min_requests` in `window_s`──▶ open
    open ──after `cooldown_s`──▶ half open: one real request may try
    half open ──it succeeds──▶ closed        half open ──it fails──▶ open again

What is no failure and no success (4xx, back-pressure, a client that left) is never recorded. Results of requests that began before
the breaker opened say nothing about the time after and do not close it. Pure: time is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from gateway.settings import BreakerSettings

State = Literal["closed", "open", "half_open"]

_BUCKETS: Final = 10


class Breaker:
    """`probe` is whatever token stands for the one request in flight while half open; None: nobody tries."""

    __slots__ = ("_failed", "_index", "_total", "consecutive", "opened_at", "probe", "rules")

    def __init__(self, rules: BreakerSettings) -> None:
        self.rules = rules
        self.opened_at: float | None = None
        self.probe: object | None = None
        self._forget()

    def __repr__(self) -> str:
        return f"<Breaker opened_at={self.opened_at} consecutive={self.consecutive} failed={sum(self._failed)}/{sum(self._total)}>"

    def state(self, now: float) -> State:
        """The state at this time."""
        if self.opened_at is None:
            return "closed"
        return "half_open" if now >= self.retry_at() else "open"

    def retry_at(self) -> float:
        """When an open breaker lets its probe through."""
        return (self.opened_at or 0.0) + self.rules.cooldown_s

    def allows(self, now: float) -> bool:
        """May a request be sent now? While half open, only when no other one is trying."""
        return self.opened_at is None or (self.probe is None and now >= self.retry_at())

    def succeeded(self, now: float, began: float) -> bool:
        """Record a success of a request sent at `began`; True when it closes the breaker."""
        self.consecutive = 0
        if self.opened_at is None:
            self._total[self._slot(now)] += 1
            return False
        if began < self.opened_at:
            return False
        self.opened_at = self.probe = None
        self._forget()
        return True

    def failed(self, now: float) -> bool:
        """Record a failure; True when it opens the breaker, also again."""
        slot = self._slot(now)
        self._total[slot] += 1
        self._failed[slot] += 1
        self.consecutive += 1
        if self.opened_at is None:
            opens = self._tripped()
        else:
            opens = now >= self.retry_at()
        if opens:
            self.opened_at = now
            self.probe = None
        return opens

    def _tripped(self) -> bool:
        rules = self.rules
        if self.consecutive >= rules.failures:
            return True
        total = sum(self._total)
        return total >= rules.min_requests and sum(self._failed) >= rules.ratio * total

    def _forget(self) -> None:
        self.consecutive = 0
        self._index = -1
        self._total = [0] * _BUCKETS
        self._failed = [0] * _BUCKETS

    def _slot(self, now: float) -> int:
        index = int(now * _BUCKETS / self.rules.window_s)
        passed = index - self._index
        if passed > 0:
            for i in range(index, index - min(passed, _BUCKETS), -1):
                self._total[i % _BUCKETS] = self._failed[i % _BUCKETS] = 0
            self._index = index
        return self._index % _BUCKETS
