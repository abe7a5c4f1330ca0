"""The overhead benchmark's own parts against each other: driver, byte pipe, raw replica, on real sockets."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator

import pytest

from loadtest import client
from loadtest.overhead.driver import FOREVER, ClosedLoop, Crowd, Doors, Probes
from loadtest.overhead.pipe import Front
from loadtest.overhead.prompts import Requests
from loadtest.overhead.replica import Connection, Replica


@contextlib.asynccontextmanager
async def listening(factory: object) -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)  # type: ignore[arg-type]
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def piped(replica: Replica) -> AsyncIterator[tuple[int, int]]:
    """Ports of the byte pipe and of the replica behind it."""
    async with listening(lambda: Connection(replica)) as port:
        ports = itertools.cycle([port])
        async with listening(lambda: Front(ports, set())) as front:
            yield front, port


@pytest.mark.parametrize("size", [2048, 61440])
async def test_a_closed_loop_checks_every_answer(size: int) -> None:
    """Through a faithful pipe all answers are right, and driver and replica count the same."""
    replica = Replica(asyncio.get_running_loop())
    async with piped(replica) as (front, _):
        loop = ClosedLoop(Doors([front]), Requests(size, front))
        loop.start(4)
        while loop.done < 50:
            await asyncio.sleep(0.01)
        await loop.stop()
    assert not loop.faults
    assert loop.done == replica.completions == len(loop.latencies)


async def test_a_wrong_answer_is_counted() -> None:
    """An answer without the request's nonce is a fault even with status 200."""

    class Liar(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            body = b'{"content":"nonce-00000000"}'
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)  # type: ignore[attr-defined]

    async with listening(Liar) as port:
        loop = ClosedLoop(Doors([port]), Requests(1024, port))
        loop.start(1)
        while loop.done < 3:
            await asyncio.sleep(0.01)
        await loop.stop()
    assert loop.faults == {"wrong or incomplete answer": loop.done}


async def test_a_crowd_lives_until_the_replica_ends_it() -> None:
    """Streams run side by side, end properly on demand, and every event arrives once."""
    replica = Replica(asyncio.get_running_loop())
    async with piped(replica) as (front, port):
        await client.fetch(port, "GET", "/control?think_ms=1&interval_ms=10")
        crowd = Crowd(Doors([front]), Requests(2048, front, stream_events=FOREVER))
        await crowd.open(8)
        assert len(replica.streams) == 8
        while crowd.tally.events < 40:
            await asyncio.sleep(0.01)
        counts = json.loads((await client.fetch(port, "GET", "/control/finish"))[1])
        await crowd.ended()
    assert not crowd.tally.faults
    assert (counts["begun"], counts["ended"]) == (8, 8)
    assert crowd.tally.events == counts["events"]


async def test_a_cut_stream_is_counted() -> None:
    """A connection lost in mid-stream is one fault of that stream alone."""
    replica = Replica(asyncio.get_running_loop())
    async with listening(lambda: Connection(replica)) as port:
        await client.fetch(port, "GET", "/control?think_ms=1&interval_ms=10")
        crowd = Crowd(Doors([port]), Requests(2048, port, stream_events=FOREVER))
        await crowd.open(3)
        next(iter(replica.streams))._transport.abort()
        while not crowd.tally.faults:
            await asyncio.sleep(0.01)
        await client.fetch(port, "GET", "/control/finish")
        await crowd.ended()
    assert crowd.tally.faults == {"connection closed in mid-response": 1}


async def test_probes_measure_the_path_and_not_the_replica() -> None:
    """A replica that thinks for 50 ms adds nothing to what the probe reports."""
    replica = Replica(asyncio.get_running_loop())
    async with listening(lambda: Connection(replica)) as port:
        await client.fetch(port, "GET", "/control?think_ms=50")
        probes = Probes(Doors([port]))
        await probes.run(0.1, 50)
        probes.close()
    assert not probes.tally.faults
    assert len(probes.tally.paths) == 5
    assert 0 < min(probes.tally.paths) < 25_000_000


async def test_usage_goes_only_to_those_who_ask() -> None:
    """The replica sends the usage event when `stream_options` asks for it, before `[DONE]`."""
    replica = Replica(asyncio.get_running_loop())
    async with listening(lambda: Connection(replica)) as port:
        await client.fetch(port, "GET", "/control?think_ms=1&interval_ms=1")
        chat = {"model": "raw", "messages": [{"role": "user", "content": "nonce-00000001"}], "stream": True, "max_tokens": 2}
        _, plain = await client.fetch(port, "POST", "/v1/chat/completions", json.dumps(chat).encode())
        chat["stream_options"] = {"include_usage": True}
        _, counted = await client.fetch(port, "POST", "/v1/chat/completions", json.dumps(chat).encode())
    assert b'"usage"' not in plain
    assert b'"choices":[],"usage":{"prompt_tokens":512' in counted
    assert plain.endswith(b"data: [DONE]\n\n")
    assert counted.endswith(b"data: [DONE]\n\n")
