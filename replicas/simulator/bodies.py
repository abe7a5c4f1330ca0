"""Request bodies: the fields a replica reads, and vLLM's way of refusing wrong ones. Unknown fields are ignored."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from replicas.simulator.errors import ApiError, bad_request, bad_value
from replicas.simulator.wire import Request


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct):
    """What every endpoint with a JSON body may carry."""

    model: str | None = None


class Sampled(Body):
    """What every generating endpoint may carry."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    echo: bool = False


class ChatBody(Sampled, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionBody(Sampled, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None


class ResponsesBody(Sampled, kw_only=True):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class MessagesBody(Body, kw_only=True):
    messages: list[dict[str, Any]]
    max_tokens: int
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None


class CountBody(Body, kw_only=True):
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class EmbeddingBody(Body, kw_only=True):
    input: str | list[str | int | list[int]]
    encoding_format: str | None = None
    dimensions: int | None = None


class RerankBody(Body, kw_only=True):
    query: str
    documents: list[str | dict[str, Any]]
    top_n: int | None = None


class ScoreBody(Body, kw_only=True):
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


class SpeechBody(Body, kw_only=True):
    input: str
    voice: str | dict[str, Any] | None = None
    response_format: str | None = None


class ImageBody(Body, kw_only=True):
    prompt: str
    n: int | None = None
    response_format: str | None = None


class TokenizeBody(Body, kw_only=True):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeBody(Body, kw_only=True):
    tokens: list[int]


class AdapterBody(msgspec.Struct):
    lora_name: str
    lora_path: str = ""


B = TypeVar("B", bound=msgspec.Struct)

MISSING = re.compile(r"missing required field `(\w+)`(?: - at `\$?(.*)`)?")
PLACE = re.compile(r" - at `\$\.?(.*)`$")


def decode(request: Request, kind: type[B]) -> B:
    """The body as `kind`; ApiError 400 in vLLM's words where it does not fit."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise bad_request("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        return msgspec.json.decode(request.body, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _broken(request.body) from None


def form(request: Request) -> dict[str, bytes]:
    """The parts of a multipart body by name. ApiError 400 where there is none."""
    content_type, _, parameters = request.headers.get("content-type", "").partition(";")
    found = re.search(r'boundary="?([^";]+)', parameters)
    if content_type.strip().lower() != "multipart/form-data" or found is None:
        raise missing("file")
    fields: dict[str, bytes] = {}
    for part in request.body.split(b"--" + found[1].encode())[1:-1]:
        part_head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'\bname="([^"]*)"', part_head)
        if name is not None:
            fields[name[1].decode("utf-8", "replace")] = value.removesuffix(b"\r\n")
    return fields


def missing(field: str) -> ApiError:
    """400 for a field that must be there."""
    place = ("body", *field.split("."))
    return bad_request(f"1 validation error:\n  {{'type': 'missing', 'loc': {place!r}, 'msg': 'Field required'}}", f"body.{field}")


def check_ranges(body: Sampled | MessagesBody) -> None:
    """ApiError 400 for sampling parameters out of range."""
    if body.temperature is not None and body.temperature < 0:
        raise bad_value(f"temperature must be non-negative, got {body.temperature}.", "temperature")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise bad_value(f"top_p must be in (0, 1], got {body.top_p}.", "top_p")
    if body.max_tokens is not None and body.max_tokens < 1:
        raise bad_value(f"max_tokens must be at least 1, got {body.max_tokens}.", "max_tokens")
    if isinstance(body, MessagesBody):
        return
    if body.n is not None and body.n < 1:
        raise bad_value(f"n must be at least 1, got {body.n}.", "n")
    if body.stream_options is not None and not body.stream:
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.cache_salt is not None and (not body.cache_salt or len(body.cache_salt) > 128 or set(body.cache_salt) & set("@/\\\0")):
        raise bad_value("Parameter 'cache_salt' must be a non-empty string without special characters if provided.", "cache_salt")


def _invalid(message: str) -> ApiError:
    absent = MISSING.search(message)
    if absent is not None:
        return missing(".".join(filter(None, ((absent[2] or "").strip("."), absent[1]))))
    place = PLACE.search(message)
    param = "body." + re.sub(r"\[(\d+|\.\.\.)\]", r".\1", place[1]) if place is not None else "body"
    what = PLACE.sub("", message)
    return bad_request(f"1 validation error:\n  {{'type': 'type_error', 'loc': {tuple(param.split('.'))!r}, 'msg': {what!r}}}", param)


def _broken(body: bytes) -> ApiError:
    try:
        json.loads(body)
        at, what = 0, "Malformed JSON"
    except json.JSONDecodeError as error:
        at, what = error.pos, error.msg
    except ValueError:
        at, what = 0, "Body is not UTF-8"
    detail = f"{{'type': 'json_invalid', 'loc': ('body', {at}), 'msg': 'JSON decode error', 'ctx': {{'error': {what!r}}}}}"
    return bad_request(f"1 validation error:\n  {detail}", f"body.{at}")
