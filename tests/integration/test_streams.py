"""Event streams through the gateway: no byte changed, none held back, and a broken stream never looks like a whole one."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import USAGE, at_rest, in_turn, records, rest, sends, streams, until
from tests.integration.toolkit import CHAT, DONE, LAST_CHUNK, SSE_HEAD, STREAM, Client, ask, chunk_json, completion, ev, framed, http

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.app import Gateway
    from tests.integration.scripts import Script
    from tests.integration.toolkit import Conn, Scripted

    Replica = Callable[..., Awaitable[Scripted]]
    Start = Callable[..., Awaitable[Gateway]]

ASKED = {**STREAM, "stream_options": {"include_usage": True}}
USAGE_EVENT = b"data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}).encode() + b"\n\n"
STOP = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
pytestmark = pytest.mark.usefixtures("quiet")

BOOM = b'data: {"error":{"message":"boom","type":"server_error","code":500}}\n\n'
SSE_TO_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def answers_usage_when_asked() -> Script:
    """As engines do: a usage event exactly when the request asks for one."""

    async def script(conn: Conn) -> None:
        options = conn.request.json().get("stream_options") or {}
        await conn.stream(ev("a"), ev("b"), *([USAGE_EVENT] if options.get("include_usage") else []), DONE)

    return script


def told_error(body: bytes) -> dict[str, Any]:
    """The error object of the last event."""
    event = body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
    assert event.startswith(b"data: "), body
    return json.loads(event[6:])["error"]


# -- no byte changed -----------------------------------------------------------------------------------------------------

TEXT = "é漢😀"
LINE_ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


@pytest.mark.parametrize("inject", [True, False], ids=["injected", "plain"])
@pytest.mark.parametrize("end", LINE_ENDS.values(), ids=LINE_ENDS)
async def test_a_stream_that_comes_byte_by_byte_is_passed_on_unchanged(
    replica: Replica, gateway: Start, end: bytes, *, inject: bool
) -> None:
    """Characters, lines and events may be cut anywhere by the network; the client gets the same bytes."""
    body = (ev(TEXT) + DONE).replace(b"\n", end)
    r = await replica(streams(*[bytes([b]) for b in body], every=0.0005))
    reply = await ask(await gateway(r, usage={"inject": inject}), STREAM)
    assert reply.body == body
    assert reply.complete


async def test_every_cut_within_a_character_is_harmless(replica: Replica, gateway: Start) -> None:
    """Two reads, cut inside each multi-byte character in turn."""
    body = ev(TEXT) + DONE
    start = body.index("é".encode())
    cuts = range(start, start + len(TEXT.encode()))
    r = await replica(in_turn(*(streams(body[:cut], body[cut:], every=0.01) for cut in cuts)))
    gw = await gateway(r)
    assert {(await ask(gw, STREAM)).body for _ in cuts} == {body}


ODD_STREAMS = {
    "trailing blanks": (b"data: %b \n\n" % chunk_json("a").encode(), DONE),
    "no blank after the colon": (b"data:%b\n\n" % chunk_json("a").encode(), b"data:[DONE]\n\n"),
    "comments and blank data": (b": hi\n\n", b"data:\n\n", ev("a"), b":\n\n", DONE, b": bye\n\n"),
    "several lines of data": (b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"x"}}]}\n\n', DONE),
    "done as text": (ev("data: [DONE]\n\n"), ev("[DONE]"), DONE),
    "two choices, one ends early": (
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[{"index":1,"delta":{"content":"more"}}]}\n\n',
        b'data: {"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}\n\n',
        DONE,
        b": one trailing comment\n\n",
    ),
    "null usage on each chunk": (ev("a", usage=None), ev("b", usage=None), DONE),
    "usage beside choices": (ev("a", usage=USAGE), STOP, DONE),
    "reasoning only": (b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm","reasoning_content":"hm"}}]}\n\n', STOP, DONE),
    "byte-order mark": (b"\xef\xbb\xbf" + ev("a"), DONE),
    "bytes that are no UTF-8": (b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n', DONE),
    "a line separator in the text": (ev("\u2028\u2029\x85"), DONE),
    "an empty stream but for the end": (DONE,),
}


@pytest.mark.parametrize("events", ODD_STREAMS.values(), ids=ODD_STREAMS)
@pytest.mark.parametrize("cut", [False, True], ids=["by event", "in one read"])
async def test_unusual_streams_pass_unchanged(replica: Replica, gateway: Start, events: tuple[bytes, ...], *, cut: bool) -> None:
    """What the scanner looks for (ends, usage, errors) never changes what is passed on."""
    body = b"".join(events)
    reply = await ask(await gateway(await replica(streams(*([body] if cut else events)))), STREAM)
    assert (reply.body, reply.complete, reply.status) == (body, True, 200)


@pytest.mark.parametrize("inject", [True, False], ids=["injected", "plain"])
async def test_a_line_of_three_megabytes_passes_whole(replica: Replica, gateway: Start, *, inject: bool) -> None:
    """There is no line limit, and meanwhile another stream is not held up."""
    long = ev("y" * (3 << 20))
    slow = await replica(streams(*[ev("tick")] * 20, DONE, every=0.02))
    wide = await replica(streams(long, DONE))
    gw = await gateway(slow, wide, usage={"inject": inject}, models=[one("m", slow), one("wide", wide)])
    ticking = asyncio.create_task(ask(gw, STREAM))
    reply = await ask(gw, {**STREAM, "model": "wide"})
    assert reply.body == long + DONE
    times = [at for at, _ in (await ticking).arrivals]
    assert max(b - a for a, b in itertools.pairwise(times)) < 0.3


def one(name: str, served: Scripted) -> dict[str, Any]:
    """A model with one replica that calls it `m`."""
    return {"name": name, "replicas": [{"url": served.url, "served_model": "m"}]}


RESPONSES = (
    b'event: response.created\nid: 7\ndata: {"type":"response.created",\ndata: "x":null}\n\n',
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"[DONE]"}\n\n',
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1","usage":'
    b'{"input_tokens":11,"output_tokens":3,"total_tokens":14,"input_tokens_details":{"cached_tokens":8}}}}\n\n',
)
MESSAGES = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":8}}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":3}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)


@pytest.mark.parametrize(("path", "events"), [("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)], ids=["responses", "messages"])
async def test_named_events_pass_unchanged_and_their_usage_is_counted(
    replica: Replica, gateway: Start, path: str, events: tuple[bytes, ...]
) -> None:
    """Streams of named events end without [DONE]; that is no error, and nothing is added to their requests."""
    r = await replica(streams(*events))
    gw = await gateway(r)
    done = records(gw)
    body = {"model": "m", "stream": True, "input": "hi", "messages": []}
    reply = await ask(gw, body, path)
    assert (reply.body, reply.complete) == (b"".join(events), True)
    assert r.requests[0].json() == body
    assert (done[0].reason, done[0].completion_tokens, done[0].cached_tokens) == ("", 3, 8)


async def test_a_compressed_stream_passes_unread(replica: Replica, gateway: Start) -> None:
    """A client that asks for gzip itself, with injection off, gets what the replica sends."""
    body = gzip.compress(ev("a") + DONE)
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    r = await replica(sends(head, framed(body), LAST_CHUNK))
    reply = await ask(await gateway(r, usage={"inject": False}), STREAM, headers="accept-encoding: gzip\r\n")
    assert gzip.decompress(reply.body) == ev("a") + DONE
    assert (r.requests[0].header("accept-encoding"), reply.headers["content-encoding"]) == ("gzip", "gzip")


# -- none held back ------------------------------------------------------------------------------------------------------


async def test_each_event_is_passed_on_at_once(replica: Replica, gateway: Start) -> None:
    """Within 50 ms, with headers that keep proxies in front from buffering."""
    sent: list[float] = []

    async def script(conn: Conn) -> None:
        await conn.send(SSE_HEAD)
        for _ in range(8):
            sent.append(time.monotonic())
            await conn.send(framed(ev("tok")))
            await asyncio.sleep(0.06)
        await conn.send(framed(DONE) + LAST_CHUNK)

    reply = await ask(await gateway(await replica(script)), STREAM)
    arrived = [at for at, data in reply.arrivals if data == ev("tok")]
    assert len(arrived) == len(sent)
    assert max(b - a for a, b in zip(sent, arrived, strict=True)) < 0.05
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers


async def test_the_headers_a_replica_chose_for_its_stream_are_kept(replica: Replica, gateway: Start) -> None:
    """`cache-control` and `x-accel-buffering` are only added where there are none."""
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nCache-Control: no-store\r\nX-Accel-Buffering: yes\r\n\r\n")
    reply = await ask(await gateway(await replica(sends(head, framed(DONE), LAST_CHUNK))), STREAM)
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-store", "yes")


async def test_a_comment_before_the_first_event_passes_at_once(replica: Replica, gateway: Start) -> None:
    """Keep-alives exist for the proxies in front: head and comment are not held back for a first token that takes long."""
    r = await replica(sends(SSE_HEAD, framed(b": ping\n\n"), then="hold"))
    gw = await gateway(r)
    async with Client(gw.ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        assert (await client.head())[0] == 200
        assert await until(client, b"\n\n") == b"8\r\n: ping\n\n"
    await at_rest(gw)


async def test_the_head_of_a_stream_is_held_until_it_shows_what_it_is(replica: Replica, gateway: Start) -> None:
    """Before the first event another replica may still be asked, so the client must not have seen anything."""
    r = await replica(sends(SSE_HEAD, then="hold"))
    async with Client((await gateway(r)).ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.head()


# -- usage ---------------------------------------------------------------------------------------------------------------


async def test_usage_is_counted_however_the_event_is_cut(replica: Replica, gateway: Start) -> None:
    """Twenty events in one read, or the usage event cut in the middle of a key: the same bytes and the same counts."""
    at = USAGE_EVENT.index(b"total_tok") + 9
    cut = streams(ev("a"), USAGE_EVENT[:at], USAGE_EVENT[at:], DONE, every=0.05)
    gw = await gateway(await replica(in_turn(streams(ev("x") * 19 + USAGE_EVENT + DONE), cut)))
    done = records(gw)
    assert (await ask(gw, ASKED)).body == ev("x") * 19 + USAGE_EVENT + DONE
    assert (await ask(gw, ASKED)).body == ev("a") + USAGE_EVENT + DONE
    assert [(r.prompt_tokens, r.cached_tokens, r.completion_tokens) for r in done] == [(11, 8, 3)] * 2


OPTIONS: dict[str, tuple[dict[str, Any], bool, bool]] = {
    # request, does the replica see include_usage, does the client see the usage event
    "not asked": (STREAM, True, False),
    "null": ({**STREAM, "stream_options": None}, True, False),
    "asked": (ASKED, True, True),
    "refused": ({**STREAM, "stream_options": {"include_usage": False}}, False, False),
    "other options": ({**STREAM, "stream_options": {"include_obfuscation": False}}, True, False),
}


@pytest.mark.parametrize(("body", "seen", "shown"), OPTIONS.values(), ids=OPTIONS)
async def test_usage_is_asked_for_and_shown_only_to_those_who_asked(
    replica: Replica, gateway: Start, body: dict[str, Any], *, seen: bool, shown: bool
) -> None:
    """The client gets the usage event exactly if it asked; one that wants none is taken at its word."""
    r = await replica(answers_usage_when_asked())
    gw = await gateway(r)
    done = records(gw)
    reply = await ask(gw, body)
    assert reply.body == ev("a") + ev("b") + (USAGE_EVENT if shown else b"") + DONE
    assert bool((r.requests[0].json().get("stream_options") or {}).get("include_usage")) is seen
    assert done[0].completion_tokens == (3 if seen else None)


async def test_an_engine_that_tells_no_usage_is_served_all_the_same(replica: Replica, gateway: Start) -> None:
    """Asked for it and silent: nothing is missing for the client, and unknown is not counted as zero."""
    gw = await gateway(await replica(streams(ev("a"), STOP, DONE)))
    done = records(gw)
    assert (await ask(gw, STREAM)).body == ev("a") + STOP + DONE
    assert (done[0].prompt_tokens, done[0].cached_tokens, done[0].completion_tokens, done[0].tpot_s) == (None,) * 4
    assert done[0].ttft_s is not None


async def test_without_injection_requests_are_passed_on_as_they_are(replica: Replica, gateway: Start) -> None:
    """`usage.inject: false`: the replica gets the client's own bytes."""
    r = await replica(answers_usage_when_asked())
    sent = json.dumps(STREAM).encode()
    reply = await ask(await gateway(r, usage={"inject": False}), sent)
    assert (r.requests[0].body, reply.body) == (sent, ev("a") + ev("b") + DONE)


