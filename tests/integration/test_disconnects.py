"""Clients that leave: in whatever phase, everything is let go of within a second, and no replica is blamed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import random
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import at_rest, deaf, held, in_turn, records, sends, streams, until
from tests.integration.toolkit import CHAT, DONE, SSE_HEAD, STREAM, Client, ask, completion, ev, eventually, framed, http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway.app import Gateway
    from gateway.telemetry import ExchangeRecord
    from tests.integration.scripts import Script
    from tests.integration.toolkit import Conn, Scripted

    Replica = Callable[..., Awaitable[Scripted]]
    Start = Callable[..., Awaitable[Gateway]]

pytestmark = pytest.mark.usefixtures("quiet")


async def leave(client: Client, how: str) -> None:
    """Close the connection in order, or reset it."""
    if how == "rst":
        linger = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.writer.transport.abort()
    else:
        client.writer.close()


async def request(client: Client, body: dict[str, Any], size: int | None = None) -> None:
    """Send a request, or the first `size` bytes of it."""
    data = json.dumps(body).encode()
    whole = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)
    await client.send(whole[:size])


def blameless(gw: Gateway) -> None:
    """No failure was counted against any replica."""
    for server in gw.table.servers():
        assert (server.breaker.consecutive, sum(server.breaker._failed), server.client_errors) == (0, 0, 0)
        assert server.fault(gw.now()) is None


# -- one client, phase by phase ------------------------------------------------------------------------------------------

WAYS = ["fin", "rst"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("size", [20, 90], ids=["in its head", "in its body"])
async def test_a_client_that_leaves_while_it_sends(replica: Replica, gateway: Start, how: str, size: int) -> None:
    """Memory is given back, and the replica never hears of it."""
    r = await replica()
    gw = await gateway(r)
    async with Client(gw.ports[0]) as client:
        await request(client, CHAT, size)
        await eventually(lambda: gw.shared.connections)
        await asyncio.sleep(0.05)
        await leave(client, how)
        await eventually(lambda: not gw.shared.connections, 1)
    await at_rest(gw)
    assert r.requests == []


@pytest.mark.parametrize("how", WAYS)
async def test_a_client_that_leaves_the_queue(replica: Replica, gateway: Start, how: str) -> None:
    """Its place is free at once, and nobody computes anything for it."""
    r = await replica(sends(then="hold"))
    gw = await gateway(r, r1={"max_inflight": 1})
    done = records(gw)
    async with Client(gw.ports[0]) as first, Client(gw.ports[0]) as second:
        await request(first, CHAT)
        await eventually(lambda: r.requests)
        await request(second, CHAT)
        await eventually(lambda: gw.service.waiting.waiting == 1)
        await leave(second, how)
        await eventually(lambda: not gw.service.waiting.waiting, 1)
        await eventually(lambda: done, 1)
        assert (done[0].ended_by, done[0].phase, done[0].attempts) == ("client", "queued", 0)
    await at_rest(gw)
    assert len(r.requests) == 1
    blameless(gw)


@pytest.mark.parametrize("how", WAYS)
async def test_a_client_that_leaves_while_its_replica_is_dialled(replica: Replica, gateway: Start, how: str) -> None:
    """The dial may go on; its connection is not lost, and the slot is free at once."""
    r = await replica()
    gw = await gateway(r, health={"unhealthy_after": 100}, timeouts={"connect_s": 0.6})
    done = records(gw)
    await r.stop()
    with deaf(r.port):
        async with Client(gw.ports[0]) as client:
            await request(client, CHAT)
            await eventually(lambda: gw.table.servers()[0].inflight)
            await leave(client, how)
            await eventually(lambda: not gw.table.servers()[0].inflight and not gw.service.running, 0.5)
        await at_rest(gw, 2)
    assert [(d.ended_by, d.phase, d.tries) for d in done] == [("client", "connecting", (("r1", "cancelled"),))]
    blameless(gw)


HELD: dict[str, tuple[dict[str, Any], Script, bytes, str]] = {
    # request, script, what the client waits for before it leaves, phase
    "before the answer": (CHAT, sends(then="hold"), b"", "waiting"),
    "before a stream's answer": (STREAM, sends(then="hold"), b"", "waiting"),
    "before the first event": (STREAM, sends(SSE_HEAD, then="hold"), b"", "waiting"),
    "behind a comment": (STREAM, streams(b": ping\n\n", end=b"", then="hold"), b"ping\n\n", "streaming"),
    "between events": (STREAM, streams(ev("a"), ev("b"), ev("c"), end=b"", then="hold"), ev("c"), "streaming"),
    "within an event": (STREAM, streams(ev("a") + ev("b")[:40], end=b"", then="hold"), ev("a"), "streaming"),
    "within a body": (CHAT, sends(completion()[:-20], then="hold"), b"prompt_tokens", "streaming"),
    "within a held error": (CHAT, sends(http(503, b"x" * 99)[:-20], then="hold"), b"", "waiting"),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("body", "script", "mark", "phase"), HELD.values(), ids=HELD)
async def test_a_client_that_leaves_frees_its_replica(
    replica: Replica, gateway: Start, body: dict[str, Any], script: Script, mark: bytes, phase: str, how: str
) -> None:
    """The replica sees its connection closed within a second, so that it stops generating."""
    r = await replica(script)
    gw = await gateway(r)
    done = records(gw)
    async with Client(gw.ports[0]) as client:
        await request(client, body)
        await eventually(lambda: r.requests)
        if mark:
            await until(client, mark)
        await asyncio.sleep(0.03)
        assert held(gw)["inflight"] == 1
        before = len(r.hangups)
        await leave(client, how)
        await eventually(lambda: len(r.hangups) > before, 1)
    await at_rest(gw)
    assert [(d.ended_by, d.phase, d.reason, d.tries) for d in done] == [("client", phase, "client_gone", (("r1", "cancelled"),))]
    blameless(gw)


@pytest.mark.parametrize("how", WAYS)
async def test_a_client_that_leaves_during_a_second_try(replica: Replica, gateway: Start, how: str) -> None:
    """The second replica is let go of like the first; there is no third try."""
    busy, slow = await replica(sends(http(503))), await replica(sends(then="hold"))
    gw = await gateway(busy, slow, models=[{"name": "m", "replicas": [{"url": busy.url}, {"url": slow.url}]}])
    done = records(gw)
    async with Client(gw.ports[0]) as client:
        while not slow.requests or not busy.requests:
            await request(client, CHAT)
            await eventually(lambda: slow.requests)
            if not busy.requests:  # the slow one was asked first: once more, it is busy now
                await leave(client, how)
                client = await Client(gw.ports[0]).__aenter__()
                slow.requests.clear()
        await leave(client, how)
        await at_rest(gw)
    last = done[-1]
    assert (last.ended_by, [outcome for _, outcome in last.tries]) == ("client", ["backpressure", "cancelled"])


async def test_nothing_is_kept_of_clients_whose_streams_were_refused(replica: Replica, gateway: Start) -> None:
    """Connections to replicas go back to the pool after errors: two hundred refusals use one, and the next request is served."""
    refusal = http(429, json.dumps({"error": {"message": "x" * 1000}}).encode())
    r = await replica(in_turn(*[sends(refusal)] * 200, streams(ev("ok"), DONE)))
    gw = await gateway(r)
    assert {(await ask(gw, STREAM)).status for _ in range(200)} == {429}
    reply = await ask(gw, STREAM)
    assert (reply.status, reply.body) == (200, ev("ok") + DONE)
    (pool,) = gw.service._pools.values()
    assert (pool.open, pool.idle) == (1, 1)
    await at_rest(gw)


async def test_a_fault_in_one_requests_books_loses_nobodys(replica: Replica, gateway: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A hook that fails is logged; slots are free and the other requests are counted all the same."""
    gw = await gateway(await replica())
    aftermath = gw.service.aftermath
    turns = itertools.count()

    def fails_at_first(_: ExchangeRecord) -> None:
        if next(turns) == 0:
            raise OSError("disk full")

    aftermath._hooks = (fails_at_first, *aftermath._hooks)
    done = records(gw)
    replies = await asyncio.gather(*(ask(gw) for _ in range(5)))
    assert {reply.status for reply in replies} == {200}
    await at_rest(gw)
    assert len(done) == 4
    assert "a finished request could not be booked" in caplog.text
    caplog.clear()


