"""Plans over arbitrary fleets: filters bind, weights keep their total, and every term pulls in its own direction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.fleet import ReplicaState, ServerState
from gateway.fleet.facts import Signals
from gateway.routing.filters import Candidates
from gateway.routing.policies import POLICIES
from gateway.routing.query import Weights
from gateway.routing.scoring import SCORE, measure, terms
from tests.unit.routing.fleet_fakes import prompt, query, replica_at, router, server_at

shares = st.floats(0, 1)
weights = st.builds(Weights, *[st.floats(0, 10)] * 4).filter(lambda w: sum(w) > 0.01)
servers = st.fixed_dictionaries(
    {
        "signals": st.builds(Signals, kv_usage=st.none() | shares),
        "inflight": st.integers(0, 300),
        "backlog": st.integers(0, 100_000),
        "kv_booked": st.integers(-100_000, 100_000),
        "foreign_running": st.none() | st.floats(0, 50),
        "foreign_waiting": st.none() | st.floats(0, 50),
        "capacity": st.none() | st.integers(1, 1_000_000),
        "since": st.floats(-1000, 1000),
        "slots": st.sampled_from([0, 1, 256]),
    }
)
replicas = st.lists(
    st.tuples(servers, st.none() | st.integers(0, 50), st.none() | st.integers(1, 9000), st.sampled_from([None, None, "down", "draining"])),
    max_size=7,
)


def build(rows: list[tuple[dict[str, Any], int | None, int | None, str | None]]) -> list[ReplicaState]:
    return [
        replica_at(f"r{n}", server_at(f"k{n}", **state), fault=fault, max_inflight=limit, context_length=context)
        for n, (state, limit, context, fault) in enumerate(rows)
    ]


@settings(max_examples=300, deadline=None)
@given(
    replicas,
    st.sampled_from(sorted(POLICIES)),
    st.integers(0, 60),
    st.sets(st.sampled_from(["r0", "r1", "r2"])),
    st.none() | st.integers(0, 9),
)
def test_a_plan_never_picks_a_filtered_replica(rows: list[Any], policy: str, blocks: int, exclude: set[str], session: int | None) -> None:
    """Whatever the policy: the choice is usable, large enough if any is, not tried before, below its limit; all are accounted for."""
    fleet = build(rows)
    routes = router(policy=policy)
    asked = query(prompt(1, blocks), exclude=tuple(exclude), session=session, max_tokens=100)
    decision = routes.plan(asked, fleet, 1000.0)
    refused = {
        r.id
        for r in fleet
        if r.usable(1000.0) or r.id in exclude or (r.settings.max_inflight is not None and r.server.inflight >= r.settings.max_inflight)
    }
    need = asked.tokens * 0.75 + 100
    healthy = [r for r in fleet if not r.usable(1000.0)]
    fitting = [r for r in healthy if (r.context_length or need) >= need] or healthy
    assert (decision.replica is None) == ({r.id for r in fitting} <= refused)
    if decision.replica is not None:
        assert decision.replica in fitting
        assert decision.replica.id not in {name for name, _ in decision.filtered} | refused
        assert 0.0 <= decision.hit <= 1.0
        assert 0 <= decision.uncached <= asked.tokens
        assert decision.replica not in decision.ranked
    assert refused <= {name for name, _ in decision.filtered}
    assert {name for name, _ in decision.filtered} | {row[0] for row in decision.rows} == {r.id for r in fleet}
    decision.explain()


def score(at: ServerState, matched: int, tokens: int, given_weights: Weights, confidence: float = 1.0) -> float:
    one = measure(Candidates([replica_at("r", at)], []), [matched], {"k": confidence}, tokens, 64.0, given_weights)
    return one[0][SCORE]


@given(servers, weights, st.integers(0, 100), st.integers(1, 10_000))
def test_weights_keep_their_total_whatever_is_unknown(state: dict[str, Any], given_weights: Weights, matched: int, tokens: int) -> None:
    """Effective weights add up to the configured total, contributions to the score, and the score stays within the total."""
    rows = measure(Candidates([replica_at("r", server_at("k", **state))], []), [matched], {}, tokens, 64.0, given_weights)
    explained = terms(rows[0], given_weights)
    total = sum(given_weights)
    known = sum(term["weight"] or 0.0 for term in explained.values())
    if known:
        assert known == pytest.approx(total)
        assert sum(term["contribution"] or 0.0 for term in explained.values()) == pytest.approx(rows[0][SCORE])
    assert -1e-9 <= rows[0][SCORE] <= total * (1 + 1e-9)


@given(servers, weights, st.integers(0, 100), st.integers(1, 10_000), st.integers(1, 5000))
def test_more_load_never_raises_a_score(state: dict[str, Any], given_weights: Weights, matched: int, tokens: int, more: int) -> None:
    """Each input alone: requests, backlog, KV in use, foreign work."""
    base = score(server_at("k", **state), matched, tokens, given_weights)
    heavier = [
        {"inflight": state["inflight"] + more},
        {"backlog": state["backlog"] + more},
        {"kv_booked": state["kv_booked"] + more},
        {"foreign_running": (state["foreign_running"] or 0.0) + more},
        {"foreign_waiting": (state["foreign_waiting"] or 0.0) + more},
    ]
    assert all(score(server_at("k", **{**state, **load}), matched, tokens, given_weights) <= base + 1e-9 for load in heavier)


@given(servers, weights, st.integers(0, 100), st.integers(1, 100), st.integers(1, 10_000), shares)
def test_a_longer_or_surer_match_never_lowers_a_score(
    state: dict[str, Any], given_weights: Weights, matched: int, more: int, tokens: int, confidence: float
) -> None:
    """What is cached need not be computed."""
    holder = server_at("k", **state)
    base = score(holder, matched, tokens, given_weights, confidence)
    assert score(holder, matched + more, tokens, given_weights, confidence) >= base - 1e-9
    assert score(holder, matched, tokens, given_weights, 1.0) >= base - 1e-9


@settings(deadline=None)
@given(replicas, st.integers(1, 60))
def test_planning_is_free_of_side_effects(rows: list[Any], blocks: int) -> None:
    """The same question twice has the same answer."""
    fleet = build(rows)
    routes = router()
    assume(fleet)
    first, second = (routes.plan(query(prompt(1, blocks)), fleet, 1000.0) for _ in range(2))
    assert (first.replica, first.reason, list(first.rows), first.filtered) == (
        second.replica,
        second.reason,
        list(second.rows),
        second.filtered,
    )
