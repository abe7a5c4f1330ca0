"""The one-pass guard against a slow, readable one, on heads put together from good and bad parts."""

from __future__ import annotations

import re

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.framing import Bad
from gateway.wire.head import parse_head

METHODS = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"]
HOP = [
    b"te", b"trailer", b"upgrade", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"http2-settings", b"expect", b"host",
    b"content-length", b"transfer-encoding", b"connection",
]  # fmt: skip
EQUAL = [b"authorization", b"x-api-key", b"api-key", b"x-session-id", b"origin"]
ONCE = [b"content-type", b"content-encoding", b"x-request-id", b"access-control-request-method"]
LISTS = [b"accept-encoding", b"x-forwarded-for", b"access-control-request-headers"]
PASSED_ON = [b"content-type", b"x-session-id", b"x-forwarded-for"]
Seen = tuple[bytes, bytes, int, int | None, bool, bool, list[tuple[bytes, bytes]], dict[bytes, bytes]]


class Collect:
    """Every header as llhttp sees it."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = self.complete = 0

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete += 1


def oracle(head: bytes) -> int | Seen:
    """The status of a refusal, or all there is to know of the request."""
    head = head.removeprefix(b"\r\n")
    token = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
    line = re.match(rb"(" + token + rb"{1,24}) ([!-~]+) HTTP/(\d(?:\.\d)?)\r\n", head)
    if not line:
        return 400
    method, target, version = line.groups()
    if version not in (b"1.0", b"1.1"):
        return 505
    if method not in METHODS:
        return 501
    seen = Collect()
    try:
        httptools.HttpRequestParser(seen).feed_data(head)
    except httptools.HttpParserUpgrade as stop:
        if stop.args[0] != len(head):
            return 400
    except httptools.HttpParserError:
        return 400
    if (seen.begun, seen.complete) != (1, 1):
        return 400
    if len(seen.headers) > 12:
        return 431
    every: dict[bytes, list[bytes]] = {}
    for name, value in seen.headers:
        every.setdefault(name.lower(), []).append(value)
    minor = int(version[-1:])
    return judge(method, target, minor, every, seen.headers)


def judge(method: bytes, target: bytes, minor: int, every: dict[bytes, list[bytes]], headers: list[tuple[bytes, bytes]]) -> int | Seen:
    if b"content_length" in every or b"transfer_encoding" in every:
        return 400
    for name, values in every.items():
        if len(values) > 1 and name in [*ONCE, b"host", b"content-length", b"transfer-encoding"]:
            return 400
        if len(set(values)) > 1 and (name in EQUAL or name.startswith(b"x-kvgate-")):
            return 400
    tokens = {t.strip(b" \t").lower() for v in every.get(b"connection", []) for t in v.split(b",")}
    host = every.get(b"host")
    if (host is None and minor) or (
        host is not None and not re.fullmatch(rb"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(:\d{0,5})?", host[0])
    ):
        return 400
    origin = origin_form(method, target)
    if origin is None:
        return 400
    length: int | None = 0
    if b"transfer-encoding" in every:
        if not minor or b"content-length" in every:
            return 400
        if every[b"transfer-encoding"][0].lower() != b"chunked":
            return 501
        length = None
    elif b"content-length" in every:
        digits = every[b"content-length"][0]
        if not re.fullmatch(rb"[0-9]{1,12}", digits):
            return 400
        length = int(digits)
    expect = every.get(b"expect")
    if expect and [e.lower() for e in expect] != [b"100-continue"]:
        return 417
    kept = (bool(minor) or b"keep-alive" in tokens) and b"close" not in tokens
    lines = [(n, v) for n, v in headers if forwarded(n.lower(), tokens)]
    fields = {
        n: v[0] if n not in LISTS else b", ".join(v) for n, v in every.items() if n in EQUAL + ONCE + LISTS or n.startswith(b"x-kvgate-")
    }
    lines += [(n, fields[n].strip()) for n in PASSED_ON if n in fields]  # a list of empty values ends in a blank, which is not read back
    return method, origin, minor, length, kept, bool(expect) and minor == 1, lines, fields


def origin_form(method: bytes, target: bytes) -> bytes | None:
    if target == b"*":
        return target if method == b"OPTIONS" else None
    if target.startswith(b"/"):
        return None if b"#" in target else target
    absolute = re.fullmatch(rb"https?://([0-9A-Za-z.:\[\]-]+)([/?][^#]*)?", target)
    if not absolute:
        return None
    rest = absolute[2] or b"/"
    return rest if rest.startswith(b"/") else b"/" + rest


def forwarded(name: bytes, tokens: set[bytes]) -> bool:
    if name in HOP + EQUAL + ONCE + LISTS or name.startswith(b"x-kvgate-"):
        return False
    return name not in tokens or name in (b"cookie", b"forwarded") or name.startswith(b"x-forwarded-")


def ours(head: bytes) -> int | Seen:
    try:
        h = parse_head(head, 12)
    except Bad as bad:
        return bad.status
    lines = [(n, v.strip(b" \t")) for n, _, v in (line.partition(b":") for line in h.forward.split(b"\r\n")[:-1])]
    return h.method, h.target, h.minor, h.length, h.keep_alive, h.expect, lines, h.fields


def either(good: list[bytes], bad: list[bytes]) -> st.SearchStrategy[bytes]:
    """One of `bad` about once in eighty."""
    return st.sampled_from(good * (1 + 79 * len(bad) // len(good)) + bad)


LINES = st.tuples(
    either(METHODS, [b"CONNECT", b"TRACE", b"get", b"PRI", b"M-SEARCH", b"", b"G\x00T", b"A" * 25]),
    either([b" "], [b"  ", b"\t", b""]),
    either(
        [b"/", b"/v1/x?y=1", b"//a/..", b"*", b"http://b/x", b"https://b:80", b"http://b?q"],
        [b"", b"x", b"*x", b"/#f", b"/\xff", b"/a b", b"http://", b"http://u@b/", b"/\x7f", b"ftp://b/", b"h:443"],
    ),
    either([b" "], [b"  ", b"\t"]),
    either([b"HTTP/1.1", b"HTTP/1.0"], [b"HTTP/1.2", b"HTTP/2", b"HTTP/0.9", b"http/1.1", b"RTSP/1.0", b"HTTP/1.1 ", b"HTTP/11.1"]),
    either([b"\r\n"], [b"\n", b"\r", b"\r\r\n"]),
).map(b"".join)
NAMES = either(
    [*HOP, *EQUAL, *ONCE, *LISTS, *[b"X-Kvgate-Replica", b"Cookie", b"X-Forwarded-Proto", b"X-A", b"User-Agent", b"Connection"] * 4],
    [b"", b" X", b"X ", b"X\x00", b"\xc3\xa9", b"Content_Length", b"Transfer_Encoding", b"X(", b"X@"],
)
VALUES = either(
    [b"", b"a", b"5", b"chunked", b"close", b"keep-alive, x-a", b"100-continue", b"a.b:80", b"cookie", b"0", b"\xe9\t!", b"upgrade", b"b"],
    [b"a\nb", b"a\rb", b"\x00", b"\x7f", b"5, 5", b"+5", b"gzip, chunked", b"a\r\n b", b"u@a", b"9" * 13, b"18446744073709551616"],
)
ROWS = st.tuples(
    NAMES, either([b": ", b":"], [b" : ", b"", b":\t", b": \x0b"]), VALUES, either([b"\r\n"], [b"\n", b" \r\n", b"\t\r\n", b"\r"])
)
HEADS = st.tuples(
    either([b""], [b"\r\n", b"\n", b"\r"]),
    LINES,
    st.sampled_from([b"Host: a\r\n", b"Host: a\r\n", b""]),
    st.lists(ROWS.map(b"".join), max_size=8).map(b"".join),
    st.just(b"\r\n"),
).map(b"".join)


@given(HEADS)
@settings(max_examples=1000, deadline=None)
def test_heads_are_judged_as_the_readable_guard_judges_them(head: bytes) -> None:
    """Same status, or the same request with the same headers for everybody."""
    end = head.find(b"\r\n\r\n") + 4
    assert ours(head[:end]) == oracle(head[:end])


@given(st.binary(max_size=4), st.integers(0, 400), st.integers(0, 4))
@settings(max_examples=600, deadline=None)
def test_damaged_heads_are_judged_alike(junk: bytes, at: int, gap: int) -> None:
    """Bytes overwritten anywhere in an ordinary head never make the two guards see different requests."""
    good = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw.example:8080\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n"
        b"Connection: keep-alive\r\nX-Stainless-Lang: python\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 20\r\n\r\n"
    )
    at %= len(good) - 4
    head = good[:at] + junk + good[at + gap :]
    end = head.find(b"\r\n\r\n") + 4
    if end >= 4:
        assert ours(head[:end]) == oracle(head[:end])
