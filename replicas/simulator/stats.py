"""What a replica counts, under the names vLLM 0.32 gives it. Every series exists from the start, at zero."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from replicas.simulator.engine import Engine, Job, Step
from replicas.simulator.metrics import (
    CHOICES,
    FIRST_TOKEN_SECONDS,
    PREEMPTIONS,
    REQUEST_SECONDS,
    STEP_TOKENS,
    TOKEN_SECONDS,
    Family,
    Histogram,
    labels,
    merged,
    render,
    token_bounds,
)

FINISHED = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")

SECONDS = {
    "e2e_request_latency": "From arrival to the last token.",
    "request_queue_time": "From arrival to the first step.",
    "request_inference_time": "From the first step to the last token.",
    "request_prefill_time": "From the first step to the first token.",
    "request_decode_time": "From the first token to the last.",
}
TOKENS = {
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Tokens generated.",
    "request_max_num_generation_tokens": "Most tokens a choice of the request got.",
    "request_params_max_tokens": "max_tokens of the request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens not found in the cache.",
}
# Counters of features the simulator does not have: present, and zero.
ABSENT = (
    "external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits",
    "estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu",
)  # fmt: skip


class Stats:
    """Counters and histograms of one engine, fed per step and per finished sequence."""

    def __init__(self, model: str, max_model_len: int, *, created: float | None = None) -> None:
        self.created = time.time() if created is None else created
        self._base = {"engine": "0", "model_name": model}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED, 0)
        self.rejected = dict.fromkeys(REJECTIONS, 0)
        self.first_token = Histogram(FIRST_TOKEN_SECONDS)
        self.between_tokens = Histogram(TOKEN_SECONDS)
        self.per_output_token = Histogram(TOKEN_SECONDS)
        self.step_tokens = Histogram(STEP_TOKENS)
        self.choices = Histogram(CHOICES)
        self.preemptions = Histogram(PREEMPTIONS)
        self.seconds = {name: Histogram(REQUEST_SECONDS) for name in SECONDS}
        self.tokens = {name: Histogram(token_bounds(max_model_len)) for name in TOKENS}

    def stepped(self, step: Step, emitted: Sequence[Job]) -> None:
        """Count one engine step and the tokens it gave."""
        self.step_tokens.observe(step.tokens)
        self.generation_tokens += len(emitted)
        for job in emitted:
            if job.generated > 1:
                self.between_tokens.observe(job.gap_s)
            else:
                self.prompt_tokens += job.prompt
                self.cached_tokens += job.cached
                self.first_token.observe((job.last_at or 0.0) - job.arrived)

    def ended(self, job: Job, reason: Literal["stop", "length"], *, choices: int, max_tokens: int) -> None:
        """Count one sequence that got all its tokens."""
        assert job.scheduled_at is not None
        assert job.first_at is not None
        assert job.last_at is not None
        self.finished[reason] += 1
        self.choices.observe(choices)
        self.preemptions.observe(job.preemptions)
        decode = job.last_at - job.first_at
        if job.generated > 1:
            self.per_output_token.observe(decode / (job.generated - 1))
        spans = (
            job.last_at - job.arrived, job.scheduled_at - job.arrived, job.last_at - job.scheduled_at,
            job.first_at - job.scheduled_at, decode,
        )  # fmt: skip
        for histogram, span in zip(self.seconds.values(), spans, strict=True):
            histogram.observe(span)
        counts = (job.prompt, job.generated, job.generated, max_tokens, job.prompt - job.cached)
        for histogram, count in zip(self.tokens.values(), counts, strict=True):
            histogram.observe(count)

    def page(self, engine: Engine, *, sleep_state: str = "awake", loras: Sequence[Family] = ()) -> bytes:
        """The answer of `/metrics`."""
        return render([*self._gauges(engine, sleep_state), *self._counters(engine), *self._histograms(), *loras, *_process()], self.created)

    def _gauges(self, engine: Engine, sleep_state: str) -> list[Family]:
        base, one = self._base, labels(**self._base)
        waiting = len(engine.waiting)
        reasons = [(merged(base, reason="capacity"), waiting), (merged(base, reason="deferred"), 0)]
        sleep = [(merged(base, sleep_state=name), float(name == sleep_state)) for name in SLEEP_STATES]
        return [
            Family("vllm:num_requests_running", "gauge", "Requests in the batch.", [(one, len(engine.running))]),
            Family("vllm:num_requests_waiting", "gauge", "Requests in the queue.", [(one, waiting)]),
            Family("vllm:num_requests_waiting_by_reason", "gauge", "Requests in the queue, by reason.", reasons),
            Family("vllm:engine_sleep_state", "gauge", "1 for the state the engine is in.", sleep),
            Family("vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.", [(one, engine.kv_usage)]),
            Family("vllm:cache_config_info", "gauge", "Configuration of the KV cache.", [(_cache_config(engine), 1)]),
        ]

    def _counters(self, engine: Engine) -> list[Family]:
        base, one = self._base, labels(**self._base)
        sources = {
            "local_compute": self.prompt_tokens - self.cached_tokens,
            "local_cache_hit": self.cached_tokens,
            "external_kv_transfer": 0,
        }
        places = {"device": self.cached_tokens, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}
        single = {
            "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", engine.queries),
            "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", engine.hits),
            "num_preemptions": ("Times a running request was preempted.", engine.preemptions),
            "prompt_tokens": ("Prompt tokens, cached ones included.", self.prompt_tokens),
            "prompt_tokens_cached": ("Prompt tokens found in the prefix cache.", self.cached_tokens),
            "generation_tokens": ("Tokens generated.", self.generation_tokens),
            **dict.fromkeys(ABSENT, ("Not simulated.", 0)),
        }
        split = {
            "prompt_tokens_by_source": ("Prompt tokens by where they came from.", "source", sources),
            "prompt_tokens_cached_by_source": ("Cached prompt tokens by place.", "source", places),
            "request_success": ("Requests finished, by reason.", "finished_reason", self.finished),
        }
        refused = [(labels(model_name=base["model_name"], reason=reason), count) for reason, count in self.rejected.items()]
        return [
            *(Family(f"vllm:{name}", "counter", text, [(one, value)]) for name, (text, value) in single.items()),
            *(
                Family(f"vllm:{name}", "counter", text, [(merged(base, **{label: key}), value) for key, value in values.items()])
                for name, (text, label, values) in split.items()
            ),
            Family("vllm:admission_rejections", "counter", "Requests refused at admission.", refused),
        ]

    def _histograms(self) -> list[Family]:
        one = labels(**self._base)
        table = {
            "iteration_tokens_total": ("Tokens of an engine step.", self.step_tokens),
            "time_to_first_token_seconds": ("From arrival to the first token.", self.first_token),
            "inter_token_latency_seconds": ("Between two tokens of a request.", self.between_tokens),
            "request_time_per_output_token_seconds": ("Mean time between the tokens of a request.", self.per_output_token),
            "request_params_n": ("n of the request.", self.choices),
            "request_num_preemptions": ("Preemptions of a request.", self.preemptions),
            **{f"{name}_seconds": (text, self.seconds[name]) for name, text in SECONDS.items()},
            **{name: (text, self.tokens[name]) for name, text in TOKENS.items()},
        }
        return [Family(f"vllm:{name}", "histogram", text, [(one, histogram)]) for name, (text, histogram) in table.items()]


def _cache_config(engine: Engine) -> str:
    blocks = engine.pool.capacity
    size = engine.block_size
    return labels(
        block_size=size,
        cache_dtype="auto",
        cache_hit_alignment_tokens=size,
        cpu_offload_gb=0,
        effective_attention_block_size=size,
        enable_prefix_caching=True,
        engine=0,
        gpu_memory_utilization=0.92,
        hash_block_size=size,
        kv_cache_memory_bytes=None,
        kv_cache_size_tokens=blocks * size,
        num_cpu_blocks=None,
        num_gpu_blocks=blocks,
        num_gpu_blocks_override=None,
        prefix_caching_hash_algo="sha256",
        prefix_match_unit=size,
        sliding_window=None,
    )


STARTED = time.time()


def _process() -> list[Family]:
    times = os.times()
    values = {
        "process_start_time_seconds": ("Unix time at which the process started.", STARTED),
        "process_resident_memory_bytes": ("Resident memory.", _resident()),
    }
    cpu = Family("process_cpu_seconds", "counter", "User and system CPU time.", [("", times.user + times.system)])
    return [*(Family(name, "gauge", text, [("", value)]) for name, (text, value) in values.items()), cpu]


def _resident() -> float:
    statm = Path("/proc/self/statm")
    return float(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0.0
