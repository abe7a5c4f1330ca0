"""What the gateway needs to know of a request body, read from the bytes that will be forwarded.

The top level is decoded one layer deep; everything below stays text until somebody asks. Only what makes a body unreadable or its
model ambiguous is refused here: a field of an odd type gives no hint and is the engine's to judge.

All functions are pure and safe in any thread. A body takes some 5 ms per MB, in steps that hold the interpreter for at most 1 ms per
MB each, which is why those over 512 KB are better read off the event loop.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from gateway.openai import multipart, nesting
from gateway.openai.errors import BadRequest
from gateway.openai.splice import Edit, Member, Span, apply, locate, scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.openai.endpoints import Endpoint

__all__ = ["LARGE", "BadRequest", "RequestView", "view"]

LARGE: Final = 512 * 1024  # fields beyond this are not built as Python objects in one go
SHALLOW: Final = 8  # levels below a field of nearly all requests; the decoder proves them at no cost

_top_level: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_plain: Final = msgspec.json.Decoder().decode
_shallow: Final = msgspec.json.Decoder(nesting.bounded(SHALLOW)).decode
_encode: Final = msgspec.json.encode

_MODEL_SPELLINGS: Final = frozenset(
    "".join(c.upper() if bits >> i & 1 else c for i, c in enumerate("model")) for bits in range(1, 32)
)  # decoders that ignore case would read these as `model`
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_WITH_USAGE: Final = b'{"include_usage":true}'
_UNSET: Any = object()


class RequestView:
    """One request as routing sees it. Hints are None where absent or of an odd type.

    `fields` are the top-level members, values as text; `body` is what the client sent, content-encoding removed.
    `injectable`: a stream whose usage the client neither asked for nor refused, and can be asked for by a splice.
    """

    __slots__ = (
        "_model_span",
        "_quoted",
        "_usage_edit",
        "_values",
        "body",
        "cache_key",
        "endpoint",
        "fields",
        "include_usage",
        "injectable",
        "max_tokens",
        "model",
        "previous_response_id",
        "stream",
        "user",
    )

    model: str
    _model_span: Span

    def __init__(self, endpoint: Endpoint, body: bytes, fields: dict[str, Raw], values: dict[str, Any]) -> None:
        self.endpoint = endpoint
        self.body = body
        self.fields = fields
        self._values = values
        self.include_usage = self.injectable = self.stream = False
        self._quoted = True
        self._usage_edit: Edit | None = None
        self.user: str | None = None
        self.cache_key: str | None = None
        self.previous_response_id: str | None = None
        self.max_tokens: int | None = None
        # Most requests have two or three of these; what is absent costs nothing.
        for name in _HINTS.keys() & fields.keys():
            _HINTS[name](self, fields[name])
        if endpoint.shape == "anthropic" and "metadata" in fields:
            self.user = self._metadata_user()

    def value(self, name: str) -> Any:
        """A top-level member as Python objects, decoded once. Absent or undecodable: None."""
        value = self._values.get(name, _UNSET)
        if value is _UNSET:
            raw = self.fields.get(name)
            try:
                value = None if raw is None else _plain(raw)
            except (ValueError, RecursionError):
                value = None
            self._values[name] = value
        return value

    def _metadata_user(self) -> str | None:
        """Where Anthropic's clients put the user, and with it the session."""
        metadata = self.value("metadata")
        user = metadata.get("user_id") if type(metadata) is dict else None
        return user if type(user) is str else None

    def decoded(self, name: str) -> bool:
        """Has this member been decoded already?"""
        return self._values.get(name) is not None

    def rewrite(self, model: str | None, inject_usage: bool) -> list[bytes]:
        """The body to send, in pieces: with another model name and, on an `injectable` view, asking for usage.

        Every byte outside the two splices is the client's. `model=None` keeps the client's spelling.
        """
        edits = []
        if model is not None and model != self.model:
            edits.append(Edit(*self._model_span, _encode(model) if self._quoted else model.encode()))
        if inject_usage and self._usage_edit is not None:
            edits.append(self._usage_edit)
        return apply(self.body, edits) if edits else [self.body]