async def test_requests_that_are_not_streamed_get_no_stream_options(replica: Replica, gateway: Start) -> None:
    """Engines refuse `stream_options` without `stream`."""
    r = await replica()
    gw = await gateway(r)
    for body in (CHAT, {**CHAT, "stream": False}):
        assert (await ask(gw, body)).status == 200
    assert all("stream_options" not in request.json() for request in r.requests)


REFUSAL = http(400, b'{"error":{"message":"Unknown field stream_options","type":"invalid_request_error","param":null,"code":400}}')


async def test_a_replica_that_refuses_the_added_field_is_asked_without_it(replica: Replica, gateway: Start) -> None:
    """The client's own bytes are sent once more, and that server is not asked for usage again."""

    async def script(conn: Conn) -> None:
        await (sends(REFUSAL) if "stream_options" in conn.request.json() else streams(ev("a"), DONE))(conn)

    r = await replica(script)
    gw = await gateway(r)
    done = records(gw)
    replies = [await ask(gw, STREAM) for _ in range(3)]
    assert {reply.body for reply in replies} == {ev("a") + DONE}
    assert ["stream_options" in request.json() for request in r.requests] == [True, False, False, False]
    assert [record.reason for record in done] == [""] * 3
    assert gw.table.servers()[0].client_errors == 0


