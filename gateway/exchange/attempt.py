"""One try at one replica: holds the replica's slot, reads its answer and relays it, or reports how it failed.

The client sees nothing of a try until the replica has answered well, or a stream has brought its first event; until then the
exchange may give the request to another replica.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.engines import missing_model
from gateway.exchange.retry import RETRYABLE, outcome_of
from gateway.wire.headers import LAST_CHUNK, chunk
from gateway.wire.sse import SseScanner, Usage, parse_usage
from gateway.wire.upstream import UpstreamError

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange
    from gateway.fleet import ReplicaState, Slot
    from gateway.routing import Decision
    from gateway.wire.upstream import Call

Headers = Sequence[tuple[bytes, bytes]]

# How an answer is being handled. The order matters to nobody; STREAMING is tested first on the hot path.
WAITING: Final = 0
HOLDING: Final = 1
OPENING: Final = 2
STREAMING: Final = 3
PLAIN: Final = 4
OVER: Final = 5

_HELD_ERROR_BYTES: Final = 65_536  # an error body kept in case every other try fails too
_HELD_STREAM_BYTES: Final = 16_384  # of a stream that has not come to its first event
_PARSED_BODY_BYTES: Final = 1 << 20  # whole answers up to this size are searched for usage

_FINISHED: Final = re.compile(rb'"finish_reason"\s*:\s*"')
_INJECTION_REFUSED: Final = re.compile(rb"stream_options|include_usage")
_BUSY_EVENT: Final = re.compile(rb'"code"\s*:\s*"?(?:429|503)\b')


class Answer:
    """A replica's own error answer, kept whole: the client gets the last one when no try succeeds."""

    __slots__ = ("body", "headers", "replica", "status")

    def __init__(self, status: int, headers: Headers, body: bytes, replica: ReplicaState) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.replica = replica


