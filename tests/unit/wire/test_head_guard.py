"""What `parse_head` makes of a head: what is forwarded, what the gateway keeps, what is refused."""

from __future__ import annotations

import pytest

from gateway.wire.framing import Bad
from gateway.wire.handler import RequestHead
from gateway.wire.head import head_end, parse_head, target_of

LINE = b"POST /v1/chat/completions?x=1&y HTTP/1.1\r\nHost: a\r\n"


def parse(*lines: bytes, line: bytes = LINE) -> RequestHead:
    return parse_head(line + b"".join(row + b"\r\n" for row in lines) + b"\r\n", 200)


def refusal(*lines: bytes, line: bytes = LINE) -> tuple[int, str]:
    with pytest.raises(Bad) as caught:
        parse(*lines, line=line)
    return caught.value.status, caught.value.code


def test_the_target_is_taken_apart_but_not_changed() -> None:
    """Path and query stay as received: nothing is decoded, normalised or re-encoded."""
    head = parse(line=b'GET //a/../%2e"<>\\^`{|}?q=%00?z HTTP/1.1\r\nHost: a\r\n')
    assert (head.method, head.target) == (b"GET", b'//a/../%2e"<>\\^`{|}?q=%00?z')
    assert (head.path, head.query) == (b'//a/../%2e"<>\\^`{|}', b"q=%00?z")


@pytest.mark.parametrize(
    ("target", "origin"),
    [(b"http://b/x?y", b"/x?y"), (b"https://b:99999", b"/"), (b"http://[::1]:80/x", b"/x"), (b"http://b?y", b"/?y")],
)
def test_the_authority_of_an_absolute_target_is_dropped(target: bytes, origin: bytes) -> None:
    """Where a request goes is not the client's choice."""
    assert origin == parse(line=b"GET %b HTTP/1.1\r\nHost: a\r\n" % target).target


@pytest.mark.parametrize("target", [b"http://u:p@b/", b"http:///x", b'http://b"c/'])
def test_an_absolute_target_needs_a_plain_authority(target: bytes) -> None:
    """User information, no host and odd characters are refused."""
    assert refusal(line=b"GET %b HTTP/1.1\r\nHost: a\r\n" % target) == (400, "invalid_request")


def test_other_headers_travel_on_in_order_and_spelling() -> None:
    """What the gateway has no business with is forwarded byte for byte."""
    lines = [b"X-Foo: 1", b"traceparent:00-ab", b"x-foo:  2 ", b"Cookie: \xe9\tb", b"X-Empty:"]
    assert parse(*lines).forward == b"".join(line + b"\r\n" for line in lines)


def test_hop_by_hop_headers_end_here() -> None:
    """Neither the standard ones nor those that Connection names reach a replica."""
    head = parse(
        b"Connection: X-Mine , keep-alive,TE",
        b"connection: x-other",
        b"TE: trailers",
        b"Trailer: x",
        b"Keep-Alive: timeout=5",
        b"Proxy-Authorization: Basic x",
        b"Proxy-Connection: close",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAAQAAP__",
        b"Expect: 100-continue",
        b"Content-Length: 3",
        b"X-Mine: 1",
        b"x-OTHER: 2",
        b"X-Kept: 3",
    )
    assert head.forward == b"X-Kept: 3\r\n"
    assert head.fields == {}
    assert (head.length, head.expect, head.keep_alive) == (3, True, True)


def test_connection_cannot_drop_headers_that_carry_meaning() -> None:
    """Naming cookies, forwarding or credentials in Connection has no effect."""
    head = parse(
        b"Connection: cookie, x-forwarded-proto, authorization, content-type, x-forwarded-for, x-request-id, host",
        b"Cookie: c",
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-For: 192.0.2.1",
        b"Authorization: Bearer k",
        b"Content-Type: application/json",
        b"X-Request-Id: r",
    )
    passed_on = b"content-type: application/json\r\nx-forwarded-for: 192.0.2.1\r\n"
    assert head.forward == b"Cookie: c\r\nX-Forwarded-Proto: https\r\n" + passed_on
    assert (head.fields) == {
        b"authorization": b"Bearer k",
        b"content-type": b"application/json",
        b"x-forwarded-for": b"192.0.2.1",
        b"x-request-id": b"r",
    }


def test_headers_the_gateway_reads_travel_on_only_where_harmless() -> None:
    """Keys, encodings, ids and the gateway's own headers are kept apart, values stripped."""
    names = [
        b"Authorization", b"X-API-Key", b"api-key", b"Accept-Encoding", b"Content-Type", b"Content-Encoding", b"X-Request-ID",
        b"X-Session-Id", b"Origin", b"Access-Control-Request-Method", b"Access-Control-Request-Headers", b"X-Forwarded-For",
        b"X-KvGate-Replica", b"x-kvgate-anything",
    ]  # fmt: skip
    head = parse(*(name + b":\t v%d \t" % i for i, name in enumerate(names)), b"X-Kvgates: not ours")
    assert {name.lower(): b"v%d" % i for i, name in enumerate(names)} == head.fields
    assert head.forward == b"X-Kvgates: not ours\r\ncontent-type: v4\r\nx-session-id: v7\r\nx-forwarded-for: v11\r\n"


@pytest.mark.parametrize("name", [b"Authorization", b"X-Api-Key", b"api-key", b"X-Session-Id", b"Origin", b"X-Kvgate-Replica"])
def test_a_header_repeated_with_another_value_is_refused(name: bytes) -> None:
    """Two different credentials are nobody's; the same one twice is one."""
    assert refusal(name + b": a", name.lower() + b": b") == (400, "invalid_request")
    assert {name.lower(): b"a"} == parse(name + b": a", name.upper() + b": a ").fields


