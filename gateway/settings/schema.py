"""The settings described: which keys exist where, and what each allows. Read from the models, so that messages and manual cannot drift."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.settings.models import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.settings.document import Path

_BOUNDS = {"gt": "above {}", "ge": "from {}", "le": "up to {}", "max_length": "up to {} characters"}


@cache
def sections() -> dict[tuple[str, ...], type[BaseModel]]:
    """Every mapping of the file by its path; `*` stands for a place in a list. `()` is the file itself."""
    return dict(_sections((), Settings))


def _sections(path: tuple[str, ...], model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    yield path, model
    for name, field in fields(model).items():
        inner, many = _inner(field.annotation)
        if inner is not None:
            yield from _sections((*path, name, "*") if many else (*path, name), inner)


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys a file may have in this mapping."""
    return {name: field for name, field in model.model_fields.items() if (model, name) != (Settings, "discover")}


def field_at(path: Path) -> FieldInfo | None:
    """What is known about one key, or None when there is no such key."""
    section = section_at(path[:-1])
    return section.model_fields.get(str(path[-1])) if section is not None and path else None


def section_at(path: Path) -> type[BaseModel] | None:
    """The mapping at a path of a document."""
    return sections().get(tuple("*" if isinstance(part, int) else part for part in path))


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for part in get_args(annotation):
        inner, many = _inner(part)
        if inner is not None:
            return inner, many or get_origin(annotation) is tuple
    return None, False


def allowed(field: FieldInfo) -> str:
    """What a key takes, in words: `a number from 0 up to 1, or null`."""
    kind = _kind(field.annotation)
    bounds = [
        text.format(value)
        for item in _metadata(field)
        for name, text in _BOUNDS.items()
        if (value := getattr(item, name, None)) is not None
    ]
    text = f"{kind} {' '.join(bounds)}" if bounds else kind
    return f"{text}, or null" if type(None) in get_args(field.annotation) else text


def _metadata(field: FieldInfo) -> list[Any]:
    """The limits on a field, also those inside `Annotated[...] | None`."""
    found = list(field.metadata)
    for part in get_args(field.annotation):
        for item in getattr(part, "__metadata__", ()):
            found.extend(item.metadata if isinstance(item, FieldInfo) else [item])
    return found


def _kind(annotation: Any) -> str:
    plain = getattr(annotation, "__origin__", annotation) if hasattr(annotation, "__metadata__") else annotation
    names = {bool: "true or false", int: "a whole number", float: "a number"}
    if plain in names:
        return names[plain]
    if get_origin(plain) is Literal:
        return " | ".join(map(str, get_args(plain)))
    if get_origin(plain) is tuple:
        return "a list"
    if get_origin(plain) is dict:
        return "a mapping"
    inner, _ = _inner(plain)
    if inner is not None:
        return f"a mapping of {', '.join(fields(inner))}"
    parts = [part for part in get_args(plain) if part is not type(None)]
    return _kind(parts[0]) if len(parts) == 1 else "text"
