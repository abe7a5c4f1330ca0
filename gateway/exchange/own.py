"""What the gateway answers itself on the public port: health, models, and faults found before a request has an endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from gateway.exchange.refused import Refused
from gateway.exchange.replies import JSON, error_line, error_parts
from gateway.openai.models import lookup, merge
from gateway.wire.headers import response_head

if TYPE_CHECKING:
    from gateway.exchange.attempt import Headers
    from gateway.exchange.service import Service
    from gateway.openai.endpoints import Endpoint
    from gateway.wire.front import FrontProtocol, RequestHead

_LIVE = (b"/livez", b"/health/liveliness", b"/health/liveness")
_READY = (b"/readyz", b"/healthz", b"/health/readiness")
_PROBES = {*_LIVE, *_READY, b"/health"}


class OwnAnswers:
    """Complete responses made from the service's state."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def public(self, front: FrontProtocol, head: RequestHead) -> bytes | None:
        """Answers that need no key: probes and CORS preflights; None for everything else."""
        if head.method == b"OPTIONS":
            lines = self._service.cors.preflight(head)
            return None if lines is None else self._reply(front, head, 204, [], b"", lines)
        if head.path not in _PROBES or head.method not in (b"GET", b"HEAD"):
            return None
        status, value = self._probe(head)
        return self._reply(front, head, status, [JSON], msgspec.json.encode(value))

    def keyed(self, front: FrontProtocol, head: RequestHead, endpoint: Endpoint) -> bytes:
        """Answers that need a key where keys are configured: the model list. Raises Refused for a model that is not in it."""
        listing = self._models()
        if endpoint.name == "models":
            return self._reply(front, head, 200, [JSON], listing)
        found = lookup(listing, head.path)
        if found is None:
            raise Refused("model_not_found", "This model does not exist here; GET /v1/models lists the ones that do.", "model")
        return self._reply(front, head, 200, [JSON], found)

    def refusal(self, front: FrontProtocol, head: RequestHead, fault: Refused) -> bytes:
        """The answer to a request that gets no further, from its head alone."""
        service = self._service
        status, headers, data = error_parts(_shape(head.path), fault.code, fault.message, fault.param, fault.retry_after)
        if fault.allow:
            headers.append((b"allow", fault.allow.encode()))
        request_id = service.request_id(head)
        service.refused(front, request_id, status, fault.code)
        error = error_line(fault.code, reveal=service.settings.server.reveal)
        return self._reply(front, head, status, headers, data, service.cors.lines(head) + error, request_id)

    def fault(self, front: FrontProtocol, code: str, message: str, target: bytes | None) -> bytes:
        """A complete answer, closing the connection, to bytes that are not a request we can read."""
        service = self._service
        status, headers, data = error_parts(_shape(target or b""), code, message)
        request_id = service.request_id(None)
        service.refused(front, request_id, status, code)
        lines = b"x-request-id: %b\r\n%b" % (request_id, error_line(code, reveal=service.settings.server.reveal))
        return response_head(status, headers, lines, minor=1, length=len(data), keep_alive=False) + data

    def _probe(self, head: RequestHead) -> tuple[int, dict[str, object]]:
        service = self._service
        if head.path in _LIVE:
            return 200, {"status": "live"}
        if head.path == b"/health":
            return 200, self._health()
        if service.draining or not service.started:
            return 503, {"status": "draining" if service.draining else "starting"}
        models = parse_qs(head.query.decode("latin-1")).get("model", [])
        lacking = [model for model in models if not self._usable(model)]
        return (503, {"status": "no usable replica", "models": lacking}) if lacking else (200, {"status": "ready"})

    def _usable(self, model: str) -> int:
        """How many replicas can serve a model now, by whatever name."""
        table, now = self._service.table, self._service.clock()
        name = table.resolve(model)
        return 0 if name is None else sum(r.usable(now) is None for r in table.replicas(name))

    def _health(self) -> dict[str, object]:
        service = self._service
        usable = {model: self._usable(model) for model in service.table.models()}
        return {"status": "draining" if service.draining else "ok", "usable_replicas": usable, "running": len(service.running)}

    def _models(self) -> bytes:
        table = self._service.table
        listings = ((model, table.listing(model)) for model in table.models())
        return merge([(model, None if info is None else info.raw) for model, info in listings], table.aliases())

    def _reply(
        self,
        front: FrontProtocol,
        head: RequestHead,
        status: int,
        headers: Headers,
        data: bytes,
        extra: bytes | None = None,
        request_id: bytes | None = None,
    ) -> bytes:
        service = self._service
        lines = b"x-request-id: %b\r\n%b" % (
            service.request_id(head) if request_id is None else request_id,
            service.cors.lines(head) if extra is None else extra,
        )
        out = response_head(status, headers, lines, minor=head.minor, length=len(data), keep_alive=front.keep_alive)
        return out if head.method == b"HEAD" else out + data


def _shape(path: bytes) -> str:
    return "anthropic" if path.startswith(b"/v1/messages") else "openai"
