"""The guard at the door: one pass over a request head, which two parsers of different authors must both accept.

The regular expression below is the grammar we mean (RFC 9112, read strictly); llhttp is the second opinion. What either refuses is
refused, so that no request can mean one thing here and another at a replica. A replica never sees a client's framing or hop-by-hop
headers at all. Clients that keep their connection send nearly the same head each time, so the latest verdicts are remembered.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.wire.framing import Bad
from gateway.wire.handler import RequestHead
from gateway.wire.lengths import REMEMBERED_BYTES, without_length

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_HEAD: Final = re.compile(
    rb"(GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) (/[!-\"$-~]*+|\*|https?://[!-\"$-~]++) HTTP/1\.([01])\r\n"
    rb"(?:" + _TOKEN + rb"++:[\t -~\x80-\xff]*+\r\n)*+\r\n"
)
_BEGINNING: Final = re.compile(rb"\r?\Z|(?:\r\n)?(?:\Z|" + _TOKEN + rb"{1,24}(?: |\Z))")
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"{1,24}) ([!-~]++) HTTP/([0-9](?:\.[0-9])?)\r\n")
_AUTHORITY: Final = rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?"
_HOST: Final = re.compile(_AUTHORITY)
_ABSOLUTE: Final = re.compile(rb"https?://(?=[^/?])" + _AUTHORITY + rb"(?P<rest>[/?].*)?")
_METHODS: Final = frozenset([b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"])
_MOST_LENGTH_DIGITS: Final = 12

# Header names that do not simply travel on: those of this hop, and those the gateway reads itself (which includes all of `_OWN`).
_HOP, _FIELD = 1, 2
_PLACE: Final[dict[bytes, int]] = {
    **dict.fromkeys([b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"], _HOP),
    **dict.fromkeys([b"te", b"trailer", b"upgrade", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"http2-settings"], _HOP),
    **dict.fromkeys([b"content_length", b"transfer_encoding"], _HOP),
    **dict.fromkeys([b"authorization", b"x-api-key", b"api-key", b"x-request-id", b"x-session-id", b"x-forwarded-for"], _FIELD),
    **dict.fromkeys([b"content-type", b"content-encoding", b"accept-encoding", b"origin"], _FIELD),
    **dict.fromkeys([b"access-control-request-method", b"access-control-request-headers"], _FIELD),
}
_OWN: Final = b"x-kvgate-"
# Read by the gateway, harmless to a replica, so they travel on. Credentials, x-kvgate-* and accept-encoding do not.
_PASSED_ON: Final = (b"content-type", b"x-session-id", b"x-forwarded-for")
# What repeating one of them means: a list, or a mere repetition when the values are equal. Any other repetition is refused.
_LISTS: Final = frozenset(
    [b"connection", b"te", b"trailer", b"upgrade", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"http2-settings",
     b"expect", b"accept-encoding", b"x-forwarded-for", b"access-control-request-headers"]
)  # fmt: skip
_REPEATABLE: Final = frozenset([b"authorization", b"x-api-key", b"api-key", b"x-session-id", b"origin"])
# `Connection` may name further headers of this hop, but never one of these: without it the request would mean something else.
_END_TO_END: Final = re.compile(rb"cookie|forwarded|x-forwarded-.*", re.DOTALL)


def head_end(buffer: bytes | bytearray, searched: int, limit: int) -> int:
    """Where the head at the start of `buffer` ends; 0 while it is incomplete. `searched` bytes were looked at before.

    Raises `Bad` once there are more than `limit` bytes of head, or at the first bytes that no request begins with.
    """
    end = buffer.find(b"\r\n\r\n", searched - 3 if searched > 3 else 0) + 4
    if end > limit or (end < 4 and len(buffer) > limit):
        raise Bad("headers_too_large", f"The request head is larger than the {limit} bytes allowed here.")
    if end >= 4:
        return end
    if not _BEGINNING.match(buffer):
        raise Bad("invalid_request", "This is not an HTTP/1.1 request. (Is the client speaking TLS or the PROXY protocol?)")
    return 0


def parse_head(head: bytes, most: int) -> RequestHead:
    """The request whose head is exactly `head`, with at most `most` header lines; one stray CRLF before it is forgiven. Raises `Bad`."""
    if len(head) > REMEMBERED_BYTES:
        return _parse(head, most)
    alike, length = without_length(head)
    parsed = _remembered(alike, most)
    return msgspec.structs.replace(parsed, length=length) if length else parsed


def _parse(head: bytes, most: int) -> RequestHead:
    if head.startswith(b"\r\n"):
        head = head[2:]
    shape = _HEAD.fullmatch(head)
    if shape is None:
        raise _explain(head)
    rows = head.split(b"\r\n")[1:-2]
    if len(rows) > most:
        raise Bad("headers_too_large", f"The request has more than the {most} headers allowed here.")
    if not _llhttp_agrees(head):
        raise Bad("invalid_request", "The request head is malformed.")
    lines, hop, fields = _sort(rows)
    method, target, version = shape.groups()
    minor = 1 if version == b"1" else 0
    keep_alive = minor == 1
    if b"connection" in hop:
        keep_alive, lines = _connection(hop[b"connection"].lower(), keep_alive, lines)
    _check_host(hop.get(b"host"), minor)
    if not target.startswith(b"/"):
        target = _origin_form(method, target)
    path, _, query = target.partition(b"?")
    length = _body_length(hop, minor)
    expect = b"expect" in hop and _expects(hop[b"expect"], minor)
    return RequestHead(method, target, path, query, minor, keep_alive, length, expect, _forward(lines, fields), fields)


# Refusals are not kept: who sends such heads pays for them each time. What is kept holds clients' credentials, as the requests do.
_remembered: Final = lru_cache(maxsize=128)(_parse)


def target_of(head: bytes) -> bytes | None:
    """The request target of a head that was refused, where it can be read at all."""
    line = _REQUEST_LINE.match(head.lstrip(b"\r\n"))
    return None if line is None else line[2]


class _Witness:
    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads = 0

    def on_headers_complete(self) -> None:
        self.heads += 1


def _llhttp_agrees(head: bytes) -> bool:
    witness = _Witness()
    try:
        HttpRequestParser(witness).feed_data(head)
    except HttpParserUpgrade as stopped:
        return witness.heads == 1 and stopped.args[0] == len(head)
    except HttpParserError:
        return False
    return witness.heads == 1


def _explain(head: bytes) -> Bad:
    """Why this is no head for us: the version, the method, or else its form."""
    line = _REQUEST_LINE.match(head)
    if line is None:
        return Bad("invalid_request", "The request line is malformed.")
    if line[3] not in (b"1.0", b"1.1"):
        return Bad("http_version", "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
    if line[1] not in _METHODS:
        return Bad("not_implemented", "This request method is not implemented.")
    return Bad("invalid_request", "The request target or a header line is malformed.")


def _sort(rows: list[bytes]) -> tuple[list[bytes], dict[bytes, bytes], dict[bytes, bytes]]:
    """Header lines by destination: for the replica, for this hop, for the gateway to read."""
    lines: list[bytes] = []
    hop: dict[bytes, bytes] = {}
    fields: dict[bytes, bytes] = {}
    place_of = _PLACE.get
    for row in rows:
        name, _, value = row.partition(b":")
        name = name.lower()
        place = place_of(name)
        if place is None and not name.startswith(_OWN):
            lines.append(row)
            continue
        found = hop if place == _HOP else fields
        value = value.strip(b" \t")
        found[name] = value if name not in found else _repeated(name, found[name], value)
    return lines, hop, fields


def _repeated(name: bytes, first: bytes, second: bytes) -> bytes:
    if name in _LISTS:
        return first + b", " + second
    if first == second and (name in _REPEATABLE or name.startswith(_OWN)):
        return first
    raise Bad("invalid_request", f"The header {name.decode()!r} is repeated.")


def _connection(value: bytes, keep_alive: bool, lines: list[bytes]) -> tuple[bool, list[bytes]]:
    """Whether the connection lives on, and the lines without those that `Connection` (in lower case) declares to be of this hop."""
    if value == b"keep-alive":
        return True, lines
    tokens = {token.strip(b" \t") for token in value.split(b",")}
    named = {token for token in tokens if not _END_TO_END.fullmatch(token)}
    lines = [line for line in lines if line[: line.index(b":")].lower() not in named]
    return b"close" not in tokens and (keep_alive or b"keep-alive" in tokens), lines


def _forward(lines: list[bytes], fields: dict[bytes, bytes]) -> bytes:
    passed = [name + b": " + fields[name] for name in _PASSED_ON if name in fields]
    return b"".join([line + b"\r\n" for line in lines + passed])


def _check_host(host: bytes | None, minor: int) -> None:
    if host is None:
        if minor:
            raise Bad("invalid_request", "The request has no Host header.")
    elif not _HOST.fullmatch(host):
        raise Bad("invalid_request", "The Host header is malformed.")


def _origin_form(method: bytes, target: bytes) -> bytes:
    """The target without scheme and authority; where a request goes is never the client's choice."""
    if target == b"*":
        if method != b"OPTIONS":
            raise Bad("invalid_request", "The target * belongs to OPTIONS only.")
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Bad("invalid_request", "The request target is malformed.")
    rest = absolute["rest"] or b"/"
    return rest if rest.startswith(b"/") else b"/" + rest


def _body_length(hop: dict[bytes, bytes], minor: int) -> int | None:
    if b"content_length" in hop or b"transfer_encoding" in hop:
        # Some servers read an underscore as a dash.
        raise Bad("invalid_request", "A header name looks like one that frames the body.")
    coding = hop.get(b"transfer-encoding")
    length = hop.get(b"content-length")
    if coding is not None:
        if not minor or length is not None:
            raise Bad("invalid_request", "Transfer-Encoding is not allowed in HTTP/1.0, nor beside Content-Length.")
        if coding.lower() != b"chunked":
            raise Bad("not_implemented", "The only transfer coding implemented is chunked.")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > _MOST_LENGTH_DIGITS:
        raise Bad("invalid_request", "The Content-Length header is malformed.")
    return int(length)


def _expects(value: bytes, minor: int) -> bool:
    if value.lower() != b"100-continue":
        raise Bad("expectation_failed", "The only expectation met here is 100-continue.")
    return minor == 1
