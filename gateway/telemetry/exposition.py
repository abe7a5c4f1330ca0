"""Prometheus text, written directly: a scrape of a large fleet must not hold up the event loop for a hundred milliseconds."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from prometheus_client import Metric

from gateway.telemetry.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Labels = tuple[str, ...]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Family(NamedTuple):
    """A metric: its name without suffix, and the value of every combination of label values."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels
    samples: Mapping[Labels, float | Histogram]


def negotiated(accept: str) -> str:
    """The content type to answer an `accept` header with."""
    return OPENMETRICS if "application/openmetrics-text" in accept else TEXT


def exposition(families: Iterable[Family], content_type: str) -> bytes:
    """The page a server scrapes."""
    lines: list[str] = []
    for family in families:
        # The older format names a counter by its sample, the newer one by its family.
        name = family.name if family.kind != "counter" or content_type == OPENMETRICS else f"{family.name}_total"
        lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n")
        lines += _lines(family)
    if content_type == OPENMETRICS:
        lines.append("# EOF\n")
    return "".join(lines).encode()


def as_metric(family: Family) -> Metric:
    """The family as an object of the Prometheus client library."""
    metric = Metric(family.name, family.help, family.kind)
    suffix = "_total" if family.kind == "counter" else ""
    for values, value in family.samples.items():
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(value, Histogram):
            for bound, count in zip(_bounds(value.bounds), accumulate(value.counts), strict=True):
                metric.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{family.name}_count", labels, sum(value.counts))
            metric.add_sample(f"{family.name}_sum", labels, value.sum)
        else:
            metric.add_sample(family.name + suffix, labels, float(value))
    return metric


def _lines(family: Family) -> Iterator[str]:
    sample = f"{family.name}_total" if family.kind == "counter" else family.name
    for values, value in family.samples.items():
        labels = ",".join(map(_label, family.labels, values))
        if isinstance(value, Histogram):
            yield from _histogram(sample, labels, value)
        else:
            yield f"{sample}{{{labels}}} {number(value)}\n" if labels else f"{sample} {number(value)}\n"


def _histogram(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    start = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
    total = 0
    for bound, total in zip(_bounds(histogram.bounds), accumulate(histogram.counts), strict=True):
        yield f'{start}le="{bound}"}} {total}\n'
    end = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{end} {total}\n{name}_sum{end} {number(histogram.sum)}\n"


@cache
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(str, bounds), "+Inf")


@lru_cache(8192)
def _label(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPES)}"'


def number(value: float) -> str:
    """A value as Go reads it."""
    text = repr(float(value))
    return _SPECIAL.get(text, text)
