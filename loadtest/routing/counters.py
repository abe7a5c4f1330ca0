"""A replica's own counters, read from its Prometheus text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)", re.MULTILINE)

QUERIES, HITS, REQUESTS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:request_success_total"


@dataclass(frozen=True, slots=True)
class Served:
    """What one replica has done: prompt tokens looked up in its cache, those found there, requests ended."""

    queries: float
    hits: float
    requests: float

    def __sub__(self, earlier: Served) -> Served:
        return Served(self.queries - earlier.queries, self.hits - earlier.hits, self.requests - earlier.requests)


def served(text: str) -> Served:
    """Reads a `/metrics` page; samples of one name are added up over their labels."""
    totals = dict.fromkeys((QUERIES, HITS, REQUESTS), 0.0)
    for name, value in _SAMPLE.findall(text):
        if name in totals:
            totals[name] += float(value)
    return Served(totals[QUERIES], totals[HITS], totals[REQUESTS])


def hit_rate(replicas: Iterable[Served]) -> float | None:
    """Share of all prompt tokens that were found in some cache, None before any were looked up."""
    replicas = list(replicas)
    queries = sum(each.queries for each in replicas)
    return sum(each.hits for each in replicas) / queries if queries else None


def imbalance(values: Iterable[float]) -> float | None:
    """Largest ÷ mean: 1 is even."""
    values = list(values)
    return max(values) * len(values) / sum(values) if any(values) else None
