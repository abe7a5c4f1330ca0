"""Token counts from every shape of answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.sse import Usage, parse_usage


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}}, (9, 4, None)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}}, (9, 4, 8)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}}, (9, 4, 0)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None}}, (9, 4, None)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": None}}}, (9, 4, None)),
        ({"usage": {"prompt_tokens": 9, "total_tokens": 9}, "data": []}, (9, 0, None)),
        ({"usage": {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 8}}}, (9, 4, 8)),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 9, "output_tokens": 4}}}, (9, 4, None)),
        (
            {"usage": {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 11}},
            (100, 4, 80),
        ),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}, (9, 1, None)),
        ({"type": "message_delta", "usage": {"output_tokens": 4}}, (0, 4, None)),
        ({"usage": {"prompt_tokens": 9.0, "completion_tokens": 4}}, (9, 4, None)),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": "4", "prompt_tokens_details": {"cached_tokens": 8.0}}}, (9, 0, 8)),
        ({"usage": "none", "response": {"usage": {"input_tokens": 9, "output_tokens": True}}}, (9, 0, None)),
    ],
)
def test_usage_of_each_shape(body: object, expected: Usage) -> None:
    """Prompt tokens include the cached ones, wherever the engine puts the counts."""
    assert parse_usage(json.dumps(body).encode()) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"[DONE]",
        b"{",
        b'{"usage":null}',
        b'{"usage":[1]}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":true}}',
        b'{"usage":{"prompt_tokens":-1}}',
        b'{"usage":{"prompt_tokens":"9"}}',
        b'{"usage":{"prompt_tokens":1e300}}',
        b'{"response":"text"}',
        b'{"message":"text"}',
        b'{"usage":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"response":' * 100_000 + b"{}" + b"}" * 100_000,
        b'\xff{"usage":{"prompt_tokens":1}}',
    ],
)
def test_strange_bodies_have_no_usage(body: bytes) -> None:
    """Nothing is an error here: no counts, no usage."""
    assert parse_usage(body) is None


def test_later_bodies_complete_the_earlier() -> None:
    """The last word on each count wins; what it does not mention stays."""
    start = b'{"message":{"usage":{"input_tokens":5,"cache_read_input_tokens":2,"output_tokens":1}}}'
    assert parse_usage(start, None, b'{"usage":{"output_tokens":30}}') == (7, 30, 2)


COUNTS = st.none() | st.integers(-2, 99) | st.integers(10**15 - 1, 10**15) | st.sampled_from([True, 5.0, "7", [], {}])
DETAILS = COUNTS | st.fixed_dictionaries({}, optional={"cached_tokens": COUNTS, "audio_tokens": COUNTS})
USAGES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens"], COUNTS),
        **dict.fromkeys(["prompt_tokens_details", "input_tokens_details"], DETAILS),
    },
)


@settings(deadline=None)
@given(USAGES)
def test_one_strange_value_changes_no_other(usage: dict[str, object]) -> None:
    """A body that does not fit the usual types is read with the same result, value by value."""
    body = json.dumps({"usage": usage}).encode()
    strange = json.dumps({"usage": usage | {"cache_creation_input_tokens": "?"}}).encode()
    assert parse_usage(strange) == parse_usage(body)


@settings(deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_survived(body: bytes) -> None:
    """Loose means that it never raises."""
    parse_usage(body, b'{"usage":%b}' % body)
