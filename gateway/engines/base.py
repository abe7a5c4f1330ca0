"""What the gateway must know of a kind of engine. An engine is one `Engine` value; the registry in the package lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from gateway.engines.prom import Samples
from gateway.fleet import ModelInfo, Signals, Traits

Health = Literal["up", "starting", "down"]

_MOST_MODELS = 1000
_LONGEST_NAME = 256


class Evidence(msgspec.Struct, frozen=True):
    """What a server of unknown kind answered: its `/version`, its `/metrics`, its model list. None: no good answer."""

    version: str | None = None
    metrics: bytes | None = None
    models: tuple[ModelInfo, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of engine. Paths are relative to the base address.

    `families`: the metric names that `signals(samples, version)` wants to see. `health(status, body)` reads the answer of
    `health_path`. `recognises(evidence)` tells whether a server of unknown kind is one of these.
    """

    name: str
    recognises: Callable[[Evidence], bool]
    traits: Traits
    health_path: str = "/health"
    health: Callable[[int, bytes], Health]
    models_path: str = "/v1/models"
    version_path: str | None = None
    metrics_path: str | None = None
    families: frozenset[bytes] = frozenset()
    signals: Callable[[Samples, str | None], Signals] = lambda samples, version: Signals()  # noqa: ARG005


class _Entry(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str | None = None


class _Name(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[msgspec.Raw]


def read_models(body: bytes) -> tuple[ModelInfo, ...]:
    """The entries of an OpenAI model list; odd ones are left out. `ValueError` when it is no such list."""
    try:
        entries = msgspec.json.decode(body, type=_List).data
    except msgspec.MsgspecError as fault:
        raise ValueError(f"not a model list: {fault}") from None
    found = (_model(bytes(raw)) for raw in entries[:_MOST_MODELS])
    return tuple({m.id: m for m in found if m is not None}.values())


def _model(raw: bytes) -> ModelInfo | None:
    entry = _entry(raw)
    if entry is None or not entry.id or len(entry.id) > _LONGEST_NAME:
        return None
    length = entry.max_model_len
    return ModelInfo(entry.id, entry.root, entry.parent, length if length and length > 0 else None, entry.owned_by, raw)


def _entry(raw: bytes) -> _Entry | None:
    """An entry with a field of an unexpected type still names a model."""
    for kind in (_Entry, _Name):
        try:
            return msgspec.convert(msgspec.json.decode(raw, type=kind), _Entry, from_attributes=True)
        except msgspec.MsgspecError:
            continue
    return None


class _Error(msgspec.Struct):
    param: object = None
    code: object = None
    type: object = None
    message: object = None


class _ErrorBody(msgspec.Struct):
    error: _Error | None = None


def missing_model(status: int, body: bytes) -> bool:
    """Does this answer say that the model itself does not exist there? A 404 of a path or a stored object does not."""
    if status != 404:
        return False
    try:
        nested = msgspec.json.decode(body, type=_ErrorBody).error
        error = nested if nested is not None else msgspec.json.decode(body, type=_Error)
    except msgspec.MsgspecError:
        return False
    message = error.message if isinstance(error.message, str) else ""
    return error.param == "model" or error.code == "model_not_found" or ("model" in message and "does not exist" in message)
