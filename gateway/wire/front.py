"""The public port: one `FrontProtocol` per client connection, from the first byte of a request to the last byte of its answer.

A connection is in one phase at a time, and these are all the ways through them:

    IDLE -> HEAD -> BODY -> RUN -> (FLUSH) -> IDLE    requests in turn; HEAD and BODY are skipped when one read holds all of it
    any of these -> LINGER                            answered while the client may still be sending: read on a little, then close
    any of these -> (SENDING) -> CLOSED               the client left, the answer was the last one, or the connection was cut

Whatever ends a request, `_release` is the one place where its sink is let go and its memory is given back.
Requests are read one at a time: bytes behind a running request wait, unparsed. Reading goes on meanwhile, because that is the only
way to see a client leave; past 64 KB of waiting bytes it pauses, and the sweep asks the kernel instead.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from gateway.wire import tcp
from gateway.wire.clients import BodyBudget, FrontLimits, FrontShared
from gateway.wire.framing import Bad, Counted, Dechunk
from gateway.wire.handler import Handler, RequestHead, Sink
from gateway.wire.head import head_end, parse_head, target_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["BodyBudget", "FrontLimits", "FrontProtocol", "FrontShared", "Handler", "RequestHead", "Sink"]

_IDLE: Final = 0
_HEAD: Final = 1
_BODY: Final = 2
_RUN: Final = 3
_FLUSH: Final = 4
_LINGER: Final = 5
_SENDING: Final = 6
_CLOSED: Final = 7

_WRITE_HIGH, _WRITE_LOW = 131072, 32768  # bytes; uvloop's own low mark is 16, which empties the pipe before it is refilled
_PIPELINED: Final = 65536  # bytes kept behind a running request before reading pauses
_LINGER_BYTES, _LINGER_S = 262144, 2.0  # beyond a body of allowed size: stock clients send all of theirs before they read
_CLOSE_S: Final = 1.0  # a TLS peer that never answers our close_notify
_BODY_RATE: Final = 1024  # bytes per second a body must reach on average, beyond its timeout
_LINE_ENDS: Final = (b"", b"\r", b"\r\n")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class FrontProtocol:
    """One client connection, plain or TLS. An asyncio protocol by its methods alone: with a Python base, the compiled class had no slots.

    `open`: writing makes sense. `write_paused`: the transport's buffer is full. `peer`: the client's address. `sink`: the running
    request.
    """

    __slots__ = (
        "_acked", "_admitted", "_began", "_body", "_buffer", "_handler", "_held", "_keep", "_moved", "_paused", "_phase", "_searched",
        "_shared", "_since", "_socket", "_spare", "_target", "_wants_keep", "open", "peer", "sink", "tls", "transport",
        "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, handler: Handler, shared: FrontShared) -> None:
        self._handler = handler
        self._shared = shared
        self._phase = _IDLE
        self._buffer = bytearray()  # bytes not parsed yet
        self._searched = 0  # of these, bytes known not to end a head
        self._body: Counted | Dechunk | None = None
        self._held = 0  # bytes taken from the budget
        self._target: bytes | None = None  # of the request being served
        self._spare = 0  # bytes still to be discarded while lingering
        self._since = self._began = shared.now()  # last step forward; first byte of the body
        self._acked: int | None = None  # what the client had taken when it was last seen to move, and when that was
        self._moved = self._since
        self._paused = False
        self._admitted = False
        self._wants_keep = False  # what the client asked for, and what holds now: an unread body rules it out
        self._keep = False
        self.sink: Sink | None = None
        self.open = False
        self.write_paused = False
        self.peer = ""
        self.tls = False

    @property
    def keep_alive(self) -> bool:
        """Will the connection outlive the current request, as far as is known now? What an answer's `connection` header should say."""
        return self._keep and not self._shared.draining

    @property
    def busy(self) -> bool:
        """Is a request being served, or an answer not sent yet?"""
        return self._phase > _HEAD

    # -- the answer --------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write, unless the client is gone."""
        if self.open:
            self.transport.write(data)

    def answer(self, data: bytes, *, close: bool = False) -> None:
        """Write a complete response and end the request."""
        self.send(data)
        self.end(close=close)

    def end(self, *, close: bool = False) -> None:
        """The response is complete, or (with `close`) as complete as it will get: on to the next request, or close once it is sent."""
        phase = self._phase
        if phase != _RUN and phase != _BODY:
            return
        unread = phase == _BODY
        self._release()
        if unread or close or not self._keep or self._shared.draining:
            self._leave(linger=unread or bool(self._buffer))
        elif self.write_paused:
            self._phase = _FLUSH
        else:
            self._rest()

    def cut(self) -> None:
        """Break the connection off, so that the client cannot take what it has for a whole message. What is unsent is lost."""
        self.sink = None
        self._abort(reset=True)

    # -- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.open = True
        transport.set_write_buffer_limits(high=_WRITE_HIGH, low=_WRITE_LOW)
        address = transport.get_extra_info("peername")
        # On a socket for both families an IPv4 client has an IPv6 address, which no IPv4 network contains.
        self.peer = address[0].removeprefix("::ffff:") if address else ""
        self.tls = transport.get_extra_info("sslcontext") is not None
        self._socket = transport.get_extra_info("socket")
        tcp.watch(self._socket)
        self._shared.connections.add(self)
        self._admitted = self._handler.connected(self)
        if not self._admitted:
            self._refuse(Bad("overloaded", "There are too many connections; try again later."))

    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase <= _HEAD:
            self._read_head(data)
        elif phase == _BODY:
            self._read_body(data)
        elif phase <= _FLUSH:
            self._stash(data)
        elif phase == _LINGER:
            self._spare -= len(data)
            if self._spare < 0:
                self._close()

    def eof_received(self) -> bool:
        # No client in use half-closes on purpose, and one that left looks the same: its request is over.
        if self._phase in (_BODY, _RUN):
            self._abort()
        else:
            self._close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._phase = _CLOSED
        self._shared.connections.discard(self)
        self._drop()
        if self._admitted:
            self._handler.disconnected(self)

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.sink is not None:
            self.sink.pause()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.sink is not None:
            self.sink.resume()
        elif self._phase == _FLUSH:
            self._rest()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        buffer = self._buffer
        source: bytes | bytearray = data
        if buffer:
            buffer += data
            source = buffer
        limits = self._shared.limits
        end = 0
        try:
            end = head_end(source, self._searched, limits.header_bytes)
            if not end:
                self._await_head(source)
                return
            head = parse_head(bytes(source[:end]), limits.headers)
            length = head.length
            if length is not None and length > limits.max_body_bytes:
                raise Bad("body_too_large", f"The request body is larger than the {limits.max_body_bytes} bytes allowed here.")
        except Bad as bad:
            self._target = target_of(bytes(source[: end or limits.header_bytes]))
            self._refuse(bad)
            return
        self._searched = 0
        self._target = head.target
        stop = sys.maxsize if length is None else end + length
        whole = stop <= len(source)
        body = bytes(source[end:stop])
        if source is buffer:
            del buffer[:stop]
        elif stop < len(data):
            self._stash(data[stop:])
        self._begin(head, body, whole=whole)

    def _await_head(self, source: bytes | bytearray) -> None:
        if source is not self._buffer:
            self._buffer += source
        self._searched = len(self._buffer)
        # A stray line end behind a request is no request begun.
        if self._phase == _IDLE and bytes(self._buffer) not in _LINE_ENDS:
            self._phase = _HEAD
            self._since = self._shared.now()

    def _begin(self, head: RequestHead, body: bytes, *, whole: bool) -> None:
        self._phase = _RUN if whole else _BODY
        self._wants_keep = head.keep_alive
        self._keep = whole and head.keep_alive
        self.sink = sink = self._handler.head(self, head)
        if sink is None:
            return
        if self.write_paused:
            # A TLS transport may find out that it is full only after the last answer has ended.
            sink.pause()
        if whole:
            if self.hold(len(body)):
                sink.body(body)
            return
        if head.expect and not body:
            self.transport.write(_CONTINUE)
        self._body = Dechunk(self._shared.limits.max_body_bytes) if head.length is None else Counted(head.length)
        self._began = self._since = self._shared.now()
        if body:
            self._read_body(body)

    def _read_body(self, data: bytes) -> None:
        body, sink = self._body, self.sink
        assert body is not None
        assert sink is not None
        try:
            rest = body.feed(data)
        except Bad as bad:
            self._refuse(bad)
            return
        if not self.hold(body.size):
            return
        if rest is None:
            self._since = self._shared.now()
            return
        self._body = None
        self._phase = _RUN
        self._keep = self._wants_keep
        if rest:
            self._stash(rest)
        sink.body(body.take())

    def hold(self, size: int) -> bool:
        """Account for a body of `size` bytes, received or made of what was; False when there is no room and the request was refused."""
        grown = size - self._held
        if grown <= 0:
            return True
        if not self._shared.budget.take(grown):
            self._refuse(Bad("overloaded", "The gateway holds as many request bodies as it can; try again later."))
            return False
        self._held = size
        return True

    def _stash(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _PIPELINED and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def _next(self) -> None:
        """Read the request that was waiting behind the last one."""
        if self._phase != _IDLE or not self._buffer:
            return
        try:
            self._read_head(b"")
        except BaseException:
            # In data_received the transport would do this for us.
            self.transport.abort()
            raise
        if self._paused and (self._phase != _RUN or len(self._buffer) <= _PIPELINED):
            self._resume_reading()

    def _resume_reading(self) -> None:
        self._paused = False
        self.transport.resume_reading()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        self._phase = _IDLE
        self._since = self._shared.now()
        if self._buffer:
            # Not at once: a long row of pipelined requests must neither recurse nor hold up everybody else.
            self._shared.call_soon(self._next)

    def _release(self) -> None:
        self.sink = None
        self._body = None
        self._target = None
        if self._held:
            self._shared.budget.give(self._held)
            self._held = 0

    def _drop(self) -> None:
        """Release a request that did not come to its end, and tell its owner."""
        sink = self.sink
        self._release()
        self._buffer.clear()
        if sink is not None:
            sink.gone()

    def _refuse(self, bad: Bad) -> None:
        self._keep = False
        self.transport.write(self._handler.refuse(self, bad.status, bad.code, bad.message, self._target))
        self._drop()
        self._leave(linger=True)

    def _leave(self, *, linger: bool) -> None:
        """Close behind what was written. Closing on unread bytes would send a reset that can overtake the answer, hence lingering."""
        if not linger:
            self._close()
            return
        self.open = False
        self._phase = _LINGER
        self._since = self._shared.now()
        self._spare = self._shared.limits.max_body_bytes + _LINGER_BYTES
        self._buffer.clear()
        if self._paused:
            self._resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close(self) -> None:
        if self._phase >= _SENDING:
            return
        self.open = False
        self._since = self._shared.now()
        if self.tls and self._unsent():
            # Closing TLS starts a countdown, after which unsent bytes are lost: the sweep closes when they are sent.
            self._phase = _SENDING
        else:
            self._phase = _CLOSED
            self.transport.close()

    def _unsent(self) -> int:
        """Bytes of answers that wait for the client to read."""
        # A TLS transport hands all it gets to a transport that cannot be asked.
        return tcp.unsent(self._socket) if self.tls else self.transport.get_write_buffer_size()

    def _abort(self, *, reset: bool = False) -> None:
        self.open = False
        self._phase = _CLOSED
        if reset:
            tcp.reset_on_close(self._socket)
        self.transport.abort()
        self._drop()

    # -- deadlines, several times a second ---------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Apply the deadlines of the current phase, and see to clients that do not read or cannot be heard."""
        if self._phase == _IDLE or not self._stalled(now):
            _CHECKS[self._phase](self, now)
        else:
            self._abort(reset=True)

    def _stalled(self, now: float) -> bool:
        unsent = self._unsent()
        if not unsent:
            return False
        acked = tcp.acknowledged(self._socket)
        progress = acked if acked is not None else -unsent
        if progress != self._acked:
            self._acked = progress
            self._moved = now
        return now - self._moved > self._shared.limits.write_stall_s

    def _check_idle(self, now: float) -> None:
        if self._shared.draining or now - self._since > self._shared.limits.keepalive_s:
            self._close()

    def _check_head(self, now: float) -> None:
        if now - self._since > self._shared.limits.header_timeout_s:
            self._refuse(Bad("request_timeout", "The request head did not arrive in time."))

    def _check_body(self, now: float) -> None:
        assert self._body is not None
        allowed = self._shared.limits.body_timeout_s
        if now - self._since > allowed or now - self._began > allowed + self._body.size / _BODY_RATE:
            self._refuse(Bad("request_timeout", "The request body did not arrive in time."))

    def _check_blind(self, now: float) -> None:
        if self._paused and tcp.peer_left(self._socket):
            self._abort()

    def _check_linger(self, now: float) -> None:
        if now - self._since > _LINGER_S:
            self._close()

    def _check_sending(self, now: float) -> None:
        if not self._unsent():
            self._phase = _CLOSED
            self._since = now
            self.transport.close()

    def _check_closed(self, now: float) -> None:
        if now - self._since > _CLOSE_S and not self._unsent():
            self.transport.abort()


# In the order of the phases.
_CHECKS: tuple[Callable[[FrontProtocol, float], None], ...] = (
    FrontProtocol._check_idle,
    FrontProtocol._check_head,
    FrontProtocol._check_body,
    FrontProtocol._check_blind,
    FrontProtocol._check_blind,
    FrontProtocol._check_linger,
    FrontProtocol._check_sending,
    FrontProtocol._check_closed,
)
