"""A replica's state: engine, model names, faults, sleep, what was asked of it. HTTP is `server`'s and the endpoints'."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from replicas.simulator.answers import Answer, Choice
from replicas.simulator.clockwork import Clockwork
from replicas.simulator.engine import Engine, Job
from replicas.simulator.errors import ApiError, bad_value, unknown_model
from replicas.simulator.faults import Faults
from replicas.simulator.generation import Generation
from replicas.simulator.options import Options
from replicas.simulator.planning import Limits, plan
from replicas.simulator.presets import PRESETS
from replicas.simulator.stats import Stats
from replicas.simulator.tokens import Writer, cells_of_pieces, chain
from replicas.simulator.wire import Reply, Request

VERSION = "0.32.0"
RECENT = 64
STORED = 1000


class Call(NamedTuple):
    """One request on its way through a handler."""

    replica: Replica
    request: Request
    reply: Reply


class Replica:
    """Everything mutable about one replica. Lives on one event loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.created = int(time.time())
        self.writer = Writer(options.text_bytes, options.seed, options.output_tokens)
        self.faults = Faults(Random(options.seed))
        self.loras = list(options.loras)
        self.inflight: set[Generation] = set()
        self.quiet = asyncio.Event()  # nothing in flight
        self.quiet.set()
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.draining = False
        self.restart()
        for fault in options.faults:
            self.faults.add(fault, self.clock.now())

    def restart(self) -> None:
        """A fresh engine: empty cache, counters at zero, awake. Requests in flight must have been dealt with."""
        options = self.options
        preset = PRESETS[options.preset]
        self.engine = Engine(
            preset.cost.scaled(options.speed),
            kv_tokens=options.kv_tokens or preset.kv_tokens,
            max_num_seqs=options.max_num_seqs or preset.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens or preset.max_num_batched_tokens,
            block_size=options.block_size,
        )
        self.max_model_len = min(options.max_model_len, self.engine.pool.capacity * options.block_size)
        self.stats = Stats(options.names[0], self.max_model_len)
        self.clock = Clockwork(self.engine, slowness=self.faults.slowness, stepped=self.stats.stepped)
        self.sleep_state = "awake"
        self.asked: dict[str, int] = {}  # requests by path
        self.responses: dict[str, dict[str, Any]] = {}
        self.background: dict[str, Generation] = {}

    def resolve(self, name: str | None) -> tuple[str, str]:
        """(name to show, LoRA adapter or "") of what a client named; 404 for a stranger."""
        base = self.options.names
        if not name or name in base:
            return base[0], ""
        if name in self.loras:
            return name, name
        raise unknown_model(name, [*base, *self.loras])

    def request_id(self, request: Request, asked: str | None = None) -> str:
        """The engine's id of a request: body, header, else a new one."""
        return asked or request.headers.get("x-request-id") or uuid.uuid4().hex

    def admit(self) -> None:
        """ApiError for work that must not be taken on."""
        if self.draining:
            raise ApiError(500, "cannot schedule new futures after shutdown", "InternalServerError")
        limit = self.options.max_num_queued_reqs
        if limit is not None and len(self.inflight) >= limit:
            self.stats.rejected["max_num_queued_reqs"] += 1
            raise ApiError(503, f"The server is at its limit of {limit} queued requests.", "Service Unavailable")

    def generate(
        self, reply: Reply | None, answer: Answer, prompts: Sequence[bytes], lora: str, *, default_output: int | None = None
    ) -> Generation:
        """Plan the answers to `prompts` (cells) and queue them. ApiError where one does not fit."""
        self.admit()
        params = answer.params
        limits = Limits(self.max_model_len, default_output)
        choices: list[Choice] = []
        for prompt in prompts:
            limit = limits.output(self.length(prompt), params.max_tokens)
            for _ in range(params.n):
                what = plan(self.writer, prompt, params, limit, len(choices))
                choices.append(Choice(len(choices), what, self.length(prompt)))
        return self.enqueue(reply, answer, prompts, choices, lora)

    def enqueue(self, reply: Reply | None, answer: Answer, prompts: Sequence[bytes], choices: Sequence[Choice], lora: str) -> Generation:
        """Hand planned choices, `params.n` per prompt, to the engine."""
        namespace = xxh3_64_intdigest(f"{lora}\0{answer.params.salt}".encode()) if lora or answer.params.salt else 0
        block = self.options.block_size * self.options.text_bytes
        generation = Generation(self, reply, answer, choices, lora)
        now = self.clock.now()
        for track in generation.tracks:
            prompt = prompts[track.choice.index // answer.params.n]
            pieces = track.choice.plan.pieces
            keys = chain(prompt + cells_of_pieces(pieces, self.options.text_bytes), block, namespace)
            track.job = Job(keys, track.choice.prompt, max(1, len(pieces)), arrived=now, owner=track)
        for track in generation.tracks:
            self.clock.add(track.job)
        self.inflight.add(generation)
        self.quiet.clear()
        return generation

    def store(self, response: dict[str, Any]) -> None:
        """Keep a response object; the oldest make room."""
        self.responses[response["id"]] = response
        while len(self.responses) > STORED:
            del self.responses[next(iter(self.responses))]

    def settled(self, generation: Generation) -> None:
        """A generation has ended, however."""
        self.inflight.discard(generation)
        if not self.inflight:
            self.quiet.set()

    def halt(self) -> None:
        """Drop all work silently: clients are left waiting, as by an engine that is shut down under its API."""
        for generation in list(self.inflight):
            generation.halt("dropped")

    def length(self, prompt: bytes) -> int:
        """Tokens of a prompt; ApiError 400 for an empty one."""
        if not prompt:
            raise bad_value("The decoder prompt cannot be empty", "prompt")
        return len(prompt) // self.options.text_bytes
