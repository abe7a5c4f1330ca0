"""HTTP/1.1 server on a bare asyncio protocol, behaving like uvicorn where a proxy can tell the difference.

Requests of one connection are answered in order. A reply is written by whoever holds it, at any later time; `gone` tells
that the client went away. Faults need this level: half a message, a reset, a connection that never answers.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
LINGER_NOTHING = struct.pack("ii", 1, 0)
REASONS = {status.value: status.phrase for status in HTTPStatus}


class Request:
    """One complete request. Header names are lower case; of repeated ones the last is kept."""

    __slots__ = ("body", "headers", "method", "path", "query")

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.body = body


class App(Protocol):
    """What a connection serves."""

    closing: bool

    def opened(self, connection: Connection) -> None:
        """A client connected."""

    def lost(self, connection: Connection) -> None:
        """A client is gone."""

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer through a `Reply` on this connection, now or later."""


class Connection(asyncio.Protocol):
    """One client connection; at most one reply at a time."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._queue: deque[Request] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport
        self.reply: Reply | None = None
        self.idle_since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._app.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._queue.clear()
        if self.reply is not None:
            self.reply.lost()
        self._app.lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self.reply is None:
                Reply(self).send(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8", close=True)
            else:
                self.transport.close()

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._method = self._parser.get_method().decode()
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = Request(self._method, self._target.decode("latin-1"), self._headers, b"".join(self._body))
        self._body = []
        self._keep_alive = self._parser.should_keep_alive()
        if self.reply is None:
            self._app.handle(request, self)
        else:
            self._queue.append(request)

    def answered(self, *, close: bool) -> None:
        """The current reply is complete."""
        self.reply = None
        if close or self._app.closing or not self._keep_alive:
            self.transport.close()
        elif self._queue:
            self._app.handle(self._queue.popleft(), self)
        else:
            self.idle_since = time.monotonic()

    def reset(self) -> None:
        """Break the connection so that the peer sees a reset, not an end."""
        raw = self.transport.get_extra_info("socket")
        if raw is not None and not self.transport.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOTHING)
        self.transport.abort()

    _keep_alive = True


class Reply:
    """The answer to one request: `send` a whole one, or `begin`, `event`…, `end` a streamed one."""

    __slots__ = ("connection", "events", "gone", "head", "headers", "open")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        connection.reply = self
        self.open = True
        self.gone: Callable[[], None] | None = None
        self.headers: list[tuple[str, str]] = []
        self.head = b""  # of a stream: written together with its first event
        self.events = 0

    def send(self, status: int, body: bytes, content_type: str = JSON, *, close: bool = False) -> None:
        """A complete answer."""
        if not self.open:
            return
        extra = [("content-length", str(len(body)))]
        if content_type:
            extra.append(("content-type", content_type))
        if close:
            extra.append(("connection", "close"))
        self._write(head(status, [*extra, *self.headers]) + body)
        self._complete(close=close)

    def begin(self, content_type: str = EVENTS) -> None:
        """Start a chunked answer; nothing is written before its first event."""
        self.head = head(200, [("content-type", content_type), *self.headers, ("transfer-encoding", "chunked")])

    def event(self, data: bytes) -> None:
        """One chunk."""
        if self.open:
            self.events += 1
            self._write(b"%b%x\r\n%b\r\n" % (self.head, len(data), data))
            self.head = b""

    def end(self, data: bytes = b"") -> None:
        """The last chunk, if any, and the end mark."""
        if self.open:
            chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self._write(b"%b%b0\r\n\r\n" % (self.head, chunk))
            self._complete()

    def lost(self) -> None:
        """The connection is gone; called by it."""
        if self.open:
            self.open = False
            if self.gone is not None:
                self.gone()

    def _write(self, data: bytes) -> None:
        self.connection.transport.write(data)

    def _complete(self, *, close: bool = False) -> None:
        self.open = False
        self.gone = None
        self.connection.answered(close=close)


_stamp: tuple[int, str] = (0, "")


def head(status: int, headers: list[tuple[str, str]]) -> bytes:
    """Status line and header block."""
    global _stamp
    second = int(time.time())
    if second != _stamp[0]:
        _stamp = (second, formatdate(second, usegmt=True))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\ndate: {_stamp[1]}\r\nserver: uvicorn\r\n{lines}\r\n".encode("latin-1")
