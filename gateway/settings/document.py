"""A YAML text as plain data, knowing the line of everything in it.

Two things differ from an ordinary YAML reader. Scalars stay text (only a plain `null`, `~` or nothing is None): the field they are
meant for decides what they are, so a key `0123` or a model named `1e3` keeps its spelling. And `${NAME}` works everywhere, also inside
`{...}` and `[...]`, because it is taken out of the text before YAML sees the braces; a value put in can therefore never change the
structure of the file, and a comment needs no variables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from gateway.settings.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

Path = tuple[str | int, ...]

_VARIABLE = re.compile(r"(\$?)\$\{([^}\n]*)\}")
_EXPRESSION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.ASCII)
_MARK = re.compile("\ue000([0-9]+)\ue001")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
)


class Document:
    """What a settings file says. `data` is None when it cannot be read at all; `faults` then says why."""

    def __init__(self, text: str, file: str, env: Mapping[str, str]) -> None:
        self.file = file
        self.data: Any = None
        self._first = 1
        self.faults: list[Fault] = []
        self._lines: dict[Path, int] = {}
        self._env = env
        self._variables: list[tuple[str, str]] = []
        self._open: set[int] = set()
        try:
            root = yaml.compose(_VARIABLE.sub(self._take_out, text), yaml.SafeLoader)
            self.data = {} if root is None else self._read(root, ())
        except yaml.YAMLError as error:
            self._unreadable(error)
        except RecursionError:
            self.fault((), "nested too deeply; allowed: a mapping of sections")

    @classmethod
    def of(cls, data: Any, source: str) -> Document:
        """Data that comes from no file: its faults have no lines."""
        document = cls("", source, {})
        document.data, document._first, document._lines = data, 0, {}
        return document

    def line(self, path: Path) -> int:
        """The line of the deepest thing on this path that the file has."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, self._first)

    def has(self, path: Path) -> bool:
        """Does the file itself say something at this path?"""
        return path in self._lines

    def fault(self, path: Path, message: str, line: int | None = None) -> None:
        """Note a fault at a path."""
        self.faults.append(Fault(self.file, line or self.line(path), dotted(path), message))

    # -- YAML ----------------------------------------------------------------------------------------------------------

    def _unreadable(self, error: yaml.YAMLError) -> None:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
        self.fault((), f"not YAML: {_MARK.sub('${…}', str(problem))}; allowed: a mapping of sections", mark.line + 1 if mark else 1)

    def _read(self, node: yaml.Node, path: Path) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if node.tag not in _PLAIN_TAGS:
            self.fault(path, "YAML tags are not used here; allowed: the plain value", node.start_mark.line + 1)
            return None
        if id(node) in self._open:
            self.fault(path, "an alias that contains itself; allowed: a finite value", node.start_mark.line + 1)
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._read(item, (*path, n)) for n, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                merged = {**self._merged(value_node, path), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(path, "a key that is not plain text; allowed: key names", line)
                continue
            key = self._put_in(key_node.value, path, line)
            here = (*path, key)
            if key in own:
                self.fault(here, f"key given twice, first on line {self._lines[here]}; allowed: once", line)
                continue
            self._lines[here] = line
            own[key] = self._read(value_node, here)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, Any] = {}
        for part in parts:
            value = self._read(part, path)
            if isinstance(value, dict):
                result = {**value, **result}
            else:
                self.fault(path, "'<<' merges something that is not a mapping; allowed: an alias of a mapping", node.start_mark.line + 1)
        return result

    def _scalar(self, node: yaml.Node, path: Path) -> str | None:
        text = self._put_in(node.value, path, node.start_mark.line + 1)
        quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
        return None if text in _NULLS and not quoted else text

    # -- variables -----------------------------------------------------------------------------------------------------

    def _take_out(self, found: re.Match[str]) -> str:
        self._variables.append((found[1], found[2]))
        return f"\ue000{len(self._variables) - 1}\ue001"

    def _put_in(self, text: str, path: Path, line: int) -> str:
        if "${" in text:
            self.fault(path, "'${' without its '}'; allowed: ${NAME} or ${NAME:-default}, and $${ for the characters themselves", line)
        if "\ue000" not in text:
            return text
        return _MARK.sub(lambda mark: self._value(int(mark[1]), path, line), text)

    def _value(self, number: int, path: Path, line: int) -> str:
        escape, expression = self._variables[number] if number < len(self._variables) else ("$", "")
        if escape:
            return f"${{{expression}}}"
        found = _EXPRESSION.fullmatch(expression)
        if found is None:
            self.fault(path, "not a variable; allowed: ${NAME} or ${NAME:-default}", line)
            return ""
        name, default = found.groups()
        value = self._env.get(name)
        if default is not None:
            return value or default
        if value is None:
            self.fault(path, f"environment variable {name} is not set; allowed: set it, or give a default as ${{{name}:-default}}", line)
            return ""
        return value


def dotted(path: Path) -> str:
    """`server.api_keys[0].name`; the whole file is `file`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "file"
