"""What the front asks of the gateway behind it, and what it tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.wire.front import FrontProtocol


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """One validated request head. Immutable: heads that are alike share all but `length`.

    `target` is in origin form (path and query, as received); `length` is the body's number of bytes, 0 without a body, None when it
    is chunked; `fields` (names in lower case) are the headers which the gateway reads itself; `forward` are the header lines for the
    replica, each ended by CRLF: the client's others as it spelled them, then those of `fields` that travel on.
    """

    method: bytes
    target: bytes
    path: bytes
    query: bytes
    minor: int
    keep_alive: bool
    length: int | None
    expect: bool
    forward: bytes
    fields: Mapping[bytes, bytes]

    def __repr__(self) -> str:
        # The rest holds credentials.
        return f"<RequestHead {self.method!r} {self.path!r}>"


class Sink(Protocol):
    """One accepted request, as its owner sees the client."""

    def body(self, data: bytes) -> None:
        """The whole request body, transfer coding removed; called exactly once, unless `gone` comes first."""

    def gone(self) -> None:
        """The client left, or the front ended the request, before `front.end()`; at most once. Nothing may be written any more."""

    def pause(self) -> None:
        """The client reads too slowly: stop writing soon."""

    def resume(self) -> None:
        """The client has caught up."""


class Handler(Protocol):
    """The gateway, as a client connection sees it."""

    def connected(self, front: FrontProtocol) -> bool:
        """A client connected; False refuses it with 503."""

    def disconnected(self, front: FrontProtocol) -> None:
        """A connection that was not refused ended."""

    def head(self, front: FrontProtocol, head: RequestHead) -> Sink | None:
        """A valid head, before its body is read: take the request, or answer it through `front.answer` and return None."""

    def refuse(self, front: FrontProtocol, status: int, code: str, message: str, target: bytes | None) -> bytes:
        """A complete error response saying `connection: close`, for a request that the front cannot accept."""
