"""Who may ask: API keys from the usual three headers, compared without leaking timing."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.settings import ApiKey

_BEARER = b"bearer "


def presented(fields: Mapping[bytes, bytes]) -> bytes | None:
    """The key a client presents: `Authorization: Bearer`, else `x-api-key`, else `api-key`; None when there is none."""
    authorization = fields.get(b"authorization")
    if authorization is not None and authorization[:7].lower() == _BEARER:
        return authorization[7:].strip(b" \t")
    return fields.get(b"x-api-key") or fields.get(b"api-key")


class KeyRing:
    """The configured keys by digest. Looking a digest up tells an attacker nothing about a key's prefix."""

    __slots__ = ("_names", "open")

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._names = {_digest(k.key.get_secret_value().encode()): k.name for k in keys}
        self.open = not self._names

    def admit(self, fields: Mapping[bytes, bytes]) -> str | None:
        """The name of the presented key ("" when no keys are configured), or None when it must be refused."""
        if self.open:
            return ""
        key = presented(fields)
        return None if key is None else self._names.get(_digest(key))


def _digest(key: bytes) -> bytes:
    # Keys are long random strings, so a plain hash is enough; a slow one per request would be a gift to attackers.
    return hashlib.blake2b(key, digest_size=16).digest()
