"""What removes a replica before any scoring, each removal with a reason for the decision record.

Reasons are what the fleet says of an unusable replica (down, draining, breaker open…), and the constants below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.fleet import ReplicaState
    from gateway.routing.query import Query

TRIED: Final = "tried"
NOT_PINNED: Final = "not_pinned"
AT_CAPACITY: Final = "max_inflight"
TOO_LONG: Final = "context_length"
NO_REPLICA: Final = "no_replica"

Filtered = Sequence[tuple[str, str]]
Reason = Callable[["ReplicaState"], str | None]

# Prompt lengths are estimates: only a prompt that is too long even with this share of its tokens is clearly so.
_CERTAIN: Final = 0.75


class Candidates:
    """Replicas of one model that may serve, with what of them does not change from request to request.

    `youngest` is the latest time at which one of them became usable, `least_context` the shortest known context.
    """

    __slots__ = ("filtered", "ids", "keys", "least_context", "limited", "replicas", "servers", "youngest")

    def __init__(self, replicas: Sequence[ReplicaState], filtered: Filtered) -> None:
        self.replicas = replicas
        self.filtered = filtered
        self.ids = [replica.id for replica in replicas]
        self.servers = [replica.server for replica in replicas]
        self.keys = [server.key for server in self.servers]
        self.youngest = max([server.since for server in self.servers], default=-math.inf)
        self.limited = any(replica.settings.max_inflight is not None for replica in replicas)
        self.least_context = min([replica.context_length or math.inf for replica in replicas], default=math.inf)

    def without(self, reason: Reason) -> Candidates:
        """The candidates for which there is no reason against them; the reasons against the others are added to those known."""
        verdicts = [(replica, reason(replica)) for replica in self.replicas]
        refused = [(replica.id, verdict) for replica, verdict in verdicts if verdict is not None]
        if not refused:
            return self
        return Candidates([replica for replica, verdict in verdicts if verdict is None], [*self.filtered, *refused])


def usable(replicas: Sequence[ReplicaState], now: float, *, fail_open: bool) -> Candidates:
    """The replicas the fleet has nothing against; all of them with `fail_open`, when they are the least bad of a fleet that is down."""
    everybody = Candidates(replicas, [])
    return everybody if fail_open else everybody.without(lambda replica: replica.usable(now))


def admit(query: Query, candidates: Candidates) -> Candidates:
    """The candidates that may serve this request."""
    if query.pin is not None:
        candidates = candidates.without(lambda replica: None if replica.id == query.pin else NOT_PINNED)
    need = query.tokens * _CERTAIN + (query.max_tokens or 0)
    if need > candidates.least_context:
        fitting = candidates.without(lambda replica: TOO_LONG if (replica.context_length or need) < need else None)
        # When the request is too long for all of them, the engine explains it best.
        candidates = fitting if fitting.replicas else candidates
    # Only now, lest a long request goes to a small replica while the large ones are full.
    if query.exclude:
        candidates = candidates.without(lambda replica: TRIED if replica.id in query.exclude else None)
    if candidates.limited:
        candidates = candidates.without(_at_capacity)
    return candidates


def _at_capacity(replica: ReplicaState) -> str | None:
    limit = replica.settings.max_inflight
    return AT_CAPACITY if limit is not None and replica.server.inflight >= limit else None


def why_none(filtered: Filtered) -> str:
    """One reason why nothing was left: waiting for a slot helps, so it is named before the others."""
    reasons = [reason for _, reason in filtered]
    if AT_CAPACITY in reasons:
        return AT_CAPACITY
    return next((reason for reason in reasons if reason not in (TRIED, NOT_PINNED)), reasons[0] if reasons else NO_REPLICA)
