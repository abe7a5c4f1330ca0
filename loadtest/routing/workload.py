"""Poisson arrivals of chats that share long prefixes, the popularity of which follows Zipf's law. Pure; the seed says it all."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from typing import NamedTuple

BYTES_PER_TOKEN = 4
"""Of the simulated replicas' tokeniser."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lengths are ranges in tokens, drawn evenly; `rate` is arrivals per second."""

    prefixes: int = 200
    prefix_tokens: Range = (2000, 4000)
    exponent: float = 1.0
    question_tokens: Range = (50, 250)
    output_tokens: Range = (8, 32)
    rate: float = 25.0
    seconds: float = 60.0
    seed: int = 1


class Arrival(NamedTuple):
    """One request: when (seconds from the start), which prefix, how many tokens of its own, how many to answer."""

    at: float
    number: int
    prefix: int
    question: int
    output: int


def arrivals(shape: Shape) -> list[Arrival]:
    """All requests of a run in order of time. Prefix 0 is the most popular: weight 1 ÷ (rank + 1) ^ exponent."""
    source = random.Random(shape.seed)
    weights = list(itertools.accumulate((rank + 1) ** -shape.exponent for rank in range(shape.prefixes)))
    out: list[Arrival] = []
    at = source.expovariate(shape.rate)
    while at < shape.seconds:
        prefix = source.choices(range(shape.prefixes), cum_weights=weights)[0]
        out.append(Arrival(at, len(out), prefix, source.randint(*shape.question_tokens), source.randint(*shape.output_tokens)))
        at += source.expovariate(shape.rate)
    return out


class Texts:
    """Request bodies. Prefixes are made once; a request's own question is made when it is due."""

    def __init__(self, shape: Shape, model: str) -> None:
        source = random.Random(shape.seed + 1)
        self._prefixes = [self._opening(source, model, source.randint(*shape.prefix_tokens)) for _ in range(shape.prefixes)]

    def body(self, arrival: Arrival) -> bytes:
        """Body of the arrival's request: streamed, with usage, and as many tokens as it says."""
        own = random.Random(arrival.number).randbytes(arrival.question * BYTES_PER_TOKEN // 2).hex()
        rest = {"max_tokens": arrival.output, "min_tokens": arrival.output, "ignore_eos": True, "stream": True}
        options = json.dumps({**rest, "stream_options": {"include_usage": True}})
        return b"".join((self._prefixes[arrival.prefix], own.encode(), b'"}], ', options[1:].encode()))

    @staticmethod
    def _opening(source: random.Random, model: str, tokens: int) -> bytes:
        system = source.randbytes(tokens * BYTES_PER_TOKEN // 2).hex()
        return f'{{"model": "{model}", "messages": [{{"role": "system", "content": "{system}"}}, {{"role": "user", "content": "'.encode()
