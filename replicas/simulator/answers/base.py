"""What the answers of all endpoints share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from replicas.simulator.planning import Params, Plan

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Choice:
    """One generated sequence of a request."""

    index: int
    plan: Plan
    prompt: int  # tokens
    echo: str = ""


@dataclass(slots=True)
class Usage:
    """Token counts of a whole request; `cached` is shown only where the replica reveals it."""

    prompt: int
    completion: int
    cached: int
    details: bool

    def openai(self) -> dict[str, Any]:
        """As chat, completions and embeddings report it."""
        details = {"cached_tokens": self.cached, "created_cache_tokens": None, "multimodal_tokens": None} if self.details else None
        return {**counts(self.prompt, self.completion), "prompt_tokens_details": details}


def counts(prompt: int, completion: int) -> dict[str, Any]:
    """The short usage object."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


class Answer:
    """One endpoint's rendering. `opening` goes out with the first token, `piece` per token, `closing` after the last."""

    prefix = ""  # of ids
    content_type = "application/json"  # of whole answers

    def __init__(self, request_id: str, model: str, created: int, params: Params) -> None:
        self.id = f"{self.prefix}{request_id}"
        self.model = model
        self.created = created
        self.params = params

    def opening(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Events before the first token."""
        return b""

    def piece(self, choice: Choice, start: int, end: int) -> bytes:
        """The event for tokens `start:end` of a choice; the last one when `end` is the plan's length."""
        raise NotImplementedError

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """Events after the last token of all choices."""
        raise NotImplementedError

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        raise NotImplementedError


def event(value: object) -> bytes:
    """An unnamed event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named(name: str, value: object) -> bytes:
    """A named event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(value))


def logprob(piece: str, rank: int = 0) -> float:
    """A plausible log-probability that depends on nothing but the token."""
    return round(math.log(0.9 / (1 + rank + len(piece) % 3)), 4)
