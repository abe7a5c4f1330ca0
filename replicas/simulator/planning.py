"""From a request to what will be generated: everything is decided on arrival, the engine only says when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import orjson

from replicas.simulator.errors import bad_value
from replicas.simulator.prompts import example
from replicas.simulator.tokens import Writer, pieces

Finish = Literal["stop", "length", "tool_calls", "abort"]


@dataclass(slots=True)
class Params:
    """Sampling as the planner needs it. `max_tokens` None: as many as the context allows."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: Sequence[str] = ()
    seed: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives per token; None: no log-probabilities
    tool: dict[str, Any] | None = None  # the function to call: {"name", "parameters"}
    schema: Any = None  # of the JSON to answer with
    salt: str = ""
    echo: bool = False


@dataclass(slots=True)
class Plan:
    """One answer, token by token."""

    pieces: list[str]
    finish: Finish
    stop_reason: str | None = None
    tool: str | None = None
    call_id: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Limits:
    """Context bounds of a model, in tokens."""

    max_model_len: int
    default_output: int | None = None

    def output(self, prompt: int, asked: int | None) -> int:
        """Most tokens to generate: what is asked for, as far as there is room. ApiError 400: the prompt does not fit, or no model's
        answer could be that long.
        """
        longest = self.max_model_len
        if asked is not None and asked > longest:
            raise bad_value(
                f"max_tokens={asked} cannot be greater than max_model_len={longest}. Please request fewer output tokens.", "max_tokens"
            )
        if prompt > longest:
            raise bad_value(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains at least {longest + 1} input "
                "tokens. Please reduce the length of the input prompt.",
                "input_tokens",
            )
        if prompt == longest:
            raise bad_value("max_tokens must be at least 1, got 0.", "max_tokens")
        room = longest - prompt
        return min(room, asked if asked is not None else self.default_output or room)


def plan(writer: Writer, prompt: bytes, params: Params, limit: int, index: int) -> Plan:
    """The answer number `index` to `prompt`, of at most `limit` tokens."""
    random = writer.random(prompt, params.seed, index)
    if params.tool is not None:
        arguments = orjson.dumps(example(params.tool.get("parameters") or {}))
        cut = _cut(pieces(arguments, writer.width), limit, "tool_calls")
        cut.tool = str(params.tool.get("name"))
        cut.call_id = f"chatcmpl-tool-{random.getrandbits(64):016x}"
        return cut
    if params.schema is not None:
        return _cut(pieces(orjson.dumps(example(params.schema)), writer.width), limit, "stop")
    return _prose(writer, random, params, limit)


def chosen_tool(tools: Sequence[dict[str, Any]] | None, choice: object, last: str) -> dict[str, Any] | None:
    """The function to call: on demand, or, left to the model, when the last message speaks of a tool."""
    functions = [tool.get("function", tool) for tool in tools or ()]
    if not functions or choice == "none":
        return None
    if isinstance(choice, dict):
        name = (choice.get("function") or choice).get("name")
        if name is not None:
            return next((function for function in functions if function.get("name") == name), None)
        choice = {"any": "required"}.get(str(choice.get("type")), "auto")
    return functions[0] if choice == "required" or "tool" in last.lower() else None


def schema_of(response_format: dict[str, Any] | None) -> Any:
    """The JSON schema an OpenAI `response_format` (or `text.format`) asks for; None: plain text."""
    kind = (response_format or {}).get("type")
    if response_format is None or kind not in ("json_schema", "json_object"):
        return None
    nested = response_format.get("json_schema") or response_format
    return nested.get("schema") or {}


def _prose(writer: Writer, random: Random, params: Params, limit: int) -> Plan:
    natural = limit if params.ignore_eos else max(writer.length(random), params.min_tokens)
    parts = writer.words(random, min(natural, limit))
    whole = Plan(parts, "length" if natural >= limit else "stop")
    return _stopped(whole, params.stop, params.min_tokens) if params.stop else whole


def _cut(parts: list[str], limit: int, finish: Finish) -> Plan:
    return Plan(parts, finish) if len(parts) <= limit else Plan(parts[:limit], "length")


def _stopped(whole: Plan, stops: Sequence[str], min_tokens: int) -> Plan:
    """The plan up to the first stop string after `min_tokens`; the string itself is not part of the answer."""
    text = whole.text
    start = len("".join(whole.pieces[:min_tokens]))
    found = [(text.find(stop, start), stop) for stop in stops if stop]
    hits = [(at, stop) for at, stop in found if at >= 0]
    if not hits:
        return whole
    at, stop = min(hits)
    kept: list[str] = []
    for piece in whole.pieces:
        if at < len(piece):
            kept.append(piece[:at])
            break
        kept.append(piece)
        at -= len(piece)
    return Plan(kept, "stop", stop)