# -- clients that read slowly --------------------------------------------------------------------------------------------

MB = 1 << 20


class Source:
    """A replica's script: a stream of `size` bytes, counting what it could send and hashing it."""

    def __init__(self, size: int) -> None:
        event = ev("0123456789abcdef" * 4096)
        self.events = [event] * (size // len(event)) + [DONE]
        self.size = sum(map(len, self.events))
        self.sent = 0

    async def __call__(self, conn: Conn) -> None:
        await conn.send(SSE_HEAD)
        for event in self.events:
            await conn.send(framed(event))
            self.sent += len(event)
        await conn.send(b"0\r\n\r\n")

    @property
    def digest(self) -> str:
        return hashlib.blake2b(b"".join(self.events)).hexdigest()


@contextlib.asynccontextmanager
async def slow_client(gw: Gateway) -> AsyncIterator[socket.socket]:
    """A client with a small window that has asked for a stream over HTTP/1.0 and reads only when told."""
    data = json.dumps(STREAM).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", gw.ports[0]))
        await loop.sock_sendall(sock, b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
        yield sock


def buffered(gw: Gateway) -> int:
    """Bytes of answers in the gateway's memory."""
    return sum(front.transport.get_write_buffer_size() for front in gw.shared.connections)


async def stalled(source: Source) -> int:
    """Wait until the replica cannot send any more; how much it could."""
    sent = -1
    while sent != source.sent:
        sent = source.sent
        await asyncio.sleep(0.2)
    return sent


async def test_a_client_that_does_not_read_slows_its_replica_down(replica: Replica, gateway: Start) -> None:
    """Of 100 MB the gateway holds a fraction of one; when the client reads on, it gets every byte. Waiting for it is no idle time."""
    source = Source(100 * MB)
    gw = await gateway(await replica(source), timeouts={"idle_s": 0.5, "data_idle_s": 0.5})
    loop, digest, head = asyncio.get_running_loop(), hashlib.blake2b(), b""
    async with slow_client(gw) as sock:
        sent = await stalled(source)
        assert 0 < sent < 30 * MB  # what the kernel takes on its way
        await asyncio.sleep(0.8)
        assert source.sent == sent
        assert buffered(gw) < MB
        while data := await loop.sock_recv(sock, MB):
            if not digest.digest_size or not head:
                head, _, data = data.partition(b"\r\n\r\n")
            digest.update(data)
            assert buffered(gw) < MB
    assert digest.hexdigest() == source.digest
    await at_rest(gw)


@pytest.mark.parametrize("how", WAYS)
async def test_a_client_that_leaves_without_reading(replica: Replica, gateway: Start, how: str) -> None:
    """It is noticed, though nothing can be written to it and nothing is read from its replica."""
    source = Source(40 * MB)
    r = await replica(source)
    gw = await gateway(r)
    async with slow_client(gw) as sock:
        await stalled(source)
        if how == "rst":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await at_rest(gw)
    assert source.sent < source.size
    blameless(gw)


async def test_a_client_that_reads_nothing_for_long_is_cut(replica: Replica, gateway: Start) -> None:
    """`server.write_stall_s`: an open connection that takes nothing must not hold a replica for ever."""
    source = Source(40 * MB)
    gw = await gateway(await replica(source), server={"write_stall_s": 0.5})
    done = records(gw)
    async with slow_client(gw):
        await stalled(source)
        await at_rest(gw, 2)
    assert done[0].ended_by in ("client", "gateway")
    blameless(gw)


# -- everything at once --------------------------------------------------------------------------------------------------

CUTS = 1000
ANSWERS: list[tuple[int, Script]] = [
    # weight, what a replica does
    (6, sends(completion())),
    (6, streams(ev("a"), ev("b"), DONE, every=0.005)),
    (2, streams(*[ev("slow")] * 50, DONE, every=0.02)),
    (2, sends(then="hold")),
    (1, sends(SSE_HEAD, then="hold")),
    (2, streams(ev("a"), end=b"", then="hold")),
    (2, sends(then="rst")),
    (2, sends(then="fin")),
    (2, streams(ev("a"), ev("b"), end=b"", then="rst")),
    (1, streams(end=b"", then="rst")),
    (2, sends(http(500, b'{"error":{"message":"boom"}}'))),
    (1, sends(http(503))),
    (1, sends(http(400, b'{"error":{"message":"stream_options"}}'))),
    (1, sends(http(404, b"{}"))),
    (1, streams(b'data: {"error":{"message":"full","code":503}}\n\n', DONE)),
    (1, sends(completion() + b"JUNK")),
    (1, sends(b"SSH-2.0-x\r\n\r\n", then="fin")),
]
SCRIPTS = [script for weight, script in ANSWERS for _ in range(weight)]


def anything(dice: random.Random) -> Script:
    """A replica that does something else each time."""

    async def script(conn: Conn) -> None:
        await dice.choice(SCRIPTS)(conn)

    return script


async def cut_somewhere(gw: Gateway, dice: random.Random) -> None:
    """One client: it sends all of its request or a part, waits for a moment or to the end, and leaves somehow."""
    body = dice.choice([CHAT, STREAM])
    size = dice.choice([None, None, None, None, dice.randrange(1, 150)])
    patience = dice.choice([0.0, 0.002, 0.01, 0.03, 0.1, 1.0])
    how = dice.choice(WAYS)
    async with Client(gw.ports[0]) as client:
        await request(client, body, size)
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(patience):
                await client.reply()
        await leave(client, how)


BREAKERS = {"never open": {"failures": 10_000, "min_requests": 10_000}, "keep opening": {"failures": 3, "cooldown_s": 0.05}}


@pytest.mark.parametrize("breaker", BREAKERS.values(), ids=BREAKERS)
async def test_a_thousand_cuts_leave_nothing_behind(replica: Replica, gateway: Start, breaker: dict[str, Any]) -> None:
    """Clients and replicas fail in every way at once, in a seeded order: then every counter is zero and the next request is served."""
    dice = random.Random(20)
    replicas = [await replica(anything(dice)) for _ in range(3)]
    gw = await gateway(
        *replicas,
        **{f"r{n}": {"max_inflight": 6} for n in (1, 2, 3)},
        breaker=breaker,
        timeouts={"first_byte_s": 0.5, "idle_s": 0.4, "unary_s": 0.5, "queue_s": 0.3},
        retries={"budget": 1.0},
    )
    done = records(gw)
    turns = asyncio.Semaphore(60)

    async def client() -> None:
        async with turns:
            await cut_somewhere(gw, dice)

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(CUTS)))
    await at_rest(gw, 3)
    assert time.monotonic() - began < 15
    reached(done)
    for r in replicas:
        r.script = sends(completion())
    await eventually(lambda: all(s.fault(gw.now()) is None for s in gw.table.servers()))
    assert (await ask(gw)).status == 200
    await eventually(lambda: not gw.shared.connections)


def reached(done: list[ExchangeRecord]) -> None:
    """The soak is worth its name: many exchanges, ended by everybody, in every phase, with second tries among them."""
    assert len(done) > CUTS / 2
    assert {d.ended_by for d in done} == {"client", "replica", "gateway", "timeout"}
    assert {d.phase for d in done} >= {"admit", "queued", "waiting", "streaming", "done"}
    assert max(d.attempts for d in done) > 1
