from __future__ import annotations

from pathlib import Path

import pytest

from gateway.engines import ENGINES, Evidence, detect, engine_named, missing_model, parse, read_models
from gateway.engines.vllm import FAMILIES, signals
from gateway.fleet import ModelInfo, Signals

DATA = Path(__file__).parent / "data"


def read(file: str, version: str | None = None) -> Signals:
    return signals(parse((DATA / file).read_bytes(), FAMILIES), version)


def of(text: str, version: str | None = None) -> Signals:
    return signals(parse(text.encode(), FAMILIES), version)


def test_v0_names_are_understood() -> None:
    """0.6 and 0.7: one label, a hit-rate gauge instead of counters."""
    assert read("vllm_0.7.3_v0.txt", "0.7.3") == Signals(
        running=3, waiting=2, kv_usage=0.44, hit_rate=0.37, prompt_tokens=120000, kv_tokens=112000, block_size=16, prefix_caching=False
    )


def test_counters_of_0_8_are_blocks() -> None:
    """Prefix counters became tokens with 0.9: before, they are multiplied by the block size."""
    old = read("vllm_0.8.5.txt", "0.8.5.post1")
    assert (old.prefix_queries, old.prefix_hits, old.block_size, old.kv_usage) == (40960, 10240, 16, 0.125)


def test_old_names_of_0_9_are_tokens() -> None:
    """0.9.0 and 0.9.1 still have the old names, with the new unit."""
    s = read("vllm_0.9.1.txt", "0.9.1")
    assert (s.running, s.waiting, s.kv_usage, s.prefix_queries, s.prefix_hits, s.kv_tokens) == (6, 1, 0.271, 40960, 20480, 145920)


def test_both_generations_at_once_are_not_added() -> None:
    """0.9.2 to 0.10.2 expose old and new names with equal values."""
    assert read("vllm_0.10.1.txt", "0.10.1") == read("vllm_0.9.1.txt", "0.9.1")


def test_data_parallel_ranks_are_summed_and_usage_is_averaged() -> None:
    """Two ranks behind one address, adapters, sizes."""
    s = read("vllm_0.33_dp2.txt", "0.33.0")
    assert (s.running, s.waiting, s.ranks, s.kv_tokens, s.block_size) == (29, 4, 2, 2 * 655360, 16)
    assert s.kv_usage == pytest.approx((0.6127 + 0.388) / 2)
    assert (s.prefix_queries, s.prefix_hits) == (812544 + 590112, 501760 + 233472)
    assert (s.loras, s.asleep, s.prefix_caching) == (("legal-v2", "sql-v1"), False, True)


def test_a_full_exposition_of_an_idle_engine() -> None:
    """Zero is zero there, not unknown; only what never was is unknown."""
    s = read("vllm_0.32_idle.txt", "0.32.0")
    assert (s.running, s.waiting, s.kv_usage, s.kv_tokens, s.block_size, s.start_time) == (0, 0, 0, 1048576, 32, 1796110191.43)
    assert (s.step_seen, s.loras, s.max_num_seqs, s.gpu) == (None, None, None, None)


def test_an_exposition_without_engine_series_is_all_unknown() -> None:
    """`--disable-log-stats` leaves the process series alone: unknown, neither idle nor full."""
    assert of("process_start_time_seconds 12.5\npython_info 1\n") == Signals(start_time=12.5)


def test_any_rank_that_sleeps_counts_as_asleep() -> None:
    """A request may land on it and hang."""
    state = 'vllm:engine_sleep_state{{engine="{}",sleep_state="{}"}} {}\n'
    first = state.format(0, "awake", 1.0) + state.format(0, "discard_all", 0.0)
    second = state.format(1, "awake", 0.0) + state.format(1, "discard_all", 1.0)
    assert of(first).asleep is False
    assert of(first + second).asleep is True


def test_adapters_are_those_of_the_newest_series() -> None:
    """Stale label sets stay for ever; their value is the time of the update."""
    line = 'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{}",waiting_lora_adapters=""}} {}\n'
    assert of(line.format("old", 5.0) + line.format("", 9.0)).loras == ()
    assert of(line.format("a, b", 9.0) + line.format("old", 5.0)).loras == ("a", "b")


def test_the_largest_step_is_read_from_the_histogram() -> None:
    """The lowest bucket that holds every step bounds the largest one."""
    bucket = 'vllm:iteration_tokens_total_bucket{{engine="{}",le="{}"}} {}\n'
    rows = [(0, 512.0, 7), (0, 2048.0, 9), (0, 8192.0, 9), (0, "+Inf", 9)]
    assert of("".join(bucket.format(*row) for row in rows)).step_seen == 2048
    assert (
        of("".join(bucket.format(*row) for row in [*rows, (1, 512.0, 1), (1, 2048.0, 1), (1, 8192.0, 2), (1, "+Inf", 2)])).step_seen == 8192
    )
    assert of(bucket.format(0, "odd", 3) + bucket.format(0, "+Inf", 3)).step_seen is None


