"""Headers from one end to the other: what crosses, what never does, and what the gateway adds."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import sends, streams
from tests.integration.toolkit import (
    CHAT,
    DONE,
    SSE_HEAD,
    STREAM,
    Client,
    Conn,
    ask,
    completion,
    ev,
    framed,
    http,
    refused,
    total,
)

if TYPE_CHECKING:
    from tests.integration.toolkit import Scripted

    Start = Any

# -- what crosses --------------------------------------------------------------------------------------------------------

SENT = (
    "Connection: keep-alive, X-Private\r\nTE: trailers\r\nKeep-Alive: timeout=5\r\nProxy-Authorization: Basic abc\r\n"
    "Proxy-Connection: x\r\nX-Private: 1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\nX-KVGate-Replica: r9\r\nx-kvgate-anything: 1\r\n"
    "X-Request-Id: abc-1\r\ntraceparent: 00-aa-bb-01\r\nX-Stainless-OS: Linux\r\nX-Session-Id: s1\r\nX-Forwarded-For: 10.0.0.9\r\n"
    "User-Agent: a\r\nAccept: */*\r\nX-Two: 1\r\nX-Two: 2\r\nCookie: c=1\r\nOpenAI-Beta: x\r\nX-Latin: \xe9\r\n"
)


async def test_only_end_to_end_headers_reach_the_replica(replica: Start, gateway: Start) -> None:
    """Order, spelling and repetition are kept; hop-by-hop, named by Connection, and x-kvgate-* headers stay here; the host is its own."""
    r1 = await replica()
    reply = await ask(await gateway(r1), headers=SENT)
    assert reply.status == 200
    [seen] = r1.requests
    names = [n.lower() for n, _ in seen.headers]
    stays = {"connection", "te", "keep-alive", "proxy-authorization", "proxy-connection", "x-private", "upgrade", "http2-settings"}
    assert stays.isdisjoint(names)
    assert not any(n.startswith("x-kvgate-") for n in names)
    assert [h for h in seen.headers if h[0] == "X-Two"] == [("X-Two", "1"), ("X-Two", "2")]
    assert seen.header("host") == f"127.0.0.1:{r1.port}"
    assert names.count("content-length") == 1 and "transfer-encoding" not in names
    for name, value in (("x-request-id", "abc-1"), ("traceparent", "00-aa-bb-01"), ("x-stainless-os", "Linux"), ("x-latin", "\xe9")):
        assert seen.header(name) == value
    assert seen.header("x-session-id") == "s1" and seen.header("x-forwarded-for") == "10.0.0.9" and seen.header("cookie") == "c=1"
    assert seen.header("accept-encoding") is None


ANSWERED = (
    "Connection: close, X-Private\r\nKeep-Alive: timeout=5\r\nX-Private: 1\r\nProxy-Authenticate: Basic\r\n"
    "Date: Tue, 01 Dec 2026 00:00:00 GMT\r\n"
    "Date: Tue, 01 Dec 2026 00:00:01 GMT\r\nServer: uvicorn\r\nServer: other\r\nX-Request-Id: theirs\r\nx-kvgate-replica: forged\r\n"
    "X-Foo: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Type: application/json\r\nX-RateLimit-Remaining-Requests: 5\r\n"
)


async def test_only_end_to_end_headers_reach_the_client(replica: Start, gateway: Start) -> None:
    """The same on the way back: one date, one server, one framing header, and nobody forges ours."""
    body = b'{"a":1}'
    raw = f"HTTP/1.1 200 OK\r\n{ANSWERED}Transfer-Encoding: chunked\r\n\r\n".encode() + framed(body) + b"0\r\nX-Trailer: 1\r\n\r\n"
    running = await gateway(await replica(sends(raw)))
    async with Client(running.ports[0]) as client:
        for _ in range(2):  # the replica's `close` is not ours
            await client.post("/v1/chat/completions", CHAT, "x-request-id: mine\r\n")
            reply = await client.reply()
            assert reply.body == body
            h = reply.headers
            assert (h["x-foo"], h["set-cookie"], h["x-ratelimit-remaining-requests"]) == ("1", "a=1, b=2", "5")
            assert (h["date"], h["server"]) == ("Tue, 01 Dec 2026 00:00:00 GMT", "uvicorn")
            assert (h["x-request-id"], h["x-kvgate-replica"]) == ("mine", "r1")
            assert h["transfer-encoding"] == "chunked" and "content-length" not in h
            assert {"connection", "keep-alive", "x-private", "proxy-authenticate", "trailer"}.isdisjoint(h)


# -- what the gateway adds -----------------------------------------------------------------------------------------------

ADDED = {"x-kvgate-replica", "x-kvgate-model", "x-kvgate-attempts", "x-kvgate-prefix-hit", "x-kvgate-queue-ms", "x-kvgate-overhead-ms"}


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_an_answer_says_where_it_comes_from(replica: Start, gateway: Start, body: dict[str, Any]) -> None:
    """Replica, real model, tries, prefix hit, and the gateway's own times, on JSON and streams alike; no address of a replica."""

    async def script(conn: Conn) -> None:
        await (conn.stream(ev("a"), DONE) if conn.request.json().get("stream") else conn.send(completion()))

    r1: Scripted = await replica(script)
    models = [{"name": "m", "aliases": ["gpt-x"], "replicas": [{"id": "east-1", "url": r1.url}]}]
    running = await gateway(models=models)
    reply = await ask(running, {**body, "model": "gpt-x"})
    h = reply.headers
    assert (h["x-kvgate-replica"], h["x-kvgate-model"], h["x-kvgate-attempts"]) == ("east-1", "m", "1")
    assert h["x-request-id"].startswith("req-")
    assert 0 <= float(h["x-kvgate-prefix-hit"]) <= 1
    assert int(h["x-kvgate-queue-ms"]) == 0
    assert 0 < float(h["x-kvgate-overhead-ms"]) < 1000
    assert str(r1.port) not in str(h)
    if body is STREAM:
        assert (h["cache-control"], h["x-accel-buffering"]) == ("no-cache", "no")
        assert "content-length" not in h
    assert [seen.header("x-request-id") for seen in r1.requests] == [h["x-request-id"]]


