"""Content-encoding of request bodies: one layer of gzip, deflate or zstd, decoded under a limit, in slices.

Whatever the input, a slice costs bounded memory and time: output is capped per step, zstd windows are capped, and a body
that is cut short, corrupt or followed by anything else is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import zstandard

from gateway.openai.errors import BadRequest

_INPUT_STEP = 64 * 1024
_OUTPUT_STEP = 256 * 1024
_ZSTD_WINDOW = 8 * 1024 * 1024  # what RFC 9659 allows for content-encoding zstd
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCKS = 65_536  # a block holds up to 128 KB; frames of millions of tiny blocks only burn time


class DecodingError(BadRequest):
    """The body cannot be decoded: 400 for bad data, 413 beyond the limit, 415 for another coding or more than one."""


class Decoder:
    """Decodes one request body. `encoding` is the header's value, `limit` the largest decoded size in bytes."""

    def __init__(self, encoding: bytes, limit: int) -> None:
        self._coding = encoding.strip(b" \t").lower()
        self._limit = limit
        if self._coding not in _CODINGS:
            raise DecodingError(
                "unsupported_encoding", "content-encoding must be one of gzip, deflate, zstd, identity.", "content-encoding"
            )

    def slices(self, body: bytes) -> Iterator[bytes]:
        """The decoded body in pieces of at most about 256 KB; between two of them a caller may let others run."""
        size = 0
        try:
            for piece in _CODINGS[self._coding](body):
                size += len(piece)
                if size > self._limit:
                    raise DecodingError("body_too_large", f"The decoded body is larger than the limit of {self._limit} bytes.")
                yield piece
        except (zlib.error, zstandard.ZstdError):
            raise _bad("is corrupt") from None


def decode(encoding: bytes, body: bytes, limit: int) -> bytes:
    """The whole decoded body. Pure CPU work; safe in any thread."""
    return b"".join(Decoder(encoding, limit).slices(body))


def _identity(body: bytes) -> Iterator[bytes]:
    yield body


def _gzip(body: bytes) -> Iterator[bytes]:
    return _inflate(body, zlib.MAX_WBITS | 16)


def _deflate(body: bytes) -> Iterator[bytes]:
    # The standard says zlib format; old clients send the bare stream.
    wrapped = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflate(body, zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)


def _inflate(body: bytes, wbits: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits)
    at = 0
    while at < len(body) and not inflater.eof:
        pending = body[at : at + _INPUT_STEP]
        at += len(pending)
        while pending and not inflater.eof:
            yield inflater.decompress(pending, _OUTPUT_STEP)
            pending = inflater.unconsumed_tail
    if not inflater.eof:
        yield from _drained(inflater)
    if inflater.unused_data or at < len(body):
        raise _bad("is followed by other bytes")


def _drained(inflater: zlib._Decompress) -> Iterator[bytes]:
    """Output still inside after the last input byte; a stream that is not complete then was cut short."""
    while piece := inflater.decompress(b"", _OUTPUT_STEP):
        yield piece
    if not inflater.eof:
        raise _bad("is cut short")


def _zstd(body: bytes) -> Iterator[bytes]:
    # The library cannot cap the output of one call, but a block's is capped by the format: hand over one or two at a time.
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
    start = 0
    for end in _zstd_cuts(body):
        yield decompressor.decompress(body[start:end])
        start = end
    if not decompressor.eof:
        raise _bad("is corrupt")
    if start < len(body):
        raise _bad("is followed by other bytes")


def _zstd_cuts(body: bytes) -> Iterator[int]:
    """Offsets after each block of the one frame in `body`, the last being the end of the frame (RFC 8878, section 3.1.1)."""
    if body[:4] != _ZSTD_MAGIC:
        raise _bad("is not zstd" if len(body) >= 4 else "is cut short")
    flags = body[4] if len(body) > 4 else 0
    single = flags >> 5 & 1
    at = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
    for _ in range(_ZSTD_BLOCKS):
        header = int.from_bytes(body[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size) + (4 if last and flags & 4 else 0)
        if at > len(body):
            raise _bad("is cut short")
        yield at
        if last:
            return
    raise _bad("has too many blocks")


def _bad(what: str) -> DecodingError:
    return DecodingError("invalid_request", f"The compressed body {what}.")


_CODINGS = {b"identity": _identity, b"gzip": _gzip, b"x-gzip": _gzip, b"deflate": _deflate, b"zstd": _zstd}