class Attempt:
    """The upstream side of an exchange; the pool calls `sent`, `response`, `payload`, then `finished` or `failed`."""

    __slots__ = (
        "before", "began", "bytes", "call", "chunked", "decision", "exchange", "first_at", "headers", "held", "injected", "last",
        "length", "mode", "replica", "scanner", "sent_at", "slot", "status",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, decision: Decision, replica: ReplicaState, slot: Slot, began: float) -> None:
        self.exchange = exchange
        self.decision = decision
        self.replica = replica
        self.slot = slot
        self.began = began
        self.call: Call | None = None
        self.injected = False
        self.chunked = False
        self.restart()

    def restart(self) -> None:
        """Forget what came back so far: the same replica is asked once more."""
        self.mode = WAITING
        self.status = 0
        self.headers: Headers = ()
        self.length: int | None = None
        self.held: list[bytes] = []
        self.scanner: SseScanner | None = None
        self.sent_at: float | None = None
        self.first_at: float | None = None
        self.bytes = 0
        self.before = self.last = b""

    def hang_up(self) -> None:
        """End the call, in whatever phase; the replica sees its connection closed."""
        if self.call is not None:
            self.call.abort()

    # -- called by the pool ----------------------------------------------------------------------------------------

    def sent(self) -> None:
        exchange = self.exchange
        exchange.phase = "waiting"
        self.sent_at = exchange.service.clock()

    def response(self, status: int, headers: Headers, length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.length = length
        exchange = self.exchange
        if (status >= 400 and outcome_of(status, own_key=exchange.own_key) in RETRYABLE) or (status == 400 and self.injected):
            self.mode = HOLDING
        elif exchange.stream and status == 200 and is_event_stream(headers):
            self.scanner = SseScanner(self.injected, exchange.endpoint.shape)
            self.mode = OPENING
        else:
            self.mode = PLAIN

    def payload(self, data: bytes) -> None:
        self.bytes += len(data)
        mode = self.mode
        if mode == STREAMING:
            data = self.scanner.feed(data)  # type: ignore[union-attr]  # set together with the mode
            if data:
                self.before, self.last = self.last, data
                self.exchange.front.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
            if self.first_at is None and self.scanner.events:  # type: ignore[union-attr]
                self._first_event()
        elif mode == PLAIN:
            self._plain(data)
        elif mode == OPENING:
            self._opening(data)
        elif mode == HOLDING:
            self.held.append(data)
            if self.bytes > _HELD_ERROR_BYTES:  # too long to keep for later: it is the answer
                self.mode = PLAIN
                self.first_at = self.exchange.service.clock()
                self.exchange.open_response(self, b"".join(self.held))

    def finished(self) -> None:
        mode, self.mode = self.mode, OVER
        if mode == HOLDING:
            self.exchange.held_answer(self, Answer(self.status, self.headers, b"".join(self.held), self.replica))
        elif mode == PLAIN:
            if self.first_at is None:
                self.exchange.open_response(self, b"")
            self.exchange.finish(self, LAST_CHUNK if self.chunked else b"", outcome_of(self.status, own_key=False))
        elif mode == OPENING:
            self._end_unopened()
        else:
            self.end_stream(self.scanner.flush())  # type: ignore[union-attr]

    def failed(self, error: UpstreamError) -> None:
        self.exchange.failed(self, error)

    # -- what the answer turns into ----------------------------------------------------------------------------------

    def _plain(self, data: bytes) -> None:
        if self.first_at is None:
            self.first_at = self.exchange.service.clock()
            self.exchange.open_response(self, data)
        else:
            self.exchange.front.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        if self.bytes <= _PARSED_BODY_BYTES:
            self.held.append(data)

    def _opening(self, data: bytes) -> None:
        """Keep the head back until the stream shows what it is: an event, a comment, or more than anyone's first event."""
        scanner = self.scanner
        assert scanner is not None
        passed = scanner.feed(data)
        self.held.append(passed)
        if scanner.events:
            if self._failed_at_once():
                return
        elif not _comment(self.held) and self.bytes < _HELD_STREAM_BYTES:
            return
        self._open()

    def _open(self) -> None:
        data = b"".join(self.held)
        self.held.clear()
        self.last = data
        self.mode = STREAMING if self.mode == OPENING else self.mode
        if self.scanner is not None and self.scanner.events:
            self._first_event()
        self.exchange.open_response(self, data)

    def _first_event(self) -> None:
        """The first event is the first token: its prefill is over."""
        now = self.exchange.service.clock()
        self.first_at = now
        self.slot.first_token(now)
        self.exchange.service.router.first_token(self.decision)

    def _failed_at_once(self) -> bool:
        """Is the first event an error, and does another replica try instead? The client has seen nothing yet."""
        assert self.scanner is not None
        if not self.scanner.first_is_error:
            return False
        busy = _BUSY_EVENT.search(b"".join(self.held)) is not None
        return self.exchange.another_try(self, "backpressure" if busy else "server_error")

    def _end_unopened(self) -> None:
        """The stream is over before it showed anything: as a rule there was no event in it."""
        scanner = self.scanner
        assert scanner is not None
        self.held.append(scanner.flush())
        if not scanner.events:
            self.failed(UpstreamError("truncated", "the stream ended without an event"))
        elif not self._failed_at_once():
            self._open()
            self.end_stream(b"")

    def end_stream(self, tail: bytes) -> None:
        """Nothing more will come: judge whether the stream was whole."""
        scanner = self.scanner
        assert scanner is not None
        data = chunk(tail) if self.chunked and tail else tail
        if scanner.error:
            self.exchange.finish(self, data + LAST_CHUNK if self.chunked else data, "server_error")
        elif scanner.done or not self.exchange.endpoint.injects or _FINISHED.search(self.before + self.last + tail):
            self.exchange.finish(self, data + LAST_CHUNK if self.chunked else data, "ok")
        else:
            # Chat streams end with [DONE] or at least a finish_reason; one without either was cut by its engine.
            self.exchange.broken_stream(self, data, "truncated", "upstream_reset")

    # -- what is known when it is over -------------------------------------------------------------------------------

    def usage(self) -> Usage | None:
        """The usage the replica reported, if it did."""
        if self.scanner is not None:
            return self.scanner.tokens
        if self.mode == OVER and 0 < self.bytes <= _PARSED_BODY_BYTES and 200 <= self.status < 300:
            return parse_usage(b"".join(self.held))
        return None

    def model_missing(self) -> bool:
        """Did the replica say that it does not have the model?"""
        return self.status == 404 and missing_model(404, b"".join(self.held))

    def refuses_injection(self, answer: Answer) -> bool:
        """Did the replica refuse the request because of the usage field the gateway added?"""
        return self.injected and answer.status == 400 and _INJECTION_REFUSED.search(answer.body) is not None

    def retry_after(self) -> float | None:
        """Seconds the replica asked to be left alone; None when it did not say."""
        for name, value in self.headers:
            if name.lower() == b"retry-after" and value.isdigit():
                return float(value[:6])
        return None


def is_event_stream(headers: Headers) -> bool:
    """Is this answer an event stream that can be read (not a compressed one)?"""
    stream = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            stream = value[:17].lower() == b"text/event-stream"
        elif lower == b"content-encoding" and value.lower() != b"identity":
            return False
    return stream


def _comment(held: list[bytes]) -> bool:
    # Keep-alive comments exist so that load balancers in front do not give up: they must not wait for the first token.
    head = b"".join(held)
    return head[:1] == b":" and b"\n" in head
