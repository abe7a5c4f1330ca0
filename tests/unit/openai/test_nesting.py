"""Depth of JSON without recursion, on values and on text."""

import json
from typing import Any

import msgspec
import pytest

from gateway.openai.nesting import bounded, text_deeper, value_deeper


def nested(levels: int, core: Any = 1) -> Any:
    """Lists and objects in turn, `levels` deep around `core`."""
    for level in range(levels):
        core = [core] if level % 2 else {"k": core}
    return core


VALUES = [
    (0, "[[[[{{{{"),
    (0, 5),
    (1, []),
    (1, ["[", "{", '"', '\\"[', "\\", '\\\\"[[[']),
    (1, {"[[[": "]]]", '"': '"'}),
    (2, [[], [], {}]),
    (3, {"a": [1, {"b": 2}], "c": "}"}),
    (4, [1, 2, [], [[["deep"]]]]),
    (60, nested(60)),
    (200, nested(200, "[[[")),
    (1, ["[", "{"] * 40_000),
    (3, [[["x" * 70_000 + '"['], '"' * 70_000]]),
]


@pytest.mark.parametrize(("depth", "value"), VALUES)
def test_depth_is_exact(depth: int, value: Any) -> None:
    """Both readings say `deeper` for every smaller number of levels and for no other."""
    text = json.dumps(value).encode()
    for levels in range(max(0, depth - 2), depth + 3):
        assert value_deeper(value, levels) == (depth > levels)
        assert text_deeper(text, levels) == (depth > levels)


def test_escapes_before_quotes_do_not_confuse_the_text_reading() -> None:
    """Backslashes end neither strings nor the count."""
    assert not text_deeper(rb'["\n[[[", "\\", "\\\"[[[", "\u005b[["]', 1)
    assert text_deeper(rb'["\\", [1]]', 1)


def test_depth_far_beyond_the_interpreters_stack() -> None:
    """A million brackets are counted, not recursed into."""
    assert text_deeper(b"[" * 500_000 + b"]" * 500_000, 499_999)
    assert not text_deeper(b"[" * 500_000 + b"]" * 500_000, 500_000)


@pytest.mark.parametrize("levels", [0, 1, 3, 8])
def test_the_bounded_type_takes_exactly_its_levels(levels: int) -> None:
    """Decoding as `bounded(n)` works for n levels and fails for n + 1."""
    decode = msgspec.json.Decoder(bounded(levels)).decode
    assert decode(json.dumps(nested(levels))) == nested(levels)
    with pytest.raises(msgspec.ValidationError):
        decode(json.dumps(nested(levels + 1)))
