"""Policies, tie rules and the load guard."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.fleet.facts import Signals
from gateway.routing.history import History
from gateway.routing.policies import guard, weighted
from gateway.routing.scoring import Row
from tests.unit.routing.fleet_fakes import disable, enable, ended, fleet, prefilled, prompt, query, router, send


def row(name: str, score: float, *, busy: float = 0, backlog: float = 0, step: int = 2048) -> Row:
    return (name, score, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, busy, backlog, step)


def pick(*rows: Row, chain: tuple[int, ...] = (), history: History | None = None) -> tuple[str, str]:
    chosen, rule = weighted(rows, query(chain), history or History())
    return chosen[0], rule


def test_the_best_score_wins() -> None:
    """Beyond one per cent there is no tie."""
    assert pick(row("a", 0.5), row("b", 0.6), row("c", 0.59)) == ("b", "score")


def test_among_near_equal_scores_the_least_backlog_wins() -> None:
    """When it differs by more than an engine step."""
    assert pick(row("a", 0.600, backlog=3000), row("b", 0.598, backlog=100), row("c", 0.5)) == ("b", "backlog")


def test_within_a_step_the_fewest_requests_win() -> None:
    """Scores barely see decoding requests when slots are plenty."""
    assert pick(row("a", 0.6, busy=20, backlog=100), row("b", 0.599, busy=3, backlog=900)) == ("b", "inflight")


def test_a_long_prompt_goes_by_name_and_every_gateway_agrees() -> None:
    """Independent gateways choose alike, whatever they did before and however they list the replicas."""
    rows = [row(name, 0.6) for name in "abcdefgh"]
    for n in range(40):
        chosen, rule = pick(*rows, chain=prompt(n))
        assert (chosen, rule) == pick(*rows[::-1], chain=prompt(n, 40, prompt(n)[:4]))
        assert rule == "rendezvous"


def test_a_short_prompt_goes_where_nothing_went_for_longest() -> None:
    """Prompts under one block leave nothing behind worth returning to."""
    history = History()
    for name in "abca":
        history.placed(name)
    assert pick(row("a", 0.6), row("b", 0.6), row("c", 0.6), history=history) == ("b", "least_recent")
    assert pick(row("a", 0.6), row("d", 0.6), history=history) == ("d", "least_recent")


def test_a_name_that_always_wins_is_passed_over_when_it_is_far_ahead() -> None:
    """One hot name spreads to its second and third choice."""
    history = History()
    rows = [row(name, 0.6) for name in "abcd"]
    counts: Counter[str] = Counter()
    for _ in range(100):
        chosen, _ = pick(*rows, chain=prompt(1), history=history)
        history.placed(chosen)
        counts[chosen] += 1
    assert max(counts.values()) <= 30
    assert min(counts.values()) >= 10


def test_recent_placements_fade() -> None:
    """What was long ago does not count for ever."""
    history = History()
    for _ in range(10_000):
        history.placed("a")
    for _ in range(400):
        history.placed("b")
    assert history.recent("a") <= history.share_limit(["a", "b"])
    history.forget("a")
    assert history.least_recent([row("a", 1), row("b", 1)])[0] == "a"


def test_the_guard_leaves_out_what_is_far_above_the_mean() -> None:
    """The limit is factor * mean + 4."""
    rows = [row("a", 1, busy=20), row("b", 1, busy=4), row("c", 1, busy=0)]
    assert guard(rows, 1.25, None) == (rows[1:], 14.0)
    assert guard(rows[1:], 1.25, None) == (rows[1:], 6.5)


def test_the_guard_never_leaves_nobody() -> None:
    """With shares every replica may be above its own limit."""
    rows = [row("a", 1, busy=20), row("b", 1, busy=5)]
    assert guard(rows, 1.25, [1.0, 0.1])[0] == rows


def test_a_replica_in_slow_start_gets_its_share_of_the_load() -> None:
    """Three seconds after it came up it takes a tenth of what the others take."""
    replicas = fleet(4)
    replicas[3].server.since = 997.0
    for replica in replicas[:3]:
        replica.server.inflight = 30
    routes = router()
    chosen = [send(routes, query(), replicas).replica.id for _ in range(6)]  # type: ignore[union-attr]
    assert chosen.count("r4") == 4
    replicas[3].server.since = 0.0
    assert send(routes, query(prompt(1)), replicas).replica is replicas[3]


def test_a_fleet_that_starts_together_is_not_held_back() -> None:
    """Slow start is relative to the most settled replica."""
    replicas = fleet(2, since=999.0)
    routes = router()
    assert all(send(routes, query(prompt(1)), replicas).left_out == () for _ in range(4))


def test_without_a_guard_a_hot_prefix_stays_where_it_is() -> None:
    """`load_guard: null` turns it off."""
    replicas = fleet(4, slots=10_000)
    routes = router(load_guard=None)
    chosen = {send(routes, query(prompt(1)), replicas).replica.id for _ in range(100)}  # type: ignore[union-attr]
    assert len(chosen) == 1


@pytest.mark.parametrize("policy", ["weighted", "least_request", "round_robin", "session"])
def test_every_policy_spreads_requests_that_have_nothing_in_common(policy: str) -> None:
    """Four idle replicas and forty short prompts."""
    replicas = fleet(4)
    routes = router(policy=policy)
    counts = Counter(send(routes, query(), replicas).replica.id for _ in range(40))  # type: ignore[union-attr]
    assert all(7 <= counts[replica.id] <= 13 for replica in replicas)


def test_round_robin_takes_each_in_turn_whoever_joins_or_leaves() -> None:
    """No replica is skipped and none is served twice in a turn."""
    replicas = fleet(3)
    routes = router(policy="round_robin")
    assert [send(routes, query(), replicas).replica.id for _ in range(4)] == ["r1", "r2", "r3", "r1"]  # type: ignore[union-attr]
    disable(replicas[1])
    assert [send(routes, query(), replicas).replica.id for _ in range(3)] == ["r3", "r1", "r3"]  # type: ignore[union-attr]
    enable(replicas[1])
    assert send(routes, query(), replicas).replica is replicas[1]


def test_least_request_takes_the_fewest_in_flight_foreign_ones_included() -> None:
    """Long and short prompts count alike."""
    replicas = fleet(3)
    replicas[0].server.inflight, replicas[1].server.inflight, replicas[2].server.foreign_running = 2, 1, 5.0
    routes = router(policy="least_request")
    assert [send(routes, query(), replicas).replica.id for _ in range(3)] == ["r2", "r1", "r2"]  # type: ignore[union-attr]


def test_a_session_stays_on_its_replica_and_fails_over_to_one_other() -> None:
    """And returns when its own replica is back."""
    replicas = fleet(5)
    routes = router(policy="session")

    def where(session: int) -> str:
        decision = routes.plan(query(session=session), replicas, 0.0)
        assert decision.replica is not None
        return decision.replica.id

    homes = {session: where(session) for session in range(200)}
    assert set(homes.values()) == {"r1", "r2", "r3", "r4", "r5"}
    disable(replicas[2])
    assert all(where(session) == homes[session] for session in homes if homes[session] != "r3")
    refuges = {where(session) for session in homes if homes[session] == "r3"}
    assert len(refuges) == 4
    enable(replicas[2])
    assert {session: where(session) for session in range(200)} == homes


def test_a_session_leaves_a_replica_that_is_overloaded() -> None:
    """Bounded load: the session's second choice takes over."""
    replicas = fleet(3)
    routes = router(policy="session")
    home = send(routes, query(session=1), replicas).replica
    assert home is not None
    home.server.inflight = 50
    moved = send(routes, query(session=1), replicas)
    assert moved.replica is not home
    assert moved.left_out == (home.id,)


def test_kv_pressure_moves_cold_prompts_away() -> None:
    """All else equal, the emptier cache wins."""
    replicas = fleet(2)
    replicas[0].server.signals, replicas[1].server.signals = Signals(kv_usage=0.9), Signals(kv_usage=0.1)
    decision = send(router(), query(prompt(1)), replicas)
    assert decision.replica is replicas[1]
    assert decision.reason == "score"


def test_a_prompt_returns_to_the_replica_that_holds_it() -> None:
    """The hit outweighs a few requests more in flight."""
    replicas = fleet(3)
    routes = router()
    first = send(routes, query(prompt(1, 30)), replicas)
    prefilled(first)
    again = send(routes, query(prompt(1, 40, prompt(1, 30))), replicas)
    assert again.replica is first.replica
    assert again.hit == pytest.approx(0.75)
    assert again.uncached == 640
    ended(again)