async def test_the_prefix_hit_grows_with_what_is_cached(replica: Start, gateway: Start) -> None:
    """A prompt sent again is predicted to be cached."""

    async def script(conn: Conn) -> None:
        await conn.stream(ev("a"), DONE)

    running = await gateway(await replica(script))
    body = {**STREAM, "messages": [{"role": "user", "content": "once upon a time " * 500}]}
    first, second = await ask(running, body), await ask(running, body)
    assert float(first.headers["x-kvgate-prefix-hit"]) == 0
    assert float(second.headers["x-kvgate-prefix-hit"]) > 0.9


async def test_time_spent_waiting_for_a_replica_is_told(replica: Start, gateway: Start) -> None:
    """`x-kvgate-queue-ms` is the wait, and is no part of the gateway's own time."""

    async def script(conn: Conn) -> None:
        await asyncio.sleep(0.2)
        await conn.send(completion())

    running = await gateway(await replica(script), r1={"max_inflight": 1})
    waits = sorted(int(reply.headers["x-kvgate-queue-ms"]) for reply in await asyncio.gather(*(ask(running) for _ in range(3))))
    assert waits[0] == 0 and 150 < waits[1] < 1000 and waits[1] + 150 < waits[2] < 2000


async def test_a_stream_keeps_the_caching_headers_of_its_replica(replica: Start, gateway: Start) -> None:
    """Ours are added where the replica set none."""
    head = SSE_HEAD[:-2] + b"cache-control: no-store\r\nx-accel-buffering: yes\r\n\r\n"
    reply = await ask(await gateway(await replica(sends(head, framed(ev("a") + DONE) + b"0\r\n\r\n"))), STREAM)
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-store", "yes")


