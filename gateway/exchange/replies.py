"""The bytes of answers: heads of relayed responses with the x-kvgate-* headers, and answers the gateway makes itself."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from gateway.openai.errors import ERRORS, body
from gateway.wire.headers import Header, response_head

if TYPE_CHECKING:
    from gateway.exchange.attempt import Headers
    from gateway.exchange.exchange import Exchange

JSON: Final = (b"content-type", b"application/json")


def final_head(exchange: Exchange, status: int, headers: Headers, length: int | None, error: bytes = b"") -> bytes:
    """Head of a replica's answer as the client gets it, or of our own with the line that names the `error`."""
    return response_head(
        status,
        headers,
        identity_headers(exchange) + error,
        minor=exchange.head.minor,
        length=length,
        keep_alive=exchange.front.keep_alive,
        wall=time.time(),
        cors=exchange.service.cors.active,
    )


def identity_headers(exchange: Exchange) -> bytes:
    """`x-request-id` and, unless `server.reveal` is off, which replica answers and why that one. Lines ended by CRLF."""
    service, route, decision = exchange.service, exchange.route, exchange.decision
    cors = service.cors.lines(exchange.head) if service.cors.active else b""
    if route is None or decision is None or not service.settings.server.reveal:
        return b"x-request-id: %b\r\n%b" % (exchange.request_id, cors)
    return (
        b"x-request-id: %b\r\n%bx-kvgate-attempts: %d\r\nx-kvgate-prefix-hit: %.2f\r\nx-kvgate-queue-ms: %d\r\n"
        b"x-kvgate-overhead-ms: %.2f\r\n%b"
        % (
            exchange.request_id,
            route.identity,
            len(exchange.tries),
            decision.hit,
            exchange.queue_s * 1e3,
            exchange.overhead * 1e3,
            cors,
        )
    )


def error_response(exchange: Exchange, code: str, message: str, param: str | None, retry_after: float | None) -> tuple[int, bytes]:
    """(status, complete response) for one of the gateway's own errors on a request whose endpoint is known."""
    status, headers, data = error_parts(exchange.endpoint.shape, code, message, param, retry_after)
    error = error_line(code, reveal=exchange.service.settings.server.reveal)
    return status, final_head(exchange, status, headers, len(data), error) + data


def error_line(code: str, *, reveal: bool) -> bytes:
    """The typed reason as a header line; with `server.reveal` off it is in the body only."""
    return b"x-kvgate-error: %b\r\n" % code.encode() if reveal else b""


def error_parts(
    shape: str, code: str, message: str, param: str | None = None, retry_after: float | None = None
) -> tuple[int, list[Header], bytes]:
    """(status, headers, body) of one of the gateway's own errors in the endpoint's shape."""
    status, _type, should_retry = ERRORS[code]
    headers = [JSON]
    if retry_after is not None or should_retry:
        seconds = max(1.0 if retry_after is None else retry_after, 0.001)
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(seconds))))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(seconds * 1e3)))
    if should_retry is not None:
        headers.append((b"x-should-retry", b"true" if should_retry else b"false"))
    if code == "invalid_api_key":
        headers.append((b"www-authenticate", b"Bearer"))
    return status, headers, body(shape, code, message, param)
