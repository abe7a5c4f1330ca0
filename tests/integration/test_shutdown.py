"""The gateway's own end: it says no first, finishes what it began, and is gone at once when told twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.process import serving
from tests.integration.scripts import at_rest, records, rest, sends, streams, until
from tests.integration.toolkit import CHAT, DONE, SSE_HEAD, STREAM, Client, ask, ev, eventually, framed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.app import Gateway
    from tests.integration.process import Served
    from tests.integration.toolkit import Conn, Reply, Scripted

    Replica = Callable[..., Awaitable[Scripted]]
    Start = Callable[..., Awaitable[Gateway]]

pytestmark = pytest.mark.usefixtures("quiet")

LONG = streams(*[ev("tok")] * 10, DONE, every=0.1)
WHOLE = ev("tok") * 10 + DONE


def shutdown(grace_s: float = 0, timeout_s: float = 5) -> dict[str, Any]:
    """The server section with these times."""
    return {"shutdown": {"grace_s": grace_s, "timeout_s": timeout_s}}


async def get(port: int, path: str) -> Reply:
    """One GET on a connection of its own."""
    async with Client(port) as client:
        await client.get(path)
        return await client.reply()


async def posted(port: int, body: dict[str, Any]) -> Reply:
    """One chat request on a connection of its own."""
    async with Client(port) as client:
        await client.post("/v1/chat/completions", body)
        return await client.reply()


# -- in this process -------------------------------------------------------------------------------------------------------


async def test_while_the_grace_time_lasts_new_requests_are_served(replica: Replica, gateway: Start) -> None:
    """`readyz` says no at once, so that balancers look elsewhere; those that have not noticed yet are served."""
    gw = await gateway(await replica(), server=shutdown(grace_s=0.5))
    port = gw.ports[0]
    assert (await get(port, "/readyz")).status == 200
    stopping = asyncio.create_task(gw.stop())
    await asyncio.sleep(0)
    assert [(await get(port, path)).status for path in ("/readyz", "/livez", "/health")] == [503, 200, 200]
    assert (await ask(gw)).status == 200
    await stopping
    with pytest.raises(OSError):
        await get(port, "/livez")


async def test_running_requests_finish(replica: Replica, gateway: Start) -> None:
    """Streams come to their end, on connections that close then; idle connections close at once."""
    gw = await gateway(await replica(LONG), server=shutdown())
    async with Client(gw.ports[0]) as idle, Client(gw.ports[0]) as busy:
        await idle.get("/livez")
        assert (await idle.reply()).status == 200
        await busy.post("/v1/chat/completions", STREAM)
        await until(busy, b"tok")
        stopping = asyncio.create_task(gw.stop())
        assert await rest(idle) == (b"", True)
        assert not stopping.done()
        data, orderly = await rest(busy)
        assert data.endswith(b"0\r\n\r\n")
        assert orderly
        assert data.count(b"tok") + 1 == 10
    await asyncio.wait_for(stopping, 1)


async def test_a_request_that_comes_too_late_is_told_where_it_stands(replica: Replica, gateway: Start) -> None:
    """Its head was not complete when the end began: 503 with the advice to try again, on a connection that closes."""
    r = await replica(LONG)
    gw = await gateway(r, server=shutdown())
    async with Client(gw.ports[0]) as late, Client(gw.ports[0]) as busy:
        await busy.post("/v1/chat/completions", STREAM)
        await late.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n")
        await until(busy, b"tok")
        stopping = asyncio.create_task(gw.stop())
        await asyncio.sleep(0.05)
        await late.send(b"content-length: 2\r\n\r\n{}")
        reply = await late.reply()
        assert (reply.status, reply.error_code, reply.headers["connection"]) == (503, "draining", "close")
        assert int(reply.headers["retry-after"]) >= 1
    await stopping
    assert len(r.requests) == 1


async def test_at_the_limit_everything_still_running_is_cut(replica: Replica, gateway: Start) -> None:
    """Streams get an error event and no end, others 503, those that wait too; replicas are let go of and not blamed."""

    async def script(conn: Conn) -> None:
        if conn.request.json().get("stream"):
            await conn.send(SSE_HEAD + framed(ev("a")))
        await conn.hold()

    r = await replica(script)
    gw = await gateway(r, r1={"max_inflight": 2}, server=shutdown(timeout_s=0.3))
    done = records(gw)
    asked = [asyncio.create_task(ask(gw, STREAM))]
    await eventually(lambda: len(r.requests) == 1)
    asked += [asyncio.create_task(ask(gw, CHAT)) for _ in range(2)]
    await eventually(lambda: len(r.requests) == 2 and gw.service.waiting.waiting == 1)
    await gw.stop()
    stream, *others = await asyncio.gather(*asked)
    assert not stream.complete
    assert stream.body.startswith(ev("a") + b'data: {"error"')
    assert b'"draining"' in stream.body and b"replica" not in stream.body
    assert [(reply.status, reply.error_code) for reply in others] == [(503, "draining")] * 2
    assert {record.ended_by for record in done} == {"gateway"}
    await at_rest(gw)
    assert gw.table.servers()[0].breaker.consecutive == 0


async def test_what_a_slow_client_has_not_read_yet_is_not_thrown_away(replica: Replica, gateway: Start) -> None:
    """The request is over for its replica, its last bytes are still in the gateway: the process must outlive them."""
    gw: Gateway

    def buffered() -> int:
        return sum(front.transport.get_write_buffer_size() for front in gw.shared.connections)

    async def fills_the_pipe(conn: Conn) -> None:
        await conn.send(SSE_HEAD)
        while not buffered():
            await conn.send(framed(ev("x" * 60_000)))
            await asyncio.sleep(0.003)
        await conn.send(framed(DONE) + b"0\r\n\r\n")

    gw = await gateway(await replica(fills_the_pipe), server=shutdown())
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", gw.ports[0]))
        body = b'{"model":"m","messages":[],"stream":true}'
        await loop.sock_sendall(sock, b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await eventually(lambda: buffered() and not gw.service.running)
        stopping = asyncio.create_task(gw.stop())
        await asyncio.sleep(0.3)
        assert not stopping.done()
        answer = bytearray()
        while data := await loop.sock_recv(sock, 1 << 20):
            answer += data
        assert answer.endswith(DONE)
    await asyncio.wait_for(stopping, 1)


async def test_nothing_runs_on_behind_the_end(replica: Replica, gateway: Start) -> None:
    """No task, no connection and no listener of the gateway is left."""
    before = asyncio.all_tasks()
    r = await replica()
    gw = await gateway(r, server=shutdown())
    assert (await ask(gw)).status == 200
    await gw.stop()
    await eventually(lambda: not r.open and not gw.shared.connections)
    left = asyncio.all_tasks() - before - r._tasks
    assert [task for task in left if "gateway" in str(task.get_coro()) or "uvicorn" in str(task.get_coro())] == []


# -- a process of its own ----------------------------------------------------------------------------------------------------


def settings(r: Scripted, **server: Any) -> dict[str, Any]:
    """A file's content for one replica."""
    return {"models": [{"name": "m", "replicas": [{"url": r.url}]}], "server": server}


