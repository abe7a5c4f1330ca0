"""The weighted formula: inputs, unknown terms, and what the record says of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fleet.facts import Signals
from gateway.routing.filters import Candidates
from gateway.routing.query import Weights
from gateway.routing.scoring import BACKLOG, BUSY, GPU, HIT, KV, MATCHED, QUEUE, SCORE, UNCACHED, Row, measure, terms
from tests.unit.routing.fleet_fakes import fleet, query, replica_at, server_at, settings

WEIGHTS = Weights(0.1, 0.1, 0.5, 0.3)


def row(tokens: int = 1000, matched: int = 0, confidence: float = 1.0, weights: Weights = WEIGHTS, **state: Any) -> Row:
    """Measure one server; blocks hold 64 tokens."""
    return measure(Candidates([replica_at("r1", server_at("k", **state))], []), [matched], {"k": confidence}, tokens, 64.0, weights)[0]


def test_the_score_is_the_formula() -> None:
    """Worked by hand: 32 blocks of 64 tokens of 4096, 64 of 256 slots, KV 0.25, one step queued."""
    one = row(4096, 32, backlog=0, inflight=64, signals=Signals(kv_usage=0.25))
    assert (one[GPU], one[KV], one[HIT], one[QUEUE]) == (0.25, 0.25, 0.5, 1.0)
    assert one[SCORE] == pytest.approx(0.1 * 0.75 + 0.1 * 0.75 + 0.5 * 0.5 + 0.3 * 0.5)


def test_the_batch_fill_counts_foreign_requests_and_stops_at_one() -> None:
    """Others' requests fill the same slots."""
    assert row(inflight=32, foreign_running=32.0)[GPU] == 0.25
    assert row(inflight=500)[GPU] == 1.0
    assert row(inflight=3, slots=0)[GPU] is None


def test_kv_use_is_corrected_by_own_tokens_since_the_scrape_and_clamped() -> None:
    """Between two scrapes own traffic is known."""
    signals = Signals(kv_usage=0.5)
    assert row(signals=signals, kv_booked=40_000)[KV] == pytest.approx(0.6)
    assert row(signals=signals, kv_booked=-40_000)[KV] == pytest.approx(0.4)
    assert row(signals=signals, kv_booked=900_000)[KV] == 1.0
    assert row(signals=signals, kv_booked=-900_000)[KV] == 0.0
    assert row(signals=signals, kv_booked=40_000, capacity=None)[KV] == 0.5
    assert row(kv_booked=40_000)[KV] is None


def test_the_queue_is_work_ahead_of_the_first_token_in_steps() -> None:
    """Own backlog, what others have waiting, and this request's own uncached tokens."""
    one = row(2048, 0, backlog=2048, foreign_waiting=4.0, mean_prompt=512.0)
    assert (one[BACKLOG], one[UNCACHED], one[QUEUE]) == (4096, 2048, 3.0)
    assert row(2048, 16, step=1024)[QUEUE] == 1.0


def test_a_hit_counts_by_confidence_and_never_beyond_the_prompt() -> None:
    """Blocks are converted to tokens by an average, so they may seem longer than the prompt."""
    one = row(1000, 10, confidence=0.5)
    assert (one[MATCHED], one[UNCACHED], one[HIT]) == (640.0, 680.0, 0.32)
    assert row(500, 100)[HIT] == 1.0
    assert row(0, 0)[HIT] == 0.0


def test_an_unknown_term_drops_out_and_the_rest_keeps_the_total() -> None:
    """A replica without a KV reading is neither better nor worse for it."""
    one = row(2048)
    assert one[SCORE] == pytest.approx((0.1 * 1 + 0.5 * 0 + 0.3 * 0.5) * 1.0 / 0.9)
    both = row(2048, slots=0)
    assert both[SCORE] == pytest.approx((0.3 * 0.5) * 1.0 / 0.8)


def test_a_replica_of_which_nothing_that_counts_is_known_is_average() -> None:
    """Weights may lie on unknown terms alone."""
    assert row(weights=Weights(0.0, 2.0, 0.0, 0.0))[SCORE] == 1.0


def test_foreign_load_that_is_unknown_counts_as_none() -> None:
    """Own accounting stands alone then."""
    one = row(inflight=2, backlog=10)
    assert (one[BUSY], one[BACKLOG]) == (2, 10)


@pytest.mark.parametrize("kv", [None, 0.3])
@pytest.mark.parametrize("slots", [0, 256])
def test_the_explained_terms_add_up_to_the_score(kv: float | None, slots: int) -> None:
    """Value, goodness, effective weight and contribution of each term; the weights keep their total."""
    one = row(3000, 20, backlog=777, inflight=9, slots=slots, signals=Signals(kv_usage=kv))
    explained = terms(one, WEIGHTS)
    assert sum(term["contribution"] or 0.0 for term in explained.values()) == pytest.approx(one[SCORE])
    assert sum(term["weight"] or 0.0 for term in explained.values()) == pytest.approx(1.0)
    assert explained["kv"]["value"] == kv


def test_a_models_own_weights_replace_the_common_ones() -> None:
    """Weights are per model."""
    from gateway.routing import Router

    own = {"gpu": 0.0, "kv": 0.0, "prefix": 0.0, "queue": 1.0}
    made = settings().model_validate({"models": [{"name": "m", "replicas": [{"url": "http://a:1"}], "weights": own}]})
    decision = Router(made).plan(query(), fleet(2), 0.0)
    assert decision.weights == Weights(0.0, 0.0, 0.0, 1.0)
