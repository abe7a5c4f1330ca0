"""Workload and counters of the policy comparison."""

import json
from collections import Counter

import pytest

from loadtest.routing import counters
from loadtest.routing.workload import BYTES_PER_TOKEN, Arrival, Shape, Texts, arrivals


def test_arrivals_repeat_exactly_and_follow_rate_and_popularity() -> None:
    """One seed, one list; the rate is kept, and the second prefix is asked for half as often as the first."""
    shape = Shape(rate=50.0, seconds=400.0, exponent=1.0, prefixes=100)
    made = arrivals(shape)
    assert made == arrivals(shape)
    assert made == sorted(made)
    assert pytest.approx(20_000, rel=0.05) == len(made)
    asked = Counter(arrival.prefix for arrival in made)
    assert pytest.approx(2.0, rel=0.15) == asked[0] / asked[1]
    assert max(asked) < 100


def test_bodies_share_exactly_their_prefix() -> None:
    """Two requests of one prefix have equal system messages and questions of their own, as long as they say."""
    texts = Texts(Shape(prefixes=2, prefix_tokens=(100, 100)), "m")
    one, two = (json.loads(texts.body(Arrival(0.0, number, 1, 50, 9))) for number in (1, 2))
    assert one["messages"][0] == two["messages"][0]
    assert len(one["messages"][0]["content"]) == 100 * BYTES_PER_TOKEN
    assert len(one["messages"][1]["content"]) == 50 * BYTES_PER_TOKEN
    assert one["messages"][1] != two["messages"][1]
    assert (one["stream"], one["max_tokens"], one["stream_options"]["include_usage"]) == (True, 9, True)


def test_counters_add_up_over_labels() -> None:
    """Samples of one name are one number, other names are left alone."""
    page = (
        "# TYPE vllm:request_success_total counter\n"
        'vllm:request_success_total{finished_reason="stop"} 3.0\n'
        'vllm:request_success_total{finished_reason="length"} 4.0\n'
        'vllm:prefix_cache_queries_total{engine="0"} 1e3\n'
        "vllm:prefix_cache_hits_total 250\n"
        "vllm:prefix_cache_hits_created 99\n"
    )
    assert counters.Served(queries=1000.0, hits=250.0, requests=7.0) == counters.served(page)


def test_hit_rate_weighs_replicas_by_their_tokens() -> None:
    """A replica that looked up ten times as much counts ten times as much."""
    assert counters.hit_rate([counters.Served(1000, 0, 1), counters.Served(100, 110, 1)]) == 0.1
    assert counters.hit_rate([counters.Served(0, 0, 0)]) is None


def test_imbalance_is_one_when_even() -> None:
    """Largest over mean."""
    assert counters.imbalance([5, 5, 5]) == 1.0
    assert counters.imbalance([6, 0, 0]) == 3.0
    assert counters.imbalance([0, 0]) is None