def unshaken(served: Served) -> None:
    """Nothing in the log but events."""
    assert "Traceback" not in "".join(served.lines)
    assert '"level":"error"' not in "".join(served.lines).replace(" ", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_the_process_finishes_its_streams_and_exits_with_0(replica: Replica, tmp_path: Path, number: signal.Signals) -> None:
    """Readiness is gone at once, the listener stays for the grace time, and the process lives no longer than its streams."""
    r = await replica(LONG)
    async with serving(tmp_path / "kvgate.yaml", settings(r, **shutdown(grace_s=0.4, timeout_s=30))) as served:
        port = served.ports[0]
        asked = [asyncio.create_task(posted(port, STREAM)) for _ in range(3)]
        await eventually(lambda: len(r.requests) == 3)
        began = time.monotonic()
        served.process.send_signal(number)
        await eventually_unready(port)
        assert (await posted(port, STREAM)).body == WHOLE
        assert {(reply.status, reply.body, reply.complete) for reply in await asyncio.gather(*asked)} == {(200, WHOLE, True)}
        assert await asyncio.wait_for(served.process.wait(), 3) == 0
        assert time.monotonic() - began < 4
    unshaken(served)


async def eventually_unready(port: int) -> None:
    """Wait until readyz says no."""
    for _ in range(20):
        if (await get(port, "/readyz")).status == 503:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("readyz still says yes")


async def test_a_second_signal_ends_the_process_at_once(replica: Replica, tmp_path: Path) -> None:
    """Whatever still runs."""
    r = await replica(streams(ev("a"), end=b"", then="hold"))
    async with serving(tmp_path / "kvgate.yaml", settings(r, **shutdown(grace_s=30))) as served, Client(served.ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        await until(client, b"a")
        served.process.send_signal(signal.SIGTERM)
        await eventually_unready(served.ports[0])
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), 2) == 1
        assert time.monotonic() - began < 1
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
    unshaken(served)


async def test_an_idle_process_exits_at_once(replica: Replica, tmp_path: Path) -> None:
    """Open but idle connections hold nothing up."""
    async with serving(tmp_path / "kvgate.yaml", settings(await replica(sends()))) as served, Client(served.ports[0]) as client:
        await client.get("/livez")
        assert (await client.reply()).status == 200
        began = time.monotonic()
        served.process.terminate()
        assert await asyncio.wait_for(served.process.wait(), 5) == 0
        assert time.monotonic() - began < 1.5
    unshaken(served)
