"""From a file and the command line to settings, or to every fault at once."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gateway.settings.checks import clashes, files, find, unavailable
from gateway.settings.document import Document, Path, dotted
from gateway.settings.faults import Fault, SettingsError
from gateway.settings.messages import translate, unknown
from gateway.settings.models import Settings, Weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Place = tuple[str, int, str]  # file, line, field

_COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What `serve` was given on its command line; None and () leave the file as it is. Replicas replace the file's models."""

    replicas: tuple[str, ...] = ()
    host: str | None = None
    port: int | None = None
    admin_port: int | None = None
    policy: str | None = None

    def values(self) -> Iterator[tuple[Path, Any, str]]:
        """Path, value and option name of everything given."""
        options = (
            (("server", "host"), self.host, "--host"),
            (("server", "port"), self.port, "--port"),
            (("server", "admin", "port"), self.admin_port, "--admin-port"),
            (("routing", "policy"), self.policy, "--policy"),
            (("discover",), [{"url": url} for url in self.replicas] or None, "--replica"),
        )
        return (option for option in options if option[1] is not None)


def load(path: str | os.PathLike[str] | None, overrides: Overrides | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Read a settings file (None: there is none), put the command line over it, and check everything.

    Raises `SettingsError` with all faults, in the order of the file. Without a file the public port binds 127.0.0.1.
    """
    document = _read(path, os.environ if env is None else env)
    reader = _Reader(document, overrides or Overrides())
    if path is None:
        reader.put(("server", "host"), (overrides and overrides.host) or "127.0.0.1")
    return reader.settings()


def parse(data: dict[str, Any]) -> Settings:
    """Settings from plain data of the file's shape, checked like a file. Raises `SettingsError`."""
    return _Reader(Document.of(copy.deepcopy(data), "settings"), Overrides()).settings()


def _read(path: str | os.PathLike[str] | None, env: Mapping[str, str]) -> Document:
    if path is None:
        return Document.of({}, _COMMAND_LINE)
    file = os.fspath(path)
    try:
        return Document(File(file).read_bytes().decode("utf-8-sig"), file, env)
    except OSError as error:
        message = f"cannot be read ({error.strerror}); allowed: a YAML file"
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}; allowed: a YAML file in UTF-8"
    raise SettingsError([Fault(file, 1, "file", message)])


class _Reader:
    """One loading: the document, the options put over it, and the faults found."""

    def __init__(self, document: Document, overrides: Overrides) -> None:
        self._document = document
        self._options: dict[Path, str] = {}
        self._faults = list(document.faults)
        self._data: Any = document.data
        if not isinstance(self._data, dict):
            if not self._faults:
                document.fault((), "not a mapping; allowed: a mapping of sections such as server and models")
            raise SettingsError(document.faults)
        if "discover" in self._data:
            self._fault(("discover",), unknown(("discover",)))
            del self._data["discover"]
        if overrides.replicas:
            self._data.pop("models", None)
        for path, value, option in overrides.values():
            self._options[path] = option
            self.put(path, value)

    def put(self, path: Path, value: Any) -> None:
        """Set a value as if the file had it. A section that is not a mapping stays, and is found at fault later."""
        node = self._data
        for part in path[:-1]:
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
            if not isinstance(node, dict):
                return
        node[path[-1]] = value

    def settings(self) -> Settings:
        """The settings, or every fault."""
        for path, message in unavailable(self._data):
            self._fault(path, message)
        for path, message, first in clashes(self._data):
            self._fault(path, f"{message} (first on line {self._document.line(first)})" if self._document.has(first) else message)
        settings = self._validated({fault[:3] for fault in self._faults})
        if settings is not None and not self._faults:
            for path, message in files(settings):
                self._fault(path, message)
        if settings is None or self._faults:
            raise SettingsError(sorted(dict.fromkeys(self._faults), key=lambda fault: fault.line))
        return settings

    def _validated(self, known: set[Place]) -> Settings | None:
        """The models' own view. A value already found at fault is not reported a second time."""
        try:
            return Settings.model_validate(_inherit_weights(self._data))
        except ValidationError as error:
            for item in error.errors(include_url=False, include_input=False):
                path, message = translate(item, self._data)
                around = {self._place(path[:n]) for n in range(1, len(path) + 1)}
                if not around & known and not _inherited(item["loc"], path):
                    self._fault(path, message)
        return None

    def _fault(self, path: Path, message: str) -> None:
        self._faults.append(Fault(*self._place(path), message))

    def _place(self, path: Path) -> Place:
        """Where a value comes from: an option of the command line, or a line of the file."""
        for n in range(len(path), 0, -1):
            if path[:n] in self._options:
                return _COMMAND_LINE, 0, self._options[path[:n]]
        return self._document.file, self._document.line(path), dotted(path)


def _inherited(loc: tuple[int | str, ...], path: Path) -> bool:
    # A bad common weight shows again in every model that takes it over.
    return loc[:1] == ("models",) and loc[2:3] == ("weights",) and path != loc


def _inherit_weights(data: dict[str, Any]) -> dict[str, Any]:
    """A model that sets some weights takes the others from `routing.weights`."""
    common = {name: value for name in Weights.model_fields for _, value in find(data, f"routing.weights.{name}")}
    models = data.get("models")
    if not common or not isinstance(models, list):
        return data
    return {**data, "models": [_inheriting(model, common) for model in models]}


def _inheriting(model: Any, common: dict[str, Any]) -> Any:
    own = model.get("weights") if isinstance(model, dict) else None
    return {**model, "weights": {**common, **own}} if isinstance(own, dict) else model
