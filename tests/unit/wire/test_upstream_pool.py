"""Which connection a request gets, and what becomes of connections."""

import asyncio
import socket
import ssl

import pytest
import trustme

from gateway.wire.upstream import Call
from tests.unit.wire.scripted_upstream import REQUEST, Peer, Sink, ask, pool_for, replica, until
from tests.unit.wire.upstream_cases import CHUNKED, PLAIN

CLOSE_WAIT = 8


async def polite(peer: Peer) -> None:
    """Answers every request and keeps the connection."""
    while await peer.request():
        await peer.send(PLAIN)


async def once(peer: Peer) -> None:
    """Answers one request, then closes when asked again."""
    await peer.request()
    await peer.send(PLAIN)
    await peer.request()
    peer.close()


async def silent(peer: Peer) -> None:
    """Takes the request and says nothing."""
    await peer.request()


async def test_a_connection_is_used_again() -> None:
    """Requests one after the other need one connection; the call tells whether it was reused."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        for reused in (False, True, True):
            sink = Sink()
            call = pool.send(REQUEST, sink)
            assert call.reused is reused
            assert call.sent is reused
            await sink.wait()
            assert call.sent
            assert sink.told == ["sent", "response", "payload", "finished"]
        assert (len(upstream.peers), pool.open, pool.idle) == (1, 1, 1)
        pool.close()


async def test_the_next_request_may_be_sent_while_the_last_one_ends() -> None:
    """When finished is told the connection is in the pool already."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        second = Sink()
        first = Sink(lambda what: pool.send(REQUEST, second) and None if what == "finished" else None)
        pool.send(REQUEST, first)
        await first.wait()
        await second.wait()
        assert second.body == b"hi"
        assert len(upstream.peers) == 1
        pool.close()


async def test_the_most_recently_used_connection_comes_first() -> None:
    """So that surplus connections grow old and are closed."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        await asyncio.gather(*(ask(pool) for _ in range(3)))
        assert pool.idle == 3
        last = pool._idle[-1]
        sink = Sink()
        call = pool.send(REQUEST, sink)
        assert call.connection is last
        await sink.wait()
        assert pool._idle[-1] is last
        pool.close()


async def test_fresh_insists_on_a_new_connection() -> None:
    """A repeated request must not meet a second stale connection."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        await ask(pool)
        await ask(pool, fresh=True)
        assert len(upstream.peers) == 2
        pool.close()


async def test_idle_connections_are_closed_in_time() -> None:
    """A sweep closes those idle longer than allowed, and only those."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream, idle_s=4.0)
        await asyncio.gather(ask(pool), ask(pool))
        now = asyncio.get_running_loop().time()
        pool._idle[0].idle_since = now - 4.5
        pool._idle[1].idle_since = now - 3.5
        pool.sweep(now)
        assert pool.idle == 1
        await until(lambda: pool.open == 1)
        pool.sweep(now + 1)
        await until(lambda: pool.open == 0)


async def test_an_old_connection_is_not_used_even_unswept() -> None:
    """The replica may have closed it; the request goes out on a new one."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream, idle_s=4.0)
        await ask(pool)
        pool._idle[0].idle_since -= 5
        sink = await ask(pool)
        assert sink.told[-1] == "finished"
        assert len(upstream.peers) == 2
        assert pool.open == 1
        pool.close()


async def test_a_connection_closed_while_idle_is_forgotten() -> None:
    """The end is seen at once, so nothing stays half closed and nothing is sent into it."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(PLAIN)
        peer.close()

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        for _ in range(3):
            assert (await ask(pool)).told[-1] == "finished"
            await until(lambda: pool.open == 0)
            assert pool.idle == 0
        assert upstream.sockets_in(CLOSE_WAIT) == 0


async def test_a_request_on_a_stale_connection_tells_that_it_may_be_repeated() -> None:
    """Closed without a byte on a reused connection: reset, reused, not begun."""
    async with replica(once) as upstream:
        pool = pool_for(upstream)
        await ask(pool)
        sink = await ask(pool)
        assert sink.told == ["sent", "failed"]
        assert sink.error is not None
        assert (sink.error.kind, sink.error.reused, sink.error.begun) == ("reset", True, False)
        await until(lambda: pool.open == 0)


async def test_a_closing_connection_is_not_handed_out() -> None:
    """Its end is known to the transport before anyone is told."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        await ask(pool)
        pool._idle[0].transport.close()
        assert (await ask(pool)).body == b"hi"
        assert len(upstream.peers) == 2
        pool.close()


