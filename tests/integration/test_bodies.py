"""Bodies in both directions: what a client wrote is what a replica reads, and what a replica wrote is what a client gets."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import sends, streams
from tests.integration.toolkit import CHAT, DONE, STREAM, Client, Conn, ask, ev, eventually, http, refused

if TYPE_CHECKING:
    Start = Any

VENDOR = {
    "chat_template_kwargs": {"enable_thinking": False},
    "return_token_ids": True,
    "top_k": 40,
    "cache_salt": "s",
    "priority": -1,
    "max_completion_tokens": 5,
    "zz": {"a": [1, None, {"b": False}]},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "logprobs": True,
    "n": 3,
    "seed": 7,
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
}
HISTORY = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": ""},
]
ENDPOINTS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"model": "m", "prompt": [1, 2, 3]}),
    ("/v1/completions", {"model": "m", "prompt": [[1, 2], [3]]}),
    ("/v1/completions", {"model": "m", "prompt": ["a", "b"]}),
    ("/v1/embeddings", {"model": "m", "input": "a"}),
    ("/v1/embeddings", {"model": "m", "input": ["a", "b"], "encoding_format": "base64"}),
    ("/v1/responses", {"model": "m", "input": "hi"}),
    ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}),
    ("/v1/messages", {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/messages/count_tokens", {"model": "m", "messages": []}),
    ("/v1/rerank", {"model": "m", "query": "q", "documents": ["a"]}),
    ("/v1/score", {"model": "m", "text_1": "a", "text_2": ["b"]}),
    ("/v1/audio/speech", {"model": "m", "input": "hi", "voice": "x"}),
    ("/v1/images/generations", {"model": "m", "prompt": "a cat"}),
    ("/tokenize", {"model": "m", "prompt": "hi"}),
    ("/detokenize", {"model": "m", "tokens": [1]}),
    ("/v1/classify", {"model": "m", "input": "hi"}),
]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_every_endpoint_passes_its_body_byte_for_byte(replica: Start, gateway: Start, path: str, body: dict[str, Any]) -> None:
    """Same path, same query, same bytes at the replica: fields unknown to the gateway, nulls and all."""
    r1 = await replica()
    running = await gateway(r1, server={"relay_paths": ["/v1/classify"]})
    data = json.dumps({**body, **VENDOR, "stop": None, "ü": "\u00e9\U0001f600"}, ensure_ascii=False, indent=1).encode()
    reply = await ask(running, data, f"{path}?api-version=1&x=%2F")
    assert reply.status == 200
    [seen] = r1.requests
    assert seen.line == f"POST {path}?api-version=1&x=%2F HTTP/1.1"
    assert seen.body == data


async def test_nulls_are_not_absence(replica: Start, gateway: Start) -> None:
    """Keys that hold null stay, in requests and in answers, and nothing is added that was not sent."""
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": []}
    answer = json.dumps({"id": "c", "choices": [{"index": 0, "message": message, "logprobs": None}], "usage": None}).encode()
    r1 = await replica(sends(http(200, answer)))
    body = json.dumps({**CHAT, "messages": HISTORY, "stop": None}).encode()
    reply = await ask(await gateway(r1), body)
    assert r1.requests[0].body == body
    assert reply.body == answer


# -- the model's name ----------------------------------------------------------------------------------------------------

SPLICED = [
    ("compact", b'{"model":"%b","seed":9007199254740993,"messages":[]}'),
    ("spaced", b'{"model": "%b", "seed": 123456789012345678901234567890, "messages": []}'),
    ("pretty", b'{\n  "seed": 1e400,\n  "model" : "%b",\n  "messages": []\n}'),
    ("last", b'{"messages":[],"seed":1.0,"model":"%b"}'),
    ("decoys", b'{"messages":[{"content":"\\"model\\":\\"other\\"","model":"other"}],"x":{"model":"other"},"model":"%b","y":"model"}'),
    ("escaped key", b'{"mod\\u0065l":"%b","messages":[]}'),
    ("non-ascii before it", '{"messages":[{"content":"日本語😀\u2028"}],"model":"%b"}'.encode()),
    ("surrogates before it", b'{"messages":[{"content":"\\ud83d"}],"model":"%b"}'),
    ("repeated other keys", b'{"seed":1,"seed":2,"model":"%b"}'),
    ("model inside an array", b'{"a":[{"model":"other"}],"model":"%b"}'),
]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in SPLICED])
async def test_an_alias_changes_the_model_s_value_and_nothing_else(replica: Start, gateway: Start, body: bytes) -> None:
    """Every other byte is the client's: no digit of a number, no blank, no order of keys changes."""
    r1 = await replica()
    models = [{"name": "m", "aliases": ["alias-m"], "replicas": [{"url": r1.url}]}]
    assert (await ask(await gateway(models=models), body % b"alias-m")).status == 200
    assert r1.requests[0].body == body % b"m"


