"""The four inputs of the weighted formula, measured for every candidate at once.

    score = w_gpu * (1 - gpu) + w_kv * (1 - kv) + w_prefix * hit + w_queue * 1 / (queue + 1)

An unknown input drops out and the others are scaled so that the weights keep their total. A measured candidate is a plain
tuple, because one is made per candidate and request and most are never looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gateway.routing.query import Weights

if TYPE_CHECKING:
    from gateway.routing.filters import Candidates

# id, score, gpu 0..1, kv 0..1, hit 0..1, queue (steps), matched, uncached (tokens), busy (requests), backlog, step (tokens)
Row = tuple[str, float, float | None, float | None, float, float, float, float, float, float, int]

ID: Final = 0
SCORE: Final = 1
GPU: Final = 2
KV: Final = 3
HIT: Final = 4
QUEUE: Final = 5
MATCHED: Final = 6
UNCACHED: Final = 7
BUSY: Final = 8
BACKLOG: Final = 9
STEP: Final = 10

_NEUTRAL: Final = 0.5  # of the total, for a candidate of which nothing that counts is known
_SLOW_START_S: Final = 30.0


def measure(
    candidates: Candidates, depths: Sequence[int], confidence: Mapping[str, float], tokens: int, block_tokens: float, weights: Weights
) -> list[Row]:
    """Return one row per candidate for a prompt of `tokens` tokens, of which `depths` index blocks matched at each.

    - gpu: own and foreign requests at the engine, as a share of its batch slots;
    - kv: share of the KV cache in use as last scraped, corrected by the own tokens sent and finished since;
    - hit: confidence * matched tokens / prompt tokens;
    - queue: uncached tokens ahead of the first token, own, foreign and this request's, in engine steps.
    """
    w_gpu, w_kv, w_prefix, w_queue = weights
    total = w_gpu + w_kv + w_prefix + w_queue
    rows: list[Row] = []
    # One flat loop: its body runs for every candidate of every request, and a call costs as much as a term.
    for name, key, server, blocks in zip(candidates.ids, candidates.keys, candidates.servers, depths, strict=True):
        matched = sure = 0.0
        if blocks:
            matched = blocks * block_tokens
            if matched > tokens:
                matched = float(tokens)
            sure = matched * confidence.get(key, 1.0)
        uncached = tokens - sure
        hit = sure / tokens if sure else 0.0
        backlog = float(server.backlog)
        if server.foreign_waiting:
            backlog += server.foreign_waiting * server.mean_prompt
        busy = float(server.inflight)
        if server.foreign_running:
            busy += server.foreign_running
        step = server.step_tokens()
        queue = (backlog + uncached) / step
        score = w_prefix * hit + w_queue / (queue + 1.0)
        known = w_prefix + w_queue
        gpu: float | None = None
        if slots := server.max_num_seqs():
            gpu = busy / slots if busy < slots else 1.0
            score += w_gpu * (1.0 - gpu)
            known += w_gpu
        if server.foreign_waiting:
            busy += server.foreign_waiting  # they fill no slot yet, but the load guard counts them
        if (kv := server.signals.kv_usage) is not None:
            if capacity := server.capacity_tokens():
                kv += server.kv_booked / capacity
            if kv < 0.0:
                kv = 0.0
            elif kv > 1.0:
                kv = 1.0
            score += w_kv * (1.0 - kv)
            known += w_kv
        if known != total:
            score = score * total / known if known else _NEUTRAL * total
        rows.append((name, score, gpu, kv, hit, queue, matched, uncached, busy, backlog, step))
    return rows


def slow_start(candidates: Candidates, now: float) -> list[float] | None:
    """Share of a full load each candidate may take, relative to the most settled one; None when all may take it all."""
    if now - candidates.youngest >= _SLOW_START_S:
        return None
    shares = [server.share(now) for server in candidates.servers]
    most = max(shares)
    return [share / most for share in shares]


def terms(row: Row, weights: Weights) -> dict[str, dict[str, float | None]]:
    """Spell out a row's score: each term's value, goodness (0..1, higher is better), effective weight and contribution."""
    gpu, kv = row[GPU], row[KV]
    parts: dict[str, tuple[float | None, float | None, float]] = {
        "gpu": (gpu, None if gpu is None else 1.0 - gpu, weights.gpu),
        "kv": (kv, None if kv is None else 1.0 - kv, weights.kv),
        "prefix": (row[HIT], row[HIT], weights.prefix),
        "queue": (row[QUEUE], 1.0 / (row[QUEUE] + 1.0), weights.queue),
    }
    known = sum(weight for _, goodness, weight in parts.values() if goodness is not None)
    scale = sum(weights) / known if known else 0.0
    return {
        term: {
            "value": value,
            "goodness": goodness,
            "weight": 0.0 if goodness is None else weight * scale,
            "contribution": (goodness or 0.0) * weight * scale,
        }
        for term, (value, goodness, weight) in parts.items()
    }
