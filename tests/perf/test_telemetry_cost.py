"""What telemetry costs per request, measured against plain counting in the same moment so that a slow machine does not matter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gateway.settings import LogSettings
from gateway.telemetry import Mask, RequestLog, Stats
from tests.unit.telemetry.telemetry_fakes import record

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, CALLS = 30, 1000


def cost(work: Callable[[], object]) -> float:
    """Cost of one call in units of fifteen increments of counters in a dictionary: about one microsecond."""
    counters = dict.fromkeys(range(15), 0)
    ratios = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            for n in counters:
                counters[n] += 1
        middle = time.process_time()
        for _ in range(CALLS):
            work()
        ratios.append((time.process_time() - middle) / (middle - start))
    return min(ratios)


def test_counting_a_request_costs_at_most_three_microseconds() -> None:
    """Usually less than two."""
    stats = Stats(lambda _: True, lambda _: True)
    rec = record()
    assert cost(lambda: stats.record(rec)) <= 3.0


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_log_line_costs_at_most_six_microseconds(form: str) -> None:
    """Writing it included."""
    log = RequestLog(LogSettings.model_validate({"format": form, "requests": "/dev/null"}), Mask(f"sk-secret-{n}" for n in range(100)))
    batch = [record(id=str(n)) for n in range(100)]

    def write() -> None:
        for rec in batch:
            log.record(rec)
        log.flush()

    assert cost_of_batches(write, len(batch)) <= 6.0
    assert log.dropped == 0
    log.close()


def cost_of_batches(work: Callable[[], object], size: int) -> float:
    """Cost of one of `size` steps that `work` does."""
    step = iter(range(10**9))
    return cost(lambda: work() if next(step) % size == 0 else None)
