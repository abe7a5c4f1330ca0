"""How deep JSON nests, judged without recursion: engines and parsers fall over long before memory is short."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

_OTHER: Final = bytes(set(range(256)) - set(b'[]{}"'))
_RISE: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_STEP: Final = 64 * 1024


def bounded(levels: int) -> Any:
    """The type of JSON values nesting at most `levels` deep: decoding as it proves the depth."""
    kind: Any = str | int | float | bool | None
    array: Any = list
    table: Any = dict
    scalar = kind
    for _ in range(levels):
        kind = scalar | array[kind] | table[str, kind]
    return kind


def value_deeper(value: Any, levels: int) -> bool:
    """Do containers nest more than `levels` deep in a decoded value? Time is linear in its size."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [item for item in layer if type(item) is dict or type(item) is list]
        if not layer:
            return False
        layer = [item for box in layer for item in (box.values() if type(box) is dict else box)]
    return True


def text_deeper(text: bytes, levels: int) -> bool:
    """The same for valid JSON text: linear too, in memory bounded by its length however many containers it has."""
    if not more_openings(text, levels):
        return False
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER)
    depth = inside = 0
    for at in range(0, len(marks), _STEP):
        pieces = marks[at : at + _STEP].split(b'"')
        outside = b"".join(pieces[inside::2])
        inside ^= (len(pieces) - 1) & 1
        heights = list(accumulate(map(_RISE.__getitem__, outside), initial=depth))
        if max(heights) > levels:
            return True
        depth = heights[-1]
    return False


def more_openings(text: bytes, levels: int) -> bool:
    """Are there more than `levels` opening brackets, in strings or not? A long image has but a few, found at memory speed."""
    count = 0
    for bracket in (b"[", b"{"):
        at = text.find(bracket)
        while at >= 0 and count <= levels:
            count += 1
            at = text.find(bracket, at + 1)
    return count > levels
