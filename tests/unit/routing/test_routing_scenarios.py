"""Routing as a whole under loads that have broken other routers, simulated with an injected clock."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from gateway.fleet import ReplicaState
from gateway.fleet.facts import Signals
from gateway.routing import Decision, Query, Router
from tests.unit.routing.fleet_fakes import configure, ended, fleet, prefilled, prompt, query, router, send


def run(
    routes: Router, replicas: list[ReplicaState], arrivals: Iterable[tuple[float, Query]], prefill_s: float, answer_s: float
) -> list[str]:
    """Send requests at their times; each shows its first token and ends after fixed times. Return who got them."""
    running: list[tuple[float, int, bool, Decision]] = []
    chosen: list[str] = []
    for number, (now, request) in enumerate(arrivals):
        while running and running[0][0] <= now:
            _, _, over, decision = heapq.heappop(running)
            (ended if over else prefilled)(decision)
            if over:
                routes.settled(decision, decision.replica, None, None)  # type: ignore[arg-type]
            else:
                routes.first_token(decision)
        decision = send(routes, request, replicas, now)
        assert decision.replica is not None
        chosen.append(decision.replica.id)
        heapq.heappush(running, (now + prefill_s, 2 * number, False, decision))
        heapq.heappush(running, (now + answer_s, 2 * number + 1, True, decision))
    return chosen


def test_a_burst_between_two_scrapes_is_spread() -> None:
    """40 distinct prompts at once while the metrics stand still: each of 4 replicas gets 10 of them, give or take 3."""
    for blocks in (0, 1, 16, 120):
        replicas = fleet(4, signals=Signals(running=0, waiting=0, kv_usage=0.1))
        chosen = Counter(run(router(), replicas, ((0.0, query(prompt(n, blocks))) for n in range(40)), 1.0, 2.0))
        assert all(7 <= chosen[replica.id] <= 13 for replica in replicas), (blocks, chosen)


def test_a_shared_prefix_stays_on_one_replica_while_that_is_idle() -> None:
    """8 KiB in common, one request each 300 ms, answers of 100 ms: at least nine in ten go to one replica."""
    shared = prompt(0, 32)
    chosen = Counter(run(router(), fleet(4), ((0.3 * n, query(prompt(n + 1, 36, shared))) for n in range(60)), 0.05, 0.1))
    assert max(chosen.values()) >= 54


def test_a_shared_prefix_is_spread_when_its_replica_is_busy() -> None:
    """200 at once with 8 KiB in common: nobody holds more than one and a half times the mean."""
    shared = prompt(0, 32)
    chosen = Counter(run(router(), fleet(4), ((0.0, query(prompt(n + 1, 36, shared))) for n in range(200)), 3.0, 3.0))
    assert max(chosen.values()) <= 75


def test_a_cache_miss_looks_at_load() -> None:
    """R1 has 20 slow requests, R2 is idle with a large known prefix: nearly all of 20 new unique prompts go to R2."""
    for blocks in (0, 16):
        replicas, routes = fleet(2), router()
        for n in range(20):
            prefilled(send(routes, query(prompt(n, blocks)), replicas[:1]))
        known = send(routes, query(prompt(1000, 500)), replicas[1:])
        prefilled(known)
        ended(known)
        chosen: Counter[str] = Counter()
        for n in range(20):
            decision = send(routes, query(prompt(2000 + n, blocks)), replicas)
            prefilled(decision)
            chosen[decision.replica.id] += 1  # type: ignore[union-attr]
        assert chosen["r2"] >= 18, (blocks, chosen)


def test_idle_replicas_share_unique_prompts() -> None:
    """60 prompts, one at a time, 4 idle replicas: each gets 15 of them, give or take 6."""
    for blocks in (0, 1, 2, 16):
        replicas = fleet(4)
        chosen = Counter(run(router(), replicas, ((float(n), query(prompt(n, blocks))) for n in range(60)), 0.1, 0.2))
        assert all(9 <= chosen[replica.id] <= 21 for replica in replicas), (blocks, chosen)


def test_of_two_holders_the_one_with_room_is_taken() -> None:
    """R1 at its cap, R2 at mean load with the prefix, R3 slightly lower without it: R2."""
    replicas, routes = fleet(3), router()
    for replica in replicas[:2]:
        prefilled(send(routes, query(prompt(1, 40)), [replica]))
    configure(replicas[0], max_inflight=12)
    replicas[0].server.inflight = 12
    replicas[1].server.inflight, replicas[2].server.inflight = 8, 6
    assert send(routes, query(prompt(1, 40)), replicas).replica is replicas[1]
    configure(replicas[0], max_inflight=None)
    replicas[0].server.inflight = 30
    assert send(routes, query(prompt(1, 40)), replicas).replica is replicas[1]


def test_a_hot_prefix_grows_from_one_holder_to_the_next() -> None:
    """Under rising load it is given to a second and a third replica, not to all at once."""
    replicas, routes = fleet(8), router()
    holders = []
    for n in range(30):
        send(routes, query(prompt(n + 1, 36, prompt(0, 32))), replicas)
        holders.append(sum(routes.index.match(replica.server.key, prompt(0, 32)) == 32 for replica in replicas))
    assert holders[3] == 1
    assert holders == sorted(holders)
    assert 3 <= holders[-1] <= 6


def test_two_gateways_that_do_not_talk_agree_on_new_prompts() -> None:
    """With the same names and the same seed, by far the most prompts get the same home from both."""
    replicas = fleet(8)
    one, other = router(), router()
    agreed = 0
    for n in range(200):
        agreed += one.plan(query(prompt(n)), replicas, 0.0).replica is other.plan(query(prompt(n)), replicas, 0.0).replica
        for routes, repeats in ((one, 1), (other, 1)):
            decision = routes.plan(query(prompt(1000 + n + 10_000 * (routes is one))), replicas, 0.0)
            for _ in range(repeats):
                routes.placed(decision, decision.replica, 0.0)  # type: ignore[arg-type]
    assert agreed >= 140


def test_a_long_cold_prompt_does_not_flatten_the_choice() -> None:
    """1/(q+1) hardly moves for prompts of many steps; the backlog decides then."""
    replicas = fleet(3)
    replicas[0].server.backlog, replicas[1].server.backlog = 6000, 3000
    decision = send(router(), query(prompt(1, 12_000)), replicas)
    assert decision.replica is replicas[2]
    assert decision.reason == "backlog"


def test_a_recovering_replica_is_not_flooded() -> None:
    """It comes back empty among busy ones, and takes a growing share instead of everything."""
    replicas, routes = fleet(4), router()
    replicas[3].server.since = 0.0
    for replica in replicas[:3]:
        replica.server.inflight = 40
    counts: Counter[float] = Counter()
    for now in (0.5, 40.0):
        for _ in range(30):
            decision = send(routes, query(), replicas, now)
            prefilled(decision)
            counts[now] += decision.replica is replicas[3]
    assert counts[0.5] <= 6
    assert counts[40.0] >= 28
