"""The front on real sockets: what only a kernel, TLS and another process's timing can show."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trustme

from gateway.wire.front import BodyBudget, FrontLimits, FrontProtocol, FrontShared
from tests.unit.wire.front_cases import CASES, K, N, P
from tests.unit.wire.front_helpers import OK, RecordingHandler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CLOSING = b"HTTP/1.1 401 X\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"


class Server:
    """A listening front; `connect` gives a client's reader and writer."""

    def __init__(self, handler: RecordingHandler, limits: FrontLimits, trust: ssl.SSLContext | None) -> None:
        self.handler = handler
        self.trust = trust
        self.shared = FrontShared(limits, BodyBudget(1 << 30))
        self.port = 0
        self.clients: list[asyncio.StreamWriter] = []

    def front(self) -> FrontProtocol:
        return FrontProtocol(self.handler, self.shared)

    async def connect(self, *, receive_buffer: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        name = None if self.trust is None else "localhost"
        reader, writer = await asyncio.open_connection(sock=sock, ssl=self.trust, server_hostname=name, limit=1 << 20)
        self.clients.append(writer)
        return reader, writer


@asynccontextmanager
async def serving(
    handler: RecordingHandler | None = None, limits: FrontLimits | None = None, *, tls: bool = False, goodbye: float = 30
) -> AsyncIterator[Server]:
    own: ssl.SSLContext | None = None
    trust: ssl.SSLContext | None = None
    if tls:
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        own, trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
        authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA).configure_cert(own)
        authority.configure_trust(trust)
    server = Server(handler or RecordingHandler(), limits or FrontLimits(), trust)
    listener = await asyncio.get_running_loop().create_server(
        server.front, "127.0.0.1", 0, ssl=own, ssl_shutdown_timeout=goodbye if tls else None
    )
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for front in tuple(server.shared.connections):
            front.cut()
        for writer in server.clients:
            writer.transport.abort()
        await until(lambda: not server.shared.connections)
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other callbacks will bring about."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


BOTH = pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])


@BOTH
async def test_requests_on_one_connection(tls: bool) -> None:
    """Split, pipelined and big ones, each answered in turn."""
    async with serving(tls=tls) as server:
        reader, writer = await server.connect()
        for data, size in ((N, 0), (P + b"Content-Length: 3\r\n\r\nabc", 3), (K + b"3\r\nabc\r\n0\r\n\r\n", 3)):
            for i in range(0, len(data), 11):
                writer.write(data[i : i + 11])
                await writer.drain()
            assert await reader.readexactly(len(OK)) == OK
            assert server.handler.seen[-1].endswith(f" {size}")  # type: ignore[union-attr]
        writer.write(N * 300 + P + b"Content-Length: 5000000\r\n\r\n" + b"x" * 5_000_000 + N)
        assert await reader.readexactly(len(OK) * 302) == OK * 302
        assert server.handler.seen[3:] == ["GET /n 0"] * 300 + ["POST /v1/x 5000000", "GET /n 0"]
        assert next(iter(server.shared.connections)).tls is tls
        writer.close()


@BOTH
async def test_the_cases_on_real_sockets(tls: bool) -> None:
    """A sample of the table: every refusal reaches its client whole and is followed by the end of the connection."""
    limits = FrontLimits(headers=128)
    async with serving(limits=limits, tls=tls) as server:
        for name, raw, story in CASES[::4]:
            server.handler.seen.clear()
            reader, writer = await server.connect()
            writer.write(raw)
            answers = [entry for entry in story if entry != "close"]
            for _ in answers:
                await reader.readuntil(b"\r\n\r\n")
            assert server.handler.seen == answers, name
            if not tls and isinstance(story[-1], int):
                assert await reader.read() == b"", name
            writer.close()


@pytest.mark.parametrize(("how", "tls"), [("close", False), ("close", True), ("reset", False), ("reset", True), ("half-close", False)])
@pytest.mark.parametrize("sent", [b"", b"GET /x HT", P + b"Content-Length: 9\r\n\r\nab", K + b"5\r\nab", N], ids=range(5))
async def test_a_client_that_leaves_is_noticed_in_every_phase(sent: bytes, how: str, tls: bool) -> None:
    """Idle, in the head, in the body, or waiting: the sink hears of it at once, and nothing stays behind."""
    async with serving(RecordingHandler(prompt=False), tls=tls) as server:
        _, writer = await server.connect()
        await until(lambda: bool(server.shared.connections))
        writer.write(sent)
        if b"\r\n\r\n" in sent:
            await until(lambda: bool(server.handler.sinks))
        if how == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif how == "half-close":
            writer.write_eof()
        else:
            writer.close()
        await until(lambda: not server.shared.connections)
        assert [s.events for s in server.handler.sinks] == [["gone"]] * (b"\r\n\r\n" in sent)
        assert (server.shared.budget.used, server.handler.left) == (0, 1)
        writer.close()


async def test_an_early_answer_survives_a_client_that_keeps_sending() -> None:
    """The client reads the whole refusal and a clean end, although it never stopped to send its 200 KB."""
    async with serving(RecordingHandler(early=CLOSING)) as server:
        for _ in range(20):
            reader, writer = await server.connect()
            writer.write(P + b"Content-Length: 200000\r\n\r\n" + b"x" * 1000)
            await asyncio.sleep(0)
            writer.write(b"x" * 199_000)
            assert await reader.read() == CLOSING
            writer.close()