async def test_nothing_is_revealed_when_told_so(replica: Start, gateway: Start) -> None:
    """With `server.reveal` off no x-kvgate-* header goes out: not with answers, not with errors of any kind."""
    r1 = await replica(streams(ev("a"), DONE))
    running = await gateway(r1, server={"reveal": False}, models=[{"name": "m", "replicas": [{"url": r1.url}]}, {"name": "none"}])
    asked = [
        (STREAM, "/v1/chat/completions", "", 200),
        (b"{", "/v1/chat/completions", "", 400),
        (CHAT, "/nothing", "", 404),
        ({**CHAT, "model": "none"}, "/v1/chat/completions", "", 503),
        (CHAT, "/v1/chat/completions", "x: y\r\n" * 300, 431),
        (CHAT, "/v1/chat/completions", "transfer-encoding: x\r\n", 400),
    ]
    for body, path, headers, status in asked:
        reply = await ask(running, body, path, headers)
        assert reply.status == status
        assert reply.headers["x-request-id"]
        assert not any(name.startswith("x-kvgate-") for name in reply.headers)


@pytest.mark.parametrize("given", ["abc-1", "A.b:c/d+e=_-", "x" * 128])
async def test_a_sane_request_id_is_kept(replica: Start, gateway: Start, given: str) -> None:
    """The client's id joins its log, ours and the replica's."""
    r1 = await replica()
    assert (await ask(await gateway(r1), headers=f"x-request-id: {given}\r\n")).headers["x-request-id"] == given
    assert r1.requests[0].header("x-request-id") == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "\xe9", '"', "a\tb", "<script>"])
async def test_an_odd_request_id_is_replaced(replica: Start, gateway: Start, given: str) -> None:
    """What could forge a log line or fill one is not taken over, nor passed on."""
    r1 = await replica()
    reply = await ask(await gateway(r1), headers=f"x-request-id: {given}\r\n")
    assert reply.headers["x-request-id"].startswith("req-")
    assert r1.requests[0].header("x-request-id") == reply.headers["x-request-id"]


async def test_later_tries_have_an_id_of_their_own(replica: Start, gateway: Start) -> None:
    """The second try carries the id with -2, so that two replicas' logs can be told apart; the client sees its own."""
    r1, r2 = await replica(sends(http(503))), await replica(sends(http(503)))
    reply = await ask(await gateway(r1, r2), headers="x-request-id: abc\r\n")
    assert sorted(seen.header("x-request-id") for r in (r1, r2) for seen in r.requests) == ["abc", "abc-2"]
    assert (reply.headers["x-request-id"], reply.headers["x-kvgate-attempts"]) == ("abc", "2")


# -- limits a replica has ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", ["x-big: " + "y" * 60 * 1024 + "\r\n", "".join(f"x-{i}: 1\r\n" for i in range(190))])
async def test_headers_too_large_for_the_replica_are_not_its_fault(replica: Start, gateway: Start, headers: str) -> None:
    """A replica's 431 is the client's to read, and the replicas stay in service."""

    async def script(conn: Conn) -> None:
        large = sum(len(n) + len(v) for n, v in conn.request.headers) > 8192 or len(conn.request.headers) > 150
        await conn.send(http(431, b'{"error":{}}') if large else completion())

    running = await gateway(await replica(script), await replica(script))
    assert {(await ask(running, headers=headers)).status for _ in range(20)} == {431}
    assert (await ask(running)).status == 200
    assert total(running, "kvgate_replica_state", state="up") == 2


async def test_rate_limit_headers_of_a_replica_pass(replica: Start, gateway: Start) -> None:
    """429 with its retry-after, its quota headers and its body, as the replica wrote them."""
    body = b'{"error":{"message":"slow down","type":"rate_limit_error","param":null,"code":"quota"}}'
    headers = "content-type: application/json\r\nRetry-After: 30\r\nx-ratelimit-remaining-requests: 0\r\nx-should-retry: false\r\n"
    answer = sends(http(429, body, headers))
    reply = await ask(await gateway(await replica(answer), await replica(answer)))
    assert (reply.status, reply.body) == (429, body)
    assert (reply.headers["retry-after"], reply.headers["x-ratelimit-remaining-requests"]) == ("30", "0")
    assert reply.headers["x-should-retry"] == "false"


