"""Where small fields of a multipart/form-data body are, found without copying or touching the files beside them.

Strict on purpose: form readers differ on sloppy bodies, and a form that the gateway and a replica read differently could name two
models. Every line of every part ends in CRLF, the body begins with the boundary and ends with the closing one, and a boundary
prefix inside a part is refused rather than guessed about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.openai.errors import BadRequest

Span = tuple[int, int]

_HEAD_BYTES = 8192
_PARTS = 1000
_TYPE = re.compile(rb"[ \t]*multipart/form-data[ \t]*(?=;|$)", re.IGNORECASE)
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rb'[ \t]*;[ \t]*(?:(%b)=(?:"((?:[^"\\\r\n]|\\["\\])*)"|(%b))[ \t]*)?' % (_TOKEN, _TOKEN))
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_HEADER = re.compile(rb"(%b):[ \t]*([^\r\n\0]*)" % _TOKEN)


def is_form(content_type: bytes) -> bool:
    """Is this the content type of a multipart form?"""
    return _TYPE.match(content_type) is not None


def fields(body: bytes, content_type: bytes, names: tuple[bytes, ...]) -> dict[bytes, Span]:
    """Spans of the values of the named fields that are there. Raises BadRequest for a malformed form or a repeated field."""
    spans: dict[bytes, Span] = {}
    for head, start, end in _parts(body, _boundary(content_type)):
        name, is_file = _disposition(head)
        folded = name.lower()
        if folded not in names:
            continue
        if is_file or name != folded or name in spans:
            raise BadRequest("invalid_request", f"The form must have one plain field {folded.decode()!r}.", folded.decode())
        spans[name] = (start, end)
    return spans


def _boundary(content_type: bytes) -> bytes:
    kind = _TYPE.match(content_type)
    parameters = [] if kind is None else _parameters(content_type, kind.end())
    found = [value for name, value in parameters if name == b"boundary"]
    if len(found) != 1 or _BOUNDARY.fullmatch(found[0]) is None:
        raise _malformed("its content type needs one valid boundary")
    return found[0]


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(head, start of content, end of content) of each part."""
    delimiter = b"\r\n--" + boundary
    at = len(delimiter) if body.startswith(delimiter) else len(delimiter) - 2
    if body[:at] not in (delimiter, delimiter[2:]):
        raise _malformed("it does not begin with its boundary")
    for _ in range(_PARTS):
        if body.startswith(b"--", at):
            if body[at + 2 :] not in (b"", b"\r\n"):
                raise _malformed("something follows its closing boundary")
            return
        if not body.startswith(b"\r\n", at):
            raise _malformed("a boundary is not alone on its line")
        blank = body.find(b"\r\n\r\n", at, at + _HEAD_BYTES)
        end = body.find(delimiter, at)
        if blank < 0 or end < blank + 4:
            raise _malformed("a part is cut short or its head is too long")
        yield body[at + 2 : blank], blank + 4, end
        at = end + len(delimiter)
    raise _malformed(f"it has more than {_PARTS} parts")


def _disposition(head: bytes) -> tuple[bytes, bool]:
    """The name of a part, and whether it is a file."""
    value: bytes | None = None
    for line in head.split(b"\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None:
            raise _malformed("a part has a malformed header")
        if header[1].lower() == b"content-disposition":
            if value is not None:
                raise _malformed("a part has two dispositions")
            value = header[2]
        elif header[1].lower() == b"content-transfer-encoding" and header[2].strip().lower() not in (b"7bit", b"8bit", b"binary"):
            raise _malformed("a part is transfer-encoded")
    if value is None or value[:9].lower() != b"form-data":
        raise _malformed("a part is not form-data")
    parameters = _parameters(value, 9)
    names = [v for n, v in parameters if n.rstrip(b"*") == b"name"]
    if len(names) != 1 or any(n == b"name*" for n, _ in parameters):
        raise _malformed("a part needs exactly one name")
    return names[0], any(n.rstrip(b"*") == b"filename" for n, _ in parameters)


def _parameters(header: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """`; name=value` pairs from `at` to the end of a header value, names in lower case, quotes removed."""
    found: list[tuple[bytes, bytes]] = []
    while at < len(header):
        parameter = _PARAMETER.match(header, at)
        if parameter is None:
            raise _malformed("a header has malformed parameters")
        if parameter[1] is not None:
            quoted = parameter[2]
            value = parameter[3] if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted)
            found.append((parameter[1].lower(), value))
        at = parameter.end()
    return found


def _malformed(what: str) -> BadRequest:
    return BadRequest("invalid_request", f"The multipart form is malformed: {what}.")
