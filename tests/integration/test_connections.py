"""Connections on both sides: reused over anything that ends well, never after what did not, and honest when there is no room."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import at_rest, ends, in_turn, records, rest, sends, streams
from tests.integration.toolkit import CHAT, DONE, STREAM, Client, Received, ask, completion, ev, eventually, http, samples
from tests.unit.wire.upstream_cases import CASES, Case

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.app import Gateway
    from gateway.wire.upstream import Pool
    from tests.integration.scripts import End, Script
    from tests.integration.toolkit import Conn, Scripted

    Replica = Callable[..., Awaitable[Scripted]]
    Start = Callable[..., Awaitable[Gateway]]

pytestmark = pytest.mark.usefixtures("quiet")


def pool_of(gw: Gateway) -> Pool:
    """The connections to the one replica."""
    (pool,) = gw.service._pools.values()
    return pool


# -- whatever a replica answers ----------------------------------------------------------------------------------------------

THEN: dict[str, End] = {"stay": "keep", "fin": "fin", "rst": "rst"}


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.method == b"POST"])
async def test_what_the_client_gets_of_an_answer(replica: Replica, gateway: Start, case: Case) -> None:
    """A good answer whole, a broken one visibly cut, an unreadable one as 502; only a doubtless connection is used again."""
    r = await replica(in_turn(sends(case.data, then=THEN[case.then]), sends(completion())))
    gw = await gateway(r)
    async with Client(gw.ports[0]) as client:
        await client.post("/v1/chat/completions", CHAT)
        reply = await client.reply()
        if case.verdict == "refused":
            assert (reply.status, reply.complete) == (502, True)
            assert reply.error_code in ("upstream_protocol", "upstream_reset")
        else:
            assert (reply.status, reply.body, reply.complete) == (case.status, case.body, case.verdict != "cut")
            assert "link" not in reply.headers and "x-t" not in reply.headers
        kept = int(case.verdict == "reuse")
        await eventually(lambda: (pool_of(gw).idle, pool_of(gw).open) == (kept, kept))
        if case.verdict == "cut":
            assert await rest(client) == (b"", True)
        else:  # the client's own connection is as good as before
            await client.post("/v1/chat/completions", CHAT)
            assert (await client.reply()).status == 200
    await at_rest(gw)


@contextlib.asynccontextmanager
async def hasty(answer: bytes, *, read_on: bool) -> AsyncIterator[Any]:
    """A replica that answers as soon as it has the head of a request."""
    from tests.integration.toolkit import Scripted

    probes = Scripted()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                probe = probes._probe(Received(head.split("\r\n")[0], [], b""))
                writer.write(answer if probe is None else probe)
                if probe is None:
                    await writer.drain()
                    while read_on and await reader.read(1 << 20):
                        pass
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16)
    probes.port = server.sockets[0].getsockname()[1]
    yield probes
    server.close()


@pytest.mark.parametrize("read_on", [True, False], ids=["reads on", "closes on it"])
async def test_an_answer_before_the_body_is_sent_is_passed_on(gateway: Start, *, read_on: bool) -> None:
    """A replica may refuse a long upload from its head; the rest of it is not pressed upon it."""
    async with hasty(http(413, b"big", "content-type: text/plain\r\n"), read_on=read_on) as r:
        gw = await gateway(r)
        reply = await ask(gw, {**CHAT, "pad": "x" * (20 << 20)})
        assert (reply.status, reply.body) == (413, b"big")
        await eventually(lambda: pool_of(gw).open == 0)
        await at_rest(gw)


# -- connections to replicas -------------------------------------------------------------------------------------------------


def closes_after(seconds: float) -> Script:
    """Answer, and close the connection a while later whatever comes in meanwhile, as servers with a short keep-alive do."""

    async def script(conn: Conn) -> None:
        await conn.send(completion())
        await asyncio.sleep(seconds)
        await ends(conn, "fin")

    return script


async def test_requests_race_with_the_end_of_idle_connections(replica: Replica, gateway: Start) -> None:
    """Sent just when the replica closes its idle connection: all are answered, none is a failure or a retry."""
    gw = await gateway(await replica(closes_after(0.06)), retries={"attempts": 1, "budget": 0})
    done = records(gw)
    dice = random.Random(1)
    for _ in range(50):
        assert (await ask(gw)).status == 200
        await asyncio.sleep(0.06 + dice.uniform(-0.006, 0.003))
    assert {outcome for record in done for _, outcome in record.tries} <= {"ok", "resent"}
    assert gw.table.servers()[0].breaker.consecutive == 0


async def test_idle_connections_end_before_the_engines_end_them(replica: Replica, gateway: Start) -> None:
    """uvicorn closes at 5 s; until then one connection serves all."""
    r = await replica()
    gw = await gateway(r)
    for _ in range(20):
        assert (await ask(gw)).status == 200
    assert (pool_of(gw).open, pool_of(gw).idle) == (1, 1)
    assert pool_of(gw).idle_s < 5


async def test_what_a_replica_says_unasked_is_heard_by_nobody(replica: Replica, gateway: Start) -> None:
    """A 408 on an idle connection is not the answer to the next request."""

    async def script(conn: Conn) -> None:
        await conn.send(completion())
        await asyncio.sleep(0.03)
        await conn.send(http(408, b"timeout"))

    gw = await gateway(await replica(script))
    for _ in range(4):
        assert (await ask(gw)).status == 200
        await eventually(lambda: pool_of(gw).open == 0)


async def test_hundreds_of_streams_at_once(replica: Replica, gateway: Start) -> None:
    """No hidden limit: all are served, and meanwhile health and metrics answer at once."""
    r = await replica(streams(*[ev("tok")] * 6, DONE, every=0.25))
    gw = await gateway(r)
    asked = [asyncio.create_task(ask(gw, STREAM)) for _ in range(300)]
    await eventually(lambda: len(r.requests) == 300, 5)
    waits = []
    while not all(task.done() for task in asked):
        for port, path in ((gw.ports[0], "/health"), (gw.ports[1], "/metrics")):
            began = time.monotonic()
            async with Client(port) as client:
                await client.get(path)
                assert (await client.reply()).status == 200
            waits.append(time.monotonic() - began)
        await asyncio.sleep(0.05)
    assert {(reply.status, reply.body) for reply in await asyncio.gather(*asked)} == {(200, ev("tok") * 6 + DONE)}
    assert sorted(waits)[len(waits) // 2] < 0.1
    await at_rest(gw)


# -- connections of clients ---------------------------------------------------------------------------------------------------

EXCHANGES: list[tuple[Script | None, str, Any, int]] = [
    # what the replica does (None: it is not asked), path, body, status
    (sends(completion()), "/v1/chat/completions", CHAT, 200),
    (streams(ev("a"), DONE), "/v1/chat/completions", STREAM, 200),
    (None, "/v1/chat/completions", b"{", 400),
    (None, "/v1/chat/completions", {**CHAT, "model": "nope"}, 404),
    (None, "/v1/nothing", CHAT, 404),
    (sends(http(400, b'{"error":{"message":"no"}}')), "/v1/chat/completions", STREAM, 400),
    (sends(http(429, b'{"error":{"message":"slow down"}}')), "/v1/chat/completions", CHAT, 429),
    (sends(then="rst"), "/v1/chat/completions", CHAT, 502),
    (sends(http(200)), "/v1/embeddings", {"model": "m", "input": "x"}, 200),
    (sends(b"HTTP/1.1 204 No\r\n\r\n"), "/v1/chat/completions", CHAT, 204),
    (sends(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nuntil close", then="fin"), "/v1/chat/completions", CHAT, 200),
    (sends(then="hold"), "/v1/chat/completions", CHAT, 504),
]
TOLERANT = {"failures": 1000, "min_requests": 1000}


async def test_one_client_connection_serves_any_row_of_exchanges(replica: Replica, gateway: Start) -> None:
    """Successes, streams and errors of every origin, in any order: each answer belongs to its request."""
    r = await replica()
    gw = await gateway(r, timeouts={"unary_s": 0.1}, breaker=TOLERANT)
    dice = random.Random(3)
    async with Client(gw.ports[0]) as client:
        for n, (script, path, body, status) in enumerate(EXCHANGES + dice.choices(EXCHANGES[:-1], k=100)):
            r.script = script or sends(then="hold")
            await client.post(path, body, f"x-request-id: row-{n}\r\n")
            reply = await client.reply()
            assert (reply.status, reply.complete, reply.headers["x-request-id"]) == (status, True, f"row-{n}")
    assert len(gw.shared.connections) <= 1
    await at_rest(gw)


def head_and_body(n: int, body: dict[str, Any]) -> bytes:
    """One request of a pipeline."""
    data = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nx-request-id: p-%d\r\ncontent-length: %d\r\n\r\n%b" % (n, len(data), data)


async def test_pipelined_requests_are_answered_in_order(replica: Replica, gateway: Start) -> None:
    """Forty requests in one write, streams and errors among them, the slow ones first."""
    delays = itertools.count()

    async def script(conn: Conn) -> None:
        await asyncio.sleep(0.05 / (1 + next(delays)))
        await (streams(ev("a"), DONE) if conn.request.json().get("stream") else sends(completion()))(conn)

    gw = await gateway(await replica(script))
    bodies = [CHAT, STREAM, {**CHAT, "model": "nope"}, STREAM] * 10
    async with Client(gw.ports[0]) as client:
        await client.send(b"".join(head_and_body(n, body) for n, body in enumerate(bodies)))
        replies = [await client.reply() for _ in bodies]
    assert [reply.headers["x-request-id"] for reply in replies] == [f"p-{n}" for n in range(len(bodies))]
    assert [reply.status for reply in replies] == [200, 200, 404, 200] * 10
    assert all(reply.complete for reply in replies)


async def test_a_pipeline_ends_with_its_client(replica: Replica, gateway: Start) -> None:
    """What waits behind the running request is not sent to anybody when the client leaves."""
    r = await replica(sends(then="hold"))
    gw = await gateway(r)
    async with Client(gw.ports[0]) as client:
        await client.send(b"".join(head_and_body(n, CHAT) for n in range(5)))
        await eventually(lambda: r.requests)
    await at_rest(gw)
    assert len(r.requests) == 1


async def test_a_cut_stream_ends_the_pipeline_behind_it(replica: Replica, gateway: Start) -> None:
    """Nothing may follow an answer without an end."""
    gw = await gateway(await replica(streams(ev("a"), end=b"", then="rst")))
    async with Client(gw.ports[0]) as client:
        await client.send(head_and_body(0, STREAM) + head_and_body(1, STREAM))
        assert not (await client.reply()).complete
        assert await rest(client) == (b"", True)
    await at_rest(gw)


# -- when there is no room ----------------------------------------------------------------------------------------------------


async def answered(gw: Gateway, body: dict[str, Any] = CHAT) -> tuple[int, str, float]:
    """(status, error code, seconds)."""
    began = time.monotonic()
    reply = await ask(gw, body)
    if reply.status in (429, 503):
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["x-should-retry"] == "true"
    return reply.status, reply.headers.get("x-kvgate-error", ""), time.monotonic() - began


async def test_a_full_queue_a_long_wait_and_an_empty_fleet_are_told_apart(replica: Replica, gateway: Start) -> None:
    """One runs, two wait as long as they may, the others are refused at once; without replicas it is 503. So do the metrics say."""

    async def script(conn: Conn) -> None:
        await asyncio.sleep(1.2)
        await conn.send(completion())

    r = await replica(script)
    gw = await gateway(r, r1={"max_inflight": 1}, admission={"queue_size": 2}, timeouts={"queue_s": 0.5}, health={"interval_s": 0.1})
    outcomes = sorted(await asyncio.gather(*(answered(gw) for _ in range(6))))
    assert [(status, code) for status, code, _ in outcomes] == [(200, "")] + [(429, "queue_full")] * 3 + [(429, "queue_timeout")] * 2
    assert max(took for _, code, took in outcomes if code == "queue_full") < 0.3
    assert all(0.5 <= took < 1.0 for _, code, took in outcomes if code == "queue_timeout")
    assert len(r.requests) == 1
    r.health = 500
    await eventually(lambda: gw.table.servers()[0].health == "down")
    await r.stop()
    assert (await answered(gw))[:2] in [(502, "upstream_connect"), (503, "no_replica_ready")]
    counted = {dict(labels)["reason"]: n for labels, n in samples(gw, "kvgate_requests_total").items()}
    assert {"": 1, "queue_full": 3, "queue_timeout": 2}.items() <= counted.items()


async def test_those_who_wait_are_served_in_turn(replica: Replica, gateway: Start) -> None:
    """First come, first served, each as soon as there is room; how long it waited is told."""

    async def script(conn: Conn) -> None:
        await asyncio.sleep(0.05)
        await conn.send(completion())

    r = await replica(script)
    gw = await gateway(r, r1={"max_inflight": 2})
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(gw.ports[0])) for _ in range(8)]
        for n, client in enumerate(clients):
            await client.post("/v1/chat/completions", CHAT, f"x-request-id: q-{n}\r\n")
            await asyncio.sleep(0.002)
        replies = [await client.reply() for client in clients]
    assert {reply.status for reply in replies} == {200}
    assert [request.header("x-request-id") for request in r.requests] == [f"q-{n}" for n in range(8)]
    assert int(replies[0].headers["x-kvgate-queue-ms"]) < 20
    assert int(replies[-1].headers["x-kvgate-queue-ms"]) > 100


async def test_silent_streams_that_fill_a_replica_keep_no_probe_away(replica: Replica, gateway: Start) -> None:
    """At `max_inflight` the next request hears of the queue, not of a timeout, and the replica stays healthy in all eyes."""
    r = await replica(sends(then="hold"))
    gw = await gateway(r, r1={"max_inflight": 3}, timeouts={"queue_s": 0.4}, health={"interval_s": 0.05, "timeout_s": 0.5})
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            client = await stack.enter_async_context(Client(gw.ports[0]))
            await client.post("/v1/chat/completions", STREAM)
        await eventually(lambda: len(r.requests) == 3)
        assert (await answered(gw))[:2] == (429, "queue_timeout")
        (server,) = gw.table.servers()
        assert (server.health, server.breaker.consecutive, server.fails) == ("up", 0, 0)
    await at_rest(gw)


async def test_a_request_may_wait_for_a_replica_to_come_up(replica: Replica, gateway: Start) -> None:
    """`admission.wait_for_replica_s`: 0 refuses at once; otherwise it waits that long, and is served when one comes up."""
    gw = await gateway(await replica(), admission={"wait_for_replica_s": 0.6})
    gw.drain("r1", draining=True)
    waiting = asyncio.create_task(answered(gw))
    await asyncio.sleep(0.2)
    gw.drain("r1", draining=False)
    status, _, took = await waiting
    assert status == 200
    assert 0.2 <= took < 0.5
    gw.drain("r1", draining=True)
    status, code, took = await answered(gw)
    assert (status, code) == (503, "no_replica_ready")
    assert took >= 0.6


async def test_a_request_bound_to_a_full_replica_holds_nobody_up(replica: Replica, gateway: Start) -> None:
    """The oldest request waits for one replica; when another one becomes free, the next request goes there."""

    async def script(conn: Conn) -> None:
        await conn.hold(0.4 if conn.replica is r2 else 5)
        await conn.send(completion())

    r1, r2 = await replica(script), await replica(script)
    gw = await gateway(r1, r2, r1={"max_inflight": 1}, r2={"max_inflight": 1}, routing={"allow_pinning": True}, timeouts={"queue_s": 1})
    pin = "x-kvgate-replica: r1\r\n"
    filling = [asyncio.create_task(ask(gw)) for _ in range(2)]
    await eventually(lambda: len(r1.requests) + len(r2.requests) == 2)
    pinned = asyncio.create_task(ask(gw, headers=pin))
    await eventually(lambda: gw.service.waiting.waiting == 1)
    reply = await ask(gw)
    assert (reply.status, reply.headers["x-kvgate-replica"]) == (200, "r2")
    assert ((await pinned).status, len(r1.requests)) == (429, 1)
    for task in filling:
        task.cancel()
    await asyncio.gather(*filling, return_exceptions=True)


async def test_a_long_request_waits_for_a_replica_that_can_take_it(replica: Replica, gateway: Start) -> None:
    """That the large replica is full is no reason to send it to one whose context is too short."""
    small, large = await replica(sends(completion())), await replica(sends(then="hold"))
    gw = await gateway(
        small, large, r1={"context_length": 100}, r2={"context_length": 100_000, "max_inflight": 1}, timeouts={"queue_s": 0.3}
    )
    long = {**CHAT, "max_tokens": 5000}
    first = asyncio.create_task(ask(gw, long))
    await eventually(lambda: large.requests)
    assert (await answered(gw, long))[:2] == (429, "queue_timeout")
    assert (await ask(gw)).status == 200
    assert len(small.requests) == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
