"""A prompt as canonical bytes, for hashing: what two requests share at the start here, their engines can share in cache.

Order is that of chat templates: namespace, tools, then each message's role and content. The same text gives the same bytes however a
client escaped or spaced its JSON; a longer conversation only appends. Sampling, user ids and cache markers never reach a prompt and
are left out. Pieces are set apart by bytes that UTF-8 never contains, so that no text can imitate a boundary.

Pure and safe in any thread. Fields beyond 512 KB are decoded message by message, so that other threads get their turn in between.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash
from msgspec import Raw

from gateway.openai.view import LARGE

if TYPE_CHECKING:
    from gateway.openai.view import RequestView

_MESSAGE, _TEXT, _PART, _FIELD, _TOOL, _TOKENS, _RAW, _SCOPE = (bytes([mark]) for mark in range(0xFF, 0xF7, -1))

_ROLES: Final = {role: _MESSAGE + role.encode() for role in ("system", "developer", "user", "assistant", "tool", "function")}
_MESSAGE_FIELDS: Final = ("name", "tool_call_id", "reasoning_content", "reasoning", "tool_calls", "function_call")
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_MEDIA_PARTS: Final = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "input_file", "file", "document"}
)
_MEDIA_REPEATS: Final = 64  # 64 x 32 bytes: an image costs its engine hundreds of tokens, however short its URL or long its base64

_elements: Final = msgspec.json.Decoder(list[Raw]).decode
_plain: Final = msgspec.json.Decoder().decode
_ordered: Final = msgspec.json.Encoder().encode  # engines render tool schemas in the client's key order
_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def namespace(view: RequestView, tenant: bytes = b"", adapter: str = "") -> bytes:
    """What keeps equal prompts apart: the tenant, the LoRA adapter and the request's own cache salt.

    The model is not part of it: an alias must not split a cache, so callers seed the hash with the model they resolved.
    """
    salt = view.value("cache_salt") if "cache_salt" in view.fields else None
    if salt is None and not tenant and not adapter:
        return _SCOPE
    return b"%b%b%b%b%b" % (tenant, _SCOPE, _utf8(adapter), _SCOPE, b"" if salt is None else _json(salt))


def canonical(view: RequestView, namespace: bytes) -> bytes | None:
    """The prompt of a request in canonical form; None where the endpoint has no prompt worth caching or the body holds none.

    Shapes no template knows are taken as they are written. Never raises.
    """
    render = _PROMPTS.get(view.endpoint.name)
    if render is None:
        return None
    out = [namespace]
    render(view, out)
    return b"".join(out) if len(out) > 1 else None


def _chat(view: RequestView, out: list[bytes]) -> None:
    _tools(view, out)
    _messages(view, "messages", out)


def _anthropic(view: RequestView, out: list[bytes]) -> None:
    _tools(view, out)
    _instructions(view, "system", out)
    _messages(view, "messages", out)


def _responses(view: RequestView, out: list[bytes]) -> None:
    _tools(view, out)
    _instructions(view, "instructions", out)
    if type(text := view.value("input")) is str:
        out += (_ROLES["user"], _TEXT, _utf8(text))
    else:
        _messages(view, "input", out)


def _completions(view: RequestView, out: list[bytes]) -> None:
    _prompts(view, "prompt", out)


def _embeddings(view: RequestView, out: list[bytes]) -> None:
    if "messages" in view.fields:
        _chat(view, out)
    else:
        _prompts(view, "input", out)


_PROMPTS: Final[dict[str, Callable[[RequestView, list[bytes]], None]]] = {
    "chat_completions": _chat,
    "completions": _completions,
    "embeddings": _embeddings,
    "responses": _responses,
    "messages": _anthropic,
}


def _tools(view: RequestView, out: list[bytes]) -> None:
    for name in ("tools", "functions", "documents"):
        if name in view.fields and view.value(name):
            for tool in _items(view, name, out):
                out += (_TOOL, _json(_unmarked(tool), _ordered))


def _instructions(view: RequestView, name: str, out: list[bytes]) -> None:
    if name in view.fields and (content := view.value(name)) is not None:
        out.append(_ROLES["system"])
        _content(content, out)


def _messages(view: RequestView, name: str, out: list[bytes]) -> None:
    for message in _items(view, name, out):
        if type(message) is dict:
            _message(message, out)
        else:
            out += (_MESSAGE, _PART, _json(message))


def _message(message: dict[str, Any], out: list[bytes]) -> None:
    get = message.get
    role = get("role")
    content = get("content")
    if type(role) is not str:
        out += (_MESSAGE, _PART, _json(_unmarked(message)))  # an item of the Responses API, such as a function call
        return
    out.append(_ROLES.get(role) or _MESSAGE + _utf8(role))
    if type(content) is str:
        out += (_TEXT, content.encode("utf-8", "surrogatepass"))
    elif content is not None:
        _content(content, out)
    if len(message) > 2 or content is None:
        for field in _MESSAGE_FIELDS:
            if value := get(field):
                out += (_FIELD, field.encode(), _TEXT, _json(value))


def _content(content: Any, out: list[bytes]) -> None:
    for part in content if type(content) is list else (content,):
        if type(part) is str:
            out += (_TEXT, _utf8(part))
        elif type(part) is dict:
            _part(part, out)
        else:
            out += (_PART, _json(part))


def _part(part: dict[str, Any], out: list[bytes]) -> None:
    kind = part.get("type")
    text = part.get("text")
    if type(text) is str and kind in _TEXT_PARTS:
        out += (_TEXT, _utf8(text))
        return
    data = _json(_unmarked(part))
    if kind in _MEDIA_PARTS:
        data = xxhash.xxh3_128_hexdigest(data).encode() * _MEDIA_REPEATS
    out += (_PART, data)


def _prompts(view: RequestView, name: str, out: list[bytes]) -> None:
    """A text, a list of texts, token ids, or a list of lists of them."""
    value = view.value(name)
    if type(value) is list and value and type(value[0]) is int:
        value = [value]
    for prompt in value if type(value) is list else (value,):
        if type(prompt) is str:
            out += (_TEXT, _utf8(prompt))
        elif type(prompt) is list:
            out += (_TOKENS, _token_bytes(prompt))
        elif prompt is not None:
            out += (_RAW, _json(prompt))


def _token_bytes(ids: list[Any]) -> bytes:
    """Four bytes a token, about what its text has."""
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        return _json(ids)


def _items(view: RequestView, name: str, out: list[bytes]) -> Iterable[Any]:
    """The elements of a list field; of anything else nothing, its text being appended as it is."""
    raw = view.fields.get(name)
    if raw is None:
        return ()
    if len(raw) > LARGE and not view.decoded(name):
        return _one_by_one(raw, out)
    value = view.value(name)
    if type(value) is list:
        return value
    out += (_RAW, bytes(raw))
    return ()


def _one_by_one(raw: Raw, out: list[bytes]) -> Iterator[Any]:
    text = bytes(raw)
    # Objects cost memory many times their text when they are tiny; a field full of those is hashed as it is written.
    if text[:1] != b"[" or text.count(b",") * 32 > len(text):
        out += (_RAW, text)
        return
    for element in _elements(text):
        try:
            yield _plain(element)
        except (ValueError, RecursionError):
            yield bytes(element).decode("utf-8", "replace")


def _unmarked(part: Any) -> Any:
    """Without the cache marker, which clients move forward from turn to turn and which no template shows."""
    if type(part) is dict and "cache_control" in part:
        return {key: value for key, value in part.items() if key != "cache_control"}
    return part


def _json(value: Any, encode: Callable[[Any], bytes] = _sorted) -> bytes:
    try:
        return value.encode() if type(value) is str else encode(value)
    except (ValueError, RecursionError):
        return json.dumps(value).encode()  # lone surrogates, which only json reads and writes


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
