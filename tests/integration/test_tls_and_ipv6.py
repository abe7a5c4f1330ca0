"""Encrypted and IPv6 connections, on both sides of the gateway."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.integration.scripts import streams
from tests.integration.toolkit import CHAT, DONE, STREAM, Client, Conn, Reply, Scripted, ask, ev, eventually, refused

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from gateway.app import Gateway

    Start = Any


class Files:
    """A certificate authority, and files for one server certificate of it."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key, self.ca = (directory / name for name in ("server.pem", "server.key", "ca.pem"))
        self.authority.cert_pem.write_to_path(self.ca)
        self.issue("localhost", "127.0.0.1", "::1")

    def issue(self, *names: str) -> None:
        """Another certificate in the same files."""
        self.issued = self.authority.issue_cert(*names)
        self.issued.private_key_pem.write_to_path(self.key)
        self.issued.cert_chain_pems[0].write_to_path(self.cert)

    def trusting(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    def serving(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.issued.configure_cert(context)
        return context

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls": {"cert": str(self.cert), "key": str(self.key)}}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def ask_tls(gateway: Gateway, context: ssl.SSLContext, body: Any = CHAT, **options: Any) -> Reply:
    async with Client(gateway.ports[0], ssl=context, server_hostname="localhost", **options) as client:
        await client.post("/v1/chat/completions", body)
        return await client.reply()


# -- the public port -----------------------------------------------------------------------------------------------------


async def test_the_public_port_speaks_tls(replica: Start, gateway: Start, files: Files) -> None:
    """Answers and streams as without, keep-alive included, from TLS 1.2 on; HTTP/1.1 by ALPN."""
    running = await gateway(await replica(streams(ev("a"), ev("é漢😀"), DONE)), server=files.settings)
    context = files.trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with Client(running.ports[0], ssl=context, server_hostname="localhost") as client:
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for _ in range(3):
            await client.post("/v1/chat/completions", STREAM)
            reply = await client.reply()
            assert (reply.status, reply.body, reply.complete) == (200, ev("a") + ev("é漢😀") + DONE, True)
    old = files.trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert (await ask_tls(running, old, STREAM)).status == 200


async def test_large_bodies_pass_through_tls_whole(replica: Start, gateway: Start, files: Files) -> None:
    """Megabytes up and down, with a client that reads slowly."""
    answer = b"y" * (5 << 20)

    async def script(conn: Conn) -> None:
        await conn.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)

    r1 = await replica(script)
    running = await gateway(r1, server=files.settings)
    body = json.dumps({**CHAT, "x": "z" * (3 << 20)}).encode()
    reply = await ask_tls(running, files.trusting(), body)
    assert (reply.body == answer, reply.complete, r1.requests[0].body == body) == (True, True, True)


async def test_a_broken_stream_is_seen_as_broken_through_tls(replica: Start, gateway: Start, files: Files) -> None:
    """The error event, then an end that no client takes for a whole message."""

    async def script(conn: Conn) -> None:
        await conn.stream(ev("a"), end=b"")
        await asyncio.sleep(0.05)
        await conn.rst()

    reply = await ask_tls(await gateway(await replica(script), server=files.settings), files.trusting(), STREAM)
    assert reply.body.startswith(ev("a")) and b'"error"' in reply.body
    assert not reply.complete


async def test_a_client_that_leaves_a_tls_stream_is_noticed(replica: Start, gateway: Start, files: Files) -> None:
    """Its replica is told within a second."""

    async def script(conn: Conn) -> None:
        await conn.stream(ev("a"), end=b"")
        await conn.hold()

    r1: Scripted = await replica(script)
    running = await gateway(r1, server=files.settings)
    async with Client(running.ports[0], ssl=files.trusting(), server_hostname="localhost") as client:
        await client.post("/v1/chat/completions", STREAM)
        await client.head()
        hung_up = len(r1.hangups)
    await eventually(lambda: len(r1.hangups) > hung_up and not running.service.running, within=2)


async def test_plain_http_on_the_tls_port_harms_nobody(replica: Start, gateway: Start, files: Files) -> None:
    """The connection ends; the next client is served. TLS on a plain port is told what is wrong."""
    running = await gateway(await replica(), server=files.settings)
    async with Client(running.ports[0]) as client:
        await client.post("/v1/chat/completions", CHAT)
        assert b"HTTP" not in await client.reader.read()
    assert (await ask_tls(running, files.trusting())).status == 200
    plain = await gateway(await replica())
    with pytest.raises(ssl.SSLError):
        await ask_tls(plain, files.trusting())
    assert (await ask(plain)).status == 200


async def test_a_new_certificate_is_taken_over_without_a_restart(replica: Start, gateway: Start, files: Files) -> None:
    """When its files change, new connections get it; a broken pair is refused and the old one stays."""
    running = await gateway(await replica(), server=files.settings)

    async def serial() -> int:
        async with Client(running.ports[0], ssl=files.trusting(), server_hostname="localhost") as client:
            return int(client.writer.get_extra_info("peercert")["serialNumber"], 16)

    running._read = lambda: running.settings
    before = await serial()
    await asyncio.sleep(0.3)  # the watch begins
    files.issue("localhost")
    async with asyncio.timeout(8):
        while await serial() == before:
            await asyncio.sleep(0.05)
    after = await serial()
    files.key.write_text("no key")
    await asyncio.sleep(1)
    assert await serial() == after


# -- replicas ------------------------------------------------------------------------------------------------------------


async def secure(stack: AsyncExitStack, files: Files, host: str = "127.0.0.1", **options: Any) -> Scripted:
    replica = await Scripted(streams(ev("a"), DONE), tls=files.serving(), host=host, **options).start()
    stack.push_async_callback(replica.stop)
    return replica


async def test_a_replica_may_speak_tls_with_a_private_authority(stack: AsyncExitStack, gateway: Start, files: Files) -> None:
    """Probes, metrics and requests go over https, checked against `ca_file`, on kept connections."""
    r1 = await secure(stack, files)
    running = await gateway(r1, r1={"url": f"https://localhost:{r1.port}", "ca_file": str(files.ca)})
    for _ in range(3):
        reply = await ask(running, STREAM)
        assert (reply.status, reply.body) == (200, ev("a") + DONE)
    assert r1.requests[0].header("host") == f"localhost:{r1.port}"
    [row] = running.table.snapshot(running.now())
    assert (row.state, row.engine) == ("up", "vllm")


@pytest.mark.parametrize("fault", ["unknown authority", "another name", "no tls"])
async def test_a_replica_that_cannot_be_trusted_gets_no_request(stack: AsyncExitStack, gateway: Start, files: Files, fault: str) -> None:
    """An unknown authority, another host's certificate, no TLS at all: down, with a reason, and clients get an error of ours."""
    if fault == "another name":
        files.issue("elsewhere.example")
    r1 = await secure(stack, files) if fault != "no tls" else await Scripted().start()
    stack.push_async_callback(r1.stop)
    options = {} if fault == "unknown authority" else {"ca_file": str(files.ca)}
    running = await gateway(r1, r1={"url": f"https://localhost:{r1.port}", **options})
    reply = await ask(running)
    refused(reply, 503, "no_replica_ready")
    assert r1.requests == []
    [row] = running.table.snapshot(running.now())
    assert row.state != "up"
    if fault != "no tls":
        assert row.health_detail == "its certificate is not trusted"


async def test_tls_on_both_sides_carries_a_long_body(stack: AsyncExitStack, gateway: Start, files: Files) -> None:
    """Two megabytes through two encrypted connections."""
    r1 = await secure(stack, files)
    running = await gateway(r1, server=files.settings, r1={"url": f"https://127.0.0.1:{r1.port}/v1", "ca_file": str(files.ca)})
    body = json.dumps({**STREAM, "x": "z" * (2 << 20)}).encode()
    assert (await ask_tls(running, files.trusting(), body)).status == 200
    assert len(r1.requests[0].body) >= len(body)


# -- IPv6 ----------------------------------------------------------------------------------------------------------------


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
        return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
async def test_ipv6_on_both_sides(stack: AsyncExitStack, gateway: Start) -> None:
    """A gateway on ::1, public and admin, with a replica at [::1]."""
    r1 = await Scripted(host="::1").start()
    stack.push_async_callback(r1.stop)
    url = f"http://[::1]:{r1.port}"
    running = await gateway(r1, r1={"url": url}, server={"host": "::1", "admin": {"host": "::1", "port": 0}})
    for port, path in ((running.ports[0], "/v1/models"), (running.ports[1], "/admin/replicas")):
        async with Client(port, host="::1") as client:
            await client.get(path)
            assert (await client.reply()).status == 200
    async with Client(running.ports[0], host="::1") as client:
        await client.post("/v1/chat/completions", CHAT)
        assert (await client.reply()).status == 200
    assert r1.requests[0].header("host") == f"[::1]:{r1.port}"


@needs_ipv6
async def test_one_listening_address_for_both_families(replica: Start, gateway: Start) -> None:
    """`::` takes IPv4 clients as well, whose addresses look as usual to limits and trusted proxies."""
    running = await gateway(await replica(), server={"host": "::"}, limits={"connections_per_address": 1})
    assert (await ask(running)).status == 200
    async with Client(running.ports[0], host="::1") as client:
        await client.get("/livez")
        assert (await client.reply()).status == 200
        assert [front.peer for front in running.shared.connections] == ["::1"]
    async with Client(running.ports[0]) as client:
        await client.get("/livez")
        assert (await client.reply()).status == 200
        await eventually(lambda: [front.peer for front in running.shared.connections] == ["127.0.0.1"])


@needs_ipv6
async def test_a_replica_by_name_is_reached_by_whichever_family_answers(replica: Start, gateway: Start) -> None:
    """localhost has both addresses; the replica listens on IPv4 only."""
    r1 = await replica()
    running = await gateway(r1, r1={"url": f"http://localhost:{r1.port}"})
    assert (await ask(running)).status == 200
