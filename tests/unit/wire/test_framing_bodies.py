"""Body readers: the same bytes and the same end however the input is cut, and nothing lenient."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.framing import Bad, Counted, Dechunk

TOKENS = st.sampled_from(
    [
        b"0",
        b"1",
        b"2",
        b"a",
        b"5",
        b"00",
        b"\r\n",
        b"\r",
        b"\n",
        b";a=b",
        b"x",
        b"hello",
        b"+",
        b"0x",
        b" ",
        b"X-T: v",
        b"0\r\n\r\n",
        b"1\r\nx\r\n",
    ]
)


def decode(limit: int, *pieces: bytes) -> tuple[bytes, bytes] | int | None:
    """(body, rest), the status of a refusal, or None while incomplete."""
    reader = Dechunk(limit)
    rest = None
    try:
        for i, piece in enumerate(pieces):
            rest = reader.feed(piece)
            if rest is not None:
                return reader.take(), rest + b"".join(pieces[i + 1 :])
    except Bad as bad:
        return bad.status
    return None


def llhttp(data: bytes) -> bytes | None:
    """The body as llhttp reads it; None when incomplete or refused."""

    class Body:
        def __init__(self) -> None:
            self.parts: list[bytes] = []
            self.complete: bytes | None = None

        def on_body(self, part: bytes) -> None:
            self.parts.append(part)

        def on_message_complete(self) -> None:
            if self.complete is None:
                self.complete = b"".join(self.parts)

    body = Body()
    try:
        httptools.HttpRequestParser(body).feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        pass
    return body.complete


@given(st.lists(TOKENS, max_size=14).map(b"".join))
@settings(max_examples=400, deadline=None)
def test_chunked_bodies_are_read_as_llhttp_reads_them(data: bytes) -> None:
    """Two readers of different authors see the same bodies, and no cut changes what is seen."""
    whole = decode(1 << 20, data)
    assert whole == decode(1 << 20, *(data[i : i + 1] for i in range(len(data))))
    assert whole == decode(1 << 20, *(data[i : i + 3] for i in range(0, len(data), 3)))
    assert llhttp(data) == (whole[0] if isinstance(whole, tuple) else None)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.binary(max_size=20), st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_a_chunked_body_comes_out_as_it_went_in(chunks: list[bytes], behind: bytes, step: int) -> None:
    """Data is kept, framing, extensions and trailers are dropped, and what follows is given back."""
    data = b"".join(b"%X;e=1\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\nX-T: \xe9\r\nY:\r\n\r\n" + behind
    assert (b"".join(chunks), behind) == decode(1 << 20, *(data[i : i + step] for i in range(0, len(data), step)))


@given(st.binary(max_size=60), st.integers(0, 40), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_a_counted_body_ends_at_its_length(data: bytes, length: int, step: int) -> None:
    """Bytes behind it are given back; before that it is incomplete."""
    reader = Counted(length)
    rest = None
    for i in range(0, max(len(data), 1), step):
        rest = reader.feed(data[i : i + step])
        if rest is not None:
            rest += data[i + step :]
            break
    if len(data) < length:
        assert rest is None
        assert len(data) == reader.size
    else:
        assert (data[:length], data[length:]) == (reader.take(), rest)


def test_a_chunked_body_over_the_limit_is_refused_by_its_sizes() -> None:
    """Before the data arrives, and for many small chunks as for a big one."""
    assert decode(5, b"3\r\n123\r\n2\r\n45\r\n0\r\n\r\n") == (b"12345", b"")
    assert decode(5, b"6\r\n") == 413
    assert decode(5, b"3\r\n123\r\n3\r\n") == 413
    assert decode(5, b"ffffffffffffffff\r\n") == 413


@pytest.mark.parametrize("cut", [1, 2, 7, 4096])
def test_trailers_are_limited(cut: int) -> None:
    """All of them together, in whatever pieces they arrive."""
    short = b"0\r\n" + b"X: y\r\n" * 1300 + b"\r\n"
    long = b"0\r\n" + b"X: y\r\n" * 1400 + b"\r\n"
    assert decode(9, *(short[i : i + cut] for i in range(0, len(short), cut))) == (b"", b"")
    assert decode(9, *(long[i : i + cut] for i in range(0, len(long), cut))) == 400


def test_a_size_line_is_limited_before_it_ends() -> None:
    """Nobody can fill the memory with a chunk extension."""
    assert decode(9, b"5;" + b"a" * 252 + b"\r\n") is None
    assert decode(9, b"5;" + b"a" * 253) is None
    assert decode(9, b"5;" + b"a" * 254) == 400


def test_a_body_of_tiny_chunks_costs_its_size() -> None:
    """Memory follows the bytes of the body, not the number of its chunks."""
    reader = Dechunk(1 << 20)
    reader.feed(b"1\r\nx\r\n" * 50_000)
    assert reader.size == 50_000
    assert reader._data.__sizeof__() < 80_000
