"""Base addresses of servers: two spellings of one server have one key."""

from __future__ import annotations

import hashlib

from gateway.settings.kinds import server_key

_DEFAULT_PORTS = {"http": 80, "https": 443}


def address(url: str) -> str:
    """The canonical base address, without final slash or `/v1`: `HTTP://h:80/p/v1/` -> `http://h/p`. Paths are appended to it."""
    scheme, host, port, prefix = server_key(url)
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}{prefix}" if _DEFAULT_PORTS[scheme] == port else f"{scheme}://{name}:{port}{prefix}"


def short_id(key: str) -> str:
    """A stable replica id for a server nobody named; it tells clients nothing about the address."""
    return "r-" + hashlib.blake2b(key.encode(), digest_size=3).hexdigest()
