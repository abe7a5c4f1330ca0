"""Connections to one replica: a keep-alive pool, and one call at a time on each connection.

A connection is idle (in the pool, still reading so that a close is seen), busy with exactly one call, or dead. A call ends once: finished,
failed, or aborted by its owner; from then on it holds no connection. Only `Pool` decides whether a connection is used again, and only after
a clean end: message complete, nothing behind it, request fully written, both sides willing.

Everything runs in callbacks of the event loop; a task exists only while a connection is dialled.
"""

import asyncio
from typing import Final, Literal, Protocol

from gateway.wire.headers import Header
from gateway.wire.reply import BODY, BROKEN, COMPLETE, Reply
from gateway.wire.target import Target

__all__ = ["Call", "Pool", "Target", "UpstreamError", "UpstreamSink"]

WRITE_HIGH, WRITE_LOW = 262_144, 65_536
# Below this a request goes out as one joined object; above it copying costs more than a gathering write.
JOIN_BYTES: Final = 16_384

Kind = Literal["connect", "connect_timeout", "reset", "protocol", "truncated"]


class UpstreamError(Exception):
    """Why a call failed.

    `connect`, `connect_timeout`: the request was never sent. `reset`: the connection ended before a complete response head. `protocol`: the
    replica broke HTTP. `truncated`: the connection ended within the body, after `UpstreamSink.response`.
    `reused`: it happened on a connection from the pool; `begun`: at least one byte of a response had arrived. A call that was reused and
    not begun most likely met the replica's own keep-alive limit.
    """

    def __init__(self, kind: Kind, message: str, *, reused: bool = False, begun: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.reused = reused
        self.begun = begun


class UpstreamSink(Protocol):
    """Who a call reports to, synchronously from the read that brought the bytes: sent, response, payload…, then finished or failed.

    After `Call.abort` nothing more is called. Each method may abort, pause or send another call on the same pool.
    """

    def sent(self) -> None:
        """The request was handed to a connection. With an idle connection this comes before `Pool.send` returns."""

    def response(self, status: int, headers: tuple[Header, ...], length: int | None) -> None:
        """The final head: end-to-end headers in the replica's spelling, `length` as declared (None: chunked or until close).

        Answers to HEAD and 304 may declare a length and have no body.
        """

    def payload(self, data: bytes) -> None:
        """Body bytes of one read, never empty, transfer coding removed."""

    def finished(self) -> None:
        """The message is complete. The connection has gone back to the pool already if it is good."""

    def failed(self, error: UpstreamError) -> None:
        """It is over without a complete message."""


class Call:
    """One request on its way. `reused`: on a connection from the pool; `sent`: handed to a connection."""

    __slots__ = ("connection", "paused", "reply", "reused", "sent", "sink", "told")

    def __init__(self, sink: UpstreamSink, *, head_only: bool) -> None:
        self.sink: UpstreamSink | None = sink
        self.connection: Connection | None = None
        self.reply = Reply(head_only=head_only)
        self.reused = False
        self.sent = False
        self.paused = False
        self.told = False

    def abort(self) -> None:
        """Ends the call without a word to its sink, in any phase; the replica sees its connection closed. Harmless when it is over."""
        connection = self.connection
        self.settle()
        if connection is not None:
            connection.drop()

    def pause(self) -> None:
        """Stops reading the response. The end of a paused connection is not seen either, until `resume`."""
        self.paused = True
        if self.connection is not None:
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        """Reads on."""
        self.paused = False
        if self.connection is not None:
            self.connection.transport.resume_reading()

    def settle(self) -> UpstreamSink | None:
        """Parts call and connection; returns the sink the first time, None ever after."""
        sink, self.sink = self.sink, None
        if self.connection is not None:
            self.connection.call = None
            self.connection = None
        self.reply.close()
        return sink

    def fail(self, kind: Kind, message: str) -> None:
        """Ends the call with an error."""
        sink = self.settle()
        if sink is not None:
            sink.failed(UpstreamError(kind, message, reused=self.reused, begun=self.reply.begun))


class Connection:
    """One connection to the replica, an asyncio protocol by its methods. `call`: the running exchange, None when idle or dead."""

    __slots__ = ("call", "idle_since", "pool", "transport")

    transport: asyncio.Transport

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.call: Call | None = None
        self.idle_since = 0.0

    def start(self, call: Call, parts: list[bytes]) -> None:
        """Writes the request and tells the sink."""
        self.call = call
        call.connection = self
        transport = self.transport
        if sum(map(len, parts)) <= JOIN_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        if call.paused:
            transport.pause_reading()
        call.sent = True
        assert call.sink is not None
        call.sink.sent()

    def drop(self) -> None:
        """Closes at once, unsent bytes included. A TLS peer is not waited for."""
        self.transport.abort()

    # -- called by the event loop --

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self.pool.open += 1

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:
            # Nobody asked: a 408 of a replica that tidies up, or what follows a broken message.
            self.pool.forget(self)
            self.drop()
            return
        reply = call.reply
        reply.feed(data)
        if reply.state == BODY and call.told:
            parts = reply.parts
            if parts:
                # One piece in one read is how streams come: nothing to join then.
                call.sink.payload(parts.pop() if len(parts) == 1 else reply.take())  # type: ignore[union-attr]  # a connection's call has a sink
        else:
            self._deliver(call, reply)

    def eof_received(self) -> None:
        self._ended("connection closed by the replica")
        self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.open -= 1
        self.pool.forget(self)
        if exc is None:
            self._ended("connection closed")
        elif self.call is not None:
            self._cut(self.call, str(exc) or type(exc).__name__)

    def pause_writing(self) -> None:
        """A request is written whole, so there is nothing to hold back."""

    def resume_writing(self) -> None:
        """See above."""

    # -- the way of a response --

    def _deliver(self, call: Call, reply: Reply) -> None:
        """Tells the sink what one read brought, in order. It may abort at each step; what follows then finds no sink."""
        if reply.status and not call.told:
            call.told = True
            call.sink.response(reply.status, reply.fields, reply.length)  # type: ignore[union-attr]
        if reply.parts and call.sink is not None:
            call.sink.payload(reply.take())
        if reply.state == COMPLETE:
            self._finish(call, reply)
        elif reply.state == BROKEN:
            self.drop()
            call.fail("protocol", reply.fault)

    def _finish(self, call: Call, reply: Reply) -> None:
        transport = self.transport
        sink = call.settle()
        # An answer may come while the request is still being written; the rest of it must not meet the next one.
        if reply.keep_alive and not transport.is_closing() and transport.get_write_buffer_size() == 0:
            if call.paused:
                transport.resume_reading()
            self.pool.park(self)
        else:
            self.drop()
        if sink is not None:
            sink.finished()

    def _ended(self, why: str) -> None:
        """The replica closed its side in an orderly way, which ends bodies that have no length."""
        call = self.call
        if call is None:
            return
        call.reply.end()
        if call.reply.state == COMPLETE:
            self._finish(call, call.reply)
        else:
            self._cut(call, why)

    def _cut(self, call: Call, why: str) -> None:
        call.fail("truncated" if call.told else "reset", why)


class Pool:
    """Connections to one target: the most recently used idle one first, a new one when none is idle. Busy ones are not limited.

    `connect_s` bounds name resolution, connect and TLS handshake together. Idle connections live `idle_s` at most, which must be less than
    the replica keeps them (uvicorn: 5 s). `open`: connections that exist, busy or idle.
    """

    __slots__ = ("_dials", "_idle", "_loop", "closed", "connect_s", "idle_s", "max_idle", "open", "target")

    def __init__(
        self, target: Target, *, loop: asyncio.AbstractEventLoop, connect_s: float, idle_s: float = 4.0, max_idle: int = 256
    ) -> None:
        self.target = target
        self.connect_s = connect_s
        self.idle_s = idle_s
        self.max_idle = max_idle
        self.open = 0
        self.closed = False
        self._loop = loop
        self._idle: list[Connection] = []
        self._dials: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Pool {self.target.host}:{self.target.port} open={self.open} idle={self.idle} dialling={len(self._dials)}>"

    @property
    def idle(self) -> int:
        """Connections ready for use."""
        return len(self._idle)

    def send(self, parts: list[bytes], sink: UpstreamSink, *, method: bytes = b"POST", fresh: bool = False) -> Call:
        """Sends a complete request, head and body in `parts`; `fresh` insists on a new connection. Errors go to the sink, later."""
        call = Call(sink, head_only=method == b"HEAD")
        connection = None if fresh else self._checkout()
        if connection is not None:
            call.reused = True
            connection.start(call, parts)
        else:
            task = self._loop.create_task(self._dial(call, parts))
            self._dials.add(task)
            task.add_done_callback(self._dials.discard)
        return call

    def sweep(self, now: float) -> None:
        """Closes connections idle since before `now - idle_s` (loop time, seconds)."""
        idle = self._idle
        limit = now - self.idle_s
        stale = 0
        # Parked in order of time, so the stale ones are in front.
        while stale < len(idle) and idle[stale].idle_since < limit:
            stale += 1
        self._drop_first(stale)

    def close(self) -> None:
        """Closes idle connections and keeps none from here on; running calls go on to their end."""
        self.closed = True
        self._drop_first(len(self._idle))

    def park(self, connection: Connection) -> None:
        """Takes a connection whose exchange ended cleanly."""
        if self.closed or len(self._idle) >= self.max_idle:
            connection.drop()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection is ending; it must not be handed out again."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _checkout(self) -> Connection | None:
        idle = self._idle
        while idle:
            connection = idle.pop()
            # An end seen in this very pass of the loop has not been reported yet.
            if connection.transport.is_closing():
                continue
            if self._loop.time() - connection.idle_since <= self.idle_s:
                return connection
            connection.drop()
        return None

    def _drop_first(self, count: int) -> None:
        stale = self._idle[:count]
        del self._idle[:count]
        for connection in stale:
            connection.drop()

    async def _dial(self, call: Call, parts: list[bytes]) -> None:
        target = self.target
        try:
            async with asyncio.timeout(self.connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self),  # type: ignore[type-var]  # a protocol by its methods
                    target.host,
                    target.port,
                    ssl=target.ssl,
                    server_hostname=target.host if target.ssl else None,
                )
        except TimeoutError:
            call.fail("connect_timeout", f"no connection within {self.connect_s:g} s")
        except (OSError, UnicodeError) as error:
            call.fail("connect", str(error) or type(error).__name__)
        else:
            self._arrived(connection, call, parts)

    def _arrived(self, connection: Connection, call: Call, parts: list[bytes]) -> None:
        if connection.transport.is_closing():
            call.fail("connect", "connection closed before the request was sent")
        elif call.sink is None:
            self.park(connection)
        else:
            connection.start(call, parts)
