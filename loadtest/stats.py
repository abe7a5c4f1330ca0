"""Arithmetic of a report: percentiles, medians over rounds, per-unit costs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Value below which `share` (0..1) of an ascending sequence lies, linear between neighbours (Hyndman and Fan's type 7).

    Raises ValueError for an empty sequence.
    """
    if not ordered:
        raise ValueError("percentile of nothing")
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float], shares: Sequence[float] = (0.5, 0.9, 0.99)) -> dict[str, float]:
    """`{"p50": …, "p90": …, "p99": …, "max": …, "count": …}` of values in any order; only `count` when there are none."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}
    named = {f"p{share * 100:g}": percentile(ordered, share) for share in shares}
    return {**named, "max": ordered[-1], "count": len(ordered)}


def per_unit(cpu_s: float, idle_share: float, elapsed_s: float, units: int) -> float | None:
    """Microseconds of CPU per unit of work, after taking off what the process burns per second when idle; None without work."""
    if units <= 0:
        return None
    return max(0.0, cpu_s - idle_share * elapsed_s) / units * 1e6


def medians(rounds: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Median of each figure over the rounds that measured it; None when none did. Keys keep the order of first appearance."""
    names = dict.fromkeys(name for measured in rounds for name in measured)
    return {name: median([measured.get(name) for measured in rounds]) for name in names}


def median(values: Iterable[float | None]) -> float | None:
    """Median of the values that are known, None when none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(rounds: Sequence[Mapping[str, float | None]], base: Sequence[Mapping[str, float | None]], name: str) -> float | None:
    """Median over rounds of figure ÷ the same round's base: noise of the machine that lasts a round cancels out."""
    quotients = []
    for measured, reference in zip(rounds, base, strict=False):
        over, under = measured.get(name), reference.get(name)
        quotients.append(over / under if over is not None and under else None)
    return median(quotients)
