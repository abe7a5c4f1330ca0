"""Where in a JSON body the gateway may put other bytes: the members of the top-level object, by offset.

A body is never re-serialised, and no parser of our own is needed to know where a member is: msgspec has checked the grammar and told
every value's exact text (keys unescaped; of equal keys, the last). Nearly all bodies are written without blanks, or with one behind
each comma and colon. In those styles offsets are sums of lengths, and a body proves that it has the style, no escape in a key and no
repeated key:

* without blanks: it is the shortest text that decodes to these members, so its length alone says it;
* with blanks: it equals the members written that way.

Whatever fits neither goes to `scan`, which is exact and slower.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, NoReturn

from msgspec import Raw

Span = tuple[int, int]  # offsets of a value's first byte and of the byte after its last


class Edit(NamedTuple):
    """Replace the bytes from `start` to `end` by `new`; an insertion when both are equal."""

    start: int
    end: int
    new: bytes


class Member(NamedTuple):
    """One member of the top-level object: key as decoded, value as Python's json reads it, and where its text is."""

    key: str
    value: Any
    start: int
    end: int


_WATCHED: Final = frozenset({"model", "stream_options"})
_BLANKS: Final = re.compile(r"[ \t\r\n]*")


def locate(body: bytes, fields: dict[str, Raw]) -> dict[str, Span] | None:
    """Spans of the `model` and `stream_options` values, `fields` being the body's decoded members; None if it has neither style."""
    for blank in (0, 1):
        spans: dict[str, Span] = {}
        at = 1
        for key, raw in fields.items():
            at += len(key) + 3 + blank
            end = at + len(raw)
            if key in _WATCHED:
                spans[key] = (at, end)
            at = end + 1 + blank
        if at - blank == len(body) and (blank == 0 or body == _spaced(fields)):
            return spans
    return None


def _spaced(fields: dict[str, Raw]) -> bytes:
    return b"{%b}" % b", ".join([b'"%b": %b' % (key.encode(), raw) for key, raw in fields.items()])


def scan(body: bytes) -> list[Member]:
    """All members in order, repeated keys included. Raises ValueError for anything but one strict JSON object in UTF-8,
    RecursionError beyond the interpreter's depth. Lone surrogate escapes, which msgspec refuses, pass.
    """
    text = body.decode()
    members = list(_members(text))
    if len(text) == len(body):
        return members
    starts = _byte_offsets(text, [m.start for m in members])
    ends = _byte_offsets(text, [m.end for m in members])
    return [m._replace(start=start, end=end) for m, start, end in zip(members, starts, ends, strict=True)]


def _members(text: str) -> Iterator[Member]:
    at = _after(text, _skip(text, 0), "{")
    at = _skip(text, at)
    if text[at : at + 1] == "}":
        return _finish(text, at + 1)
    while True:
        if text[at : at + 1] != '"':
            _refuse()
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _after(text, _skip(text, at), ":"))
        value, end = _DECODER.raw_decode(text, start)
        yield Member(key, value, start, end)
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            return _finish(text, at + 1)
        at = _skip(text, _after(text, at, ","))


def _skip(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    assert blanks is not None
    return blanks.end()


def _after(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        _refuse()
    return at + 1


def _finish(text: str, at: int) -> None:
    if _skip(text, at) != len(text):
        _refuse()


def _refuse(_constant: str = "") -> NoReturn:
    raise ValueError("not one JSON object")


# Digits stay text: Python limits how long an integer it converts, JSON does not.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=str, parse_float=str)


def _byte_offsets(text: str, offsets: list[int]) -> list[int]:
    """Character offsets, ascending, as offsets into the UTF-8 of `text`."""
    found, before, size = [], 0, 0
    for offset in offsets:
        size += len(text[before:offset].encode())
        before = offset
        found.append(size)
    return found


def apply(body: bytes, edits: list[Edit]) -> list[bytes]:
    """The body in pieces with the edits, which must not overlap, made; all other bytes are as they were."""
    pieces: list[bytes] = []
    at = 0
    for start, end, new in sorted(edits):
        pieces += (body[at:start], new)
        at = end
    pieces.append(body[at:])
    return pieces
