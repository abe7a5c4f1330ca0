"""What a request looks like on its way to a replica: one connection pool per server, one prepared head per replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.fleet import ReplicaState
    from gateway.wire.front import RequestHead
    from gateway.wire.upstream import Pool


_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})


class Route:
    """The way to one replica: its pool, and what never changes about the head of a request to it and of its answers to clients.

    `sets`: names, in lower case, of the headers that the configuration gives this replica. `own_key`: there is a credential among them.
    """

    __slots__ = ("fixed", "identity", "own_key", "pool", "prefix", "sets", "settings")

    def __init__(self, pool: Pool, replica: ReplicaState) -> None:
        settings = self.settings = replica.settings
        self.pool = pool
        self.sets = frozenset(name.lower().encode() for name in settings.headers)
        self.own_key = settings.api_key is not None or not _CREDENTIALS.isdisjoint(self.sets)
        self.prefix = pool.target.prefix
        lines = [b" HTTP/1.1\r\nhost: " + pool.target.authority]
        if settings.api_key is not None:
            lines.append(b"authorization: Bearer " + settings.api_key.get_secret_value().encode())
        lines.extend(f"{name}: {value}".encode("latin-1") for name, value in settings.headers.items())
        self.fixed = b"\r\n".join(lines) + b"\r\n"
        self.identity = b"x-kvgate-replica: %b\r\nx-kvgate-model: %b\r\n" % (header_text(replica.id), header_text(replica.model))


def header_text(text: str) -> bytes:
    """A name as a header value: names may hold anything, header values may not."""
    return text.encode() if text.isascii() and text.isprintable() else text.encode("ascii", "backslashreplace")


def client_lines(route: Route, head: RequestHead, *, forward_auth: bool) -> bytes:
    """The client's header lines that travel on, each ended by CRLF. Bodies are sent decoded, so content-encoding never does.

    What the configuration gives a replica is not for a client to change, nor to send a second time.
    """
    lines = head.forward
    if route.sets:
        rows = lines.splitlines(keepends=True)
        lines = b"".join([row for row in rows if row[: row.index(b":")].lower() not in route.sets])
    if forward_auth and not route.own_key and b"authorization" in head.fields:
        return b"%bauthorization: %b\r\n" % (lines, head.fields[b"authorization"])
    return lines


def request_head(route: Route, head: RequestHead, lines: bytes, request_id: bytes, encoding: bytes | None, length: int) -> bytes:
    """The whole head of an upstream request. `encoding`: the accept-encoding to send; None sends none."""
    accept = b"accept-encoding: " + encoding + b"\r\n" if encoding is not None else b""
    framing = b"content-length: %d\r\n" % length if length or head.method == b"POST" else b""
    return b"%b %b%b%b%b%b%bx-request-id: %b\r\n\r\n" % (
        head.method, route.prefix, head.target, route.fixed, lines, framing, accept, request_id,
    )  # fmt: skip
