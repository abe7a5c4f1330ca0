"""A small fleet to test with: servers that are up and list the model `m`, and a clock that is a plain number."""

from __future__ import annotations

from typing import Any

from gateway.fleet import ModelInfo, ReplicaState, ServerState, Signals, Table, Traits, facts
from gateway.settings import Settings


def url(n: int) -> str:
    return f"http://10.0.0.{n}:8000"


def config(replicas: int = 2, **replica: Any) -> dict[str, Any]:
    entries = [{"id": f"r{n}", "url": url(n), **replica} for n in range(1, replicas + 1)]
    return {"models": [{"name": "m", "aliases": ["alias"], "replicas": entries}]}


def settings(replicas: int = 2, **sections: Any) -> Settings:
    return Settings.model_validate(config(replicas) | sections)


def listed(*names: str, parent: str | None = None) -> tuple[ModelInfo, ...]:
    return tuple(ModelInfo(name, root=name, parent=parent) for name in names)


def bring_up(table: Table, server: ServerState, now: float = 0.0, models: tuple[ModelInfo, ...] | None = None) -> None:
    table.apply(facts.Identified(server.key, "vllm", "0.12.0", Traits(step_tokens=2048, max_num_seqs=256, usage_hint="(hint)")), now)
    table.apply(facts.Listed(server.key, listed("m") if models is None else models), now)
    table.apply(facts.Probed(server.key, ok=True), now)


def fleet(replicas: int = 2, now: float = 0.0, **sections: Any) -> Table:
    table = Table(settings(replicas, **sections), now)
    for server in table.servers():
        bring_up(table, server, now)
    return table


def scrape(table: Table, server: ServerState, now: float, **signals: Any) -> None:
    table.apply(facts.Scraping(server.key), now)
    table.apply(facts.Scraped(server.key, Signals(**signals)), now)


def ids(table: Table, now: float, model: str = "m") -> list[str]:
    return [r.id for r in table.candidates(model, now)[0]]


def fails_open(table: Table, now: float) -> bool:
    return table.candidates("m", now)[1]


def r(table: Table, replica_id: str = "r1") -> ReplicaState:
    found = table.replica(replica_id)
    assert found is not None
    return found


def settled(table: Table, outcome: facts.Outcome, now: float, replica: str = "r1", times: int = 1, **more: Any) -> None:
    for _ in range(times):
        table.apply(facts.Settled(replica=replica, outcome=outcome, **more), now)
