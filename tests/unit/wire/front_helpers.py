"""An in-memory client connection: a front, its handler and its transport, with time and loop turns in the test's hands."""

from __future__ import annotations

from typing import Any

from gateway.wire.front import BodyBudget, FrontLimits, FrontProtocol, FrontShared, RequestHead

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class FakeTransport:
    """Keeps what is written, and lets a test decide how much of it the client has taken."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.pending = 0
        self.reading = True
        self.eof = False
        self.closed = False
        self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.7", 5000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.limits = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.pending

    def write(self, data: bytes) -> None:
        assert not self.eof, "written after the end was announced"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class RecordingSink:
    """One request; answers as soon as it has the body, unless told to wait."""

    def __init__(self, handler: RecordingHandler, front: FrontProtocol, head: RequestHead) -> None:
        self.handler = handler
        self.front = front
        self.head = head
        self.data: bytes | None = None
        self.events: list[str] = []

    def body(self, data: bytes) -> None:
        assert self.data is None
        assert "gone" not in self.events
        self.data = data
        self.handler.seen.append(f"{self.head.method.decode()} {self.head.target.decode()} {len(data)}")
        if self.handler.prompt:
            self.front.answer(OK)

    def gone(self) -> None:
        self.events.append("gone")

    def pause(self) -> None:
        self.events.append("pause")

    def resume(self) -> None:
        self.events.append("resume")


class RecordingHandler:
    """Accepts everything; `seen` holds requests in the form "METHOD target bodylength" and the statuses of refusals."""

    def __init__(self, *, prompt: bool = True, early: bytes | None = None, admits: bool = True) -> None:
        self.prompt = prompt
        self.early = early
        self.admits = admits
        self.seen: list[str | int] = []
        self.sinks: list[RecordingSink] = []
        self.left = 0

    def connected(self, front: FrontProtocol) -> bool:
        return self.admits

    def disconnected(self, front: FrontProtocol) -> None:
        self.left += 1

    def head(self, front: FrontProtocol, head: RequestHead) -> RecordingSink | None:
        if self.early is not None:
            self.seen.append(f"{head.method.decode()} {head.target.decode()} early")
            front.answer(self.early)
            return None
        sink = RecordingSink(self, front, head)
        self.sinks.append(sink)
        return sink

    def refuse(self, front: FrontProtocol, status: int, code: str, message: str, target: bytes | None) -> bytes:
        self.seen.append(status)
        self.code = code
        self.target = target
        return b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % status


class Connection:
    """A client connection that lives in memory."""

    def __init__(
        self,
        handler: RecordingHandler | None = None,
        limits: FrontLimits | None = None,
        budget: BodyBudget | None = None,
    ) -> None:
        self.clock = 1000.0
        self.handler = handler or RecordingHandler()
        self.turns: list[Any] = []
        self.shared = FrontShared(
            limits or FrontLimits(), budget or BodyBudget(1 << 30), now=lambda: self.clock, call_soon=self.turns.append
        )
        self.front = FrontProtocol(self.handler, self.shared)
        self.transport = FakeTransport()
        self.unread = b""
        self.front.connection_made(self.transport)  # type: ignore[arg-type]

    def turn(self) -> None:
        """Let the loop run until nothing is left to do."""
        while self.turns:
            self.turns.pop(0)()
            if self.unread and self.transport.reading:
                data, self.unread = self.unread, b""
                self._receive(data)

    def feed(self, *pieces: bytes) -> Connection:
        """Bytes from the client, one read each; what a paused transport does not read waits in the kernel."""
        for piece in pieces:
            if self.transport.reading:
                self._receive(piece)
            else:
                self.unread += piece
            self.turn()
        return self

    def sweep(self, after: float) -> None:
        """The sweep, `after` seconds from now."""
        self.clock += after
        self.shared.sweep(self.clock)

    def lose(self) -> None:
        """The transport reports its end."""
        self.front.connection_lost(None)

    def _receive(self, data: bytes) -> None:
        if data and not self.ended:
            self.front.data_received(data)

    @property
    def ended(self) -> bool:
        return self.transport.closed or self.transport.aborted

    @property
    def story(self) -> list[str | int]:
        """What happened: requests and refusals in order, and "close" when the front closed without a refusal."""
        refused = bool(self.handler.seen) and isinstance(self.handler.seen[-1], int)
        over = self.ended or self.transport.eof
        return [*self.handler.seen, *(["close"] if over and not refused else [])]
