"""The router's life around a plan: booking, restarts, settings."""

from __future__ import annotations

from gateway.routing import Router
from tests.unit.routing.fleet_fakes import ended, fleet, prefilled, prompt, query, replica_at, router, send, settings


def test_a_plan_alone_books_nothing() -> None:
    """Only `placed` changes what later plans see."""
    routes, replicas = router(), fleet(2)
    routes.plan(query(prompt(1)), replicas, 0.0)
    assert routes.index.memory == 0
    assert routes.plan(query(prompt(1)), replicas, 0.0).hit == 0.0


def test_a_burst_of_equal_prompts_sees_its_own_first_member() -> None:
    """The choice is booked before the next request is looked at."""
    routes, replicas = router(), fleet(4)
    decisions = [send(routes, query(prompt(1, 20)), replicas) for _ in range(4)]
    assert len({decision.replica.id for decision in decisions}) == 1  # type: ignore[union-attr]
    assert [decision.hit for decision in decisions] == [0.0, 1.0, 1.0, 1.0]
    assert [decision.uncached for decision in decisions] == [1280, 0, 0, 0]


def test_placing_elsewhere_than_planned_books_elsewhere() -> None:
    """The decision then speaks of the replica that got the request."""
    routes, replicas = router(), fleet(2)
    decision = routes.plan(query(prompt(1)), replicas, 0.0)
    other = decision.ranked[0]
    assert other is not decision.replica
    routes.placed(decision, other, 0.0)
    assert decision.replica is other
    assert routes.index.match(other.server.key, prompt(1)) == 16


def test_ranked_names_the_rest_best_first_and_guarded_ones_last() -> None:
    """In this order they would be tried."""
    routes, replicas = router(), fleet(4)
    for replica, inflight in zip(replicas, (50, 9, 3, 0), strict=True):
        replica.server.inflight = inflight
    decision = routes.plan(query(), replicas, 0.0)
    assert [r.id for r in decision.ranked] == [f"r{n}" for n in (4, 3, 2, 1) if f"r{n}" != decision.replica.id]  # type: ignore[union-attr]
    assert decision.left_out == ("r1",)


def test_a_restart_empties_a_replicas_cache() -> None:
    """And nothing of the others'."""
    routes, replicas = router(), fleet(2)
    first = send(routes, query(prompt(1)), replicas)
    second = send(routes, query(prompt(1)), [r for r in replicas if r is not first.replica])
    routes.forget(first.replica)  # type: ignore[arg-type]
    decision = routes.plan(query(prompt(1)), replicas, 0.0)
    assert decision.replica is second.replica


def test_replicas_at_one_server_share_its_cache_until_the_last_is_gone() -> None:
    """The cache belongs to the engine, not to the model's name for it."""
    routes = router()
    first = fleet(1)[0]
    twin = replica_at("twin", first.server)
    send(routes, query(prompt(1)), [first])
    send(routes, query(prompt(2)), [twin])
    assert routes.index_blocks() == {"r1": 32, "twin": 32}
    routes.removed(first)  # type: ignore[arg-type]
    assert routes.index_blocks() == {"twin": 32}
    routes.removed(twin)  # type: ignore[arg-type]
    routes.removed(twin)  # type: ignore[arg-type]
    assert routes.index_blocks() == {}
    assert routes.index.memory == 0


def test_the_engines_capacity_bounds_what_is_believed() -> None:
    """Capacity in tokens, at four bytes a token and 256 bytes a block."""
    routes, replicas = router(), fleet(1, capacity=6400)
    for n in range(30):
        send(routes, query(prompt(n)), replicas)
    assert routes.index.blocks(replicas[0].server.key) == 100


def test_new_settings_change_policy_and_keep_what_was_learned() -> None:
    """Affinity survives a reload."""
    routes, replicas = router(), fleet(2)
    holder = send(routes, query(prompt(1)), replicas).replica
    routes.reconfigure(settings(policy="round_robin", load_guard=2.0))
    assert routes.plan(query(prompt(1)), replicas, 0.0).policy == "round_robin"
    routes.reconfigure(settings())
    assert routes.plan(query(prompt(1)), replicas, 0.0).replica is holder
    routes.reconfigure(settings(block_bytes=512))
    assert routes.index.memory == 0


def test_requests_without_a_prompt_are_placed_too() -> None:
    """Audio, or a body nobody could read."""
    routes, replicas = router(), fleet(2)
    decision = send(routes, query(tokens=0), replicas)
    assert (decision.hit, decision.uncached) == (0.0, 0)
    prefilled(decision)
    ended(decision)
    routes.settled(decision, decision.replica, 50, 0)  # type: ignore[arg-type]
    assert routes.index.memory == 0


def test_the_index_may_be_given() -> None:
    """One index can serve several routers."""
    routes = router()
    assert Router(settings(), routes.index).index is routes.index
