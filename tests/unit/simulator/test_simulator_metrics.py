"""The simulator's metrics page."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from replicas.simulator.engine import Engine, Job
from replicas.simulator.metrics import Family, Histogram, labels, render, token_bounds
from replicas.simulator.presets import PRESETS
from replicas.simulator.stats import Stats

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(page: bytes) -> Samples:
    """Every sample of a page; fails on a page that does not parse or has a sample twice."""
    out: Samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in out
            out[key] = sample.value
    return out


def value(samples: Samples, name: str, **extra: str) -> float:
    """One sample of the engine."""
    return samples[name, frozenset({"engine": "0", "model_name": "m", **extra}.items())]


def busy_engine() -> tuple[Engine, Stats]:
    """An engine that has served three requests on one prefix, and its counts."""
    engine = Engine(PRESETS["h100-8b"].cost, kv_tokens=16_000, max_num_seqs=8, max_num_batched_tokens=512)
    stats = Stats("m", 32_768, created=1.0)
    now = 0.0
    for _ in range(3):
        job = Job(list(range(10)), 160, 5, arrived=now)
        engine.add(job)
        while (step := engine.begin(now)) is not None:
            now += step.seconds
            stats.stepped(step, engine.finish(step, now))
        stats.ended(job, "length", choices=1, max_tokens=5)
    return engine, stats


def test_token_counters_add_up() -> None:
    """Prompt tokens split into computed and cached, and agree with the cache's own counters and the histograms."""
    engine, stats = busy_engine()
    page = samples_of(stats.page(engine))
    assert value(page, "vllm:prompt_tokens_total") == 480
    assert value(page, "vllm:prompt_tokens_cached_total") == 2 * 144
    assert value(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 480 - 288
    assert value(page, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 288
    assert value(page, "vllm:prompt_tokens_cached_by_source_total", source="device") == 288
    assert value(page, "vllm:prefix_cache_queries_total") == 480
    assert value(page, "vllm:prefix_cache_hits_total") == 288
    assert value(page, "vllm:request_prompt_tokens_sum") == 480
    assert value(page, "vllm:request_prefill_kv_computed_tokens_sum") == 480 - 288
    assert value(page, "vllm:generation_tokens_total") == 15
    assert value(page, "vllm:request_generation_tokens_sum") == 15
    assert value(page, "vllm:iteration_tokens_total_sum") == 480 - 288 + 3 * 4


def test_latency_histograms_add_up() -> None:
    """One first token per request, four gaps each; queue + prefill + decode is the whole."""
    engine, stats = busy_engine()
    page = samples_of(stats.page(engine))
    assert value(page, "vllm:time_to_first_token_seconds_count") == 3
    assert value(page, "vllm:inter_token_latency_seconds_count") == 12
    assert value(page, "vllm:request_time_per_output_token_seconds_count") == 3
    parts = sum(value(page, f"vllm:request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode"))
    assert abs(parts - value(page, "vllm:e2e_request_latency_seconds_sum")) < 1e-9


def test_every_series_is_there_from_the_start() -> None:
    """An idle engine's page has the series of a busy one, at zero."""
    engine, stats = busy_engine()
    busy = samples_of(stats.page(engine))
    fresh = Engine(PRESETS["h100-8b"].cost, kv_tokens=16_000, max_num_seqs=8, max_num_batched_tokens=512)
    idle = samples_of(Stats("m", 32_768, created=1.0).page(fresh))
    assert set(idle) == set(busy)
    counters = {key: count for key, count in idle.items() if key[0].endswith(("_total", "_count", "_sum")) and key[0].startswith("vllm:")}
    assert len(counters) > 40
    assert set(counters.values()) == {0.0}


def test_gauges_show_the_engine_as_it_is() -> None:
    """Running, waiting, blocks in use; the split of waiting sums to it."""
    engine = Engine(PRESETS["h100-8b"].cost, kv_tokens=1600, max_num_seqs=2, max_num_batched_tokens=512)
    for family in range(5):
        engine.add(Job([family], 16, 16))
    engine.begin(0.0)
    page = samples_of(Stats("m", 1600).page(engine, sleep_state="weights_offloaded"))
    assert value(page, "vllm:num_requests_running") == 2
    assert value(page, "vllm:num_requests_waiting") == 3
    assert sum(value(page, "vllm:num_requests_waiting_by_reason", reason=reason) for reason in ("capacity", "deferred")) == 3
    assert value(page, "vllm:kv_cache_usage_perc") == 0.02
    assert value(page, "vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1
    assert value(page, "vllm:engine_sleep_state", sleep_state="awake") == 0


def test_the_cache_tells_its_size() -> None:
    """Blocks and block size, as strings, and their product."""
    engine, stats = busy_engine()
    page = samples_of(stats.page(engine))
    info = next(dict(tags) for name, tags in page if name == "vllm:cache_config_info")
    assert (info["num_gpu_blocks"], info["block_size"], info["kv_cache_size_tokens"]) == ("1000", "16", "16000")
    assert (info["engine"], info["num_cpu_blocks"], info["enable_prefix_caching"]) == ("0", "None", "True")


def test_buckets_are_cumulative_and_inclusive() -> None:
    """A value on a bound belongs to that bound; the last bucket holds everything."""
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(number)
    page = samples_of(render([Family("h", "histogram", "x", [(labels(engine=0, model_name="m"), histogram)])], 1.0))
    assert [value(page, "h_bucket", le=edge) for edge in ("1.0", "2.0", "+Inf")] == [2, 4, 5]
    assert (value(page, "h_count"), value(page, "h_sum")) == (5, 14.0)


def test_label_values_are_escaped() -> None:
    """A model name with quotes, a backslash or a newline survives."""
    name = 'a"b\\c\nd'
    page = samples_of(render([Family("g", "gauge", "x", [(labels(model_name=name), 1.0)])], 1.0))
    assert page == {("g", frozenset({("model_name", name)})): 1.0}


def test_token_bounds_follow_one_two_five() -> None:
    """Up to the limit, which need not be one of them."""
    assert token_bounds(120) == (1, 2, 5, 10, 20, 50, 100)
    assert token_bounds(10) == (1, 2, 5, 10)
