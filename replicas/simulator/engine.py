"""Discrete core of a replica: continuous batching with chunked prefill over a paged, prefix-sharing KV cache.

Pure: nothing here reads a clock or sleeps. `begin(now)` composes a step and says how long it takes, `finish(step, now)`
applies it; whoever owns time calls the two in turn. Requests are opaque: prompt and output lengths, and one key per full
block of their tokens.

Scheduling follows vLLM V1: running sequences first, in order of arrival, then waiting ones while batch slots, step budget
and blocks last; a running sequence that finds no block preempts the youngest, which starts over from the head of the
queue. At least the last prompt token is always computed. Blocks are shareable from the step that computes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from replicas.simulator.kv import BlockPool
from replicas.simulator.presets import Cost


class Job:
    """One sequence: its size, and how far it has come. All times are the caller's seconds."""

    __slots__ = (
        "arrived", "blocks", "cached", "computed", "done", "first_at", "gap_s", "generated", "held", "keys",
        "last_at", "output", "owner", "preemptions", "prompt", "scheduled_at",
    )  # fmt: skip

    def __init__(self, keys: Sequence[int], prompt: int, output: int, *, arrived: float = 0.0, owner: Any = None) -> None:
        """`keys` names full blocks from the first token on, through the prompt and as far into the output as is known."""
        if prompt < 1 or output < 1:
            raise ValueError("a job has at least one prompt token and one output token")
        self.keys = keys
        self.prompt = prompt
        self.output = output
        self.arrived = arrived
        self.owner = owner
        self.cached = 0  # prompt tokens found in the cache when first scheduled
        self.computed = 0  # tokens whose KV is in the cache
        self.generated = 0
        self.blocks = 0
        self.held: list[int] = []  # those of its blocks that are shared by key
        self.preemptions = 0
        self.done = False
        self.scheduled_at: float | None = None
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.gap_s = 0.0  # between its last two tokens


class Step(NamedTuple):
    """One forward pass: its length and who takes part with how many tokens."""

    seconds: float
    work: list[tuple[Job, int]]
    prefill: int
    decoding: int
    context: int

    @property
    def tokens(self) -> int:
        return self.prefill + self.decoding


class Engine:
    """The mutable state is `running`, `waiting`, the pool and the counters; only the methods below change it."""

    def __init__(self, cost: Cost, *, kv_tokens: int, max_num_seqs: int, max_num_batched_tokens: int, block_size: int = 16) -> None:
        self.cost = cost
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.step_tokens = max_num_batched_tokens
        self.pool = BlockPool(kv_tokens // block_size)
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.queries = 0  # prompt tokens looked up in the prefix cache
        self.hits = 0  # ... and found
        self.preemptions = 0

    def __repr__(self) -> str:
        return f"Engine(running={len(self.running)}, waiting={len(self.waiting)}, {self.pool!r})"

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def kv_usage(self) -> float:
        """Share of blocks in use, 0..1; cached blocks nobody uses count as free."""
        return self.pool.used / self.pool.capacity

    def add(self, job: Job) -> None:
        """Queue a job. ValueError: it could never fit into the cache."""
        if self._blocks_for(job.prompt + job.output - 1) > self.pool.capacity:
            raise ValueError(f"{job.prompt} + {job.output} tokens do not fit into {self.pool.capacity} blocks of {self.block_size}")
        self.waiting.append(job)

    def abort(self, job: Job) -> None:
        """Forget a job in any phase; its blocks are free at once. Idempotent."""
        if job.done:
            return
        job.done = True
        if job in self.running:
            self.running.remove(job)
        else:
            self.waiting.remove(job)
        self._release(job)

    def begin(self, now: float) -> Step | None:
        """Compose the next step; None when there is nothing to do."""
        work: list[tuple[Job, int]] = []
        budget, calm = self._schedule_running(work, self.step_tokens)
        if calm:
            self._admit(work, budget, now)
        if not work:
            return None
        prefill = decoding = context = 0
        for job, tokens in work:
            if tokens == 1 and job.computed >= job.prompt:
                decoding += 1
                context += job.computed + 1
            else:
                prefill += tokens
        return Step(self.cost.seconds(prefill, decoding, context), work, prefill, decoding, context)

    def finish(self, step: Step, now: float) -> list[Job]:
        """Apply a step at its end. Returns the jobs that got a token, `done` set on those that have all of theirs."""
        emitted: list[Job] = []
        ended = False
        for job, tokens in step.work:
            if job.done:
                continue  # aborted meanwhile
            job.computed += tokens
            if job.computed < job.prompt + job.generated:
                continue  # prefill goes on
            job.generated += 1
            if job.last_at is None:
                job.first_at = now
            else:
                job.gap_s = now - job.last_at
            job.last_at = now
            emitted.append(job)
            if job.generated == job.output:
                job.done = ended = True
                self._release(job)
        if ended:
            self.running = [job for job in self.running if not job.done]
        return emitted

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _schedule_running(self, work: list[tuple[Job, int]], budget: int) -> tuple[int, bool]:
        """Give every running job its tokens; (budget left, nobody had to be preempted)."""
        running, size = self.running, self.block_size
        calm = True
        index = 0
        while index < len(running) and budget:
            job = running[index]
            tokens = min(job.prompt + job.generated - job.computed, budget)
            offset = job.computed % size
            # Most decode steps stay inside a block that is there already.
            if (offset and offset + tokens < size) or self._grow(job, tokens):
                work.append((job, tokens))
                budget -= tokens
                index += 1
            else:
                self._preempt(running.pop())
                calm = False
        return budget, calm

    def _admit(self, work: list[tuple[Job, int]], budget: int, now: float) -> None:
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            job = self.waiting[0]
            total = job.prompt + job.generated
            hits = self.pool.match(job.keys, (total - 1) // self.block_size)
            start = hits * self.block_size
            tokens = min(total - start, budget)
            new = self._blocks_for(start + tokens) - hits
            if not self.pool.claim(job.keys[:hits], new):
                return
            self.waiting.popleft()
            self.running.append(job)
            job.held = list(job.keys[:hits])
            job.blocks = hits + new
            job.computed = start
            self._first_look(job, start, now)
            self._publish(job, hits, start + tokens)
            work.append((job, tokens))
            budget -= tokens

    def _first_look(self, job: Job, start: int, now: float) -> None:
        """Count the cache lookup, once in a job's life: a preempted job mostly finds its own blocks again."""
        if job.scheduled_at is None:
            job.scheduled_at = now
            job.cached = start
            self.queries += job.prompt
            self.hits += start

    def _grow(self, job: Job, tokens: int) -> bool:
        """Blocks for `tokens` more tokens of a running job."""
        end = job.computed + tokens
        new = self._blocks_for(end) - job.blocks
        if new > 0:
            if not self.pool.allocate(new):
                return False
            job.blocks += new
        full = job.computed // self.block_size
        if end // self.block_size > full:
            self._publish(job, full, end)
        return True

    def _publish(self, job: Job, first: int, end: int) -> None:
        """Make the full blocks from index `first` up to token `end` shareable."""
        for key in job.keys[first : end // self.block_size]:
            if self.pool.publish(key):
                job.held.append(key)

    def _preempt(self, job: Job) -> None:
        self._release(job)
        job.computed = 0
        job.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(job)

    def _release(self, job: Job) -> None:
        self.pool.release(job.held, job.blocks - len(job.held))
        job.held = []
        job.blocks = 0