async def test_a_served_model_with_odd_characters_is_written_as_json(replica: Start, gateway: Start) -> None:
    """The name a replica knows may need escaping."""
    served = 'org/"quoted" \\ ünï'
    r1 = await replica(models=[{"id": served, "object": "model"}])
    models = [{"name": "m", "replicas": [{"url": r1.url, "served_model": served}]}]
    assert (await ask(await gateway(models=models))).status == 200
    assert r1.requests[0].json() == {**CHAT, "model": served}
    assert r1.requests[0].header("content-length") == str(len(r1.requests[0].body))


# -- asking for usage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": False}},
        {"stream_options": {"include_usage": None, "continuous_usage_stats": True}},
        {"stream_options": "odd"},
        {"stream": False},
        {"stream": "true"},
    ],
)
async def test_a_client_that_decided_about_usage_is_left_alone(replica: Start, gateway: Start, change: dict[str, Any]) -> None:
    """Usage is asked for on the client's behalf only in streams that say nothing about it."""
    r1 = await replica()
    body = json.dumps({**STREAM, **change}).encode()
    await ask(await gateway(r1), body)
    assert r1.requests[0].body == body


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/audio/speech"])
async def test_usage_is_not_asked_for_where_the_field_means_nothing(replica: Start, gateway: Start, path: str) -> None:
    """Only chat and completions know `stream_options`."""
    r1 = await replica()
    body = json.dumps({"model": "m", "input": "hi", "messages": [], "stream": True}).encode()
    await ask(await gateway(r1), body, path)
    assert r1.requests[0].body == body


async def test_usage_asked_for_by_the_gateway_adds_one_field(replica: Start, gateway: Start) -> None:
    """And with `usage.inject` off it adds none."""
    r1 = await replica(streams(ev("a"), DONE))
    await ask(await gateway(r1), STREAM)
    await ask(await gateway(r1, usage={"inject": False}), STREAM)
    asked, plain = r1.requests
    assert asked.json() == {**STREAM, "stream_options": {"include_usage": True}}
    assert plain.json() == STREAM


# -- answers -------------------------------------------------------------------------------------------------------------


def delta(**fields: Any) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": None}
    return (
        b"data: "
        + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice], "prompt_token_ids": [1, 2]}).encode()
        + b"\n\n"
    )


async def test_vendor_fields_of_stream_deltas_pass(replica: Start, gateway: Start) -> None:
    """Reasoning, tool call indices and token ids, also in chunks without content."""
    events = (
        delta(role="assistant", content=None),
        delta(reasoning="r"),
        delta(reasoning_content="c", content=None),
        delta(tool_calls=[{"index": 1, "id": None, "function": {"arguments": '{"a'}}]),
        delta(token_ids=[5], content=""),
        DONE,
    )
    reply = await ask(await gateway(await replica(streams(*events))), STREAM)
    assert reply.body == b"".join(events)


