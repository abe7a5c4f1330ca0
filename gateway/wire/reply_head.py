"""The head of one response: judged whole, and remembered, for a replica sends nearly the same one every time. Pure.

llhttp accepts more than a proxy may: other protocols' status lines, statuses outside 100-599, codings it does not undo, several framings.
So status line and framing are checked here as well; a head is good only where both readers agree.
"""

import re
from functools import lru_cache
from typing import Final

import httptools
import msgspec

from gateway.wire.headers import Header, sift
from gateway.wire.lengths import REMEMBERED_BYTES, without_length

HEAD_FIELDS = 256

# How a body ends: there is none, after `length` bytes, with its last chunk, or with the connection.
BODILESS: Final = 0
COUNTED: Final = 1
CHUNKED: Final = 2
OPEN: Final = 3

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])[ \r]")


class ReplyHeadError(Exception):
    """Not the head of a response that can be relayed; the text says why."""


class ReplyHead(msgspec.Struct, frozen=True, gc=False):
    """A good head. Immutable: heads that are alike share all but `length`.

    `fields`: end-to-end headers in the replica's spelling. `length`: declared content length in bytes, None if there is none. `framing`:
    one of the four above. `keep_alive`: what it says about the connection, provided that the body ends as it should.
    """

    status: int
    fields: tuple[Header, ...]
    framing: int
    length: int | None
    keep_alive: bool


def read_reply_head(head: bytes) -> ReplyHead:
    """The response whose head is exactly `head`, final or interim. Raises `ReplyHeadError`."""
    if len(head) > REMEMBERED_BYTES:
        return _read(head)
    alike, length = without_length(head)
    read = _remembered(alike)
    # A 204 has no length, whatever it says.
    return msgspec.structs.replace(read, length=length) if length and read.status != 204 else read


def _read(head: bytes) -> ReplyHead:
    line = _STATUS_LINE.match(head)
    # A head is cut off at its blank line: with bare line feeds it would end elsewhere for others.
    if line is None or head.count(b"\n") != head.count(b"\r\n"):
        raise ReplyHeadError("bad status line or line ends")
    witness = _Witness(head)
    if len(witness.headers) > HEAD_FIELDS:
        raise ReplyHeadError("too many response headers")
    fields, lengths, codings = sift(witness.headers)
    if len(lengths) + len(codings) > 1 or (lengths and not lengths[0].isdigit()):
        raise ReplyHeadError("ambiguous content length")
    if codings and codings[0].lower() != b"chunked":
        raise ReplyHeadError("unknown transfer coding")
    status = int(line[2])
    length = int(lengths[0]) if lengths else None
    framing = COUNTED if lengths else CHUNKED if codings else OPEN
    if status < 200 or status in (204, 304):
        framing = BODILESS
        length = 0 if status == 204 else length
    # Whoever sends chunks under HTTP/1.0 does not know what it is doing.
    keep_alive = witness.keep_alive and not (codings and line[1] == b"0")
    return ReplyHead(status, tuple(fields), framing, length, keep_alive)


class _Witness:
    """What llhttp makes of a head. Raises `ReplyHeadError` where it disagrees."""

    __slots__ = ("headed", "headers", "keep_alive", "parser")

    def __init__(self, head: bytes) -> None:
        self.headers: list[Header] = []
        self.headed = self.keep_alive = False
        self.parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        try:
            self.parser.feed_data(head)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ReplyHeadError(str(error) or type(error).__name__) from None
        finally:
            # Without the cycle, memory is freed at once.
            self.parser = None
        if not self.headed:
            raise ReplyHeadError("bad status line or head")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.headed = True
        # llhttp answers this rightly only from inside its callbacks.
        self.keep_alive = self.parser.should_keep_alive()  # type: ignore[union-attr]


# Refusals are not kept: they are rare, and end the connection.
_remembered = lru_cache(maxsize=64)(_read)
