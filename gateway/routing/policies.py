"""How one of the measured candidates is picked. A policy takes the rows and returns one of them and the rule that decided.

`weighted` takes the best score. Scores within 1 % are ties, resolved in order by

1. backlog: the least uncached prefill waiting, where it differs by more than one engine step;
2. inflight: the fewest requests, where they differ clearly;
3. rendezvous: the order of the replicas' names hashed with the prompt's first blocks, so that gateways that do not talk to
   each other choose alike; a replica far ahead of the others in recent placements is passed over, so a hot prefix
   spreads to a second and third holder;
4. least_recent: for prompts without a whole block, the replica used longest ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gateway.routing.hashing import leading, rendezvous
from gateway.routing.history import History
from gateway.routing.query import Query
from gateway.routing.scoring import BACKLOG, BUSY, ID, SCORE, STEP, Row

Choice = tuple[Row, str]
Policy = Callable[[Sequence[Row], Query, History], Choice]

_TIE: Final = 0.99
_GUARD_SLACK: Final = 4.0


def guard(rows: list[Row], factor: float, shares: Sequence[float] | None) -> tuple[list[Row], float]:
    """Leave out replicas with more than `factor` * mean + 4 requests; return the rest (all, if none is left) and the limit.

    A slow-starting replica's limit is scaled down by its share.
    """
    loads = [row[BUSY] for row in rows]
    limit = factor * sum(loads) / len(loads) + _GUARD_SLACK
    if shares is not None:
        loads = [load / share for load, share in zip(loads, shares, strict=True)]
    if max(loads) <= limit:
        return rows, limit
    return [row for row, load in zip(rows, loads, strict=True) if load <= limit] or rows, limit


def weighted(rows: Sequence[Row], query: Query, history: History) -> Choice:
    """The best score; near-equal ones by the tie rules above."""
    floor = max([row[SCORE] for row in rows]) * _TIE
    near = [row for row in rows if row[SCORE] >= floor]
    if len(near) == 1:
        return near[0], "score"
    idle = _least_backlog(near)
    if len(idle) == 1:
        return idle[0], "backlog"
    free = _fewest(idle)
    if len(free) == 1:
        return free[0], "inflight"
    if query.chain:
        return _by_name(free, leading(query.chain), history), "rendezvous"
    return history.least_recent(free), "least_recent"


def least_request(rows: Sequence[Row], _query: Query, history: History) -> Choice:
    """The fewest requests in flight; among equals the one used longest ago."""
    fewest = min(row[BUSY] for row in rows)
    return history.least_recent([row for row in rows if row[BUSY] == fewest]), "least_request"


def round_robin(rows: Sequence[Row], _query: Query, history: History) -> Choice:
    """Each in turn: the one used longest ago, whatever joined or left meanwhile."""
    return history.least_recent(rows), "round_robin"


def session(rows: Sequence[Row], query: Query, history: History) -> Choice:
    """Rendezvous on the session key over what the load guard left, so a session moves only when its replica is unfit.

    Requests without a session key go by the prompt's first blocks, or else to the fewest requests.
    """
    if query.session is not None:
        return rendezvous([(row[ID], row) for row in rows], query.session), "session"
    if query.chain:
        return _by_name(rows, leading(query.chain), history), "rendezvous"
    return least_request(rows, query, history)


def _least_backlog(rows: list[Row]) -> list[Row]:
    backlogs = [row[BACKLOG] for row in rows]
    least = min(backlogs)
    limit = least + rows[backlogs.index(least)][STEP]
    return rows if max(backlogs) <= limit else [row for row in rows if row[BACKLOG] <= limit]


def _fewest(rows: list[Row]) -> list[Row]:
    # Equal scores say nothing about decoding requests when slots are plenty. The slack leaves room for rendezvous at low
    # load, and grows with what chance alone makes of the counts.
    loads = [row[BUSY] for row in rows]
    fewest = min(loads)
    limit = fewest + 2 + fewest / 8
    return rows if max(loads) <= limit else [row for row in rows if row[BUSY] <= limit]


def _by_name(rows: Sequence[Row], key: int, history: History) -> Row:
    most = history.share_limit([row[ID] for row in rows])
    return rendezvous([(row[ID], row) for row in rows if history.recent(row[ID]) <= most], key)


# name: (policy, does the load guard apply?)
POLICIES: Final[dict[str, tuple[Policy, bool]]] = {
    "weighted": (weighted, True),
    "least_request": (least_request, True),
    "round_robin": (round_robin, False),
    "session": (session, True),
}
