from __future__ import annotations

import pytest

from gateway.fleet import Breaker
from gateway.settings import BreakerSettings

RULES = BreakerSettings()


def opened(now: float = 100.0) -> Breaker:
    breaker = Breaker(RULES)
    for _ in range(RULES.failures):
        breaker.failed(now)
    return breaker


def test_opens_at_the_configured_number_of_failures_in_a_row() -> None:
    """Four failures are bad luck, five are a fault."""
    breaker = Breaker(RULES)
    assert [breaker.failed(1.0) for _ in range(5)] == [False, False, False, False, True]
    assert breaker.state(1.0) == "open"
    assert not breaker.allows(1.0)


def test_a_success_between_failures_starts_the_row_anew() -> None:
    """Only failures in a row count as a row."""
    breaker = Breaker(RULES)
    for _ in range(4):
        breaker.failed(1.0)
    breaker.succeeded(1.0, 0.9)
    assert not breaker.failed(1.0)


def test_opens_when_half_of_enough_requests_fail() -> None:
    """Failures that alternate with successes open it too, once there are ten requests."""
    breaker = Breaker(RULES)
    opened_after = None
    for n in range(1, 20):
        if n % 2:
            breaker.succeeded(n * 0.1, n * 0.1)
        elif breaker.failed(n * 0.1):
            opened_after = n
            break
    assert opened_after == 10


def test_old_results_leave_the_window() -> None:
    """Failures of half a minute ago do not count with those of now."""
    breaker = Breaker(RULES)
    for n in range(20):
        (breaker.failed(0.0) if n % 5 < 2 else breaker.succeeded(0.0, 0.0))
    breaker.succeeded(0.0, 0.0)
    for n in range(9):
        assert not (breaker.failed(40.0) if n % 2 else breaker.succeeded(40.0, 40.0))
    assert breaker.failed(40.0)


def test_lets_one_probe_through_after_the_cooldown() -> None:
    """Half open means one request, not a stampede."""
    breaker = opened(100.0)
    assert not breaker.allows(109.9)
    assert breaker.allows(110.0)
    breaker.probe = object()
    assert not breaker.allows(110.0)
    assert breaker.state(110.0) == "half_open"


def test_a_good_probe_closes_and_a_bad_one_opens_again() -> None:
    """The probe decides, and a bad one costs another cooldown."""
    breaker = opened(100.0)
    assert breaker.failed(111.0)
    assert not breaker.allows(120.9)
    assert breaker.succeeded(122.0, began=121.5)
    assert breaker.state(122.0) == "closed"


def test_results_of_requests_sent_before_it_opened_do_not_move_it() -> None:
    """A long answer that began in better times proves nothing, and stragglers do not prolong the cooldown."""
    breaker = opened(100.0)
    assert not breaker.succeeded(105.0, began=60.0)
    assert breaker.state(105.0) == "open"
    assert not breaker.failed(105.0)
    assert breaker.retry_at() == pytest.approx(110.0)


def test_after_closing_it_counts_from_zero() -> None:
    """The failures that opened it are forgiven."""
    breaker = opened(100.0)
    breaker.succeeded(111.0, began=110.5)
    assert [breaker.failed(112.0) for _ in range(5)] == [False, False, False, False, True]
