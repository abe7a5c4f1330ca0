"""Prometheus text exposition from plain numbers: cheap enough to be scraped every second beside a busy engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"  # as vLLM labels it since it moved to a newer client library

REQUEST_SECONDS = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def token_bounds(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to `limit`."""
    bounds: list[float] = []
    decade = 1
    while decade <= limit:
        bounds += [float(decade * step) for step in (1, 2, 5) if decade * step <= limit]
        decade *= 10
    return tuple(bounds)


class Histogram:
    """Counts by upper bound, inclusive; the last count is beyond all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Family(NamedTuple):
    """One metric name. `series`: (label text without braces, value or histogram)."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    series: Sequence[tuple[str, float | Histogram]]


def labels(**values: object) -> str:
    """Label text in alphabetical order."""
    return ",".join(f'{name}="{_escaped(str(values[name]))}"' for name in sorted(values))


def merged(base: Mapping[str, object], **more: object) -> str:
    """Label text of two sets."""
    return labels(**base, **more)


def render(families: Iterable[Family], created: float) -> bytes:
    """The whole page. `created`: Unix time at which the counters started, exposed as `_created` gauges."""
    lines: list[str] = []
    for family in families:
        exposed = f"{family.name}_total" if family.kind == "counter" else family.name
        lines += (f"# HELP {exposed} {family.help}", f"# TYPE {exposed} {family.kind}")
        for text, value in family.series:
            if isinstance(value, Histogram):
                lines += _histogram(family.name, text, value)
            else:
                lines.append(f"{exposed}{{{text}}} {float(value)!r}" if text else f"{exposed} {float(value)!r}")
        if family.kind != "gauge":
            lines += (f"# HELP {family.name}_created {family.help}", f"# TYPE {family.name}_created gauge")
            lines += [f"{family.name}_created{{{text}}} {created!r}" for text, _ in family.series]
    lines.append("")
    return "\n".join(lines).encode()


def _histogram(name: str, text: str, histogram: Histogram) -> list[str]:
    # `le` sorts behind `engine` and before `model_name`, where the reference exposition has it.
    before, _, after = text.partition(",")
    head, tail = f"{name}_bucket{{{before},le=", f",{after}}} " if after else "} "
    lines = []
    total = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        edge = "+Inf" if bound == float("inf") else repr(bound)
        lines.append(f'{head}"{edge}"{tail}{float(total)!r}')
    lines += (f"{name}_count{{{text}}} {float(total)!r}", f"{name}_sum{{{text}}} {histogram.sum!r}")
    return lines


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
