"""How long a request body is, and nothing else: counted and chunked bodies, read strictly (RFC 9112 sections 6 and 7).

Both readers have one shape: `feed` takes bytes from the connection and answers None while the body is incomplete, else the bytes
behind its end (often none). `size` is the number of body bytes held, `take` hands them over.
"""

from __future__ import annotations

import re
from typing import Final

_STATUS: Final = {
    "invalid_request": 400,
    "request_timeout": 408,
    "body_too_large": 413,
    "expectation_failed": 417,
    "headers_too_large": 431,
    "not_implemented": 501,
    "overloaded": 503,
    "http_version": 505,
}

_SIZE_LINE: Final = 256  # bytes of one chunk-size line, extensions and line end included
_TRAILERS: Final = 8192  # bytes of all trailer lines together
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[!#-~]*+)?\r\n")
_PART_OF_SIZE: Final = re.compile(rb"(?:[0-9A-Fa-f]{1,16}(?:;[!#-~]*+)?\r?)?")
_TRAILER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):[\t -~\x80-\xff]*+\r\n")
_FORBIDDEN_TRAILERS: Final = frozenset([b"content-length", b"transfer-encoding", b"host"])


class Bad(Exception):  # noqa: N818 - "raise Bad" says it all
    """A request that cannot be accepted: `status` to answer with, error `code`, and a `message` for its sender."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.status = _STATUS[code]
        self.code = code
        self.message = message


class Counted:
    """A body of a known number of bytes."""

    __slots__ = ("_data", "_left")

    def __init__(self, length: int) -> None:
        self._left = length
        self._data = bytearray()

    @property
    def size(self) -> int:
        """Body bytes received so far."""
        return len(self._data)

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; the bytes behind the body once it is complete, else None."""
        over = len(data) - self._left
        if over < 0:
            self._data += data
            self._left = -over
            return None
        self._data += data[: self._left]
        rest = data[self._left :]
        self._left = 0
        return rest

    def take(self) -> bytes:
        """The whole body."""
        return bytes(self._data)


class Dechunk:
    """A chunked body of at most `limit` bytes. Extensions and trailers are dropped; `feed` raises `Bad` for anything out of order.

    Data goes into one buffer and not into a list of pieces: a body of one-byte chunks must not cost fifty times its size.
    """

    __slots__ = ("_at", "_data", "_left", "_limit", "_step", "_tail", "_trailers")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._tail = b""  # an unfinished line
        self._left = 0  # bytes of the current chunk still to come
        self._trailers = _TRAILERS
        self._step = Dechunk._read_size

    @property
    def size(self) -> int:
        """Body bytes received so far."""
        return len(self._data)

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; the bytes behind the body once it is complete, else None."""
        if self._tail:
            data = self._tail + data
            self._tail = b""
        at = 0
        while self._step is not Dechunk._finished:
            after = self._step(self, data, at)
            if after < 0:
                self._tail = data[at:]
                return None
            at = after
        return data[at:]

    def take(self) -> bytes:
        """The whole body."""
        return bytes(self._data)

    # Each step reads one element at `at` and answers the offset behind it, or -1 when it needs more bytes.

    def _read_size(self, data: bytes, at: int) -> int:
        line = _SIZE.match(data, at, at + _SIZE_LINE)
        if line is None:
            if len(data) - at >= _SIZE_LINE or not _PART_OF_SIZE.fullmatch(data, at):
                raise Bad("invalid_request", "A chunk size in the request body is malformed.")
            return -1
        self._left = int(line[1], 16)
        if self._left == 0:
            self._step = Dechunk._read_trailer
        elif len(self._data) + self._left > self._limit:
            raise Bad("body_too_large", f"The request body is larger than the {self._limit} bytes allowed here.")
        else:
            self._step = Dechunk._read_data
        return line.end()

    def _read_data(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._left]
        self._data += piece
        self._left -= len(piece)
        if self._left == 0:
            self._step = Dechunk._read_data_end
        elif not piece:
            return -1
        return at + len(piece)

    def _read_data_end(self, data: bytes, at: int) -> int:
        end = data[at : at + 2]
        if end == b"\r\n":
            self._step = Dechunk._read_size
            return at + 2
        if end not in (b"", b"\r"):
            raise Bad("invalid_request", "A chunk of the request body does not end where its size says.")
        return -1

    def _read_trailer(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at, at + self._trailers)
        if end < 0:
            if len(data) - at >= self._trailers:
                raise Bad("invalid_request", "The trailer of the request body is too long.")
            return -1
        if end == at:
            self._step = Dechunk._finished
            return at + 2
        field = _TRAILER.fullmatch(data, at, end + 2)
        if field is None or field[1].lower() in _FORBIDDEN_TRAILERS:
            raise Bad("invalid_request", "A trailer field of the request body is malformed or not allowed.")
        self._trailers -= end + 2 - at
        return end + 2

    def _finished(self, data: bytes, at: int) -> int:
        raise AssertionError("the body was complete")
