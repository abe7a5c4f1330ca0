"""Token counts out of the answers of engines. Pure, and deliberately loose: a strange body gives None, never an error.

Bodies are first read as what engines normally send, which is quick; those that do not fit are read value by value.
"""

from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec


class Usage(NamedTuple):
    """Tokens of one request. `prompt` includes `cached`; `cached` is None where the engine does not tell."""

    prompt: int
    completion: int
    cached: int | None


_MOST = 10**15  # no token count; beyond it a float's digits are not all there
_Count = Annotated[int, msgspec.Meta(ge=0, lt=_MOST)] | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Count = None


class _Counts(msgspec.Struct, gc=False):
    """A usage object: OpenAI's names, those of Responses and Anthropic, and Anthropic's own."""

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Details | None = None
    input_tokens: _Count = None
    output_tokens: _Count = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: _Count = None
    cache_creation_input_tokens: _Count = None


_C = TypeVar("_C")


class _Carrier(msgspec.Struct, Generic[_C]):
    """Where a usage object may be: at the top, in a Responses event, in an Anthropic message_start."""

    usage: _C | None = None
    response: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Carrier[_Counts]).decode
_decode_loosely = msgspec.json.Decoder(_Carrier[Any]).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_Tally = tuple[int | None, int | None, int | None]  # prompt, completion and cached tokens


def parse_usage(*bodies: bytes | None) -> Usage | None:
    """The usage of a JSON body or event of any supported endpoint (chat, completions, embeddings, Responses, Anthropic messages).

    Of several, the later ones complete and override the earlier: Anthropic streams tell the prompt first and the completion last.
    """
    prompt = completion = cached = None
    for body in bodies:
        counts = _find(body) if body else None
        if counts is not None:
            new_prompt, new_completion, new_cached = _tally(counts)
            prompt = prompt if new_prompt is None else new_prompt
            completion = completion if new_completion is None else new_completion
            cached = cached if new_cached is None else new_cached
    if prompt is None and completion is None:
        return None
    return Usage(prompt or 0, completion or 0, cached)


def _find(body: bytes | msgspec.Raw) -> _Counts | None:
    try:
        carrier = _decode(body)
    except msgspec.ValidationError:
        carrier = _read_loosely(body)
    except _UNREADABLE:
        return None
    if carrier.usage is not None:
        return carrier.usage
    for inner in (carrier.response, carrier.message):
        if bytes(inner)[:1] == b"{":
            return _find(inner)
    return None


def _tally(counts: _Counts) -> _Tally:
    prompt = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
    completion = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
    read = counts.cache_read_input_tokens
    if read is None:
        details = counts.prompt_tokens_details or counts.input_tokens_details
        return prompt, completion, None if details is None else details.cached_tokens
    # Anthropic counts cached tokens apart from input_tokens.
    if prompt is not None:
        prompt += read + (counts.cache_creation_input_tokens or 0)
    return prompt, completion, read


def _read_loosely(body: bytes | msgspec.Raw) -> _Carrier[_Counts]:
    """What can be understood of a body in which something has an unexpected type."""
    try:
        found = _decode_loosely(body)
    except _UNREADABLE:
        return _Carrier()
    return _Carrier(_loose_counts(found.usage), found.response, found.message)


def _loose_counts(usage: Any) -> _Counts | None:
    if not isinstance(usage, dict):
        return None
    counts = _Counts()
    for name, value in usage.items():
        if name in _DETAILS and isinstance(value, dict):
            setattr(counts, name, _Details(_loose_count(value.get("cached_tokens"))))
        elif name in _COUNTS:
            setattr(counts, name, _loose_count(value))
    return counts


_DETAILS = frozenset(("prompt_tokens_details", "input_tokens_details"))
_COUNTS = frozenset(_Counts.__struct_fields__) - _DETAILS


def _loose_count(value: Any) -> int | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 0 <= value < _MOST else None
