"""What a reload changes, and which of it only takes effect in a new process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.settings.models import Settings

# Entries of these lists keep their identity when they move: models by name, replicas by id.
_IDENTITY = {"models": "name", "replicas": "id", "discover": "id"}

# Sockets are bound once. New certificates are taken over, but HTTPS is on or off for good.
_AT_START = frozenset({"server.host", "server.port", "server.tls", "server.admin.host", "server.admin.port", "server.workers"})


def changes(old: Settings, new: Settings) -> list[str]:
    """Dotted paths of everything that differs: `server.reveal`, `models[llama].replicas[a].url`, `models[llama]` when it came or went."""
    return sorted(_changes("", old.model_dump(), new.model_dump()))


def needs_restart(changed: Iterable[str]) -> list[str]:
    """Those of `changes` that a running process cannot take over."""
    return [path for path in changed if path in _AT_START]


def _changes(path: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and _used(old) == _used(new):
        for key in old.keys() | new.keys():
            yield from _changes_at(f"{path}.{key}" if path else key, key, old.get(key), new.get(key))
    else:
        yield path


def _used(section: dict[str, Any]) -> bool:
    # A section whose keys are all null is a feature that is off: switching it is a change of the whole.
    return any(value is not None for value in section.values())


def _changes_at(path: str, key: str, old: Any, new: Any) -> Iterator[str]:
    identity = _IDENTITY.get(key)
    if identity is None or old is None or new is None:
        yield from _changes(path, old, new)
        return
    before, after = ({entry[identity]: entry for entry in entries} for entries in (old, new))
    for name in before.keys() | after.keys():
        yield from _changes(f"{path}[{name}]", before.get(name), after.get(name))
