"""What answers teach."""

from __future__ import annotations

import pytest

from gateway.fleet import ReplicaState
from gateway.fleet.facts import Signals
from gateway.routing import Decision, Router
from gateway.routing.feedback import Feedback
from tests.unit.routing.fleet_fakes import ended, fleet, prefilled, prompt, query, router, send


def settle(routes: Router, decision: Decision, prompt_tokens: int | None, cached: int | None, **how: object) -> None:
    assert decision.replica is not None
    prefilled(decision)
    ended(decision)
    routes.settled(decision, decision.replica, prompt_tokens, cached, **how)  # type: ignore[arg-type]


def warm(routes: Router, replicas: list[ReplicaState], chain: tuple[int, ...]) -> ReplicaState:
    """Send a prompt once and let it finish; return who holds it."""
    decision = send(routes, query(chain), replicas)
    settle(routes, decision, 64 * len(chain), 0)
    return decision.replica  # type: ignore[return-value]


def test_bytes_per_token_are_learned_per_model() -> None:
    """It starts at 4 and follows the prompts, long ones most."""
    learned = Feedback()
    assert learned.bytes_per_token("m") == 4.0
    for _ in range(20):
        learned.learn_length("m", 30_000, 10_000)
    assert learned.bytes_per_token("m") == pytest.approx(3.0, abs=0.05)
    assert learned.bytes_per_token("other") == 4.0
    for _ in range(100):
        learned.learn_length("m", 9_000_000, 1)
    assert learned.bytes_per_token("m") == 64.0