@pytest.mark.parametrize(
    ("cache", "tokens"),
    [
        ('block_size="16",num_gpu_blocks="100"', 1600),
        ('block_size="16",num_gpu_blocks="100",kv_cache_size_tokens="1700"', 1700),
        ('block_size="16",num_gpu_blocks="100",kv_cache_size_tokens="None"', 1600),
        ('block_size="16",num_gpu_blocks="None"', None),
        ('block_size="x",num_gpu_blocks="-3"', None),
        (f'block_size="16",num_gpu_blocks="{"9" * 5000}"', None),
    ],
)
def test_capacity_needs_numbers(cache: str, tokens: int | None) -> None:
    """Absent values are the word None; odd ones are absent."""
    assert of(f"vllm:cache_config_info{{{cache}}} 1.0\n").kv_tokens == tokens


def test_usage_is_a_share_whatever_it_says() -> None:
    """Out of range is clamped, -1 is no figure."""
    assert of("vllm:kv_cache_usage_perc 1.7\n").kv_usage == 1.0
    assert of("vllm:gpu_prefix_cache_hit_rate -1.0\n").hit_rate is None


def test_detection() -> None:
    """Its metrics or its model list give vLLM away; what nobody recognises is a plain OpenAI server."""
    assert detect(Evidence(version="0.12", metrics=b"# x\nvllm:num_requests_running 0\n")).name == "vllm"
    assert detect(Evidence(models=(ModelInfo("m", owned_by="vllm"),))).name == "vllm"
    assert detect(Evidence(version="0.12", metrics=b"# vllm: is only mentioned\n")).name == "openai"
    assert detect(Evidence()).name == "openai"


def test_engines_are_found_by_name() -> None:
    """Engines without a module are spoken to as OpenAI servers; the catch-all is tried last."""
    assert (engine_named("vllm").name, engine_named("sglang").name) == ("vllm", "openai")
    assert list(ENGINES)[-1] == "openai"


@pytest.mark.parametrize(
    ("engine", "status", "health"),
    [
        ("vllm", 200, "up"), ("vllm", 503, "down"), ("vllm", 500, "down"), ("vllm", 404, "down"),
        ("openai", 200, "up"), ("openai", 401, "up"), ("openai", 404, "up"), ("openai", 503, "starting"), ("openai", 500, "down"),
    ],
)  # fmt: skip
def test_health_answers(engine: str, status: int, health: str) -> None:
    """Each engine says in its own way that it is well."""
    assert engine_named(engine).health(status, b"") == health


def test_model_lists_are_read_entry_by_entry() -> None:
    """One odd entry does not hide the others, and each keeps its own bytes."""
    first = b'{"id":"m","max_model_len":4096,"root":"/w","permission":[{}]}'
    body = b'{"object":"list","data":[%b,{"id":7},5,{"id":"l","parent":"m","max_model_len":"x"}]}' % first
    models = read_models(body)
    assert [(m.id, m.max_model_len, m.root, m.parent) for m in models] == [("m", 4096, "/w", None), ("l", None, None, None)]
    assert models[0].raw == first


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data":5}', b"\xff", b'{"object":"list"}'])
def test_what_is_no_model_list_is_refused(body: bytes) -> None:
    """An error page with status 200 is not an empty list."""
    with pytest.raises(ValueError, match="not a model list"):
        read_models(body)


def test_an_absurd_list_is_bounded() -> None:
    """Names become metric labels: not without limit."""
    body = b'{"data":[' + b",".join(b'{"id":"m%d"}' % n for n in range(5000)) + b',{"id":"' + b"x" * 300 + b'"}]}'
    assert len(read_models(body)) == 1000


@pytest.mark.parametrize(
    ("status", "body", "missing"),
    [
        (404, b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}', True),
        (404, b'{"object":"error","message":"The model `x` does not exist.","type":"NotFoundError","param":null,"code":404}', True),
        (404, b'{"error":{"code":"model_not_found","message":"no"}}', True),
        (404, b'{"detail":"Not Found"}', False),
        (404, b'{"error":"Unauthorized"}', False),
        (404, b"<html>", False),
        (400, b'{"error":{"param":"model"}}', False),
    ],
)
def test_a_missing_model_is_told_from_a_missing_path(status: int, body: bytes, missing: bool) -> None:
    """Only the former says anything about the model."""
    assert missing_model(status, body) is missing
