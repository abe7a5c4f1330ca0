"""TLS on both sides changes nothing: streams, cuts, clients that leave and clients that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.integration.scripts import at_rest, records, rest, sends, streams, until
from tests.integration.toolkit import DONE, SSE_HEAD, STREAM, Client, Scripted, completion, ev, eventually, framed, running, settings_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AsyncExitStack
    from pathlib import Path

    from gateway.app import Gateway
    from tests.integration.scripts import Script
    from tests.integration.toolkit import Conn

pytestmark = pytest.mark.usefixtures("quiet")


class Stage:
    """A gateway and its replica, each with a certificate of the same authority."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        self._files = {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}
        authority.cert_pem.write_to_path(self._files["ca"])
        certificate.cert_chain_pems[0].write_to_path(self._files["cert"])
        certificate.private_key_pem.write_to_path(self._files["key"])
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self._server)
        self._client = ssl.create_default_context()
        authority.configure_trust(self._client)

    async def start(self, script: Script, **server: Any) -> tuple[Gateway, Scripted]:
        """Both, running."""
        r = await Scripted(script, tls=self._server).start()
        self._stack.push_async_callback(r.stop)
        tls = {"tls": {"cert": self._files["cert"], "key": self._files["key"]}}
        settings = settings_for(r, r1={"ca_file": self._files["ca"]}, server={**tls, **server})
        return await self._stack.enter_async_context(running(settings)), r

    def client(self, gw: Gateway) -> Client:
        """One client that checks certificates."""
        return Client(gw.ports[0], ssl=self._client, server_hostname="localhost")

    @contextlib.asynccontextmanager
    async def slow_client(self, gw: Gateway) -> AsyncIterator[asyncio.StreamReader]:
        """A client with a small window and no room of its own, that has asked for a stream over HTTP/1.0."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", gw.ports[0]))
        reader, writer = await asyncio.open_connection(sock=sock, ssl=self._client, server_hostname="localhost", limit=1024)
        data = json.dumps(STREAM).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
        yield reader
        writer.transport.abort()


@pytest.fixture
def stage(stack: AsyncExitStack, tmp_path: Path) -> Stage:
    return Stage(stack, tmp_path)


async def test_streams_and_answers_pass_on_one_connection(stage: Stage) -> None:
    """The same bytes as without TLS, over and over."""

    async def script(conn: Conn) -> None:
        await (streams(ev("é漢😀"), DONE, every=0.01) if conn.request.json().get("stream") else sends(completion()))(conn)

    gw, r = await stage.start(script)
    async with stage.client(gw) as client:
        for _ in range(5):
            await client.post("/v1/chat/completions", STREAM)
            reply = await client.reply()
            assert (reply.body, reply.complete) == (ev("é漢😀") + DONE, True)
            await client.post("/v1/chat/completions", {**STREAM, "stream": False})
            assert (await client.reply()).status == 200
    assert len(r.requests) == 10
    await at_rest(gw)


async def test_a_cut_stream_is_told_and_cut(stage: Stage) -> None:
    """The error event arrives, the end does not."""
    gw, _ = await stage.start(streams(ev("a"), end=b"", then="rst"))
    async with stage.client(gw) as client:
        await client.post("/v1/chat/completions", STREAM)
        reply = await client.reply()
    assert not reply.complete
    assert reply.body.startswith(ev("a") + b'data: {"error"')
    await at_rest(gw)


async def test_a_client_that_leaves_frees_its_replica(stage: Stage) -> None:
    """Within a second, as without TLS."""
    gw, r = await stage.start(streams(ev("a"), end=b"", then="hold"))
    done = records(gw)
    async with stage.client(gw) as client:
        await client.post("/v1/chat/completions", STREAM)
        await until(client, b"a")
        before = len(r.hangups)
        client.writer.close()
        await eventually(lambda: len(r.hangups) > before, 1)
    await at_rest(gw)
    assert [(record.ended_by, record.tries) for record in done] == [("client", (("r1", "cancelled"),))]


SIZE = 20 << 20


class Source:
    """A replica's script: a long stream, counting what it could send."""

    def __init__(self) -> None:
        self.event = ev("0123456789abcdef" * 2048)
        self.count = SIZE // len(self.event)
        self.sent = 0

    async def __call__(self, conn: Conn) -> None:
        await conn.send(SSE_HEAD)
        for _ in range(self.count):
            await conn.send(framed(self.event))
            self.sent += len(self.event)
        await conn.send(framed(DONE) + b"0\r\n\r\n")


async def stalled(source: Source) -> int:
    """Wait until the replica cannot send any more; how much it could."""
    sent = -1
    while sent != source.sent:
        sent = source.sent
        await asyncio.sleep(0.2)
    return sent


async def test_a_client_that_does_not_read_slows_its_replica_down(stage: Stage) -> None:
    """And gets every byte when it does."""
    source = Source()
    gw, _ = await stage.start(source)
    async with stage.slow_client(gw) as reader:
        assert 0 < await stalled(source) < SIZE * 0.8
        answer = await reader.read(-1)
    assert answer.partition(b"\r\n\r\n")[2] == source.event * source.count + DONE
    await at_rest(gw)


async def test_a_client_that_leaves_without_reading_is_noticed(stage: Stage) -> None:
    """Its replica does not wait for it."""
    source = Source()
    gw, _ = await stage.start(source)
    async with stage.slow_client(gw):
        await stalled(source)
    await at_rest(gw, 2)
    assert source.sent < SIZE


async def test_a_client_that_reads_nothing_for_long_is_cut(stage: Stage) -> None:
    """`server.write_stall_s` holds for encrypted bytes too."""
    source = Source()
    gw, _ = await stage.start(source, write_stall_s=0.5)
    async with stage.slow_client(gw):
        await stalled(source)
        await at_rest(gw, 3)
    assert source.sent < SIZE


async def test_what_is_no_tls_gets_no_answer(stage: Stage) -> None:
    """A plain request on the TLS port ends with the connection."""
    gw, r = await stage.start(sends(completion()))
    async with Client(gw.ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        data, _ = await rest(client)
        assert not data.startswith(b"HTTP/")
    assert r.requests == []
    await eventually(lambda: not gw.shared.connections)
