"""Requests to prompt cells: the chat template, and JSON that fits a schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from xxhash import xxh3_64_hexdigest

IMAGE_TOKENS = 64
END = b"<|end|>"


def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, *, answer: bool = True) -> Iterable[bytes]:
    """Segments of a chat: tools, then every message in order, then the opening of the answer."""
    if tools:
        yield b"<|tools|>"
        yield orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)
        yield END
    for message in messages:
        yield _mark(message.get("role"))
        yield from content(message.get("content"))
        for call in message.get("tool_calls") or ():
            yield orjson.dumps(call)
        yield END
    if answer:
        yield _mark("assistant")


def content(value: object) -> Iterable[bytes]:
    """Segments of a message's content: a string, null, or a list of parts."""
    if isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, list):
        for part in value:
            yield _part(part)


def _mark(role: object) -> bytes:
    return f"<|{role}|>\n".encode()


def _part(part: object) -> bytes:
    if isinstance(part, str):
        return part.encode("utf-8", "surrogatepass")
    text = part.get("text") if isinstance(part, dict) else None
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    raw = orjson.dumps(part)
    if isinstance(part, dict) and "image" in str(part.get("type")):
        # An image costs a fixed number of tokens, whatever its encoding weighs, and equal images are equal prefixes.
        return (xxh3_64_hexdigest(raw) * IMAGE_TOKENS)[: IMAGE_TOKENS * 4].encode()
    return raw


def example(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """A small value that satisfies the usual parts of a JSON schema."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > 16:
        return {}
    if "$ref" in schema:
        return example(_resolve(schema["$ref"], root), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example(schema[key][0], root, depth + 1)
    return _typed(schema, root, depth)


def _typed(schema: dict[str, Any], root: Any, depth: int) -> Any:
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: example(properties[name], root, depth + 1) for name in properties}
    if kind == "array":
        return [example(schema.get("items", {}), root, depth + 1)] * max(1, schema.get("minItems", 1))
    if kind == "string":
        return "text".ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
    return {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 1.5), "boolean": True}.get(kind)


def _resolve(reference: str, root: Any) -> Any:
    for name in reference.lstrip("#/").split("/"):
        root = root.get(name, {}) if isinstance(root, dict) else {}
    return root
