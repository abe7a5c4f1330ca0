"""What the end of an attempt teaches about its server: one reaction per outcome. `ok` and failures feed the breaker, 4xx never do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.fleet.facts import FAILURES, Settled
from gateway.fleet.state import MEAN_PROMPT, REFUSES_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.fleet.state import ServerState
    from gateway.fleet.table import Table

BACK_OFF_S: Final = 0.5  # after 429 and 503 without retry-after
LONGEST_BACK_OFF_S: Final = 10.0  # whatever retry-after says

# A replica is suspect when at least half of 20 or more requests were refused with 4xx, four times its peers' share: a fast wrong
# answer must not draw traffic.
_SUSPECT_REQUESTS: Final = 20
_SUSPECT_SHARE: Final = 0.5
_SUSPECT_TIMES: Final = 4.0
_PEER_REQUESTS: Final = 10

_SMOOTH: Final = 0.1


def settle(table: Table, fact: Settled, now: float) -> None:
    """Take in how an attempt ended."""
    server = table.server_of(fact)
    if server is None:
        return
    outcome = fact.outcome
    if outcome == "ok":
        _ok(table, server, fact, now)
    elif outcome in FAILURES:
        if server.breaker.failed(now):
            table.changed()
    else:
        reaction = _REACTIONS.get(outcome)
        if reaction is not None:
            reaction(table, server, fact, now)


def _ok(table: Table, server: ServerState, fact: Settled, now: float) -> None:
    server.alive_at = now
    server.requests += 1
    if server.breaker.succeeded(now, now - fact.duration):
        server.since = now
        table.changed()
    if fact.tpot is not None:
        server.tpot = fact.tpot if server.tpot is None else server.tpot + _SMOOTH * (fact.tpot - server.tpot)
    if fact.prompt is not None:
        mean = server.mean_prompt
        server.mean_prompt = float(fact.prompt) if mean == MEAN_PROMPT else mean + _SMOOTH * (fact.prompt - mean)
        if fact.cached is not None:
            server.untold = 0
            server.tells_cached = True
        elif fact.completion:
            server.untold += 1


def _client_error(table: Table, server: ServerState, fact: Settled, now: float) -> None:
    server.requests += 1
    server.client_errors += 1
    if server.requests >= _SUSPECT_REQUESTS and server.client_errors >= _SUSPECT_SHARE * server.requests:
        replica = table.replica(fact.replica)
        peers = {r.server for r in table.replicas(replica.model) if r.server is not server} if replica else set()
        asked = sum(p.requests for p in peers)
        refused = sum(p.client_errors for p in peers)
        if asked >= _PEER_REQUESTS and server.client_errors * asked > _SUSPECT_TIMES * refused * server.requests:
            server.requests = server.client_errors = 0
            _back_off(table, server, now + table.settings.breaker.cooldown_s, "suspect: refuses what its peers accept")


def _not_found(table: Table, server: ServerState, fact: Settled, now: float) -> None:
    """A model it listed is gone: leave it out there until the next listing, which is wanted at once. Any other 404 is the client's."""
    served = next((r.served for r in table.replicas(fact.model) if r.id == fact.replica), None)
    if fact.missing and served is not None and served in server.models:
        server.absent.add(served)
        server.listed_at = -1e9
        table.changed()
    else:
        _client_error(table, server, fact, now)


def _backpressure(table: Table, server: ServerState, fact: Settled, now: float) -> None:
    wait = BACK_OFF_S if fact.retry_after is None else min(max(fact.retry_after, 0.0), LONGEST_BACK_OFF_S)
    _back_off(table, server, now + wait, "backing off")


def _auth(table: Table, server: ServerState, _fact: Settled, now: float) -> None:
    _back_off(table, server, now + table.settings.breaker.cooldown_s, REFUSES_KEY)


def _back_off(table: Table, server: ServerState, until: float, reason: str) -> None:
    server.back_off(until, reason)
    table.changed()


_REACTIONS: Final[dict[str, Callable[[Table, ServerState, Settled, float], None]]] = {
    "client_error": _client_error,
    "not_found": _not_found,
    "backpressure": _backpressure,
    "auth": _auth,
}
