"""Validation errors in the words of the file: the fault, then what is allowed."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from gateway.settings.document import Path, dotted
from gateway.settings.schema import allowed, field_at, fields, section_at, sections

if TYPE_CHECKING:
    from collections.abc import Mapping

# By the beginning of the validator's own error type.
_FAULTS = {
    "int": "not a whole number",
    "float": "not a number",
    "finite": "not a number",
    "bool": "neither true nor false",
    "greater": "out of range",
    "less": "out of range",
    "literal": "not one of the choices",
    "string_too_long": "too long",
    "string": "not text",
    "tuple": "not a list",
    "model": "not a mapping",
    "dict": "not a mapping",
}


def translate(error: Mapping[str, Any], data: Any) -> tuple[Path, str]:
    """The place and the message for one pydantic error over `data`."""
    path = _existing(error["loc"], data, missing=error["type"] == "missing")
    if error["type"] == "extra_forbidden":
        return path, unknown(path)
    if error["type"] == "value_error":
        return path, str(error["ctx"]["error"])
    field = field_at(path)
    if error["type"] == "missing":
        return path, f"missing; allowed: {field.description if field else 'a value'}"
    fault = next((text for start, text in _FAULTS.items() if error["type"].startswith(start)), "not usable")
    return path, f"{fault}; allowed: {_allowed(path)}"


def unknown(path: Path) -> str:
    """The message for a key that does not exist, with the nearest one that does."""
    section = section_at(path[:-1])
    names = list(fields(section)) if section is not None else []
    return f"unknown key{_hint(str(path[-1]), names)}; allowed: {', '.join(names)}"


def _hint(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if near:
        return f", did you mean {near[0]}?"
    elsewhere = [dotted((*place, name)).replace(".*", "[]") for place, section in sections().items() if name in fields(section)]
    return f", did you mean {' or '.join(elsewhere)}?" if elsewhere else ""


def _allowed(path: Path) -> str:
    field = field_at(path)
    if field is not None:
        return allowed(field)
    section = section_at(path)
    if section is not None:
        return f"a mapping of {', '.join(fields(section))}"
    return "text"


def _existing(loc: tuple[int | str, ...], data: Any, *, missing: bool) -> Path:
    """The part of an error's location that the data has: unions add names of their own to it."""
    for n, part in enumerate(loc):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return loc[: n + 1] if missing else loc[:n]
    return loc
