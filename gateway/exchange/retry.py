"""When a failed try may be repeated on another replica. Pure: time is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.fleet.facts import Outcome

BACKPRESSURE: Final = (429, 503)

# What the client is told when the last try ended in this way and no replica had an answer of its own.
ERROR_CODES: Final[dict[str, str]] = {
    "connect": "upstream_connect",
    "connect_timeout": "upstream_connect",
    "reset": "upstream_reset",
    "truncated": "upstream_reset",
    "protocol": "upstream_protocol",
    "auth": "upstream_auth",
    "server_error": "upstream_reset",
}


def outcome_of(status: int, *, own_key: bool) -> Outcome:
    """How a replica's status counts. `own_key`: the gateway put in its own credential, so a 401/403 is the operator's fault."""
    if status < 400:
        return "ok"
    if status in BACKPRESSURE:
        return "backpressure"
    if status >= 500 and status != 501:  # 501: the engine is well and lacks the feature, as its peers do
        return "server_error"
    if own_key and status in (401, 403):
        return "auth"
    return "not_found" if status == 404 else "client_error"


# Another replica may do better after these.
RETRYABLE: Final = frozenset({"auth", "backpressure", "server_error", "connect", "reset", "protocol", "truncated"})


class RetryBudget:
    """Second sends are at most `share` of the requests of the last 10 s, and never fewer than `floor` in that time.

    A fleet that fails must not see its load doubled by the gateway's own retries.
    """

    __slots__ = ("_requests", "_retries", "_second", "floor", "share")

    WINDOW_S = 10

    def __init__(self, share: float, floor: int = 10) -> None:
        self.share = share
        self.floor = floor
        self._requests = [0] * self.WINDOW_S
        self._retries = [0] * self.WINDOW_S
        self._second = 0

    def request(self, now: float) -> None:
        """Count one request."""
        self._requests[self._slot(now)] += 1

    def take(self, now: float) -> bool:
        """True, and counted, when one more second send is within the budget."""
        slot = self._slot(now)
        if sum(self._retries) >= max(self.floor, self.share * sum(self._requests)):
            return False
        self._retries[slot] += 1
        return True

    def _slot(self, now: float) -> int:
        second = int(now)
        passed = second - self._second
        if passed:
            for i in range(1, min(passed, self.WINDOW_S) + 1):
                slot = (self._second + i) % self.WINDOW_S
                self._requests[slot] = self._retries[slot] = 0
            self._second = second
        return second % self.WINDOW_S
