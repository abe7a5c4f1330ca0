"""What the scanner lets through, takes out and learns from an event stream."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.sse import HOLD_BYTES, Shape, SseScanner

DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}\n\n'


def event(text: str, **more: object) -> bytes:
    """One chat chunk as vLLM writes it."""
    body = {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def run(scanner: SseScanner, *reads: bytes) -> bytes:
    return b"".join([scanner.feed(read) for read in reads]) + scanner.flush()


def test_ordinary_reads_pass_as_the_same_object() -> None:
    """No copy is made of what needs no change, whether or not usage is to be taken out."""
    for strip in (False, True):
        scanner = SseScanner(strip)
        for data in (event("a"), event("b") + event("c"), event("d", usage=None)):
            assert scanner.feed(data) is data
        assert scanner.events == 4
        assert scanner.at_boundary


def test_without_stripping_every_read_passes_as_the_same_object() -> None:
    """A scanner that only watches never holds a byte back."""
    stream = event("é漢😀") + b": ping\n\n" + USAGE + DONE
    scanner = SseScanner()
    for at in range(len(stream)):
        data = stream[at : at + 1]
        assert scanner.feed(data) is data
    assert scanner.flush() == b""
    assert (scanner.events, scanner.done) == (3, True)


@pytest.mark.parametrize(
    "usage",
    [
        USAGE,
        b'data:{"usage":{"prompt_tokens":1},"choices":[]}\n\n',
        b'data: { "choices" : [ ] , "usage" : { "prompt_tokens" : 1 } }\r\n\r\n',
        b'data: {"choices": [],\ndata: "usage": {"prompt_tokens": 1}}\n\n',
        b'id: 4\ndata: {"choices":[],"usage":{"prompt_tokens":1}} \r\r',
    ],
)
def test_the_usage_only_event_is_taken_out_wherever_it_is_cut(usage: bytes) -> None:
    """Exactly the event with empty choices and a usage object vanishes, whatever its spacing and the borders of the reads."""
    before = event("a", usage=None) + b": ping\n\n"
    for after in (event("b"), event("b") + DONE):
        stream = before + usage + after
        for cut in range(len(stream) + 1):
            scanner = SseScanner(strip_usage=True)
            assert run(scanner, stream[:cut], stream[cut:]) == before + after
            assert scanner.events == 2 + after.count(b"data:")
            assert scanner.tokens is not None


@pytest.mark.parametrize(
    "data",
    [
        event("x", usage={"prompt_tokens": 1, "completion_tokens": 2}),
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"usage":{"prompt_tokens":1}}\n\n',
        event('"choices":[],"usage":{"prompt_tokens":1}'),
        event("usage"),
        b'data: [{"choices":[],"usage":{}}]\n\n',
        b'data: "choices":[],"usage":{}\n\n',
        b'data: {"delta":{"choices":[],"usage":{}}}\n\n',
        b': "choices":[],"usage":{}\n\n',
    ],
)
def test_other_events_are_never_taken_out(data: bytes) -> None:
    """Usage beside choices, null usage, look-alikes in text, and what is not JSON all pass unchanged."""
    assert run(SseScanner(strip_usage=True), data) == data


def test_a_usage_event_longer_than_the_limit_is_not_torn() -> None:
    """Once a part of it is out, all of it goes out; in one read it is taken out whole."""
    long = b'data: {"pad":"' + b"p" * HOLD_BYTES + USAGE.removeprefix(b'data: {"').replace(b'id":', b'","id":', 1)
    scanner = SseScanner(strip_usage=True)
    assert run(scanner, long[:-30], long[-30:]) == long
    assert scanner.tokens == (9, 4, None)
    assert run(SseScanner(strip_usage=True), long) == b""


def test_line_ends_may_be_mixed() -> None:
    """An event ended by CR LF in front of one ended by LF is an event of its own."""
    scanner = SseScanner()
    scanner.feed(b"data: a\r\n\r\ndata: b\r\rdata: c\n\n")
    assert (scanner.events, scanner.at_boundary) == (3, True)


def test_the_last_usage_is_kept() -> None:
    """With usage on each chunk, the last one counts; reading it is left to who wants it."""
    scanner = SseScanner()
    run(
        scanner,
        event("a", usage={"prompt_tokens": 5, "completion_tokens": 1}),
        event("b", usage={"prompt_tokens": 5, "completion_tokens": 2}),
    )
    assert scanner.usage is not None
    assert scanner.tokens == (5, 2, None)


def test_anthropic_usage_is_put_together_from_both_ends() -> None:
    """The prompt is told in message_start, the completion in message_delta."""
    scanner = SseScanner(shape="anthropic")
    run(
        scanner,
        b'event: message_start\ndata: {"type":"message_start","message":'
        b'{"usage":{"input_tokens":7,"cache_read_input_tokens":90,"output_tokens":1}}}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"message_stop"}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":12}}\n\n',
    )
    assert (scanner.events, scanner.done) == (3, False)
    run(scanner, b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert scanner.done
    assert scanner.tokens == (97, 12, 90)


@pytest.mark.parametrize(("end", "failed"), [("completed", False), ("incomplete", False), ("failed", True)])
def test_responses_streams_end_by_event_name(end: str, failed: bool) -> None:
    """Responses streams have no [DONE]; their last event carries the usage."""
    scanner = SseScanner(shape="responses")
    run(
        scanner,
        b'event: response.created\nid: 7\ndata: {"type":"response.created",\ndata: "response":{"error":null,"usage":null}}\n\n',
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"response.completed"}\n\n',
    )
    assert (scanner.events, scanner.done, scanner.error) == (2, False, False)
    body = {
        "type": f"response.{end}",
        "response": {"usage": {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}},
    }
    run(scanner, f"event: response.{end}\ndata: {json.dumps(body)}\n\n".encode())
    assert (scanner.done, scanner.error, scanner.first_is_error) == (True, failed, False)
    assert scanner.tokens == (3, 2, 1)


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ("openai", b'data: {"error": {"message": "boom", "code": 500}}\n\n'),
        ("openai", b'data: {"object":"error","message":"queue is full","code":503}\n\n'),
        ("openai", b'data: {"error":"boom"}\n\n'),
        ("anthropic", b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'),
        ("anthropic", b"event: error\ndata: overloaded\n\n"),
        ("responses", b'event: error\ndata: {"type":"error","code":"x"}\n\n'),
    ],
)
def test_error_events_are_noticed(shape: Shape, data: bytes) -> None:
    """An error as the first event is told apart from a later one; its bytes pass unchanged either way."""
    first = SseScanner(strip_usage=True, shape=shape)
    assert run(first, b": hi\n\n" + data + DONE) == b": hi\n\n" + data + DONE
    assert (first.error, first.first_is_error) == (True, True)
    later = SseScanner(shape=shape)
    run(later, b"event: x\ndata: {}\n\n", data)
    assert (later.error, later.first_is_error) == (True, False)


@pytest.mark.parametrize(
    "data",
    [
        event("x", error=None),
        event('{"error": {"message": "quoted"}}'),
        event("error"),
        b'data: {"choices":[{"finish_reason":"error"}]}\n\n',
        b'data: {"choices":[],"usage":null,"error":null}\n\n',
        b': "error"\n\n',
    ],
)
def test_talk_of_errors_is_no_error(data: bytes) -> None:
    """Null errors, the word in text and a finish reason do not make an error event."""
    scanner = SseScanner()
    run(scanner, data)
    assert not scanner.error


@pytest.mark.parametrize("data", [event("data: [DONE]\n\n"), event("[DONE]"), b": [DONE]\n\n", b'data: {"type":"message_stop"}\n\n'])
def test_done_in_text_is_not_the_end(data: bytes) -> None:
    """Only a data event that is nothing but [DONE] ends a chat stream."""
    scanner = SseScanner()
    run(scanner, data)
    assert scanner.events == data.startswith(b"data")
    assert not scanner.done


def test_comments_are_no_data() -> None:
    """Heartbeats neither count as events nor as signs of data."""
    scanner = SseScanner(strip_usage=True)
    for data in (b": keep-alive\n\n", b":\n\n", b":", b" ping", b"\n\n"):
        scanner.feed(data)
        assert (scanner.events, scanner.data_seen) == (0, False)
    scanner.feed(event("a"))
    assert (scanner.events, scanner.data_seen) == (1, True)
    scanner.feed(b": ping\n\n")
    assert (scanner.events, scanner.data_seen) == (1, False)
    scanner.feed(event("a")[:10])
    assert (scanner.events, scanner.data_seen) == (1, True)


def test_line_separators_of_unicode_end_no_line() -> None:
    """U+2028, U+0085, form feed and vertical tab are text."""
    scanner = SseScanner(strip_usage=True)
    data = event("a\u2028\u2028b\u0085\u0085") + b"data: \x0b\x0b\x0c\x0c\x1e\x1e\n\n"
    assert run(scanner, data[:40], data[40:]) == data
    assert scanner.events == 2


def test_boundary_is_where_an_event_may_be_added() -> None:
    """Within an event nothing may be added, unless all of it is still held back."""
    half, rest = event("a")[:9], event("a")[9:]
    watching, stripping = SseScanner(), SseScanner(strip_usage=True)
    assert watching.at_boundary
    watching.feed(half)
    assert not watching.at_boundary
    watching.feed(rest)
    assert watching.at_boundary
    assert stripping.feed(half) == b""
    assert stripping.at_boundary
    assert stripping.feed(rest) == half + rest
    long = event("y" * HOLD_BYTES)
    assert stripping.feed(long[:-4]) == long[:-4]
    assert not stripping.at_boundary
    assert stripping.feed(long[-4:]) == long[-4:]
    assert stripping.at_boundary


def test_at_most_one_partial_event_is_held_back() -> None:
    """Tokens before a cut event pass at once, and an event longer than the limit passes piece by piece."""
    scanner = SseScanner(strip_usage=True)
    assert scanner.feed(event("a") + event("b")[:12]) == event("a")
    assert scanner.feed(event("b")[12:]) == event("b")
    long = event("z" * 50_000)
    held = 0
    for at in range(0, len(long), 1000):
        held += len(long[at : at + 1000]) - len(scanner.feed(long[at : at + 1000]))
        assert held <= HOLD_BYTES
    assert held == 0


def test_a_cut_stream_keeps_its_last_bytes() -> None:
    """What is held back when the stream breaks off is given out by flush, once."""
    scanner = SseScanner(strip_usage=True)
    assert scanner.feed(event("a") + b'data: {"cho') == event("a")
    assert scanner.flush() == b'data: {"cho'
    assert scanner.flush() == b""


def test_an_end_mark_without_blank_line_counts_at_the_end() -> None:
    """Some servers close right after the last line."""
    scanner = SseScanner(strip_usage=True)
    assert run(scanner, event("a"), b"data: [DONE]\n") == event("a") + b"data: [DONE]\n"
    assert scanner.done


def test_three_mebibyte_lines_are_scanned_in_linear_time() -> None:
    """A huge event in small reads passes whole and is not searched again and again."""
    data = event("y" * (3 << 20))
    for strip in (False, True):
        scanner = SseScanner(strip)
        begun = time.process_time()
        out = run(scanner, *(data[at : at + 1400] for at in range(0, len(data), 1400)), DONE)
        assert out == data + DONE
        assert (scanner.events, scanner.done) == (2, True)
        assert time.process_time() - begun < 1.0


def test_an_endless_event_is_not_collected() -> None:
    """Beyond a limit only the ends of an event are kept, and it still counts as one."""
    scanner = SseScanner()
    piece = b"z" * (1 << 20)
    scanner.feed(b"data: ")
    for _ in range(40):
        scanner.feed(piece)
    assert len(scanner._pending) < 20 << 20
    scanner.feed(b"\n\n")
    assert scanner.events == 1


# -- any stream, cut anywhere --

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
JSONS = st.sampled_from(
    [
        b'{"choices":[],"usage":{"prompt_tokens":3}}',
        b'{"choices":[{}],"usage":{"prompt_tokens":4}}',
        b'{"choices":[{}],"usage":null}',
        b'{"choices":[{}]}',
        b'{"error":{"message":"x"}}',
        b'{"error":null}',
        b'{"type":"message_stop"}',
        b'{"type":"response.failed"}',
        b"[DONE]",
        b"usage",
        b"",
    ]
)
LINES = st.one_of(
    JSONS.map(lambda data: b"data: " + data),
    JSONS.map(lambda data: b"data:" + data),
    st.sampled_from(
        [b"event: error", b"event: message_stop", b"event: response.completed", b"event: x", b"id: 1", b": c", b"data", b"", b"", b"dat: a"]
    ),
)
PLAIN = st.tuples(JSONS, st.sampled_from([b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r"])).map(lambda e: b"data: %b%b" % e)
NAMED = st.tuples(st.sampled_from([b"x", b"error", b"message_stop", b"response.failed"]), JSONS).map(
    lambda e: b"event: %b\ndata: %b\n\n" % e
)
STREAMS = st.lists(
    st.one_of(PLAIN, NAMED, st.tuples(LINES, ENDS).map(b"".join), st.binary(max_size=4), st.just(b"\n"), st.just(b"data: " + b"z" * 5000)),
    max_size=14,
).map(b"".join)
SHAPES = st.sampled_from(["openai", "anthropic", "responses"])


def verdict(scanner: SseScanner) -> tuple[object, ...]:
    return scanner.events, scanner.done, scanner.error, scanner.first_is_error, scanner.usage, scanner.tokens


@settings(deadline=None)
@given(STREAMS, st.lists(st.integers(0, 400), max_size=8), st.booleans(), SHAPES)
def test_cuts_change_nothing(stream: bytes, cuts: list[int], strip: bool, shape: Shape) -> None:
    """Any split of any stream gives the same bytes and the same knowledge, so the quick way and the thorough way agree."""
    if len(stream) > 5000:
        # Whether a long usage event is held is a matter of its reads; only the short ones are promised.
        strip = False
    whole = SseScanner(strip, shape)
    bytewise = SseScanner(strip, shape)
    cut = SseScanner(strip, shape)
    borders = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
    out = run(whole, stream)
    assert run(bytewise, *(stream[i : i + 1] for i in range(len(stream)))) == out
    assert run(cut, *(stream[a:b] for a, b in pairwise(borders))) == out
    assert verdict(bytewise) == verdict(whole) == verdict(cut)


@settings(deadline=None)
@given(STREAMS)
def test_events_are_those_of_a_plain_reading(stream: bytes) -> None:
    """The count agrees with a line by line reading of the standard."""
    text = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data, expected = False, 0
    for line in text.split(b"\n")[:-1]:
        if line:
            data = data or line.split(b":")[0] == b"data"
        else:
            expected, data = expected + data, False
    if stream.endswith((b"\n", b"\r")):
        expected += data
    scanner = SseScanner()
    scanner.feed(stream)
    scanner.flush()
    assert scanner.events == expected


@settings(deadline=None)
@given(st.lists(st.one_of(PLAIN, st.just(b": c\n\n"), st.just(b"data: " + b"z" * 5000 + b"\n\n"))), st.integers(1, 60))
def test_only_usage_events_are_missing(events: list[bytes], size: int) -> None:
    """What is taken out of a stream is exactly its usage-only events, and everything else keeps its order."""
    stream = b"".join(events)
    out = run(SseScanner(strip_usage=True), *(stream[at : at + size] for at in range(0, len(stream), size)))
    assert out == b"".join(event for event in events if b'"choices":[],' not in event)
