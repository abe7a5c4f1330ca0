"""Bytes that are no clear request: refused, cut off or read in one way only, and a replica sees whole requests or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.integration.toolkit import CHAT, Client, eventually, refused, total
from tests.unit.wire.front_cases import CASES

if TYPE_CHECKING:
    from tests.integration.toolkit import Stand

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 1_000_000  # bytes of body, as the stand is configured

# -- size, framing, time -------------------------------------------------------------------------------------------------


async def test_a_body_over_the_limit_is_refused_before_it_is_sent(stand: Stand) -> None:
    """content-length tells: 413 at once, with not a byte of the body read."""
    async with Client(stand.gateway.ports[0]) as client:
        await client.send(f"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: {LIMIT + 1}\r\n\r\n".encode())
        refused(await client.reply(), 413, "body_too_large")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_chunked_body_over_the_limit_is_refused_on_the_way(stand: Stand, path: str) -> None:
    """Without a content-length the limit holds as the bytes arrive, in the endpoint's own dialect, as one counted request."""
    before = total(stand.gateway, "kvgate_requests_total")
    async with Client(stand.gateway.ports[0]) as client:
        await client.send(f"POST {path} HTTP/1.1\r\nhost: gw\r\nx-request-id: big-1\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(9):
            await client.send(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
        reply = await client.reply()
        refused(reply, 413, "body_too_large", shape="anthropic" if "messages" in path else "openai")
        assert reply.headers["x-request-id"] == "big-1"
        assert reply.headers["connection"] == "close"
    assert total(stand.gateway, "kvgate_requests_total") == before + 1


@pytest.mark.parametrize("headers", ["x-big: " + "y" * 70_000 + "\r\n", "x: y\r\n" * 130])
async def test_too_large_a_head_is_refused(stand: Stand, headers: str) -> None:
    """431 by size and by count, and the connection is closed behind it."""
    async with Client(stand.gateway.ports[0]) as client:
        await client.post("/v1/chat/completions", CHAT, headers)
        reply = await client.reply()
        refused(reply, 431, "headers_too_large")
        assert reply.headers["connection"] == "close"
        assert await client.reader.read() == b""


async def test_a_head_that_trickles_in_is_cut_off(stand: Stand) -> None:
    """Slow-loris: the head has its time from its first byte, not from its last one."""
    async with Client(stand.gateway.ports[0]) as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\n")
        answer = asyncio.ensure_future(client.reply())
        while not answer.done():
            await client.send(b"x-a: b\r\n")
            await asyncio.sleep(0.05)
        refused(await answer, 408, "request_timeout")


@pytest.mark.parametrize(
    ("endpoint", "path", "shape", "framing"),
    [
        ("chat_completions", "/v1/chat/completions", "openai", "content-length: 1000"),
        ("chat_completions", "/v1/chat/completions", "openai", "transfer-encoding: chunked"),
        ("messages", "/v1/messages", "anthropic", "content-length: 1000"),
    ],
)
async def test_a_body_that_stops_is_cut_off(stand: Stand, endpoint: str, path: str, shape: str, framing: str) -> None:
    """A body that stops arriving gets 408 in the endpoint's dialect, counted once and as what it was."""
    before = total(stand.gateway, "kvgate_requests_total")
    some = b"5\r\nhello\r\n" if "chunked" in framing else b"hello"
    async with Client(stand.gateway.ports[0]) as client:
        await client.send(f"POST {path} HTTP/1.1\r\nhost: gw\r\n{framing}\r\n\r\n".encode() + some)
        refused(await client.reply(), 408, "request_timeout", shape=shape)
    assert total(stand.gateway, "kvgate_requests_total") == before + 1
    assert total(stand.gateway, "kvgate_requests_total", code="408", reason="request_timeout", endpoint=endpoint) >= 1


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 100\r\n\r\n" + b'{"model":"m"}',
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n" + b'd\r\n{"model":"m"}\r\n',
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n" + b'd\r\n{"model":"m"}\r\n0\r\n',
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-le",
    ],
)
async def test_a_request_that_ends_early_reaches_no_replica(stand: Stand, raw: bytes) -> None:
    """Half a request is no request, however valid the half may look."""
    async with Client(stand.gateway.ports[0]) as client:
        await client.send(raw)
    await eventually(lambda: not stand.gateway.shared.connections)
    assert stand.replica.requests == []


