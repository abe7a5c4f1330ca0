"""Heads that differ in their content length only are parsed once, and nobody can tell."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.framing import Bad
from gateway.wire.handler import RequestHead
from gateway.wire.head import parse_head
from gateway.wire.lengths import REMEMBERED_BYTES, without_length
from gateway.wire.reply import BROKEN, COMPLETE, Reply
from gateway.wire.reply_head import read_reply_head

POST = b"POST /v1/x?y HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s3cret\r\nX-Content-Length: %d\r\nContent-Length: %d\r\nX-A: 1\r\n%b\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nx-content-length: %d\r\n\r\n"


def request(own: int, length: int, more: bytes = b"") -> RequestHead:
    return parse_head(POST % (own, length, more), 20)


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length", b"content-Length", b"Content-length"])
def test_the_length_is_taken_out_of_its_line(name: bytes) -> None:
    """In the usual spellings, whatever stands around it."""
    head = b"GET / HTTP/1.1\r\nX-Strength: a\r\n%b: %b\r\nX: y\r\n\r\n"
    assert without_length(head % (name, b"0120")) == (head % (name, b"0"), 120)


@pytest.mark.parametrize(
    "line",
    [
        b"X-Strength: 5", b"X-Content-Length: 5", b"Content-Length:5", b"Content-Length:  5", b"Content-Length: 5 ", b"Content-Length: +5",
        b"Content-Length: 5, 5", b"Content-Length: ", b"Content-Length: 1234567890123", b"CONTENT-LENGTH: 5", b"X: Content-Length: 5",
        b"X: y\nContent-Length: 5", b"X: y\rContent-Length: 5",
    ],
)  # fmt: skip
def test_other_lines_are_left_alone(line: bytes) -> None:
    """What is not exactly one ordinary length line stays in the head, to be judged as it is."""
    head = b"GET / HTTP/1.1\r\n" + line + b"\r\n\r\n"
    assert without_length(head) == (head, 0)


def test_each_request_has_its_own_length() -> None:
    """All else is shared, and is what parsing it would give."""
    heads = [request(7, length) for length in (5, 0, 123_456_789_012, 5)]
    assert [head.length for head in heads] == [5, 0, 123_456_789_012, 5]
    assert all(head.fields is heads[0].fields for head in heads)
    assert {head.forward for head in heads} == {b"X-Content-Length: 7\r\nX-A: 1\r\n"}


def test_any_other_difference_is_another_head() -> None:
    """Also one in digits that merely look like a length."""
    assert request(8, 5).forward == b"X-Content-Length: 8\r\nX-A: 1\r\n"
    assert request(7, 5, b"X-B: 2\r\n").forward == b"X-Content-Length: 7\r\nX-A: 1\r\nX-B: 2\r\n"


@pytest.mark.parametrize(
    "more", [b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Bad Name: 1\r\n", b" folded\r\n"]
)
def test_a_good_head_lends_nothing_to_a_bad_one(more: bytes) -> None:
    """A refused head is refused every time, whatever was accepted before."""
    request(7, 5)
    for _ in range(2):
        with pytest.raises(Bad):
            request(7, 5, more)


def test_limits_apply_to_remembered_heads() -> None:
    """The number of headers allowed may shrink on reload."""
    head = POST % (7, 5, b"")
    parse_head(head, 5)
    with pytest.raises(Bad, match="more than the 4 headers"):
        parse_head(head, 4)


def test_only_small_heads_are_remembered() -> None:
    """Memory stays bounded: long heads are parsed anew."""
    for padding, same in ((REMEMBERED_BYTES - 200, True), (REMEMBERED_BYTES, False)):
        more = b"X-Long: " + b"x" * padding + b"\r\n"
        assert (request(7, 5, more).fields is request(7, 6, more).fields) is same


def test_a_head_cannot_be_changed_and_shows_no_secret() -> None:
    """It is shared between requests; its text form may end up in a log."""
    head = request(7, 5)
    with pytest.raises(AttributeError):
        head.forward = b""  # type: ignore[misc]
    assert repr(head) == "<RequestHead b'POST' b'/v1/x'>"


def reply(data: bytes) -> Reply:
    answer = Reply()
    answer.feed(data)
    return answer


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=2, max_size=6))
@settings(deadline=None)
def test_each_response_has_its_own_length(answers: list[tuple[int, int]]) -> None:
    """Bodies end where their own head says, headers are their own."""
    for length, own in answers:
        answer = reply(OK % (length, own) + b"x" * length)
        assert (answer.state, answer.keep_alive, answer.length, answer.take()) == (COMPLETE, True, length, b"x" * length)
        assert answer.fields == ((b"x-content-length", b"%d" % own),)


def test_a_bad_response_is_refused_after_a_good_one() -> None:
    """A second length is never hidden by what was accepted before."""
    good = OK % (2, 1)
    assert reply(good + b"hi").state == COMPLETE
    for _ in range(2):
        assert reply(good[:-2] + b"content-length: 2\r\n\r\nhi").state == BROKEN


def test_lengths_of_answers_without_body_mean_what_they_mean() -> None:
    """Remembered or not: 304 tells the length of what it stands for, 204 has none."""
    for length in (0, 5, 7):
        head = b"\r\ncontent-length: %d\r\n\r\n" % length
        assert read_reply_head(b"HTTP/1.1 304 Not Modified" + head).length == length
        assert read_reply_head(b"HTTP/1.1 204 No Content" + head).length == 0


def test_reply_heads_are_shared_but_for_their_length() -> None:
    """Heads that are alike are made once; long ones each time."""
    first, second = (read_reply_head(OK % (length, 1)) for length in (3, 4))
    assert first.fields is second.fields
    assert msgspec.structs.replace(first, length=4) == second
    long = OK[:-2] + b"x: " + b"x" * REMEMBERED_BYTES + b"\r\n\r\n"
    assert read_reply_head(long % (3, 1)).fields is not read_reply_head(long % (3, 1)).fields
