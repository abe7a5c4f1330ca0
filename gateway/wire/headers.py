"""Response heads in both directions: what of a replica's head goes on to the client, and how the client's head is written.

Names are compared in lower case and passed on in the replica's spelling. Values come from a strict parser and are passed on as they are.
"""

from collections.abc import Iterable, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)

# `Connection` may name further headers to drop, but a message that names one of these would lose its meaning.
ESSENTIAL: Final = frozenset(
    (
        b"authorization",
        b"cache-control",
        b"content-encoding",
        b"content-type",
        b"cookie",
        b"date",
        b"host",
        b"retry-after",
        b"set-cookie",
        b"www-authenticate",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    )
)

LAST_CHUNK: Final = b"0\r\n\r\n"
_SINGLE: Final = frozenset((b"date", b"server"))
_OURS: Final = b"x-kvgate-"
_REQUEST_ID: Final = frozenset((b"x-request-id",))
_STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode("ascii")) for status in HTTPStatus}


class Sifted(NamedTuple):
    """A replica's headers, split into those of the message and those of the connection."""

    fields: list[Header]
    lengths: list[bytes]
    codings: list[bytes]


def connection_names(values: Iterable[bytes]) -> set[bytes]:
    """Lower-case header names that `Connection` values ask to drop: RFC 9110 section 7.6.1, less the essential ones."""
    return {name.strip(b" \t").lower() for value in values for name in value.split(b",")} - ESSENTIAL


def sift(headers: list[Header]) -> Sifted:
    """Separates end-to-end headers (order and spelling kept) from content-length and transfer-encoding values; drops hop-by-hop ones."""
    sifted = Sifted([], [], [])
    keep, lengths, codings = sifted
    options: list[bytes] = []
    for header in headers:
        name = header[0].lower()
        if name == b"content-length":
            lengths.append(header[1])
        elif name not in HOP_BY_HOP:
            keep.append(header)
        elif name == b"transfer-encoding":
            codings.append(header[1])
        elif name == b"connection":
            options.append(header[1])
    if options and (named := connection_names(options)):
        keep[:] = [header for header in keep if header[0].lower() not in named]
    return sifted


def is_chunked(minor: int, length: int | None) -> bool:
    """Whether a body of this length (None: unknown) goes to an HTTP/1.`minor` client in chunks. A 1.0 client reads until close instead."""
    return length is None and minor >= 1


def response_head(
    status: int,
    headers: Sequence[Header],
    extra: bytes = b"",
    *,
    minor: int,
    length: int | None,
    keep_alive: bool,
    wall: float | None = None,
    replaced: frozenset[bytes] = _REQUEST_ID,
    cors: bool = False,
) -> bytes:
    """A complete response head for the client.

    `headers` are the replica's end-to-end ones (see `sift`); `extra` holds whole header lines of ours, each with its CRLF, and `replaced`
    the lower-case names among them that the replica's headers must not repeat. `length` is the content length in bytes, None for unknown:
    chunked for HTTP/1.1 clients, until close for HTTP/1.0 ones. `wall`: the time, in seconds since the epoch, for a date where the replica
    sent none. `cors`: the gateway itself speaks access-control.
    """
    passed, dated = _passed_on(status, tuple(headers), replaced, cors)
    if wall is not None and not dated:
        extra = b"date: %b\r\n%b" % (http_date(wall), extra)
    return passed + extra + _framing(status, minor, length, keep_alive)


# Answers of one replica within one second differ in nothing of this. Few entries, as each may hold a whole head of 64 KB.
@lru_cache(maxsize=64)
def _passed_on(status: int, headers: tuple[Header, ...], replaced: frozenset[bytes], cors: bool) -> tuple[bytes, bool]:
    """The status line and the lines made of the replica's headers, and whether a date is among them."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    seen: set[bytes] = set()
    stream = False
    for name, value in headers:
        key = name.lower()
        if key in replaced or (key in _SINGLE and key in seen) or key.startswith(_OURS) or (cors and key.startswith(b"access-control-")):
            continue
        seen.add(key)
        if key == b"content-type" and value[:17].lower() == b"text/event-stream":
            stream = True
        lines.append(b"%b: %b\r\n" % (name, value))
    if stream:
        if b"cache-control" not in seen:
            lines.append(b"cache-control: no-cache\r\n")
        if b"x-accel-buffering" not in seen:
            lines.append(b"x-accel-buffering: no\r\n")
    return b"".join(lines), b"date" in seen


def _framing(status: int, minor: int, length: int | None, keep_alive: bool) -> bytes:
    """The lines that tell the client where the body ends and whether the connection goes on, and the blank line."""
    if status == 204:
        body = b""
    elif length is not None:
        body = b"content-length: %d\r\n" % length
    elif status == 304:
        body = b""
    elif is_chunked(minor, length):
        body = b"transfer-encoding: chunked\r\n"
    else:
        body, keep_alive = b"", False
    if not keep_alive:
        return body + b"connection: close\r\n\r\n"
    return body + (b"connection: keep-alive\r\n\r\n" if minor == 0 else b"\r\n")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body. `data` must not be empty: an empty chunk would end the body (see `LAST_CHUNK`)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def http_date(wall: float) -> bytes:
    """RFC 9110 date of a wall-clock time in seconds since the epoch."""
    return _date_of_second(int(wall))


@lru_cache(maxsize=4)
def _date_of_second(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode("ascii")
