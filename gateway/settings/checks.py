"""Faults that no single field can see: clashes between entries, and features that this version does not have.

These look at the plain data, not at the models, so that they are reported together with the faults of single fields.
"""

from __future__ import annotations

import os
import ssl
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

from gateway.settings.document import Path
from gateway.settings.kinds import server_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gateway.settings.models import Settings

Found = tuple[Path, str]


def _always(_: Any) -> bool:
    return True


# Path, when it is refused, and what is allowed instead.
_UNAVAILABLE: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("auto", _always, "leave the section out; clients name a model"),
    ("routing.policy", lambda v: v == "least_delay", "weighted | least_request | round_robin | session"),
    ("routing.shadow", bool, "[]"),
    ("routing.hold", lambda v: v == "auto" or _number(v) is not None, "off"),
    ("routing.gpu_source", lambda v: v == "dcgm", "auto | batch"),
    ("server.api_keys.*.tenant", _always, "{key, name}"),
    ("server.workers", lambda v: (_number(v) or 0) > 1, "1"),
    ("models.*.replicas.*.kv_events", _always, "leave the key out"),
    ("models.*.replicas.*.gpu_metrics_url", _always, "leave the key out"),
    ("admission.priority_header", lambda v: v != "x-kvgate-priority", "x-kvgate-priority"),
)


def unavailable(data: Any) -> Iterator[Found]:
    """What the file asks for that is not built."""
    for pattern, refused, instead in _UNAVAILABLE:
        for path, value in find(data, pattern):
            if refused(value):
                yield path, f"not available in this version; allowed: {instead}"


def clashes(data: Any) -> Iterator[tuple[Path, str, Path]]:
    """Entries that collide: path, message, and the path of the one that was there first."""
    yield from _repeated(find(data, "models.*.replicas.*.id"), "id {} is used twice; allowed: an id of its own")
    names = [*find(data, "models.*.name"), *find(data, "models.*.aliases.*")]
    yield from _repeated(names, "name {} is used twice; allowed: names and aliases that no other model has")
    yield from _repeated(find(data, "server.api_keys.*.name"), "name {} is used twice; allowed: a name of its own")
    keys = [*find(data, "server.api_keys.*"), *find(data, "server.api_keys.*.key")]
    yield from _repeated(keys, "the same key twice; allowed: a key of its own")
    for path, _ in find(data, "models.*"):
        servers = [(p, server_key(v)) for p, v in find(data, f"{'.'.join(map(str, path))}.replicas.*.url") if _readable(v)]
        yield from _repeated(servers, "this server is already a replica of this model; allowed: each server once per model")
    yield from _same_port(data)


def _same_port(data: Any) -> Iterator[tuple[Path, str, Path]]:
    public, admin = ("server", "port"), ("server", "admin", "port")
    ports = {path: _number(value) for name in (public, admin) for path, value in find(data, ".".join(name))}
    if ports.get(admin, 9090) == ports.get(public, 8080) != 0:
        yield admin, "the same port as server.port; allowed: another port", public


def _repeated(found: Iterable[tuple[Path, Any]], message: str) -> Iterator[tuple[Path, str, Path]]:
    first: dict[Any, Path] = {}
    for path, value in found:
        if isinstance(value, str | tuple) and first.setdefault(value, path) != path:
            yield path, message.format(value), first[value]


def find(data: Any, pattern: str) -> Iterator[tuple[Path, Any]]:
    """Everything at a dotted path, `*` being any place in a list. Data of another shape has nothing there."""
    return _find(data, pattern.split("."), ())


def _find(data: Any, parts: list[str], path: Path) -> Iterator[tuple[Path, Any]]:
    if not parts:
        yield path, data
    elif isinstance(data, list):
        places = range(len(data)) if parts[0] == "*" else [int(parts[0])] if parts[0].isdigit() else []
        for n in places:
            yield from _find(data[n], parts[1:], (*path, n))
    elif isinstance(data, dict) and parts[0] in data:
        yield from _find(data[parts[0]], parts[1:], (*path, parts[0]))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _readable(url: Any) -> bool:
    try:
        return isinstance(url, str) and server_key(url) is not None
    except ValueError:
        return False


def files(settings: Settings) -> Iterator[Found]:
    """Certificates that cannot be used, and a log that cannot be written. Looks at the files."""
    log = settings.log.requests
    if log not in ("stdout", "stderr", "off") and not _writable(log):
        yield ("log", "requests"), "cannot be written; allowed: stdout, stderr, off, or a file in a directory that exists"
    tls = settings.server.tls
    if tls.cert is not None:
        # A key with a passphrase would otherwise ask for it on the terminal.
        problem = _tried(partial(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain, tls.cert, tls.key, lambda: ""))
        if problem:
            yield ("server", "tls", "cert"), f"{problem}; allowed: PEM files of a certificate and its key without passphrase"
    for m, model in enumerate(settings.models):
        for r, replica in enumerate(model.replicas):
            problem = _tried(partial(ssl.create_default_context, cafile=replica.ca_file)) if replica.ca_file else ""
            if problem:
                yield ("models", m, "replicas", r, "ca_file"), f"{problem}; allowed: a PEM file of CA certificates"


def _writable(file: str) -> bool:
    path = File(file)
    return os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()


def _tried(use: Callable[[], object]) -> str:
    try:
        use()
    except ssl.SSLError as error:
        return f"cannot be used ({error.reason or 'not PEM'})"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""
