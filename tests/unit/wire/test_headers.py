"""What crosses from the replica's response head into the client's."""

import pytest

from gateway.wire.headers import HOP_BY_HOP, Header, chunk, connection_names, http_date, is_chunked, response_head, sift


def lines(head: bytes) -> list[bytes]:
    """The header lines of a well-formed head, status line first."""
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def head(headers: list[Header], status: int = 200, *, minor: int = 1, length: int | None = 2, keep_alive: bool = True) -> list[bytes]:
    return lines(response_head(status, headers, minor=minor, length=length, keep_alive=keep_alive))


def test_order_and_spelling_survive() -> None:
    """Headers of the replica go on as they came, repeated ones included."""
    headers = [(b"X-Foo", b"1"), (b"set-cookie", b"a=1"), (b"Set-Cookie", b"b=\xe9"), (b"x-empty", b"")]
    assert head(headers) == [
        b"HTTP/1.1 200 OK",
        b"X-Foo: 1",
        b"set-cookie: a=1",
        b"Set-Cookie: b=\xe9",
        b"x-empty: ",
        b"content-length: 2",
    ]


def test_hop_by_hop_headers_do_not_cross() -> None:
    """Neither the fixed ones nor those that Connection names; framing is told apart."""
    raw = [(name.title(), b"x") for name in sorted(HOP_BY_HOP)]
    sifted = sift([*raw, (b"Connection", b"close, X-Hop ,keep-alive"), (b"x-hop", b"1"), (b"X-Keep", b"1"), (b"Content-Length", b"5")])
    assert sifted.fields == [(b"X-Keep", b"1")]
    assert sifted.lengths == [b"5"]
    assert sifted.codings == [b"x"]


def test_connection_cannot_drop_what_a_message_needs() -> None:
    """A replica that lists content-type in Connection still gets it through."""
    headers = [
        (b"connection", b"content-type, x-a"),
        (b"content-type", b"text/plain"),
        (b"x-a", b"1"),
        (b"connection", b"X-B"),
        (b"x-b", b"1"),
    ]
    assert sift(headers).fields == [(b"content-type", b"text/plain")]
    assert connection_names([b"Host,Authorization, X-C\t"]) == {b"x-c"}


@pytest.mark.parametrize(
    ("minor", "length", "keep_alive", "expected"),
    [
        (1, 5, True, [b"content-length: 5"]),
        (1, 0, True, [b"content-length: 0"]),
        (1, 5, False, [b"content-length: 5", b"connection: close"]),
        (1, None, True, [b"transfer-encoding: chunked"]),
        (1, None, False, [b"transfer-encoding: chunked", b"connection: close"]),
        (0, 5, True, [b"content-length: 5", b"connection: keep-alive"]),
        (0, 5, False, [b"content-length: 5", b"connection: close"]),
        (0, None, True, [b"connection: close"]),
        (0, None, False, [b"connection: close"]),
    ],
)
def test_framing_fits_the_client(minor: int, length: int | None, keep_alive: bool, expected: list[bytes]) -> None:
    """One framing per message; HTTP/1.0 clients never get chunks and are told when the connection stays."""
    assert head([], minor=minor, length=length, keep_alive=keep_alive)[1:] == expected
    assert is_chunked(minor, length) == (b"transfer-encoding: chunked" in expected)


@pytest.mark.parametrize(("status", "length", "expected"), [(204, 0, []), (304, None, []), (304, 7, [b"content-length: 7"])])
def test_bodiless_answers_have_no_false_framing(status: int, length: int | None, expected: list[bytes]) -> None:
    """204 has no length, 304 keeps the declared one; neither is chunked nor closes the connection."""
    for minor in (0, 1):
        keep = [b"connection: keep-alive"] if minor == 0 else []
        assert head([], status, length=length, minor=minor)[1:] == expected + keep


def test_date_and_server_come_once() -> None:
    """The replica's first ones win; ours is added only where it sent none."""
    headers = [(b"Date", b"d1"), (b"date", b"d2"), (b"Server", b"s1"), (b"server", b"s2")]
    kwargs = {"minor": 1, "length": 0, "keep_alive": True}
    assert lines(response_head(200, headers, wall=784_111_777.9, **kwargs))[1:-1] == [b"Date: d1", b"Server: s1"]
    assert lines(response_head(200, [], wall=784_111_777.9, **kwargs))[1:-1] == [b"date: Sun, 06 Nov 1994 08:49:37 GMT"]
    assert lines(response_head(200, [], **kwargs))[1:-1] == []


def test_each_answer_has_its_own_date_and_lines() -> None:
    """Only what the replica's headers turn into is remembered."""
    kwargs = {"minor": 1, "keep_alive": True}
    for n in (1, 2):
        ours = b"x-request-id: %d\r\n" % n
        out = response_head(200, [(b"x-a", b"1")], ours, wall=n, length=n, **kwargs)
        assert lines(out)[1:] == [
            b"x-a: 1",
            b"date: Thu, 01 Jan 1970 00:00:0%d GMT" % n,
            b"x-request-id: %d" % n,
            b"content-length: %d" % n,
        ]
    assert lines(response_head(404, [(b"x-a", b"1")], length=0, **kwargs))[0] == b"HTTP/1.1 404 Not Found"


@pytest.mark.parametrize("kind", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8"])
def test_event_streams_are_marked_against_buffering(kind: bytes) -> None:
    """Proxies in front must neither cache nor collect an event stream; the replica's own words win."""
    out = head([(b"Content-Type", kind)], length=None)
    assert out[2:4] == [b"cache-control: no-cache", b"x-accel-buffering: no"]
    own = [(b"content-type", kind), (b"Cache-Control", b"no-store"), (b"X-Accel-Buffering", b"yes")]
    assert head(own, length=None)[1:4] == [b"%b: %b" % header for header in own]
    assert len(head([(b"content-type", b"application/json")])) == 3


def test_our_names_cannot_be_forged_by_a_replica() -> None:
    """x-kvgate-* is ours alone, and what we set ourselves comes once."""
    headers = [(b"X-KVGate-Replica", b"fake"), (b"X-Request-Id", b"theirs"), (b"Access-Control-Allow-Origin", b"*"), (b"x-a", b"1")]
    out = response_head(
        200,
        headers,
        b"x-request-id: ours\r\nx-kvgate-replica: a\r\n",
        minor=1,
        length=0,
        keep_alive=True,
        cors=True,
    )
    assert lines(out)[1:-1] == [b"x-a: 1", b"x-request-id: ours", b"x-kvgate-replica: a"]
    plain = response_head(200, headers, minor=1, length=0, keep_alive=True, replaced=frozenset())
    assert lines(plain)[1:-1] == [b"X-Request-Id: theirs", b"Access-Control-Allow-Origin: *", b"x-a: 1"]


@pytest.mark.parametrize(("status", "line"), [(200, b"HTTP/1.1 200 OK"), (429, b"HTTP/1.1 429 Too Many Requests"), (599, b"HTTP/1.1 599 ")])
def test_the_reason_is_ours(status: int, line: bytes) -> None:
    """A replica's reason phrase may hold anything, so it is never passed on."""
    assert head([], status)[0] == line


def test_chunks_are_framed() -> None:
    """Size in hex, data, line ends."""
    assert chunk(b"x" * 31) == b"1f\r\n" + b"x" * 31 + b"\r\n"


def test_dates_are_those_of_http() -> None:
    """RFC 9110 form, to the second."""
    assert http_date(784_111_777.9) == b"Sun, 06 Nov 1994 08:49:37 GMT"
