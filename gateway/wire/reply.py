"""One response of a replica, read from bytes as they arrive: its heads, then its body by one of three readers. Pure.

Bytes behind the end of a message never harm that message, but spoil the connection. What llhttp cannot be told, such as that an answer to
HEAD has no body, is no question for it here: it only sees heads, each cut off, and bodies in chunks.
"""

from collections.abc import Callable
from typing import Final

import httptools

from gateway.wire.headers import Header
from gateway.wire.reply_head import BODILESS, CHUNKED, COUNTED, OPEN, ReplyHead, ReplyHeadError, read_reply_head

HEAD_BYTES: Final = 65_536
INTERIM_HEADS: Final = 16
# Framing (chunk extensions, trailers) that may pass in reads without any body byte.
BARREN_BYTES: Final = 65_536

HEAD: Final = 0
BODY: Final = 1
COMPLETE: Final = 2
BROKEN: Final = 3

_OPENING: Final = b"HTTP/1."
# Blank lines around messages are an old habit of servers and mean nothing.
_STRAY: Final = b"\r\n"
# What llhttp is shown in place of a head that it has judged before.
_CHUNKS_FOLLOW: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class _SurplusError(Exception):
    """Bytes behind the end of the message."""


class Reply:
    """Feed it what arrives; look at `state` and the rest after each feed.

    `state`: HEAD until the final head is complete (1xx heads are swallowed), then BODY, then COMPLETE or BROKEN (`fault` says why).
    `begun`: any byte has arrived. `status`: 0 until the head was found good, then the final status. `fields`: end-to-end headers.
    `length`: declared content length, None if unknown. `parts`: body bytes not taken yet. `keep_alive`: once COMPLETE, whether the
    connection may serve another request.
    """

    __slots__ = (
        "_barren", "_buffer", "_head_only", "_interim", "_left", "_parser", "_read",
        "begun", "fault", "fields", "keep_alive", "length", "on_body", "parts", "state", "status",
    )  # fmt: skip

    def __init__(self, *, head_only: bool = False) -> None:
        """`head_only`: the request was HEAD, so the response ends with its head whatever it declares."""
        self.state = HEAD
        self.status = 0
        self.fields: tuple[Header, ...] = ()
        self.length: int | None = None
        self.parts: list[bytes] = []
        self.keep_alive = False
        self.begun = False
        self.fault = ""
        self._head_only = head_only
        self._buffer = b""  # an incomplete head
        self._interim = 0
        self._read: Callable[[Reply, bytes], None] = Reply._read_heads
        self._parser: httptools.HttpResponseParser | None = None

    def feed(self, data: bytes) -> None:
        """Takes the bytes of one read. Never raises."""
        parser = self._parser
        if parser is None:
            self._read(self, data)
            return
        # A body in chunks: read without a further call, for a stream comes here with every token.
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._stopped(error)
        if self.parts:
            self._barren = 0
        else:
            self._count_barren(len(data))

    def end(self) -> None:
        """The replica closed its side: the proper end of a body without declared length, too early for anything else."""
        if self.state == BODY and self._read is Reply._read_open:
            self.state = COMPLETE
        elif self.state != COMPLETE:
            self._break("connection closed before the end of the response")

    def take(self) -> bytes:
        """The body bytes since the last take, as one object."""
        parts = self.parts
        if len(parts) == 1:
            return parts.pop()
        data = b"".join(parts)
        parts.clear()
        return data

    def close(self) -> None:
        """Cuts the reference cycle with the parser, so that memory is freed at once."""
        self._parser = None

    # -- heads --

    def _read_heads(self, data: bytes) -> None:
        seen = len(self._buffer)
        data = self._buffer + data if seen else data.lstrip(_STRAY)
        while data:
            self.begun = True
            end = data.find(b"\r\n\r\n", max(0, seen - 3)) + 4
            if end < 4 or end > HEAD_BYTES:
                return self._await_head(data)
            seen = 0
            self._buffer = b""
            try:
                head = read_reply_head(data[:end])
            except ReplyHeadError as error:
                return self._break(str(error))
            data = data[end:]
            if head.status >= 200:
                return self._accept(head, data)
            data = data.lstrip(_STRAY) if self._passes_over(head) else b""
        return None

    def _await_head(self, data: bytes) -> None:
        """Keeps the beginning of a head, unless it is clear already that no good one can come of it."""
        if len(data) >= HEAD_BYTES:
            self._break("response head too large")
        elif not data.startswith(_OPENING[: len(data)]) or data.count(b"\n") != data.count(b"\r\n"):
            self._break("not an HTTP/1 response")
        else:
            self._buffer = data

    def _passes_over(self, head: ReplyHead) -> bool:
        """No interim head reaches the client, and not all of them can be let pass."""
        self._interim += 1
        if head.status == 101:
            self._break("switched protocols without being asked")
        elif not head.keep_alive:
            self._break("closed after an interim response")
        elif self._interim > INTERIM_HEADS:
            self._break("too many interim responses")
        return self.state == HEAD

    def _accept(self, head: ReplyHead, rest: bytes) -> None:
        """The final head is here; `rest` is what came behind it."""
        self.status = head.status
        self.fields = head.fields
        self.length = head.length
        self.keep_alive = head.keep_alive
        self.state = BODY
        framing = BODILESS if self._head_only else head.framing
        if framing == CHUNKED:
            self._expect_chunks()
            self.feed(rest)
        elif framing == OPEN:
            self._read = Reply._read_open
            self._read_open(rest)
        else:
            self._left = head.length or 0 if framing == COUNTED else 0
            self._read = Reply._read_counted
            self._read_counted(rest)

    # -- bodies --

    def _read_counted(self, data: bytes) -> None:
        left = self._left - len(data)
        if left > 0:
            self._left = left
            if data:
                self.parts.append(data)
            return
        if left:
            if data[left:].strip(_STRAY):
                self.keep_alive = False
            data = data[:left]
        if data:
            self.parts.append(data)
        self._left = 0
        self.state = COMPLETE

    def _read_open(self, data: bytes) -> None:
        if data:
            self.parts.append(data)

    def _expect_chunks(self) -> None:
        self._barren = 0
        # llhttp calls this for each piece of body: a list's own method spares a Python frame per chunk.
        self.on_body = self.parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(_CHUNKS_FOLLOW)

    def _stopped(self, error: Exception) -> None:
        if self.state == COMPLETE:
            self.keep_alive = False
        else:
            self._break(str(error) or type(error).__name__)

    def _count_barren(self, size: int) -> None:
        self._barren += size
        if self._barren > BARREN_BYTES and self.state == BODY:
            self._break("too much framing without content")

    # -- called by llhttp --

    def on_message_begin(self) -> None:
        if self.state == COMPLETE:
            # The only way to stop llhttp before it takes the body of a second, unasked-for message for ours.
            raise _SurplusError

    def on_message_complete(self) -> None:
        self.state = COMPLETE
        # A trailer may say close. llhttp answers this rightly only from inside its callbacks.
        self.keep_alive = self.keep_alive and self._parser.should_keep_alive()  # type: ignore[union-attr]

    # -- the end of it --

    def _break(self, fault: str) -> None:
        self.state = BROKEN
        self.keep_alive = False
        self.fault = fault
        self._parser = None
        self._read = Reply._ignore

    def _ignore(self, data: bytes) -> None:
        """Nothing behind a fault can be trusted."""
