"""A raw HTTP/1.1 client for load drivers: keep-alive connections that hand bytes to a callback object. Cheap on purpose."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools


class Exchange(Protocol):
    """Receives one response."""

    def body(self, data: bytes) -> None: ...

    def finished(self, status: int, connection: Connection) -> None: ...

    def failed(self, reason: str) -> None: ...


class Connection(asyncio.Protocol):
    """One client connection; `send` one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self.reusable = True

    @property
    def open(self) -> bool:
        """Whether another request may be sent."""
        return self.reusable and self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Writes a complete request; its response goes to `exchange`."""
        self._exchange = exchange
        assert self._transport is not None
        self._transport.write(request)

    def close(self) -> None:
        """Drops the connection; an exchange still running is told nothing."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"malformed response: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._fail(f"connection lost: {exc}" if exc else "connection closed in mid-response")

    def on_body(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(data)

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finished(self._parser.get_status_code(), self)

    def _fail(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.failed(reason)


class Answer:
    """An exchange that collects the whole response for one waiting caller."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def body(self, data: bytes) -> None:
        self._parts.append(data)

    def finished(self, status: int, connection: Connection) -> None:
        if not self.done.done():
            self.done.set_result((status, b"".join(self._parts)))

    def failed(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(reason))


async def connect(port: int, host: str = "127.0.0.1") -> Connection:
    """A fresh connection. Raises OSError."""
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return protocol


async def fetch(port: int, method: str, path: str, body: bytes = b"", *, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """One request on a connection of its own; status and whole body. Raises OSError, TimeoutError."""
    async with asyncio.timeout(timeout_s):
        connection = await connect(port)
        try:
            answer = Answer()
            connection.send(request(method, path, port, body), answer)
            return await answer.done
        finally:
            connection.close()


def request(method: str, path: str, port: int, body: bytes = b"", headers: str = "") -> bytes:
    """A complete request; `headers` are further lines, each ending in CRLF."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body
