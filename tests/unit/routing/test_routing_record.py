"""The decision record and its log."""

from __future__ import annotations

import json

import pytest

from gateway.fleet.facts import Signals
from gateway.routing import Decision, DecisionLog
from tests.unit.routing.fleet_fakes import disable, ended, fleet, prefilled, prompt, query, router, send


def decision(replicas: int = 2, request_id: bytes = b"req-1") -> Decision:
    made = router().plan(query(prompt(1)), fleet(replicas), 5.0)
    made.request_id = request_id
    return made


def test_explain_tells_every_candidate_every_term_and_what_came_of_it() -> None:
    """The whole record is plain JSON."""
    routes, replicas = router(), fleet(4, signals=Signals(kv_usage=0.2))
    disable(replicas[3], "draining")
    replicas[1].server.inflight = 40
    first = send(routes, query(prompt(1, 40)), replicas)
    prefilled(first)
    ended(first)
    routes.settled(first, first.replica, 2560, 0)  # type: ignore[arg-type]
    made = send(routes, query(prompt(1, 50, prompt(1, 40))), replicas)
    made.request_id = b"req-7"
    routes.settled(made, made.replica, 3200, 2528)  # type: ignore[arg-type]
    made.finished("ok", 3200, 2528, 0.25)
    told = json.loads(json.dumps(made.explain()))
    assert told["request_id"] == "req-7"
    assert told["replica"] == first.replica.id  # type: ignore[union-attr]
    assert (told["policy"], told["reason"], told["outcome"]) == ("weighted", "score", "ok")
    assert told["filtered"] == [{"replica": "r4", "reason": "draining"}]
    assert told["load_guard"] == {"limit": pytest.approx(1.25 * 40 / 3 + 4, abs=1e-3), "left_out": ["r2"]}
    assert told["predicted"] == {"hit": 0.8, "cached_tokens": 2560, "uncached_tokens": 640}
    assert told["actual"] == {"prompt_tokens": 3200, "cached_tokens": 2528, "hit": 0.79, "ttft_s": 0.25, "learned_from": True}
    assert len(told["candidates"]) == 3
    best = told["candidates"][0]
    assert best["chosen"] is True
    assert best["terms"]["prefix"] == {"value": 0.8, "goodness": 0.8, "weight": 0.5, "contribution": 0.4}
    assert sum(term["contribution"] for term in best["terms"].values()) == pytest.approx(best["score"], abs=1e-3)
    assert [c["replica"] for c in told["candidates"] if c["left_out_by_load_guard"]] == ["r2"]


def test_a_decision_for_nobody_explains_itself() -> None:
    """The reasons are all there is."""
    replicas = fleet(1)
    disable(replicas[0])
    told = router().plan(query(), replicas, 0.0).explain()
    assert (told["replica"], told["reason"], told["candidates"]) == (None, "down", [])


def test_a_settled_decision_holds_no_prompt_and_no_replicas() -> None:
    """The log must not keep chains of long prompts alive."""
    made = decision()
    log = DecisionLog()
    log.add(made)
    assert (made.query, made.candidates, made.booking, made.ranked) == (None, (), None, [])
    assert made.explain()["candidates"][0]["replica"] in ("r1", "r2")


def test_the_tries_of_a_request_are_kept_together() -> None:
    """In order, and numbered."""
    log = DecisionLog()
    first, second = decision(), decision()
    log.add(first)
    log.add(decision(request_id=b"req-2"))
    log.add(second)
    assert log.get("req-1") == [first, second]
    assert (first.attempts, second.attempts) == (1, 2)
    assert log.get("nobody") == log.get("\N{SNOWMAN}") == []
    assert len(log) == 3


def test_the_log_is_bounded_in_number() -> None:
    """The oldest go first."""
    log = DecisionLog(max_entries=3)
    for n in range(10):
        log.add(decision(request_id=b"%d" % n))
    assert [d.request_id for d in log.recent(10)] == [b"9", b"8", b"7"]
    assert [d.request_id for d in log.recent(1)] == [b"9"]
    assert log.recent(0) == []


def test_the_log_is_bounded_in_bytes() -> None:
    """Decisions over large fleets are large."""
    log = DecisionLog(max_bytes=200_000)
    for n in range(50):
        log.add(decision(100, b"%d" % n))
    assert log.bytes <= 200_000
    assert 3 <= len(log) <= 10
    assert log.bytes == sum(d.size() for d in log.recent(100))


def test_decisions_print_themselves() -> None:
    """For people with a debugger."""
    assert repr(decision(1)) == "<Decision r1 by weighted/only_candidate, hit 0.00, 1 candidates>"