def test_estimates_follow_what_was_learned() -> None:
    """And only full answers of some length teach."""
    routes = router()
    assert routes.estimate("m", 4000) == 1000
    for n in range(10):
        decision = send(routes, query(prompt(n, 200)), fleet(1))
        settle(routes, decision, 200 * 256 // 2, 0)
    assert routes.estimate("m", 4000) > 1700
    before = routes.estimate("m", 4000)
    settle(routes, send(routes, query(prompt(50, 10)), fleet(1)), 20, 0)
    settle(routes, send(routes, query(prompt(51, 10)), fleet(1)), None, None)
    assert routes.estimate("m", 4000) == before


@pytest.mark.parametrize(
    ("predicted", "actual", "over", "confidence"),
    [
        (0, 0, False, None),
        (0, 10, False, None),
        (0, 500, False, 0.55),
        (1000, 1000, False, 0.55),
        (1000, 990, False, 0.55),
        (1000, 800, False, 0.53),
        (1000, 0, True, 0.45),
        (1000, 500, True, 0.5),
        (1000, 1500, False, 0.55),
    ],
)
def test_confidence_is_a_running_average_of_accuracy(predicted: float, actual: int, over: bool, confidence: float | None) -> None:
    """From 0.5, at a pace of a tenth, with one engine block of 16 tokens of slack."""
    learned = Feedback()
    learned.confidence["k"] = 0.5
    assert learned.compare("k", predicted, actual, 16) is over
    assert learned.confidence["k"] == pytest.approx(0.5 if confidence is None else confidence)


def test_wrong_predictions_cost_a_replica_its_attraction() -> None:
    """An engine that caches nothing is chosen by load alone after a while."""
    replicas = fleet(2)
    routes = router()
    holder = warm(routes, replicas, prompt(1, 40))
    for _ in range(40):
        decision = routes.plan(query(prompt(1, 40)), [holder], 1000.0)
        routes.placed(decision, decision.replica, 1000.0)  # type: ignore[arg-type]
        routes.settled(decision, holder, 2560, 0)  # type: ignore[arg-type]
    decision = routes.plan(query(prompt(1, 40)), replicas, 1000.0)
    assert decision.hit < 0.05


def test_a_miss_where_a_hit_was_predicted_ages_out_what_is_older() -> None:
    """The engine evicts in order: what was last used before the lost prompt is lost too, what came after may be there."""
    routes, replicas = router(), fleet(1)
    key = replicas[0].server.key
    for n in range(20):
        warm(routes, replicas, prompt(n, 40))
    settle(routes, send(routes, query(prompt(4, 40)), replicas), 2560, 0)
    assert [routes.index.match(key, prompt(n, 40)) for n in range(20)] == [0] * 4 + [40] * 16
    assert routes.feedback.confidence[key] == pytest.approx(0.9)


def test_one_wrong_prediction_costs_at_most_a_quarter_of_the_cache() -> None:
    """A single odd answer is no proof of a restart."""
    routes, replicas = router(), fleet(1)
    for n in range(20):
        warm(routes, replicas, prompt(n, 40))
    settle(routes, send(routes, query(prompt(19, 40)), replicas), 2560, 0)
    assert routes.index.blocks(replicas[0].server.key) >= 600 - 1


def test_siblings_of_a_running_prefill_teach_nothing() -> None:
    """Their prefix is still being computed when they arrive, so a miss there is no surprise."""
    routes, replicas = router(), fleet(1)
    first = send(routes, query(prompt(1, 40)), replicas)
    sibling = send(routes, query(prompt(2, 40, prompt(1, 40)[:20])), replicas)
    settle(routes, sibling, 2560, 0)
    assert sibling.comparable is False
    assert routes.feedback.confidence == {}
    routes.first_token(first)
    late = send(routes, query(prompt(3, 40, prompt(1, 40)[:20])), replicas)
    settle(routes, late, 2560, 1280)
    assert late.comparable is True
    assert routes.feedback.confidence[replicas[0].server.key] == 1.0


def test_a_prefill_that_ends_any_way_is_no_longer_pending() -> None:
    """Settling is enough where no first token is seen."""
    routes, replicas = router(), fleet(1)
    warm(routes, replicas, prompt(1, 40))
    later = send(routes, query(prompt(1, 40)), replicas)
    settle(routes, later, 2560, 2540)
    assert later.comparable is True


def test_an_answer_that_is_not_comparable_teaches_only_the_tokens_length() -> None:
    """A request that asked the engine not to read its cache says nothing about it."""
    routes, replicas = router(), fleet(1)
    warm(routes, replicas, prompt(1, 40))
    settle(routes, send(routes, query(prompt(1, 40)), replicas), 5120, 0, comparable=False)
    assert routes.feedback.confidence == {}
    assert routes.feedback.bytes_per_token("m") < 4.0


@pytest.mark.parametrize("outcome", ["connect", "reset", "backpressure", "server_error", "cancelled"])
def test_a_try_that_failed_before_its_first_token_leaves_nothing_behind(outcome: str) -> None:
    """Nobody is sent after a prompt that never got there."""
    routes, replicas = router(), fleet(1)
    warm(routes, replicas, prompt(1, 10))
    failed = send(routes, query(prompt(2, 40, prompt(1, 10))), replicas)
    settle(routes, failed, None, None, outcome=outcome)
    assert routes.index.match(replicas[0].server.key, prompt(2, 40, prompt(1, 10))) == 10


def test_a_try_that_failed_after_its_first_token_was_computed() -> None:
    """The engine holds its prompt."""
    routes, replicas = router(), fleet(1)
    cut = send(routes, query(prompt(2, 40)), replicas)
    routes.first_token(cut)
    settle(routes, cut, None, None, outcome="truncated")
    assert routes.index.match(replicas[0].server.key, prompt(2, 40)) == 40


def test_settling_twice_teaches_once() -> None:
    """Every path may settle; the first one counts."""
    routes, replicas = router(), fleet(1)
    warm(routes, replicas, prompt(1, 40))
    decision = send(routes, query(prompt(1, 40)), replicas)
    settle(routes, decision, 2560, 0)
    routes.settled(decision, replicas[0], 2560, 0)  # type: ignore[arg-type]
    assert routes.feedback.confidence[replicas[0].server.key] == pytest.approx(0.9)


def test_counters_teach_where_answers_do_not_tell() -> None:
    """vLLM leaves cached tokens out of its answers unless asked, but counts them."""
    routes, replicas = router(), fleet(1)
    server = replicas[0].server
    asked = found = 0.0
    for _ in range(60):
        server.signals = Signals(prefix_queries=asked, prefix_hits=found)
        settle(routes, send(routes, query(prompt(1, 40)), replicas), 2560, None)
        asked += 2560
    assert routes.feedback.confidence[server.key] < 0.3


def test_counters_that_mostly_count_others_teach_nothing() -> None:
    """Foreign traffic has its own hits."""
    learned = Feedback()
    for n in range(100):
        learned.compare_counters("k", 1000, 900, 10_000.0 * n, 0.0)
    assert learned.confidence == {}


def test_counters_of_a_restarted_engine_start_a_new_window() -> None:
    """The difference across a restart means nothing."""
    for forgotten, base in ((False, 100.0), (True, 60_000.0)):
        learned = Feedback()
        for n in range(19):
            learned.compare_counters("k", 1000, 900, 50_000 + 1000.0 * n, 900.0 * n)
        if forgotten:
            learned.restarted("k")
        learned.compare_counters("k", 1000, 900, base, 0.0)
        assert learned.confidence == {}
        for n in range(30):
            learned.compare_counters("k", 1000, 900, base + 1000.0 * n, 900.0 * n)
        assert learned.confidence["k"] > 0.95


def test_a_server_without_a_prefix_cache_is_not_indexed() -> None:
    """What cannot hit is not remembered."""
    routes, replicas = router(), fleet(1, signals=Signals(prefix_caching=False))
    warm(routes, replicas, prompt(1, 40))
    assert routes.index.blocks(replicas[0].server.key) == 0
