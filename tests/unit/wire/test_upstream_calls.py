"""Aborting, pausing, and sinks that misbehave."""

import asyncio
import gc
from typing import Any

import pytest

from gateway.wire.reply import Reply
from gateway.wire.upstream import Call
from tests.unit.wire.scripted_upstream import REQUEST, Peer, Sink, ask, pool_for, replica, until
from tests.unit.wire.test_upstream_pool import polite
from tests.unit.wire.upstream_cases import CHUNKED, PLAIN

BIG = 20_000_000


async def streaming(peer: Peer) -> None:
    """Sends events until the client hangs up."""
    await peer.request()
    await peer.send(CHUNKED)
    hung_up = asyncio.ensure_future(peer.hung_up())
    while not hung_up.done():
        await peer.send(b"2\r\nhi\r\n")
        await asyncio.sleep(0.001)
    peer.close()


class Hangups:
    """Runs a script and remembers that the client hung up."""

    def __init__(self, script: Any) -> None:
        self.script = script
        self.seen = 0

    async def __call__(self, peer: Peer) -> None:
        try:
            await self.script(peer)
            await peer.hung_up()
        finally:
            self.seen += 1


@pytest.mark.parametrize("moment", ["sent", "response", "payload"])
@pytest.mark.parametrize("reused", [False, True])
async def test_abort_from_within_a_report(moment: str, reused: bool) -> None:
    """The sink hears nothing more and the replica sees a hang-up, also when the rest is in the same read."""

    async def script(peer: Peer) -> None:
        for _ in range(2 if reused else 1):
            await peer.request()
            await peer.send(PLAIN)

    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    hangups = Hangups(script)
    async with replica(hangups) as upstream:
        pool = pool_for(upstream)
        if reused:
            await ask(pool)
        calls: list[Call] = []

        def act(what: str) -> None:
            if what == moment:
                (calls[0] if calls else next(c.call for c in connections if c.call)).abort()

        connections = list(pool._idle)
        sink = Sink(act)
        calls.append(pool.send(REQUEST, sink))
        await until(lambda: hangups.seen == 1)
        assert sink.told[-1] == moment
        assert faults == []
        await until(lambda: pool.open == 0)
        assert pool.idle == 0


async def test_abort_while_dialling_keeps_the_connection_for_others() -> None:
    """The dial is not wasted, the aborted request is never written."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        sink = Sink()
        call = pool.send(REQUEST, sink)
        call.abort()
        call.abort()
        await until(lambda: pool.idle == 1)
        assert (sink.told, call.sent) == ([], False)
        assert (await ask(pool)).body == b"hi"
        assert len(upstream.peers) == 1
        pool.close()


async def test_abort_while_dialling_in_vain_is_silent() -> None:
    """An error that comes after the abort is nobody's."""
    sink = Sink()
    pool = pool_for("http://127.0.0.1:1")
    pool.send(REQUEST, sink).abort()
    await until(lambda: not pool._dials)
    assert sink.told == []


@pytest.mark.parametrize("paused", [False, True])
async def test_abort_while_writing_drops_the_rest(paused: bool) -> None:
    """A large body that the replica does not read vanishes at once."""
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await gone.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]

    hangups = Hangups(script)
    async with replica(hangups) as upstream:
        pool = pool_for(upstream)
        sink = Sink()
        call = pool.send([b"POST / HTTP/1.1\r\ncontent-length: 60000000\r\n\r\n", b"x" * 60_000_000], sink)
        await until(lambda: call.sent)
        if paused:
            call.pause()
        call.abort()
        await until(lambda: pool.open == 0)
        gone.set()
        await until(lambda: hangups.seen == 1)
        assert sink.told == ["sent"]


@pytest.mark.parametrize("paused", [False, True])
async def test_abort_of_a_running_stream(paused: bool) -> None:
    """The replica sees the hang-up within moments, also when reading was paused."""
    hangups = Hangups(streaming)
    async with replica(hangups) as upstream:
        pool = pool_for(upstream)
        sink = Sink()
        call = pool.send(REQUEST, sink)
        await until(lambda: len(sink.body) > 10)
        if paused:
            call.pause()
            await asyncio.sleep(0.01)
        call.abort()
        length = len(sink.body)
        await until(lambda: hangups.seen == 1)
        assert len(sink.body) == length
        assert sink.told[-1] == "payload"
        await until(lambda: pool.open == 0)


async def test_a_call_that_is_over_has_no_power() -> None:
    """Late pauses and aborts do not touch the connection's next request."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        sink = Sink()
        call = pool.send(REQUEST, sink)
        await sink.wait()
        call.pause()
        call.abort()
        call.resume()
        assert pool.idle == 1
        assert (await ask(pool)).body == b"hi"
        pool.close()


async def test_pause_stops_the_flow_and_resume_lets_it_go_on() -> None:
    """While paused the replica is held up, not buffered; afterwards every byte arrives."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % BIG, b"x" * BIG)

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        pauses: list[int] = []

        def act(what: str) -> None:
            if what == "payload" and not pauses:
                pauses.append(len(sink.body))
                call.pause()

        sink = Sink(act)
        call = pool.send(REQUEST, sink)
        await until(lambda: bool(pauses))
        await asyncio.sleep(0.03)
        assert pauses == [len(sink.body)]
        assert pauses[0] < BIG
        call.resume()
        await sink.wait()
        assert len(sink.body) == BIG
        assert pool.idle == 1
        pool.close()


async def test_a_connection_paused_at_its_end_is_idle_with_open_eyes() -> None:
    """The pool notices when such a connection is closed, and can use it again."""

    async def script(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            await peer.send(PLAIN)
        await asyncio.sleep(0.01)
        peer.close()

    async with replica(script) as upstream:
        pool = pool_for(upstream)
        calls: list[Call] = []
        for reused in (False, True):
            sink = Sink(lambda what: calls[-1].pause() if what == "payload" else None)
            calls.append(pool.send(REQUEST, sink))
            assert calls[-1].reused is reused
            await sink.wait()
        await until(lambda: pool.open == 0)


async def test_pause_while_dialling_holds_the_answer() -> None:
    """A call paused before it has a connection does not read on it either."""
    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        sink = Sink()
        call = pool.send(REQUEST, sink)
        call.pause()
        await until(lambda: call.sent)
        await asyncio.sleep(0.02)
        assert sink.told == ["sent"]
        call.resume()
        assert (await sink.wait()).body == b"hi"
        pool.close()


async def test_a_sink_that_raises_ends_its_own_call_only() -> None:
    """The fault is reported to the loop, the call fails, and the connection is not used again."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

    def act(what: str) -> None:
        if what == "payload":
            raise ZeroDivisionError

    async with replica(streaming) as upstream:
        pool = pool_for(upstream)
        sink = Sink(act)
        pool.send(REQUEST, sink)
        await sink.wait()
        assert sink.error is not None
        assert sink.error.kind == "truncated"
        assert len(reports) == 1
        await until(lambda: pool.open == 0)


async def test_calls_leave_no_garbage() -> None:
    """However a call ends, its parser is freed without the collector."""

    def replies() -> int:
        return sum(isinstance(thing, Reply) for thing in gc.get_objects())

    async with replica(polite) as upstream:
        pool = pool_for(upstream)
        await ask(pool)
        gc.collect()
        before = replies()
        gc.disable()
        try:
            for _ in range(10):
                await ask(pool)
                pool.send(REQUEST, Sink()).abort()
            await until(lambda: pool.open == 0)
            assert replies() == before
        finally:
            gc.enable()
        pool.close()
