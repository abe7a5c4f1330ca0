"""The reference tables of the manual, made from the models. `python -m gateway.settings.manual FILE` puts them into a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from gateway.settings.document import dotted
from gateway.settings.schema import allowed, fields, sections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"

_LEFT_OUT = ((), ("models", "*", "weights"))  # the file itself, and what has the keys of routing.weights but not their defaults


def reference() -> str:
    """One table per section: key, default, what is allowed, meaning."""
    return "\n".join(_table(path, model) for path, model in sections().items() if path not in _LEFT_OUT)


def updated(page: str) -> str:
    """The page with its tables made anew. Raises ValueError when the marks are missing."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise ValueError(f"the page needs {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def _table(path: tuple[str, ...], model: type[BaseModel]) -> str:
    title = dotted(path).replace(".*", "[]")
    rows = "".join(
        f"| `{name}` | {_default(field)} | {_cell(allowed(field))} | {_cell(field.description or '')} |\n" for name, field in _rows(model)
    )
    return f"### `{title}`\n\n| key | default | allowed | meaning |\n| --- | --- | --- | --- |\n{rows}"


def _rows(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The keys of a section that are no sections themselves: those have their own tables."""
    return ((name, field) for name, field in fields(model).items() if not isinstance(field.default, BaseModel))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = list(field.default) if isinstance(field.default, tuple) else field.default
    if value == "":
        return "numbered"
    text = yaml.safe_dump(value, default_flow_style=True).replace("...", "").replace("'", "").strip()
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace(" | ", ", ")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(updated(target.read_text()))
