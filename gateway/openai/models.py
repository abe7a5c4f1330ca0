"""The model list: what the replicas tell about their models, under the names clients use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

_PREFIX = b"/v1/models/"


def merge(listings: Iterable[tuple[str, bytes | None]], aliases: Mapping[str, str]) -> bytes:
    """The body of `GET /v1/models`.

    `listings` pairs a public name with a replica's own JSON object for that model, None where no replica has told one; the first
    readable object of a name counts. `aliases` maps further names to public ones. Each name appears once, sorted, with the
    engine's fields kept; `parent` is translated to the public name where it is known.
    """
    models: dict[str, dict[str, Any]] = {}
    public: dict[str, str] = {}
    for name, raw in listings:
        told = _object(raw)
        if type(told.get("id")) is str:
            public.setdefault(told["id"], name)
        if not models.get(name):
            models[name] = told
    models |= {alias: models.get(name, {}) for alias, name in aliases.items() if alias not in models}
    data = [_entry(name, models[name], public) for name in sorted(models)]
    return msgspec.json.encode({"object": "list", "data": data})


def lookup(listing: bytes, path: bytes) -> bytes | None:
    """The body of `GET /v1/models/{id}` from a merged listing; None for a name it has not.

    The name is everything behind the prefix, percent-encoded or as it is: names hold slashes, and clients write them both ways.
    """
    wanted = path.removeprefix(_PREFIX)
    entries = {entry["id"].encode(): entry for entry in msgspec.json.decode(listing)["data"]}
    entry = entries.get(wanted) or entries.get(unquote_to_bytes(wanted))
    return None if entry is None else msgspec.json.encode(entry)


def _object(raw: bytes | None) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw) if raw is not None else None
    except (ValueError, RecursionError):
        value = None
    return value if type(value) is dict else {}


def _entry(name: str, told: dict[str, Any], public: dict[str, str]) -> dict[str, Any]:
    entry = {"id": name, "object": "model", "created": 0, "owned_by": "kvgate", **told} | {"id": name}
    parent = entry.get("parent")
    if type(parent) is str:
        entry["parent"] = public.get(parent, parent)
    return entry