@BOTH
async def test_expect_is_answered_by_hand(tls: bool) -> None:
    """100 before the body, then the answer."""
    async with serving(tls=tls) as server:
        reader, writer = await server.connect()
        writer.write(P + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert await reader.readexactly(len(OK)) == OK
        writer.close()


async def test_a_slow_head_is_answered_and_ended() -> None:
    """Slow loris: 408, then the end."""
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(b"GET /x HTTP/1.1\r\nHost:")
        await until(lambda: any(front._phase for front in server.shared.connections))
        server.shared.sweep(server.shared.now() + 11)
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()


@BOTH
async def test_a_client_that_reads_nothing_is_cut(tls: bool) -> None:
    """Progress is what the kernel says the client took: reading slowly is allowed, reading nothing is not."""
    async with serving(RecordingHandler(prompt=False), tls=tls) as server:
        reader, writer = await server.connect(receive_buffer=4096)
        writer.transport.pause_reading()
        writer.write(N)
        await until(lambda: bool(server.handler.sinks))
        (sink,) = server.handler.sinks
        for _ in range(200):
            sink.front.send(b"x" * 100_000)
        await until(lambda: sink.events == ["pause"])
        await asyncio.sleep(0.3)  # until what fits on the way has been taken
        now = server.shared.now()
        server.shared.sweep(now)
        server.shared.sweep(now + 50)
        writer.transport.resume_reading()
        await reader.readexactly(1_000_000)
        writer.transport.pause_reading()
        await asyncio.sleep(0.3)
        server.shared.sweep(now + 61)
        assert sink.front.open
        server.shared.sweep(now + 130)
        assert sink.events[-1] == "gone"
        await until(lambda: not server.shared.connections)
        writer.transport.abort()


@BOTH
async def test_the_last_answer_is_sent_however_slowly_it_is_read(tls: bool) -> None:
    """Closing does not truncate it, whatever the sweep sees meanwhile and however short TLS waits for its peer's goodbye."""
    async with serving(RecordingHandler(prompt=False), tls=tls, goodbye=0.1) as server:
        reader, writer = await server.connect(receive_buffer=4096)
        writer.write(N)
        await until(lambda: bool(server.handler.sinks))
        writer.transport.pause_reading()
        server.handler.sinks[0].front.answer(b"x" * 20_000_000, close=True)
        await asyncio.sleep(0.1)
        for after in (0, 2, 40):
            server.shared.sweep(server.shared.now() + after)
            await asyncio.sleep(0.06)
        writer.transport.resume_reading()
        left = 20_000_000
        while left:
            left -= len(await reader.readexactly(min(left, 1_000_000)))
        server.shared.sweep(server.shared.now())
        assert await reader.read() == b""


async def test_a_client_that_leaves_a_paused_connection_is_found_by_the_sweep() -> None:
    """Behind 64 KB of pipelined bytes nothing is read, so the kernel is asked."""
    async with serving(RecordingHandler(prompt=False)) as server:
        _, writer = await server.connect()
        writer.write(N * 5_000)
        await until(lambda: any(front._paused for front in server.shared.connections))
        server.shared.sweep(server.shared.now())
        (sink,) = server.handler.sinks
        assert sink.events == []
        writer.transport.abort()
        await asyncio.sleep(0.05)
        assert sink.events == []
        server.shared.sweep(server.shared.now())
        assert sink.events == ["gone"]


@BOTH
async def test_a_cut_is_no_clean_end(tls: bool) -> None:
    """A client that reads until the end must not take a part for the whole."""
    async with serving(RecordingHandler(prompt=False), tls=tls) as server:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await until(lambda: bool(server.handler.sinks))
        front = server.handler.sinks[0].front
        front.send(b"HTTP/1.0 200 OK\r\n\r\npart")
        assert await reader.readuntil(b"part")
        front.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@BOTH
async def test_draining_ends_idle_connections_at_once(tls: bool) -> None:
    """And a running one with its answer."""
    async with serving(RecordingHandler(prompt=False), tls=tls) as server:
        idle_reader, idle = await server.connect()
        busy_reader, busy = await server.connect()
        busy.write(N)
        await until(lambda: bool(server.handler.sinks) and len(server.shared.connections) == 2)
        server.shared.drain()
        assert await idle_reader.read() == b""
        server.handler.sinks[0].front.answer(OK)
        assert await busy_reader.read() == OK
        idle.close()
        busy.close()


async def test_a_silent_tls_peer_cannot_hold_the_exit() -> None:
    """Closing TLS waits for the peer's goodbye; the sweep does not."""
    async with serving(tls=True) as server:
        _, writer = await server.connect()
        await until(lambda: bool(server.shared.connections))
        writer.transport.pause_reading()
        server.shared.drain()
        await asyncio.sleep(0.01)
        server.shared.sweep(server.shared.now() + 1.1)
        await until(lambda: not server.shared.connections)
        writer.transport.abort()


@BOTH
async def test_a_connection_too_many_is_told_so(tls: bool) -> None:
    """503 before a byte was read, and a clean end."""
    async with serving(RecordingHandler(admits=False), tls=tls) as server:
        reader, writer = await server.connect()
        writer.write(N)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
        server.shared.sweep(server.shared.now() + 3)
        assert await reader.read() == b""


async def test_peers_are_known_and_watched() -> None:
    """The client's address, and keep-alive probes for one that vanishes without a word."""
    async with serving() as server:
        _, writer = await server.connect()
        await until(lambda: bool(server.shared.connections))
        (front,) = server.shared.connections
        assert front.peer == "127.0.0.1"
        assert front.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        writer.close()
