"""Who may serve a request at all, and the reason against everybody else."""

from __future__ import annotations

import pytest

from gateway.fleet import ReplicaState
from gateway.routing.filters import why_none
from tests.unit.routing.fleet_fakes import configure, disable, fleet, query, router


def plan(replicas: list[ReplicaState], **parts: object) -> tuple[str | None, dict[str, str], str]:
    decision = router().plan(query(**parts), replicas, 0.0, fail_open=bool(parts.pop("fail_open", False)))
    return decision.replica.id if decision.replica else None, dict(decision.filtered), decision.reason


def test_an_unusable_replica_is_left_out_with_the_fleets_reason() -> None:
    """What the fleet has against a replica is in the record."""
    replicas = fleet(3)
    disable(replicas[0], "down")
    disable(replicas[2], "draining")
    assert plan(replicas) == ("r2", {"r1": "down", "r3": "draining"}, "only_candidate")


def test_failing_open_does_not_ask_whether_they_are_usable() -> None:
    """The least bad of a dead fleet are tried."""
    replicas = fleet(1)
    disable(replicas[0])
    decision = router().plan(query(), replicas, 0.0, fail_open=True)
    assert decision.replica is replicas[0]


def test_a_replica_that_was_tried_is_not_tried_again() -> None:
    """Each further try goes elsewhere."""
    assert plan(fleet(3), exclude=("r1", "r3")) == ("r2", {"r1": "tried", "r3": "tried"}, "only_candidate")


def test_a_pinned_request_goes_to_its_replica_or_nowhere() -> None:
    """A pin is not a preference."""
    replicas = fleet(3)
    assert plan(replicas, pin="r2")[0] == "r2"
    disable(replicas[1])
    assert plan(replicas, pin="r2") == (None, {"r1": "not_pinned", "r2": "down", "r3": "not_pinned"}, "down")
    assert plan(replicas, pin="unheard-of")[0] is None


def test_a_replica_at_its_limit_is_left_out_and_named_first_when_nobody_is_left() -> None:
    """Waiting helps then, so the reason says so."""
    replicas = fleet(2)
    configure(replicas[0], max_inflight=3)
    replicas[0].server.inflight = 3
    assert plan(replicas) == ("r2", {"r1": "max_inflight"}, "only_candidate")
    disable(replicas[1])
    assert plan(replicas) == (None, {"r1": "max_inflight", "r2": "down"}, "max_inflight")
    replicas[0].server.inflight = 2
    assert plan(replicas)[0] == "r1"


def test_a_prompt_that_clearly_does_not_fit_goes_where_it_does() -> None:
    """The prompt's length is an estimate, so near misses are left to the engine."""
    replicas = fleet(2)
    configure(replicas[0], context_length=4096)
    assert plan(replicas, tokens=4000, max_tokens=2000) == ("r2", {"r1": "context_length"}, "only_candidate")
    assert plan(replicas, tokens=4000, max_tokens=500)[1] == {}
    assert plan(replicas, tokens=100, max_tokens=5000)[1] == {"r1": "context_length"}


def test_a_prompt_that_fits_a_full_or_tried_replica_goes_to_no_smaller_one() -> None:
    """A small replica would only refuse it; the large one has room again soon, or has said what is wrong."""
    replicas = fleet(2)
    configure(replicas[0], context_length=4096)
    configure(replicas[1], max_inflight=1)
    replicas[1].server.inflight = 1
    assert plan(replicas, tokens=4000, max_tokens=2000) == (None, {"r1": "context_length", "r2": "max_inflight"}, "max_inflight")
    assert plan(replicas, tokens=4000, max_tokens=2000, exclude=("r2",))[0] is None
    assert plan(replicas, tokens=100)[0] == "r1"


def test_a_prompt_that_fits_nowhere_is_for_the_engine_to_refuse() -> None:
    """The engine's own message tells the client what to do."""
    replicas = fleet(2)
    for replica in replicas:
        configure(replica, context_length=4096)
    chosen, filtered, _ = plan(replicas, tokens=100_000)
    assert chosen is not None
    assert filtered == {}


def test_no_replica_at_all_is_a_reason_too() -> None:
    """An empty model has an answer."""
    assert plan([]) == (None, {}, "no_replica")


@pytest.mark.parametrize(
    ("filtered", "reason"),
    [
        ([], "no_replica"),
        ([("a", "tried")], "tried"),
        ([("a", "tried"), ("b", "down")], "down"),
        ([("a", "not_pinned"), ("b", "down"), ("c", "max_inflight")], "max_inflight"),
    ],
)
def test_the_reason_for_nobody_is_the_one_that_helps_most(filtered: list[tuple[str, str]], reason: str) -> None:
    """A full replica, then an unusable one, then what the request itself ruled out."""
    assert why_none(filtered) == reason


def test_a_verdict_that_still_holds_is_not_questioned_and_a_new_one_is() -> None:
    """The fleet hands out the same tuple until something changes."""
    routes = router()
    replicas = tuple(fleet(2))
    assert routes.plan(query(), replicas, 0.0).replica is not None
    disable(replicas[0])
    decision = routes.plan(query(), (replicas[0],), 0.0)
    assert (decision.replica, decision.reason) == (None, "down")
    for replica in replicas:
        configure(replica, max_inflight=0)
    assert routes.plan(query(), list(replicas), 0.0).reason == "max_inflight"


def test_what_the_fleet_ruled_out_before_is_in_the_record() -> None:
    """Whoever asks why a replica got nothing finds it there."""
    decision = router().plan(query(), fleet(2), 0.0, refused=[("r9", "down")])
    assert decision.filtered == [("r9", "down")]
    assert router().plan(query(), [], 0.0, refused=[("r9", "down")]).reason == "down"