async def test_another_400_is_the_clients_own(replica: Replica, gateway: Start) -> None:
    """Only a refusal of the added field is answered by asking again."""
    own = http(400, b'{"error":{"message":"max_tokens is too large"}}')
    r = await replica(sends(own))
    reply = await ask(await gateway(r), STREAM)
    assert (reply.status, reply.body, len(r.requests)) == (400, own.partition(b"\r\n\r\n")[2], 1)


# -- what is no stream ---------------------------------------------------------------------------------------------------

PLAIN_ANSWERS = {
    "400 JSON": http(400, b'{"error":{"message":"context","type":"invalid_request_error","param":"messages","code":"x"}}'),
    "200 JSON": completion("whole"),
    "200 text": http(200, b"plain", "content-type: text/plain\r\n"),
    "200 without a body": http(200, b""),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
}


@pytest.mark.parametrize("answer", PLAIN_ANSWERS.values(), ids=PLAIN_ANSWERS)
async def test_an_answer_that_is_no_stream_is_passed_on_as_it_is(replica: Replica, gateway: Start, answer: bytes) -> None:
    """Status, type and body are the replica's, whatever the request asked for, and the connection is good for more."""
    gw = await gateway(await replica(sends(answer)))
    head, _, body = answer.partition(b"\r\n\r\n")
    async with Client(gw.ports[0]) as client:
        for n in range(3):
            await client.post("/v1/chat/completions", STREAM, f"x-request-id: {n}\r\n")
            reply = await client.reply()
            assert reply.headers["x-request-id"] == str(n)
            assert (reply.status, reply.body, reply.complete) == (int(head.split()[1]), body, True)
            kind = head.partition(b"content-type: ")[2].decode()
            assert reply.headers.get("content-type", "") == kind.partition("\r\n")[0]


