"""Cross-origin rules for browsers: off unless `server.cors_origins` names the origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.wire.front import RequestHead

_EXPOSED = (
    b"x-request-id, x-kvgate-replica, x-kvgate-model, x-kvgate-attempts, x-kvgate-prefix-hit, x-kvgate-queue-ms, x-kvgate-overhead-ms, "
    b"x-kvgate-error, x-should-retry, retry-after, retry-after-ms"
)


class Cors:
    """Which origins may read answers. `active`: the replicas' own access-control headers are replaced by ours."""

    __slots__ = ("_any", "_origins", "active")

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = {o.rstrip("/").encode() for o in origins}
        self._any = b"*" in self._origins
        self.active = bool(self._origins)

    def allowed(self, head: RequestHead) -> bytes | None:
        """The request's origin when it may read the answer."""
        if not self.active:
            return None
        origin = head.fields.get(b"origin")
        return origin if origin is not None and (self._any or origin in self._origins) else None

    def lines(self, head: RequestHead) -> bytes:
        """Header lines for an ordinary answer; empty for everyone else's origins."""
        origin = self.allowed(head)
        if origin is None:
            return b""
        return b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n" % (origin, _EXPOSED)

    def preflight(self, head: RequestHead) -> bytes | None:
        """Header lines for the answer to an allowed preflight, else None."""
        origin = self.allowed(head)
        if origin is None or head.method != b"OPTIONS" or b"access-control-request-method" not in head.fields:
            return None
        asked = head.fields.get(b"access-control-request-headers", b"authorization, content-type")
        return (
            b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-allow-methods: GET, POST, DELETE\r\n"
            b"access-control-allow-headers: %b\r\naccess-control-max-age: 600\r\n" % (origin, asked)
        )