def _stream(request: RequestView, raw: Raw) -> None:
    request.stream = bytes(raw) == b"true"


def _user(request: RequestView, raw: Raw) -> None:
    request.user = _text(raw)


def _cache_key(request: RequestView, raw: Raw) -> None:
    request.cache_key = _text(raw)


def _previous(request: RequestView, raw: Raw) -> None:
    request.previous_response_id = _text(raw)


def _most_tokens(request: RequestView, raw: Raw) -> None:
    count = _count(raw)
    if count is not None:
        # Where a client sends both the old and the new name, the larger one is the safer guess.
        request.max_tokens = max(count, request.max_tokens or 0)


_HINTS: Final[dict[str, Callable[[RequestView, Raw], None]]] = {
    "stream": _stream,
    "user": _user,
    "prompt_cache_key": _cache_key,
    "previous_response_id": _previous,
    "max_tokens": _most_tokens,
    "max_completion_tokens": _most_tokens,
    "max_output_tokens": _most_tokens,
}


def view(endpoint: Endpoint, body: bytes, content_type: bytes | None, *, nesting: int) -> RequestView:
    """Read a request body. `content_type` is the header's value; `nesting` the deepest JSON accepted.

    Raises BadRequest: `invalid_json`, `missing_model` or `invalid_request`.
    """
    if endpoint.body != "json":
        form = content_type is not None and multipart.is_form(content_type)
        if form:
            return _form_view(endpoint, body, content_type or b"")
        if endpoint.body == "multipart":
            raise BadRequest("invalid_request", f"{endpoint.path} takes multipart/form-data.")
    return _json_view(endpoint, body, nesting)


def _json_view(endpoint: Endpoint, body: bytes, levels: int) -> RequestView:
    fields, members = _decoded(body, levels)
    if not _MODEL_SPELLINGS.isdisjoint(fields):
        raise BadRequest("invalid_json", "A key that differs from 'model' only by case is ambiguous.", "model")
    request = RequestView(endpoint, body, fields, {} if members is None else {m.key: m.value for m in members})
    request.model = _model(fields)
    if nesting.more_openings(body, levels):  # fewer cannot nest deeper
        _check_depth(request, levels)
    spans = locate(body, fields) if members is None else None
    if spans is None:
        spans = _spans(members or _scanned(body, levels))
    request._model_span = spans["model"]
    if request.stream and endpoint.injects:
        _plan_usage(request, spans)
    return request


def _decoded(body: bytes, levels: int) -> tuple[dict[str, Raw], list[Member] | None]:
    """The top-level members, and where and what they are if the slow reading was needed to tell."""
    try:
        fields = _top_level(body)
        if not body.isascii():
            _check_utf8(body)
    except RecursionError:
        raise _too_deep(levels) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        # Lone surrogate escapes are JSON to the engines, though not to msgspec.
        if _SURROGATE.search(body) is None:
            raise _unreadable(body, fault) from None
        members = _scanned(body, levels)
        return {m.key: Raw(body[m.start : m.end]) for m in members}, members
    return fields, None


def _scanned(body: bytes, levels: int) -> list[Member]:
    try:
        return scan(body)
    except RecursionError:
        raise _too_deep(levels) from None
    except ValueError as fault:
        raise _unreadable(body, fault) from None


def _check_utf8(body: bytes) -> None:
    """Raises UnicodeDecodeError; `body` is known to end with a brace or a blank, so no character is open at its end.

    In slices, because one emoji makes Python hold four bytes for every character of a text.
    """
    decode = getincrementaldecoder("utf-8")().decode
    for at in range(0, len(body), LARGE):
        decode(body[at : at + LARGE])


def _unreadable(body: bytes, fault: Exception) -> BadRequest:
    if not body:
        reason = "it is empty"
    elif body[:3] == b"\xef\xbb\xbf":
        reason = "it starts with a byte-order mark"
    elif isinstance(fault, UnicodeDecodeError):
        reason = "it is not UTF-8"
    else:
        reason = str(fault).removeprefix("JSON is malformed: ")
    return BadRequest("invalid_json", f"The body is not a JSON object: {reason}.")