async def test_a_stream_nobody_asked_for_is_passed_on(replica: Replica, gateway: Start) -> None:
    """An event stream as the answer to an ordinary request."""
    reply = await ask(await gateway(await replica(streams(ev("a"), DONE))), CHAT)
    assert (reply.body, reply.headers["content-type"]) == (ev("a") + DONE, "text/event-stream; charset=utf-8")


# -- broken streams ------------------------------------------------------------------------------------------------------

HALF = ev("half")[:30]
BREAKS: dict[str, tuple[Script, bytes, bool]] = {
    # script, what the client gets of it, is the error told in the stream
    "reset between events": (streams(ev("a"), ev("b"), end=b"", then="rst"), ev("a") + ev("b"), True),
    "closed between events": (streams(ev("a"), ev("b"), end=b"", then="fin"), ev("a") + ev("b"), True),
    "ended without an end": (streams(ev("a"), ev("b")), ev("a") + ev("b"), True),
    "reset within an event, its start held back": (streams(ev("a"), HALF, end=b"", then="rst"), ev("a"), True),
    "bad chunk size": (streams(ev("a"), end=b"zz\r\n"), ev("a"), True),
    "closed, no length": (sends(SSE_TO_CLOSE + ev("a"), then="fin"), ev("a"), True),
    "reset, no length": (sends(SSE_TO_CLOSE + ev("a"), then="rst"), ev("a"), True),
    "within a long event": (streams(ev("a"), ev("y" * 9000)[:6000], end=b"", then="fin"), ev("a") + ev("y" * 9000)[:6000], False),
    "comment, then reset": (streams(b": ping\n\n", end=b"", then="rst"), b": ping\n\n", True),
}