# -- smuggling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("raw", "story"), [pytest.param(raw, story, id=name) for name, raw, story in CASES])
async def test_an_ambiguous_request_is_never_passed_on(stand: Stand, raw: bytes, story: list[str | int]) -> None:
    """What is unclear is refused and ends the connection; what is clear is answered in turn. A replica sees none of it."""
    answers = {"POST /v1/x": 400, "GET": 404}  # bodies without JSON, paths without anything
    expected = [s if isinstance(s, int) else answers["GET" if s.startswith("GET") else "POST /v1/x"] for s in story if s != "close"]
    closes = isinstance(story[-1], int) or story[-1] == "close"
    async with Client(stand.gateway.ports[0]) as client:
        await client.send(raw)
        replies = [await client.reply() for _ in expected]
        assert [r.status for r in replies] == expected
        assert all(r.json()["error"]["message"] for r in replies)
        assert (replies[-1].headers.get("connection") == "close") == closes
        if closes:
            assert await client.reader.read() == b""
    assert stand.replica.requests == []


BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"z" * 300 + b'"}]}'
HIDDEN = b"POST /v1/x HTTP/1.1\r\nhost: gw\r\ncontent-length: 13\r\n\r\n" + b'{"model":"m"}'
HEAD = b"POST /v1/x HTTP/1.1\r\nhost: gw\r\n"


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + end


CLEAR = [
    ("content-length", HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY),
    ("absolute form", b"POST http://evil/v1/x HTTP/1.1\r\nhost: gw\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY),
    ("chunked", HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(BODY)),
    ("many chunks", HEAD + b"Transfer-Encoding: Chunked\r\n\r\n" + chunked(*(BODY[i : i + 1] for i in range(len(BODY))))),
    ("extensions and trailers", HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(BODY, end=b"0;x=y\r\nx-t: 1\r\n\r\n")),
    ("hop-by-hop framing", HEAD + b"connection: content-length, x-a\r\nx-a: 1\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY),
]


@pytest.mark.parametrize("raw", [pytest.param(raw, id=name) for name, raw in CLEAR])
async def test_a_replica_sees_only_whole_requests_framed_by_length(stand: Stand, raw: bytes) -> None:
    """However a body was framed, and however its bytes arrive, the replica gets one content-length and exactly that many bytes."""
    for pieces in ([raw + raw], [raw, raw], [bytes([b]) for b in raw]):
        stand.replica.requests.clear()
        wanted = 1 if len(pieces) > 2 else 2
        async with Client(stand.gateway.ports[0]) as client:
            for piece in pieces:
                await client.send(piece)
            assert [(await client.reply()).status for _ in range(wanted)] == [200] * wanted
        assert [r.body for r in stand.replica.requests] == [BODY] * wanted
        for seen in stand.replica.requests:
            assert seen.line == "POST /v1/x HTTP/1.1"
            assert seen.header("content-length") == str(len(BODY))
            names = {n.lower() for n, _ in seen.headers}
            assert names.isdisjoint({"transfer-encoding", "connection", "trailer", "te", "x-a", "x-t"})
            assert seen.header("host") == f"127.0.0.1:{stand.replica.port}"


UNCLEAR = [
    ("cl.te", HEAD + b"content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nG"),
    ("te.cl", HEAD + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n5c\r\n" + HIDDEN + b"\r\n0\r\n\r\n"),
    ("te.te", HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n" + chunked(BODY) + HIDDEN),
    ("obscured te", HEAD + b"transfer-encoding:\tchunked, identity\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY + HIDDEN),
    ("two lengths", HEAD + b"content-length: %d\r\ncontent-length: 0\r\n\r\n" % len(BODY) + BODY + HIDDEN),
    ("length with a sign", HEAD + b"content-length: +%d\r\n\r\n" % len(BODY) + BODY + HIDDEN),
    ("bare line feed before a length", HEAD + b"x: y\ncontent-length: 0\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY + HIDDEN),
    ("chunk too long", HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % (len(BODY) - 1) + BODY + b"\r\n0\r\n\r\n" + HIDDEN),
    ("chunk end missing", HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"0\r\n\r\n" + HIDDEN),
    ("trailer with framing", HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(BODY, end=b"0\r\ncontent-length: 5\r\n\r\n") + HIDDEN),
    ("host twice", HEAD + b"host: evil\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY + HIDDEN),
    ("space before the colon", HEAD + b"content-length : %d\r\n\r\n" % len(BODY) + BODY + HIDDEN),
]


@pytest.mark.parametrize("raw", [pytest.param(raw, id=name) for name, raw in UNCLEAR])
async def test_a_hidden_request_is_never_executed(stand: Stand, raw: bytes) -> None:
    """One refusal, and the bytes behind it are read by nobody, however they are cut."""
    for cut in range(1, len(raw), 37):
        async with Client(stand.gateway.ports[0]) as client:
            await client.send(raw[:cut])
            await client.send(raw[cut:])
            reply = await client.reply()
            assert reply.status in (400, 501)
            assert reply.headers["connection"] == "close"
            assert await client.reader.read() == b""
    assert stand.replica.requests == []
