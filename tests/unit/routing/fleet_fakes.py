"""Replicas as routing sees them, with every input settable, and the settings it reads."""

from __future__ import annotations

from typing import Any

from gateway.fleet import ReplicaState, ServerState
from gateway.routing import Decision, Query, Router
from gateway.settings import BreakerSettings, ReplicaSettings, Settings

_SERVER = ReplicaSettings(url="http://replica:8000")


def server_at(key: str, *, capacity: int | None = 400_000, step: int = 2048, slots: int = 256, **state: Any) -> ServerState:
    """A server that is up, with the given sizes and state."""
    made = ServerState(key, _SERVER, BreakerSettings())
    made.health = "up"
    made._capacity, made._step, made._slots = capacity, step, slots
    for name, value in state.items():
        setattr(made, name, value)
    return made


def replica_at(replica_id: str, at: ServerState, *, fault: str | None = None, **settings: Any) -> ReplicaState:
    """A replica of model `m` there; `settings` are configured limits."""
    made = ReplicaState(replica_id, "m", at, _SERVER.model_copy(update=settings), "config")
    made.served = "m"
    if fault is not None:
        disable(made, fault)
    return made


def disable(replica: ReplicaState, fault: str = "down") -> None:
    """Its server goes down, or drains."""
    replica.server.draining = fault == "draining"
    replica.server.health = "up" if fault == "draining" else "down"


def enable(replica: ReplicaState) -> None:
    """It can serve again."""
    replica.server.draining = False
    replica.server.health = "up"


def configure(replica: ReplicaState, **settings: Any) -> None:
    """Change configured limits."""
    replica.settings = replica.settings.model_copy(update=settings)


def fleet(count: int, **state: Any) -> list[ReplicaState]:
    """Replicas r1, r2 … whose servers all have the given state."""
    return [replica_at(f"r{n}", server_at(f"http://r{n}:8000", **state)) for n in range(1, count + 1)]


def settings(**routing: Any) -> Settings:
    """Settings that differ from the defaults in the routing section alone."""
    return Settings.model_validate({"routing": routing})


def router(**routing: Any) -> Router:
    """A router with the default settings but for the given ones."""
    return Router(settings(**routing))


def prompt(name: int, blocks: int = 16, shared: tuple[int, ...] = ()) -> tuple[int, ...]:
    """A chain of `blocks` hashes that nothing else shares but for its leading ones."""
    start = (name + 1) << 32
    return shared + tuple(range(start + len(shared), start + blocks))


def query(chain: tuple[int, ...] = (), **parts: Any) -> Query:
    """A query for a prompt of 64 tokens per block."""
    parts = {"tokens": 64 * len(chain) or 20, "size": 256 * len(chain), **parts}
    return Query("m", chain, **parts)


def send(router: Router, query: Query, replicas: list[ReplicaState], now: float = 1000.0) -> Decision:
    """Plan and book, in the router and at the server, as a gateway does before anything else happens."""
    decision = router.plan(query, replicas, now)
    if decision.replica is not None:
        router.placed(decision, decision.replica, now)
        decision.replica.server.inflight += 1
        decision.replica.server.backlog += decision.uncached
    return decision


def prefilled(decision: Decision) -> None:
    """The request's first token has been seen."""
    assert decision.replica is not None
    decision.replica.server.backlog -= decision.uncached


def ended(decision: Decision) -> None:
    """The request is over."""
    assert decision.replica is not None
    decision.replica.server.inflight -= 1