@pytest.mark.parametrize(("script", "passed", "told"), BREAKS.values(), ids=BREAKS)
async def test_a_stream_cut_by_its_replica_never_looks_complete(
    replica: Replica, gateway: Start, script: Script, passed: bytes, *, told: bool
) -> None:
    """What came is passed on; an error event follows between events, the connection is cut, and it counts as a failure."""
    r, other = await replica(script), await replica()
    gw = await gateway(r, other, models=[one("m", r), one("other", other)])
    done = records(gw)
    async with Client(gw.ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        began = time.monotonic()
        reply = await client.reply()
        assert time.monotonic() - began < 1
        assert await rest(client) == (b"", True)
    assert not reply.complete
    assert reply.body.startswith(passed)
    if told:
        assert told_error(reply.body)["type"] == "upstream_error"
        assert reply.body.count(b"data: ") == passed.count(b"data: ") + 1
    else:
        assert reply.body == passed
    assert b"[DONE]" not in reply.body
    assert len(r.requests) == 1
    assert gw.table.servers()[0].breaker.consecutive == 1
    assert [(t[1] in ("truncated", "protocol"), d.ended_by) for d in done for t in d.tries] == [(True, "replica")]


CUTS_IN_DIALECTS = {
    "/v1/messages": (MESSAGES[0], b"event: error\ndata: "),
    "/v1/responses": (RESPONSES[0], b"event: error\ndata: "),
    "/v1/completions": (b'data: {"choices":[{"index":0,"text":"a"}]}\n\n', b"data: "),
}


@pytest.mark.parametrize(("path", "first", "start"), [(p, *c) for p, c in CUTS_IN_DIALECTS.items()], ids=CUTS_IN_DIALECTS)
async def test_the_error_of_a_cut_stream_is_told_in_the_endpoints_own_way(
    replica: Replica, gateway: Start, path: str, first: bytes, start: bytes
) -> None:
    """An error event as the endpoint's own clients read it."""
    gw = await gateway(await replica(streams(first, end=b"", then="rst")))
    reply = await ask(gw, {"model": "m", "stream": True, "input": "x", "prompt": "x", "messages": []}, path)
    assert not reply.complete
    assert reply.body.startswith(first + start)
    told = json.loads(reply.body[len(first + start) :])
    if path != "/v1/completions":
        assert told["type"] == "error"
    assert "upstream_reset" in json.dumps(told)


ENOUGH = {
    "a reason to finish, no [DONE]": (ev("a"), STOP),
    "usage asked for behind the reason": (ev("a"), STOP, USAGE_EVENT),
    "a comment behind the reason": (ev("a"), STOP, b": bye\n\n"),
}


@pytest.mark.parametrize("events", ENOUGH.values(), ids=ENOUGH)
async def test_a_stream_that_gave_its_reason_to_finish_is_complete(replica: Replica, gateway: Start, events: tuple[bytes, ...]) -> None:
    """Some engines send no [DONE]; a finish_reason will do."""
    gw = await gateway(await replica(streams(*events, every=0.02)))
    reply = await ask(gw, ASKED)
    assert (reply.body, reply.complete) == (b"".join(events), True)


@pytest.mark.parametrize("then", ["fin", "rst"])
async def test_a_connection_that_breaks_behind_done_harms_nobody(replica: Replica, gateway: Start, then: Any) -> None:
    """The client has its whole answer: nothing is added to it."""
    gw = await gateway(await replica(streams(ev("a"), DONE, end=b"", then=then)))
    reply = await ask(gw, STREAM)
    assert (reply.body, reply.complete) == (ev("a") + DONE, True)


async def test_error_events_in_a_running_stream_pass_and_count_as_errors(replica: Replica, gateway: Start) -> None:
    """Also when [DONE] follows them, as vLLM does: the bytes are the replica's, the request is no success, nothing is sent again."""
    r, other = await replica(streams(ev("a"), BOOM, DONE)), await replica()
    gw = await gateway(r, models=[one("m", r), one("other", other)])
    done = records(gw)
    reply = await ask(gw, STREAM)
    assert (reply.body, reply.complete, len(r.requests)) == (ev("a") + BOOM + DONE, True, 1)
    assert (done[0].reason, done[0].tries) == ("stream_error", (("r1", "server_error"),))
    assert gw.table.servers()[0].breaker.consecutive == 1


@pytest.mark.parametrize("then", ["fin", "rst", "keep"])
async def test_a_stream_that_ends_with_its_own_error_gets_no_second_one(replica: Replica, gateway: Start, then: Any) -> None:
    """llama.cpp and TensorRT-LLM close behind an error event; the client knows what happened."""
    gw = await gateway(await replica(streams(ev("a"), BOOM, end=LAST_CHUNK if then == "keep" else b"", then=then)))
    assert (await ask(gw, STREAM)).body == ev("a") + BOOM


# -- errors before anything was passed on ----------------------------------------------------------------------------------

BUSY = b'data: {"error":{"object":"error","message":"The request queue is full.","type":"x","code":503}}\n\n'
FALSE_STARTS: dict[str, Script] = {
    "queue full": streams(BUSY, DONE),
    "error": streams(BOOM, DONE),
    "error without an end": streams(BOOM[:-1]),
    "error by name": streams(b"event: error\n" + BOOM),
    "empty": streams(),
    "empty, no length": sends(SSE_TO_CLOSE, then="fin"),
    "cut behind the head": streams(end=b"", then="rst"),
    "cut in the first event": streams(HALF, end=b"", then="fin"),
}


@pytest.mark.parametrize("script", FALSE_STARTS.values(), ids=FALSE_STARTS)
async def test_a_stream_that_fails_before_its_first_event_is_asked_for_elsewhere(replica: Replica, gateway: Start, script: Script) -> None:
    """A 200 is not yet a success: nothing was passed on, so another replica may try."""
    bad, good = await replica(script), await replica(streams(ev("good"), DONE))
    gw = await gateway(bad, good)
    replies = [await ask(gw, STREAM) for _ in range(4)]
    assert {(r.status, r.body, r.complete) for r in replies} == {(200, ev("good") + DONE, True)}
    assert bad.requests
    assert "2" in {r.headers["x-kvgate-attempts"] for r in replies}


@pytest.mark.parametrize("name", FALSE_STARTS)
async def test_a_stream_that_fails_before_its_first_event_everywhere_is_an_error(replica: Replica, gateway: Start, name: str) -> None:
    """An engine's own error event reaches the client; silence becomes 502. Neither is a success."""
    gw = await gateway(await replica(FALSE_STARTS[name]))
    done = records(gw)
    reply = await ask(gw, STREAM)
    if "error" in name or "full" in name:
        assert (reply.status, b'"error"' in reply.body) == (200, True)
    else:
        assert (reply.status, reply.error_code) == (502, "upstream_reset")
    assert done[0].reason
    assert done[0].tries[-1][1] != "ok"


# -- HTTP/1.0 ------------------------------------------------------------------------------------------------------------


async def http10(gw: Gateway, body: dict[str, Any]) -> tuple[bytes, bytes, bool]:
    """(head, body, orderly close) of a request by an HTTP/1.0 client."""
    data = json.dumps(body).encode()
    async with Client(gw.ports[0]) as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        answer, orderly = await rest(client)
    head, _, content = answer.partition(b"\r\n\r\n")
    return head.lower(), content, orderly


async def test_an_old_client_gets_a_stream_that_ends_with_the_connection(replica: Replica, gateway: Start) -> None:
    """HTTP/1.0 knows no chunks."""
    head, body, orderly = await http10(await gateway(await replica(streams(ev("a"), DONE))), STREAM)
    assert (body, orderly) == (ev("a") + DONE, True)
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


async def test_an_old_client_sees_a_reset_when_its_stream_is_cut(replica: Replica, gateway: Start) -> None:
    """A close would be the end of a whole answer."""
    _, body, orderly = await http10(await gateway(await replica(streams(ev("a"), end=b"", then="rst"))), STREAM)
    assert not orderly
    assert body.startswith(ev("a"))
