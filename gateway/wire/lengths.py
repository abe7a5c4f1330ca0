"""What makes heads worth remembering: over one connection, and from one client or replica, they differ in their content length only.

A memo of parsed heads is asked for the head with length 0 in place of its own. What it holds for that was made by parsing exactly those
bytes, and nothing but the length itself depends on the digits of a header line that is all there, from line end to line end.
"""

import re
from typing import Final

REMEMBERED_BYTES: Final = 4096  # longer heads are parsed each time; with the number of entries, this bounds a memo's memory

# The fixed text comes first, because that is what is searched for fast; only then is it looked at whether it is the whole name.
_LENGTH: Final = re.compile(rb"ength: (?<=\r\n[Cc]ontent-[Ll]ength: )([0-9]{1,12})\r\n")


def without_length(head: bytes) -> tuple[bytes, int]:
    """`head` with content length 0, and its own; `head` as it is, and 0, where it has no such line or spells it in an unusual way."""
    line = _LENGTH.search(head)
    if line is None:
        return head, 0
    start, end = line.span(1)
    return head[:start] + b"0" + head[end:], int(head[start:end])
