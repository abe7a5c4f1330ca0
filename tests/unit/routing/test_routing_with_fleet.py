"""Routing over the real fleet table: the two rooms fit together."""

from __future__ import annotations

from collections import Counter

from gateway.fleet import ReplicaState, Table, facts
from gateway.routing import Decision, Router
from gateway.settings import Settings
from tests.unit.routing.fleet_fakes import prompt, query

URLS = [f"http://10.0.0.{n}:8000" for n in range(1, 5)]
SETTINGS = Settings.model_validate({"models": [{"name": "m", "replicas": [{"id": f"r{n}", "url": url} for n, url in enumerate(URLS, 1)]}]})


def table() -> Table:
    """Four vLLM servers, up, listed and scraped once at second 1."""
    made = Table(SETTINGS, 0.0)
    for server in made.servers():
        made.apply(facts.Identified(server.key, "vllm", "0.12", facts.Traits(step_tokens=2048, max_num_seqs=256)), 1.0)
        made.apply(facts.Listed(server.key, (facts.ModelInfo("m", max_model_len=32_768),)), 1.0)
        made.apply(facts.Probed(server.key, ok=True), 1.0)
        made.apply(facts.Scraping(server.key), 1.0)
        signals = facts.Signals(running=0.0, waiting=0.0, kv_usage=0.1, kv_tokens=100_000, block_size=16)
        made.apply(facts.Scraped(server.key, signals), 1.0)
    return made


def send(routes: Router, fleet: Table, chain: tuple[int, ...], now: float = 2.0) -> tuple[Decision, ReplicaState]:
    candidates, fail_open = fleet.candidates("m", now)
    decision = routes.plan(query(chain), candidates, now, fail_open=fail_open)
    assert decision.replica is not None
    routes.placed(decision, decision.replica, now)
    fleet.book(decision.replica, uncached=decision.uncached, prompt=decision.tokens, streamed=True, now=now)
    return decision, decision.replica


def test_a_burst_is_spread_by_what_the_table_books() -> None:
    """40 distinct prompts between two scrapes."""
    routes, fleet = Router(SETTINGS), table()
    counts = Counter(send(routes, fleet, prompt(n))[1].id for n in range(40))
    assert all(7 <= counts[f"r{n}"] <= 13 for n in range(1, 5))


def test_the_index_takes_the_engines_capacity() -> None:
    """100,000 tokens at four bytes, in blocks of 256 bytes."""
    routes, fleet = Router(SETTINGS), table()
    for n in range(700):
        send(routes, fleet, prompt(n, 40))
    assert set(routes.index_blocks().values()) <= {1562}
    assert max(routes.index_blocks().values()) == 1562


def test_a_drained_replica_is_left_and_its_prompts_find_another_home() -> None:
    """The fleet's next verdict is a new one."""
    routes, fleet = Router(SETTINGS), table()
    _, home = send(routes, fleet, prompt(1))
    assert send(routes, fleet, prompt(1))[1] is home
    fleet.apply(facts.Draining(home.id), 3.0)
    _, other = send(routes, fleet, prompt(1), 3.0)
    assert other is not home
    assert send(routes, fleet, prompt(1), 3.0)[1] is other
    fleet.apply(facts.Undrained(home.id), 4.0)
    assert send(routes, fleet, prompt(1), 4.0)[0].hit == 1.0


def test_a_restart_seen_by_the_fleet_empties_the_replicas_index() -> None:
    """The table's callback is all it takes."""
    routes, fleet = Router(SETTINGS), table()
    fleet.on_restart.append(routes.forget)
    _, home = send(routes, fleet, prompt(1))
    signals = facts.Signals(running=0.0, prompt_tokens=500.0)
    fleet.apply(facts.Scraped(home.server.key, signals), 3.0)
    fleet.apply(facts.Scraped(home.server.key, facts.Signals(running=0.0, prompt_tokens=0.0)), 4.0)
    assert routes.index_blocks()[home.id] == 0


def test_all_down_is_failed_open() -> None:
    """The least bad is tried."""
    routes, fleet = Router(SETTINGS), table()
    for server in fleet.servers():
        for now in (3.0, 4.0, 5.0):
            fleet.apply(facts.Probed(server.key, ok=False), now)
    candidates, fail_open = fleet.candidates("m", 6.0)
    assert fail_open
    assert routes.plan(query(prompt(1)), candidates, 6.0, fail_open=True).replica is not None