PRETTY = (
    b'{\n  "id" : "c",\n  "id" : "d",\n  "big": 123456789012345678901234567890,\n  "f": 1.0e+00,\n  "e": "\\u00e9\\/",'
    b'\n  "usage": null,\n  "x_unknown": {"b": 1, "a": 2}\n}\n'
)


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/v1/chat/completions", "application/json", PRETTY),
        ("/v1/chat/completions", "text/plain; charset=latin-1", b"\xe9t\xe9"),
        ("/v1/audio/speech", "audio/mpeg", bytes(range(256)) * 400),
        ("/v1/chat/completions", "application/json", b""),
    ],
)
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_an_answer_is_not_rewritten(replica: Start, gateway: Start, path: str, kind: str, body: bytes, framing: str) -> None:
    """Status line aside, a client gets the replica's bytes and content type, however they were framed."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n"
    pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
    written = {
        "length": f"{head}content-length: {len(body)}\r\n\r\n".encode() + body,
        "chunked": f"{head}transfer-encoding: chunked\r\n\r\n".encode()
        + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces)
        + b"0\r\n\r\n",
        "close": f"{head}connection: close\r\n\r\n".encode() + body,
    }[framing]
    r1 = await replica(sends(written, then="fin" if framing == "close" else "keep"))
    reply = await ask(await gateway(r1), {**CHAT, "input": "x"}, path)
    assert (reply.status, reply.body, reply.complete) == (200, body, True)
    assert reply.headers["content-type"] == kind
    assert ("content-length" in reply.headers) != ("transfer-encoding" in reply.headers)


@pytest.mark.parametrize("status", [200, 404])
async def test_a_compressed_answer_and_its_header_stay_together(replica: Start, gateway: Start, status: int) -> None:
    """The client asked for gzip and gets it: header, length and bytes agree, for errors too."""
    body = gzip.compress(PRETTY)
    r1 = await replica(sends(http(status, body, "content-type: application/json\r\ncontent-encoding: gzip\r\nvary: accept-encoding\r\n")))
    reply = await ask(await gateway(r1), headers="accept-encoding: gzip, br\r\n")
    assert r1.requests[0].header("accept-encoding") == "gzip, br"
    assert (reply.status, reply.headers["content-encoding"], gzip.decompress(reply.body)) == (status, "gzip", PRETTY)
    assert int(reply.headers["content-length"]) == len(reply.body)


async def test_a_compressed_stream_passes_untouched(replica: Start, gateway: Start) -> None:
    """A stream that the gateway cannot read is relayed all the same."""
    body = gzip.compress(ev("a") + DONE)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
    r1 = await replica(sends(head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)))
    ask_self = {**STREAM, "stream_options": {"include_usage": True}}
    reply = await ask(await gateway(r1), ask_self, headers="accept-encoding: gzip\r\n")
    assert gzip.decompress(reply.body) == ev("a") + DONE


# -- forms ---------------------------------------------------------------------------------------------------------------

BOUNDARY = "----WebKitFormBoundaryx"
AUDIO = b"\0\r\n--\r\n" + os.urandom(5 << 20) + b"\r\n--" + BOUNDARY[:-1].encode()


def form(model: str, **more: str) -> bytes:
    fields = {**more, "model": model}
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'.encode() for n, v in fields.items()]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    return b"".join(parts[:-1]) + head.encode() + AUDIO + b"\r\n" + parts[-1] + f"--{BOUNDARY}--\r\n".encode()


FORM_TYPE = f"content-type: multipart/form-data; boundary={BOUNDARY}\r\n"


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
async def test_an_audio_form_reaches_the_replica_of_its_model(replica: Start, gateway: Start, path: str) -> None:
    """Routed by the form's model, with the same bytes and boundary; an answer in plain text passes."""
    r1 = await replica(models=[{"id": "other"}])
    r2 = await replica(sends(http(200, b"hello there", "content-type: text/plain\r\n")))
    models = [{"name": "other", "replicas": [{"url": r1.url}]}, {"name": "m", "replicas": [{"url": r2.url}]}]
    body = form("m", response_format="text")
    reply = await ask(await gateway(models=models), body, path, FORM_TYPE)
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"hello there", "text/plain")
    assert r1.requests == []
    assert r2.requests[0].body == body
    assert r2.requests[0].header("content-type") == FORM_TYPE.split(": ")[1].strip()


