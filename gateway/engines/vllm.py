"""vLLM: metric names of every generation, health, defaults.

Names moved between versions: `gpu_cache_usage_perc` became `kv_cache_usage_perc`, `gpu_prefix_cache_*` became `prefix_cache_*` (both are
there from 0.9.2 to 0.10.2 with equal values, so the newer one wins), and the prefix counters counted blocks before 0.9. Data-parallel
ranks appear as series of their own: requests and sizes are added up, usage is averaged.
"""

from __future__ import annotations

import math
import re

from gateway.engines.base import Engine, Evidence, Health
from gateway.engines.prom import Sample, Samples, finite, labels, mean, total
from gateway.fleet import Signals, Traits

_RUNNING = b"vllm:num_requests_running"
_WAITING = b"vllm:num_requests_waiting"
_KV_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
_QUERIES = (b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total")
_HITS = (b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total")
_HIT_RATE = b"vllm:gpu_prefix_cache_hit_rate"
_PROMPT = b"vllm:prompt_tokens_total"
_CACHED = b"vllm:prompt_tokens_cached_total"
_SLEEP = b"vllm:engine_sleep_state"
_LORA = b"vllm:lora_requests_info"
_CACHE = b"vllm:cache_config_info"
_STEPS = b"vllm:iteration_tokens_total_bucket"
_START = b"process_start_time_seconds"

FAMILIES = frozenset(
    {_RUNNING, _WAITING, *_KV_USAGE, *_QUERIES, *_HITS, _HIT_RATE, _PROMPT, _CACHED, _SLEEP, _LORA, _CACHE, _STEPS, _START}
)

_BLOCK_COUNTERS = re.compile(r"0\.8\.")
_AWAKE = re.compile(rb'sleep_state="awake"')
_LE = re.compile(rb'le="([^"]+)"')


def signals(samples: Samples, version: str | None) -> Signals:
    """Read the signals out of an exposition of any generation; what it lacks stays None."""
    caches = _caches(samples)
    block_size = next((size for c in caches if (size := _int(c.get("block_size")))), None)
    queries, hits = total(samples, *_QUERIES), total(samples, *_HITS)
    if block_size and version and _BLOCK_COUNTERS.match(version):
        queries, hits = _scaled(queries, block_size), _scaled(hits, block_size)
    return Signals(
        running=total(samples, _RUNNING),
        waiting=total(samples, _WAITING),
        kv_usage=_share(mean(samples, *_KV_USAGE)),
        prefix_queries=queries,
        prefix_hits=hits,
        hit_rate=_share(mean(samples, _HIT_RATE)),
        prompt_tokens=total(samples, _PROMPT),
        cached_tokens=total(samples, _CACHED),
        kv_tokens=_capacity(caches),
        block_size=block_size,
        step_seen=_largest_step(samples.get(_STEPS, ())),
        prefix_caching=_flag(caches[0].get("enable_prefix_caching")) if caches else None,
        asleep=_asleep(samples.get(_SLEEP, ())),
        start_time=total(samples, _START),
        loras=_loras(samples.get(_LORA, ())),
        ranks=max(1, len(samples.get(_RUNNING, ()))),
    )


def _caches(samples: Samples) -> list[dict[str, str]]:
    """The cache configuration of each rank, once."""
    found = [labels(s.labels) for s in samples.get(_CACHE, ())]
    return list({c.get("engine", ""): c for c in found}.values())


def _capacity(caches: list[dict[str, str]]) -> int | None:
    sizes = []
    for cache in caches:
        blocks, size = _int(cache.get("num_gpu_blocks")), _int(cache.get("block_size"))
        sizes.append(_int(cache.get("kv_cache_size_tokens")) or (blocks or 0) * (size or 0))
    return sum(sizes) if sizes and all(sizes) else None


def _largest_step(buckets: list[Sample] | tuple[()]) -> int | None:
    """The upper edge of the highest bucket that ever counted a step, over all ranks; None before the first step."""
    edges: dict[float, float] = {}
    for sample in buckets:
        edge = _LE.search(sample.labels)
        le = None if edge is None else float("inf") if edge[1] == b"+Inf" else finite(edge[1])
        if le is not None:
            edges[le] = edges.get(le, 0.0) + sample.value
    everything = max(edges.values(), default=0.0)
    largest = min((le for le, count in edges.items() if count == everything), default=0.0)
    return int(largest) if everything and math.isfinite(largest) else None


def _asleep(states: list[Sample] | tuple[()]) -> bool | None:
    """Any rank that is not awake leaves requests hanging."""
    awake = [s.value for s in states if _AWAKE.search(s.labels)]
    return min(awake) == 0.0 if awake else None


def _loras(series: list[Sample] | tuple[()]) -> tuple[str, ...] | None:
    """Running adapters. The value is the time of the update: of many stale label sets the newest counts."""
    if not series:
        return None
    running = labels(max(series, key=lambda s: s.value).labels).get("running_lora_adapters", "")
    return tuple(name for name in (n.strip() for n in running.split(",")) if name)


def _share(value: float | None) -> float | None:
    """0..1; V0 says -1 where it has no figure."""
    return None if value is None or value < 0.0 else min(value, 1.0)


def _scaled(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and len(text) < 19 and text.isascii() and text.isdigit() else None


def _flag(text: str | None) -> bool | None:
    return {"True": True, "False": False}.get(text or "")


def _health(status: int, _body: bytes) -> Health:
    # While it loads, a vLLM server does not listen at all; a 503 means that its engine is dead.
    return "up" if 200 <= status < 300 else "down"


def _recognises(evidence: Evidence) -> bool:
    if evidence.metrics is not None and (evidence.metrics.startswith(b"vllm:") or b"\nvllm:" in evidence.metrics):
        return True
    return any(m.owned_by == "vllm" for m in evidence.models or ())


VLLM = Engine(
    name="vllm",
    recognises=_recognises,
    traits=Traits(step_tokens=2048, max_num_seqs=256, usage_hint="(start vLLM with --enable-prompt-tokens-details)"),
    health=_health,
    version_path="/version",
    metrics_path="/metrics",
    families=FAMILIES,
    signals=signals,
)
