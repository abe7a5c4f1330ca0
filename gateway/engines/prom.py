"""Reading Prometheus and OpenMetrics text without reading all of it: only lines of the wanted families are taken apart.

An idle engine answers with 700 lines of which a gateway wants thirty. Lines that cannot be read are skipped; NaN and
infinities count as absent.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import NamedTuple

_LABEL = re.compile(rb'([A-Za-z_][\w.:]*+)\s*+=\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n"}


class Sample(NamedTuple):
    """One series: its labels as they stand between the braces, and its value."""

    labels: bytes
    value: float


Samples = dict[bytes, list[Sample]]


def parse(body: bytes, families: frozenset[bytes]) -> Samples:
    """The samples of the wanted families, which are full sample names such as `vllm:prompt_tokens_total`."""
    found: Samples = {}
    for name, raw_labels, number in _lines_of(families).findall(b"\n" + body):
        value = finite(number)
        if value is not None:
            found.setdefault(name, []).append(Sample(raw_labels, value))
    return found


def finite(text: bytes) -> float | None:
    """The number that stands there; None for NaN, infinities and what is no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@cache
def _lines_of(families: frozenset[bytes]) -> re.Pattern[bytes]:
    """One pattern for (name, labels, value) of every wanted line; it starts at a line end, so all other lines are skipped at once.

    The possessive quantifiers let label values hold braces, commas and escapes while no input makes the search backtrack.
    """
    names = b"|".join(sorted(map(re.escape, families)))
    label_set = rb'\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+)\}'
    return re.compile(rb"\n[ \t]*+(%b)(?=[ \t{])[ \t]*+(?:%b[ \t]*+)?([^\s]++)" % (names, label_set))


def labels(raw: bytes) -> dict[str, str]:
    """The labels of a sample, unescaped."""
    return {name.decode(): _unescape(value.decode("utf-8", "replace")) for name, value in _LABEL.findall(raw)}


def _unescape(value: str) -> str:
    return _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), value) if "\\" in value else value


def total(samples: Samples, *names: bytes) -> float | None:
    """Sum over all series of the first of these names that is there: the same figure may be exposed under its old and its new name."""
    for name in names:
        series = samples.get(name)
        if series:
            return sum(s.value for s in series)
    return None


def mean(samples: Samples, *names: bytes) -> float | None:
    """Mean over all series of the first of these names that is there."""
    for name in names:
        series = samples.get(name)
        if series:
            return sum(s.value for s in series) / len(series)
    return None