async def test_an_end_that_waits_to_be_read_costs_at_most_a_repeat() -> None:
    """Closed by the replica in this very pass of the loop: a new connection, or a failure that may be repeated."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        for _ in range(50):
            await ask(pool)
            upstream.peers[-1].close()
            await asyncio.sleep(0)
            sink = await ask(pool)
            assert sink.body == b"hi" or (sink.error and sink.error.kind == "reset" and sink.error.reused and not sink.error.begun)
        pool.close()


async def test_bytes_on_an_idle_connection_close_it() -> None:
    """A 408 that nobody asked for reaches no client."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(PLAIN)
        await asyncio.sleep(0.01)
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        assert await peer.hung_up()

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        await ask(pool)
        await until(lambda: pool.open == 0)
        assert pool.idle == 0
        assert (await ask(pool)).body == b"hi"
        pool.close()


async def test_refused_and_unknown_hosts_fail_as_connect() -> None:
    """Nothing was sent, so the request may go elsewhere for free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for url in (f"http://127.0.0.1:{free.getsockname()[1]}", "http://host.invalid"):
            sink = await ask(pool_for(url))
            assert sink.told == ["failed"]
            assert sink.error is not None
            assert (sink.error.kind, sink.error.reused, sink.error.begun) == ("connect", False, False)
            assert str(sink.error)


async def test_a_dial_that_hangs_is_given_up() -> None:
    """A replica whose backlog is full, or that accepts without speaking TLS, costs connect_s and no more."""
    loop = asyncio.get_running_loop()
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        for scheme in ("http", "https"):
            pool = pool_for(f"{scheme}://127.0.0.1:{full.getsockname()[1]}", connect_s=0.1)
            begun = loop.time()
            sink = await ask(pool)
            assert sink.told == ["failed"]
            assert sink.error is not None
            assert sink.error.kind == "connect_timeout"
            assert 0.09 < loop.time() - begun < 1
            assert pool.open == 0


async def test_a_replica_that_hangs_up_on_connect_was_never_reached() -> None:
    """Closed before the request could be written: connect or reset, never begun, and nothing stays open."""

    async def script(peer: Peer) -> None:
        peer.reset()

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        for _ in range(20):
            sink = await ask(pool)
            assert sink.error is not None
            assert sink.error.kind in ("connect", "reset")
            assert not sink.error.begun
        await until(lambda: pool.open == 0)


async def test_a_connection_that_ended_before_its_first_request_was_never_reached() -> None:
    """The dial worked, but nothing could be sent: connect, as if it had not."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        await ask(pool)
        connection = pool._idle.pop()
        connection.drop()
        sink = Sink()
        pool._arrived(connection, Call(sink, head_only=False), REQUEST)
        assert sink.told == ["failed"]
        assert sink.error is not None
        assert sink.error.kind == "connect"


async def test_a_replica_that_speaks_first_is_not_trusted() -> None:
    """Bytes before the request are an answer to nothing."""

    async def script(peer: Peer) -> None:
        await peer.send(PLAIN)
        await peer.hung_up()

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        for _ in range(20):
            sink = await ask(pool, fresh=True)
            # Whether those bytes come before or just after the request is written is up to the network.
            assert sink.body == b"hi" or (sink.error and sink.error.kind == "connect")
        pool.close()


async def test_tls_replicas_are_verified(tmp_path: object) -> None:
    """With the right authority requests work and connections are reused; with another they fail as connect."""
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with replica(polite, context) as upstream:
        with authority.cert_pem.tempfile() as good, other.cert_pem.tempfile() as bad:
            pool, stranger = pool_for(upstream, ca_file=good), pool_for(upstream, ca_file=bad)
        for _ in range(2):
            assert (await ask(pool, [REQUEST[0].replace(b" 5\r", b" 3000000\r"), b"x" * 3_000_000])).body == b"hi"
        assert (pool.open, pool.idle) == (1, 1)
        sink = await ask(stranger)
        assert sink.error is not None
        assert sink.error.kind == "connect"
        pool.close()
        await until(lambda: pool.open == stranger.open == 0)


async def test_ipv6_replicas_are_reached() -> None:
    """Brackets in the URL, none in the address."""
    async with replica(polite, host="::1") as upstream:
        pool = pool_for(f"http://[::1]:{upstream.port}/v1")
        assert (await ask(pool)).body == b"hi"
        pool.close()