async def test_the_model_of_a_form_is_spliced_for_the_served_name(replica: Start, gateway: Start) -> None:
    """Only the field's value changes, and the length with it."""
    r1 = await replica(models=[{"id": "openai/whisper-1"}])
    models = [{"name": "whisper", "replicas": [{"url": r1.url, "served_model": "openai/whisper-1"}]}]
    reply = await ask(await gateway(models=models), form("whisper", language="en"), "/v1/audio/transcriptions", FORM_TYPE)
    assert reply.status == 200
    assert r1.requests[0].body == form("openai/whisper-1", language="en")


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (form("m")[:-1000], FORM_TYPE, "invalid_request"),
        (form("m").replace(b'name="model"', b'name="modle"'), FORM_TYPE, "missing_model"),
        (form("m", Model="x"), FORM_TYPE, "invalid_request"),
        (form("m"), "content-type: multipart/form-data\r\n", "invalid_request"),
        (form("m"), "content-type: multipart/form-data; boundary=other\r\n", "invalid_request"),
        (b'{"model":"m"}', "content-type: application/json\r\n", "invalid_request"),
        (form("nope"), FORM_TYPE, "model_not_found"),
    ],
)
async def test_a_broken_form_is_refused(replica: Start, gateway: Start, body: bytes, kind: str, code: str) -> None:
    """A form that two readers could read differently, or that names no model here, goes nowhere."""
    r1 = await replica()
    reply = await ask(await gateway(r1), body, "/v1/audio/transcriptions", kind)
    refused(reply, 404 if code == "model_not_found" else 400, code)
    assert r1.requests == []


# -- size ----------------------------------------------------------------------------------------------------------------


async def test_large_bodies_pass_up_to_the_documented_limit(replica: Start, gateway: Start) -> None:
    """Tens of kilobytes, a megabyte, an image of twenty: whole and unchanged. Beyond 64 MiB the length alone is refused."""
    r1 = await replica()
    running = await gateway(r1)
    for size in (32 * 1024 + 1, 1 << 20, 20 << 20):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "data:image/png;base64," + "A" * size}]}).encode()
        assert (await ask(running, body)).status == 200
        assert r1.requests[-1].body == body
    async with Client(running.ports[0]) as client:
        await client.send(f"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: {(64 << 20) + 1}\r\n\r\n".encode())
        refused(await client.reply(), 413, "body_too_large")


async def hold(conn: Conn) -> None:
    await conn.hold()


async def test_bodies_together_may_not_exceed_the_memory_for_them(replica: Start, gateway: Start) -> None:
    """Beyond `max_inflight_bytes` a request gets 503 until another ends; what a small compressed body becomes counts as well."""
    r1 = await replica(hold)
    running = await gateway(r1, server={"max_body_bytes": 2_000_000, "max_inflight_bytes": 3_000_000})
    body = json.dumps({**CHAT, "x": "y" * 1_900_000}).encode()
    async with Client(running.ports[0]) as first:
        await first.post("/v1/chat/completions", gzip.compress(body), "content-encoding: gzip\r\n")
        await eventually(lambda: r1.requests)
        assert running.shared.budget.used >= len(body)
        refused(await ask(running, gzip.compress(body), headers="content-encoding: gzip\r\n"), 503, "overloaded")
        refused(await ask(running, body), 503, "overloaded")
    await eventually(lambda: not running.shared.budget.used)
    assert len(r1.requests) == 1


async def test_a_fault_of_the_gateway_itself_is_told_and_forgotten(replica: Start, gateway: Start, monkeypatch: Any) -> None:
    """500 internal_error instead of a silent hang or a bare hang-up, and nothing stays booked; long bodies, read aside, included."""
    running = await gateway(await replica())
    monkeypatch.setattr(running.table.replicas("m")[0], "settings", None)
    for body in (CHAT, {**CHAT, "x": "y" * 600_000}):
        refused(await ask(running, body), 500, "internal_error")
    monkeypatch.undo()
    assert not running.service.running
    assert (await ask(running)).status == 200
