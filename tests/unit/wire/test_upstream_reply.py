"""Reading one response, however it is cut by the network."""

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.reply import BROKEN, COMPLETE, Reply
from tests.unit.wire.upstream_cases import CASES, CHUNKED, NAMES, OK, PLAIN, STRAY, Case


def read(case: Case, pieces: list[bytes]) -> tuple[str, int, bytes, tuple[tuple[bytes, bytes], ...]]:
    """What a connection makes of the pieces: verdict, status, body, headers."""
    reply = Reply(head_only=case.method == b"HEAD")
    body = b""
    for piece in pieces:
        if reply.state == COMPLETE:
            reply.keep_alive = reply.keep_alive and not piece.strip(b"\r\n")
            continue
        reply.feed(piece)
        body += reply.take()
        if reply.state == BROKEN:
            break
    if case.then == "fin":
        reply.end()
    if reply.state == COMPLETE:
        verdict = "reuse" if reply.keep_alive else "drop"
    else:
        verdict = "cut" if reply.status else "refused"
        assert case.then == "rst" or reply.fault
    return verdict, reply.status, body, reply.fields


@pytest.mark.parametrize("case", [*CASES, STRAY], ids=[*NAMES, STRAY.name])
def test_verdict_whole_and_in_pieces(case: Case) -> None:
    """The same answer in one read, in single bytes, or cut once at any place."""
    data = case.data
    expected = read(case, [data])
    assert expected[0] == case.verdict
    if case.verdict in ("reuse", "drop"):
        assert expected[1:3] == (case.status, case.body)
    elif case.verdict == "refused":
        assert expected[1:] == (0, b"", ())
    for at in range(1, len(data)) if len(data) < 1000 else (1, 500, len(data) // 2, len(data) - 1):
        assert read(case, [data[:at], data[at:]]) == expected
    if len(data) < 2500:
        assert read(case, [data[i : i + 1] for i in range(len(data))]) == expected


def test_interim_headers_do_not_mix_into_the_answer() -> None:
    """A 103's links are not the final response's headers; trailers are nobody's."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    reply = Reply()
    reply.feed(hints + OK + b"X-A:  1 \r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-T: v\r\n\r\n")
    assert (reply.state, reply.fields, reply.length, reply.take()) == (COMPLETE, ((b"X-A", b"1"),), None, b"hi")


def test_declared_length_is_told() -> None:
    """Also where no body follows, except for a 204, whose length means nothing."""
    heads = {b"200 OK": 5, b"304 Not Modified": 5, b"204 No Content": 0}
    for line, length in heads.items():
        reply = Reply()
        reply.feed(b"HTTP/1.1 " + line + b"\r\nContent-Length: 5\r\n\r\n")
        assert reply.length == length


@pytest.mark.parametrize("opening", [b"2\r\nhi\r\n1;", b"2\r\nhi\r\n0\r\nX-T: "])
def test_endless_framing_is_cut_off(opening: bytes) -> None:
    """A chunk extension or trailer without end must not be collected."""
    reply = Reply()
    reply.feed(CHUNKED + opening)
    assert reply.take() == b"hi"
    fed = 0
    while not reply.fault:
        reply.feed(b"x" * 1000)
        fed += 1000
    assert fed < 70_000


def test_small_chunks_without_end_are_no_abuse() -> None:
    """Framing is only counted as long as no content comes with it."""
    reply = Reply()
    reply.feed(CHUNKED)
    for _ in range(40_000):
        for piece in (b"1\r", b"\n", b"x", b"\r\n"):
            reply.feed(piece)
            reply.take()
    assert not reply.fault


def test_memory_is_freed_without_the_collector() -> None:
    """A closed reply leaves no reference cycle behind, whatever became of it."""

    gc.collect()
    gc.disable()
    try:
        for data in (PLAIN, CHUNKED + b"2\r\nh", b"junk", OK + b"X: \x00\r\n\r\n", b""):
            reply = Reply()
            reply.feed(data)
            reply.close()
            del reply
            assert gc.collect() == 0
    finally:
        gc.enable()


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from([*(c.data[:300] for c in CASES), b"\r\n", b"\n", b"0\r\n\r\n", b"HTTP/1.1 ", b": ", b"\x00"]), max_size=4).map(
        b"".join
    ),
    st.lists(st.integers(1, 300), max_size=6),
)
def test_any_bytes_in_any_pieces_mean_the_same(data: bytes, sizes: list[int]) -> None:
    """No order of reads makes a good answer of a bad one, or moves a byte from one to the other."""
    case = Case("any", data, "reuse", then="fin")
    pieces, rest = [], data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    whole = read(case, [data])
    parts = read(case, [*filter(None, pieces), rest] if rest else [*filter(None, pieces)])
    assert parts == whole