@pytest.mark.parametrize("sizes", [[100], [100, 2_000], [100, 300_000], [100, 9_000_000], [100, 5_000_000, 20, 4_000_000]])
async def test_requests_arrive_whole(sizes: list[int]) -> None:
    """However many pieces they are made of."""
    got = asyncio.get_running_loop().create_future()

    async def script(peer: Peer) -> None:
        got.set_result(await peer.request())
        await peer.send(PLAIN)

    head = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % sum(sizes)
    parts = [head, *(bytes([65 + n]) * size for n, size in enumerate(sizes))]
    async with replica(script) as upstream:
        pool = pool_for(upstream)
        assert (await ask(pool, parts)).told[-1] == "finished"
        assert await got == b"".join(parts)
        pool.close()


@pytest.mark.parametrize("manner", ["close at once", "shut down, then drain", "keep reading", "close later"])
async def test_an_early_answer_is_kept(manner: str) -> None:
    """A 413 that comes while the body is still being written reaches the client; the connection is not used again."""
    answer = b"HTTP/1.1 413 X\r\nContent-Length: 3\r\n\r\nbig"

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(answer)
        if manner == "shut down, then drain":
            peer.writer.write_eof()
        if manner in ("shut down, then drain", "keep reading"):
            await peer.hung_up()
        elif manner == "close later":
            await asyncio.sleep(0.05)
        peer.close()

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        sink = await ask(pool, [b"POST / HTTP/1.1\r\ncontent-length: 60000000\r\n\r\n", b"x" * 60_000_000])
        assert (sink.status, sink.body, sink.told[-1]) == (413, b"big", "finished")
        assert pool.idle == 0
        await until(lambda: pool.open == 0)


async def test_a_replica_that_gives_up_reading_is_left() -> None:
    """Its side closed without an answer while the body is being written: reset, and the unsent rest holds nothing open."""

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write_eof()

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        sink = await ask(pool, [b"POST / HTTP/1.1\r\ncontent-length: 60000000\r\n\r\n", b"x" * 60_000_000])
        assert sink.told == ["sent", "failed"]
        assert sink.error is not None
        assert (sink.error.kind, sink.error.begun) == ("reset", False)
        await until(lambda: pool.open == 0)


async def test_three_hundred_streams_at_once() -> None:
    """There is no hidden limit: all run at the same time, and the surplus is closed afterwards."""
    gate, waiting = asyncio.Event(), 0

    async def script(peer: Peer) -> None:
        nonlocal waiting
        while await peer.request():
            await peer.send(CHUNKED + b"2\r\nhi\r\n")
            waiting += 1
            await gate.wait()
            await peer.send(b"0\r\n\r\n")

    async with replica(script) as upstream:
        pool = pool_for(upstream, max_idle=100, connect_s=5)
        sinks = [Sink() for _ in range(300)]
        for sink in sinks:
            pool.send(REQUEST, sink)
        await until(lambda: waiting == 300)
        assert pool.open == 300
        gate.set()
        for sink in sinks:
            assert (await sink.wait()).told[-1] == "finished"
        assert pool.idle == 100
        await until(lambda: pool.open == 100)
        pool.close()
        await until(lambda: pool.open == 0)
        assert upstream.sockets_in(CLOSE_WAIT) == 0


async def test_answers_of_refusal_give_their_connection_back() -> None:
    """After 200 streamed requests answered 429, the next one is served at once on the one connection there is."""
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 1024\r\n\r\n" + b"e" * 1024

    async def script(peer: Peer) -> None:
        for _ in range(200):
            await peer.request()
            await peer.send(refusal)
        await polite(peer)

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        for _ in range(200):
            assert (await ask(pool)).status == 429
        assert (await ask(pool)).status == 200
        assert (pool.open, pool.idle, len(upstream.peers)) == (1, 1, 1)
        pool.close()
        await until(lambda: pool.open == 0)
        assert upstream.sockets_in(CLOSE_WAIT) == 0


async def test_a_closed_pool_keeps_nothing() -> None:
    """Idle connections end at once, a running call goes on to its end, a late dial is not kept."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        await ask(pool)
        running, dialling = Sink(), Sink()
        pool.send(REQUEST, running)
        call = pool.send(REQUEST, dialling)
        pool.close()
        call.abort()
        assert (await running.wait()).body == b"hi"
        await until(lambda: pool.open == 0 and not pool._dials)
        assert dialling.told == []
        assert pool.idle == 0
        assert "open=0 idle=0" in repr(pool)