@pytest.mark.parametrize("name", [b"Content-Type", b"Content-Encoding", b"X-Request-Id", b"Host", b"Content-Length"])
def test_a_header_that_may_be_there_once_is_refused_twice(name: bytes) -> None:
    """Even with equal values: two readers could take different ones for real."""
    assert refusal(name + b": 1", name + b": 1") == (400, "invalid_request")


@pytest.mark.parametrize("name", [b"accept-encoding", b"x-forwarded-for", b"access-control-request-headers"])
def test_repeated_list_headers_are_one_list(name: bytes) -> None:
    """Lines of a list header are joined in order."""
    assert {name: b"a, b"} == parse(name + b": a", name + b": b").fields


@pytest.mark.parametrize(
    ("minor", "connection", "stays"),
    [
        (1, None, True), (1, b"close", False), (1, b"Keep-Alive", True), (1, b"x, CLOSE", False), (1, b"keep-alive, close", False),
        (0, None, False), (0, b"keep-alive", True), (0, b"Keep-Alive, x", True), (0, b"close", False), (1, b"", True), (0, b",,", False),
    ],
)  # fmt: skip
def test_whether_a_connection_stays_open(minor: int, connection: bytes | None, stays: bool) -> None:
    """HTTP/1.1 stays unless it says close, HTTP/1.0 closes unless it says keep-alive, and close wins."""
    lines = [] if connection is None else [b"Connection: " + connection]
    assert stays is parse(*lines, line=b"GET / HTTP/1.%d\r\nHost: a\r\n" % minor).keep_alive


def test_expectations_are_for_http_1_1() -> None:
    """An HTTP/1.0 client would take an interim answer for the final one."""
    assert parse(b"Expect: 100-Continue").expect
    assert not parse(b"Expect: 100-continue", line=b"POST / HTTP/1.0\r\n").expect
    assert refusal(b"Expect: 100-continue", b"Expect: 100-continue") == (417, "expectation_failed")


@pytest.mark.parametrize(
    ("status", "code", "line"),
    [
        (501, "not_implemented", b"TRACE / HTTP/1.1\r\nHost: a\r\n"),
        (501, "not_implemented", b"PURGE /x HTTP/1.1\r\nHost: a\r\n"),
        (501, "not_implemented", b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n"),
        (505, "http_version", b"GET / HTTP/3\r\nHost: a\r\n"),
        (505, "http_version", b"GET / HTTP/1.9\r\nHost: a\r\n"),
        (400, "invalid_request", b"GET / HTTP/11.1\r\nHost: a\r\n"),
        (400, "invalid_request", b"M" * 25 + b" / HTTP/1.1\r\nHost: a\r\n"),
        (400, "invalid_request", b"GET / HTTP/1.1\r\nHost: a b\r\n"),
    ],
)
def test_what_is_wrong_with_a_request_line(status: int, code: str, line: bytes) -> None:
    """Version, method and form each have their own answer."""
    assert (status, code) == refusal(line=line)


def test_the_number_of_headers_is_limited() -> None:
    """As many as allowed pass, one more does not."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 9 + b"\r\n"
    assert parse_head(head, 10).forward == b"X: y\r\n" * 9
    with pytest.raises(Bad, match="more than the 9 headers"):
        parse_head(head, 9)


def test_no_headers_at_all() -> None:
    """HTTP/1.0 needs none."""
    head = parse(line=b"GET / HTTP/1.0\r\n")
    assert (head.forward, head.fields, head.length) == (b"", {}, 0)


def test_the_size_of_a_head_is_limited_exactly() -> None:
    """A head of the limit passes, one byte more does not, wherever its end is."""
    head = b"GET / HTTP/1.1\r\nX: " + b"y" * 100 + b"\r\n\r\n"
    assert len(head) == head_end(head + b"body", 0, len(head))
    for buffer in (head, head[:-1], head + b"body"):
        with pytest.raises(Bad) as caught:
            head_end(buffer, 0, len(head) - 2)
        assert caught.value.status == 431


def test_looking_for_the_end_goes_on_where_it_stopped() -> None:
    """The end is found when it straddles what was searched before."""
    head = b"GET / HTTP/1.1\r\n\r\n"
    for searched in range(len(head)):
        assert len(head) == head_end(head, searched, 99)


@pytest.mark.parametrize("beginning", [b"\x16", b" ", b"\n", b"\rG", b"\r\n\r", b"{", b"M" * 25, b"GET\t", b"\r\n\x80"])
def test_bytes_that_begin_no_request_are_refused_at_once(beginning: bytes) -> None:
    """TLS, JSON or blanks are not waited on until the timeout."""
    with pytest.raises(Bad):
        head_end(beginning, 0, 99)


@pytest.mark.parametrize("beginning", [b"", b"\r", b"\r\n", b"\r\nG", b"G", b"GET", b"GET ", b"GET /x HTT", b"M" * 24, b"m "])
def test_beginnings_of_a_request_are_waited_on(beginning: bytes) -> None:
    """Anything that can still become a request, or a proper refusal."""
    assert head_end(beginning, 0, 99) == 0


def test_the_target_of_a_refused_head() -> None:
    """It decides the shape of the error; without a readable request line there is none."""
    assert target_of(b"POST /v1/messages HTTP/1.1\r\nbroken\r\n\r\n") == b"/v1/messages"
    assert target_of(b"nonsense\r\n\r\n") is None