# -- where a request goes is not the client's choice ---------------------------------------------------------------------


async def test_no_field_or_header_chooses_the_upstream(replica: Start, gateway: Start) -> None:
    """Fields that other gateways obey are plain fields here, and so are headers."""
    r1, evil = await replica(), await replica()
    body = json.dumps({**CHAT, "api_base": evil.url, "base_url": evil.url, "api_key": "x", "custom_llm_provider": "openai"}).encode()
    where = f"127.0.0.1:{evil.port}"
    headers = f"x-upstream: {evil.url}\r\nx-forwarded-host: {where}\r\nforwarded: host={where}\r\nx-kvgate-upstream: {evil.url}\r\n"
    running = await gateway(r1)
    assert (await ask(running, body, headers=headers)).status == 200
    async with Client(running.ports[0]) as client:
        await client.send(
            f"POST {evil.url}/v1/chat/completions HTTP/1.1\r\nhost: {where}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        assert (await client.reply()).status == 200
    assert evil.requests == []
    assert [(r.path, r.body, r.header("host")) for r in r1.requests] == [("/v1/chat/completions", body, f"127.0.0.1:{r1.port}")] * 2


async def test_a_client_may_name_its_replica_only_where_allowed(replica: Start, gateway: Start) -> None:
    """`x-kvgate-replica` steers with `routing.allow_pinning`, an unknown name is told, and without the setting it does nothing."""
    r1, r2 = await replica(), await replica()
    running = await gateway(r1, r2, routing={"allow_pinning": True})
    for _ in range(4):
        assert (await ask(running, headers="x-kvgate-replica: r2\r\n")).headers["x-kvgate-replica"] == "r2"
    refused(await ask(running, headers="x-kvgate-replica: r9\r\n"), 400, "invalid_request")
    free = await gateway(r1, r2)
    seen = {(await ask(free, {**CHAT, "user": str(i)}, headers="x-kvgate-replica: r2\r\n")).headers["x-kvgate-replica"] for i in range(8)}
    assert seen == {"r1", "r2"}


# -- other ways to ask ---------------------------------------------------------------------------------------------------


async def test_an_old_protocol_client_is_served(replica: Start, gateway: Start) -> None:
    """HTTP/1.0 without a Host: the answer has a length or ends with the connection, never chunks."""
    running = await gateway(await replica(streams(ev("a"), DONE)))
    body = json.dumps(STREAM).encode()
    async with Client(running.ports[0]) as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        reply = await client.reply()
    assert (reply.status, reply.body) == (200, ev("a") + DONE)
    assert "transfer-encoding" not in reply.headers


async def test_compressed_requests_and_old_encodings_meet_no_replica(replica: Start, gateway: Start) -> None:
    """The replica reads a plain body: no content-encoding, one content-length."""
    r1 = await replica()
    body = json.dumps(CHAT).encode()
    await ask(await gateway(r1), gzip.compress(body), headers="Content-Encoding: gzip\r\n")
    assert (r1.requests[0].header("content-encoding"), r1.requests[0].header("content-length")) == (None, str(len(body)))


async def test_pipelined_requests_are_answered_in_order(replica: Start, gateway: Start) -> None:
    """Requests sent without waiting are served one after the other."""

    async def script(conn: Conn) -> None:
        await asyncio.sleep(0.05 if b"slow" in conn.request.body else 0)
        await conn.send(completion(conn.request.json()["user"]))

    running = await gateway(await replica(script))
    async with Client(running.ports[0]) as client:
        for user in ("slow", "b", "c"):
            await client.post("/v1/chat/completions", {**CHAT, "user": user})
        assert [(await client.reply()).json()["choices"][0]["message"]["content"] for _ in range(3)] == ["slow", "b", "c"]
