"""From the bytes of a request to what routing needs to know. Synchronous and free of side effects: long bodies run it in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from gateway.exchange.refused import Refused
from gateway.openai.decoding import decode
from gateway.openai.errors import BadRequest
from gateway.openai.prompt import canonical, namespace
from gateway.openai.view import view
from gateway.routing import Query, chain

if TYPE_CHECKING:
    from gateway.exchange.service import Service
    from gateway.openai.endpoints import Endpoint
    from gateway.openai.view import RequestView
    from gateway.wire.front import RequestHead


def prepare(service: Service, endpoint: Endpoint, head: RequestHead, data: bytes) -> tuple[RequestView | None, str, Query]:
    """Decode, read and hash a request. Returns its view (None for requests without a model), the model's name and the query to plan.

    Raises Refused with the error the client gets.
    """
    if endpoint.body == "none":
        return None, *_by_response_id(service, head)
    settings = service.settings
    encoding = head.fields.get(b"content-encoding")
    try:
        if encoding is not None:
            data = decode(encoding, data, settings.server.max_body_bytes)
        request = view(endpoint, data, head.fields.get(b"content-type"), nesting=settings.limits.nesting)
    except BadRequest as fault:
        raise Refused(fault.code, fault.message, fault.param) from None
    model = service.table.resolve(request.model)
    if model is None:
        raise service.unknown_model(request.model)
    # The model is part of the namespace: two models of one server share no KV cache, two names of one model do.
    prompt = canonical(request, namespace(request, model.encode()))
    hashes: tuple[int, ...] = ()
    size = 0
    if prompt is not None:
        size = len(prompt)
        hashes = chain(prompt, service.seed, settings.routing.block_bytes)
    query = Query(
        model,
        hashes,
        service.router.estimate(model, size),
        size=size,
        session=_session(head, request),
        pin=_pin(service, head, request, model),
        max_tokens=request.max_tokens,
    )
    return request, model, query


def _session(head: RequestHead, request: RequestView) -> int | None:
    """The key that keeps a conversation together under the `session` policy; None: its prefix does."""
    key = head.fields.get(b"x-session-id")
    if not key:
        named = request.cache_key or request.user
        if not named:
            return None
        key = named.encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(key)


def _pin(service: Service, head: RequestHead, request: RequestView, model: str) -> str | None:
    """The one replica this request may go to: it holds the previous response, or the client was allowed to choose."""
    if request.previous_response_id is not None:
        maker = service.pins.replica(request.previous_response_id)
        return maker if _serves(service, maker, model) else None  # gone: any other can say that it has no such response
    if service.settings.routing.allow_pinning and b"x-kvgate-replica" in head.fields:
        asked = head.fields[b"x-kvgate-replica"].decode("latin-1")
        if not _serves(service, asked, model):
            raise Refused("invalid_request", f"x-kvgate-replica: {model!r} has no replica {asked[:64]!r}.", "x-kvgate-replica")
        return asked
    return None


def _serves(service: Service, replica_id: str | None, model: str) -> bool:
    return any(replica.id == replica_id for replica in service.table.replicas(model))


def _by_response_id(service: Service, head: RequestHead) -> tuple[str, Query]:
    """`GET`, `DELETE` and `cancel` on `/v1/responses/{id}` go to the replica that made the response."""
    response_id = head.path.split(b"/")[3].decode("latin-1")
    replica_id = service.pins.replica(response_id) or service.only_replica()
    replica = None if replica_id is None else service.table.replica(replica_id)
    if replica is None:
        raise Refused("response_not_found", f"No replica behind this gateway is known to hold the response {response_id!r}.", "id")
    return replica.model, Query(replica.model, pin=replica.id)
