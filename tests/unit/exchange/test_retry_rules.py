"""When a failed try may be repeated."""

import pytest

from gateway.exchange.retry import RETRYABLE, RetryBudget, outcome_of


@pytest.mark.parametrize(
    ("status", "own_key", "outcome"),
    [
        (200, False, "ok"),
        (302, False, "ok"),
        (400, False, "client_error"),
        (401, False, "client_error"),
        (401, True, "auth"),
        (403, True, "auth"),
        (404, False, "not_found"),
        (429, False, "backpressure"),
        (500, False, "server_error"),
        (501, False, "client_error"),
        (502, False, "server_error"),
        (503, False, "backpressure"),
    ],
)
def test_a_status_counts_as_what_it_says_about_the_replica(status: int, own_key: bool, outcome: str) -> None:
    """Only 5xx are the replica's fault, busy is not dead, and an unsupported feature is the request's."""
    assert outcome == outcome_of(status, own_key=own_key)


def test_what_the_client_caused_is_not_tried_again() -> None:
    """Another replica would refuse it as well."""
    assert RETRYABLE.isdisjoint({"client_error", "not_found", "cancelled", "ok"})


def test_second_sends_are_a_share_of_recent_traffic() -> None:
    """A fifth of the last ten seconds, never fewer than the floor, and old traffic stops counting."""
    budget = RetryBudget(0.2, floor=3)
    assert [budget.take(100.0) for _ in range(4)] == [True] * 3 + [False]
    for _ in range(50):
        budget.request(101.0)
    assert [budget.take(101.5) for _ in range(8)] == [True] * 7 + [False]
    assert [budget.take(120.0) for _ in range(4)] == [True] * 3 + [False]