def _too_deep(levels: int) -> BadRequest:
    return BadRequest("invalid_json", f"The body nests deeper than {levels} levels.")


def _model(fields: dict[str, Raw]) -> str:
    raw = fields.get("model")
    model = _text(raw)
    if model:
        return model
    if raw is None or bytes(raw) in (b"null", b'""'):
        raise BadRequest("missing_model", "The field 'model' is required.", "model")
    raise BadRequest("invalid_request", "The field 'model' must be a string.", "model")


def _spans(members: list[Member]) -> dict[str, Span]:
    """Spans from an exact scan; a repeated `model` is refused, any other repeated key has no span."""
    spans: dict[str, Span] = {}
    repeated = set()
    for member in members:
        if member.key in spans:
            repeated.add(member.key)
        spans[member.key] = (member.start, member.end)
    if "model" in repeated:
        raise BadRequest("invalid_json", "The key 'model' appears more than once.", "model")
    return {key: span for key, span in spans.items() if key not in repeated}


def _check_depth(request: RequestView, levels: int) -> None:
    # A value `n` deep has at least 2n characters, and the object around it is one level.
    least = 2 * levels
    for name, raw in [(name, raw) for name, raw in request.fields.items() if len(raw) >= least]:
        if memoryview(raw)[0] in b"[{" and _deeper(request, name, raw, levels - 1):
            raise _too_deep(levels)


def _deeper(request: RequestView, name: str, raw: Raw, levels: int) -> bool:
    if len(raw) > LARGE:
        return nesting.text_deeper(bytes(raw), levels)
    if levels >= SHALLOW:
        try:
            request._values[name] = _shallow(raw)
            return False
        except (ValueError, RecursionError):
            pass  # deeper, or holding what only a slower reading can judge
    value = request.value(name)
    return nesting.text_deeper(bytes(raw), levels) if value is None else nesting.value_deeper(value, levels)


def _plan_usage(request: RequestView, spans: dict[str, Span]) -> None:
    """Find the splice that asks for usage; none where the client decided itself or wrote something odd."""
    raw = request.fields.get("stream_options")
    if raw is None:
        end = request._model_span[1]
        request._usage_edit = Edit(end, end, b',"stream_options":' + _WITH_USAGE)
    elif "stream_options" in spans:
        start, end = spans["stream_options"]
        text = bytes(raw)
        if text == b"null":
            request._usage_edit = Edit(start, end, _WITH_USAGE)
        elif text[0] == 0x7B:
            options = _top_level(text)
            if "include_usage" in options:
                request.include_usage = bytes(options["include_usage"]) == b"true"
            else:
                request._usage_edit = Edit(start + 1, start + 1, b'"include_usage":true,' if options else b'"include_usage":true')
    request.injectable = request._usage_edit is not None


def _form_view(endpoint: Endpoint, body: bytes, content_type: bytes) -> RequestView:
    fields = multipart.fields(body, content_type, (b"model", b"stream"))
    if b"model" not in fields or fields[b"model"][0] == fields[b"model"][1]:
        raise BadRequest("missing_model", "The form field 'model' is required.", "model")
    request = RequestView(endpoint, body, {}, {})
    start, end = request._model_span = fields[b"model"]
    try:
        request.model = body[start:end].decode()
    except UnicodeDecodeError:
        raise BadRequest("invalid_request", "The form field 'model' is not UTF-8.", "model") from None
    request._quoted = False
    if b"stream" in fields:
        start, end = fields[b"stream"]
        request.stream = body[start:end].strip().lower() in (b"true", b"1", b"yes", b"on")
    return request


def _text(raw: Raw | None) -> str | None:
    if raw is None:
        return None
    data = bytes(raw)
    if data[:1] != b'"':
        return None
    if b"\\" not in data:
        return data[1:-1].decode()
    try:
        return msgspec.json.decode(data, type=str)
    except msgspec.DecodeError:
        return None


def _count(raw: Raw | None) -> int | None:
    data = b"" if raw is None else bytes(raw)
    return int(data) if data.isdigit() and len(data) <= 18 else None
