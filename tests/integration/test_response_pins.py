"""Stored responses live in the engine that made them: whatever names one goes there."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.toolkit import Client, Conn, Reply, Scripted, ask, http, refused

if TYPE_CHECKING:
    from gateway.app import Gateway

    Start = Any

ASK = {"model": "m", "input": "hi", "store": True}


def keeper(name: str) -> Any:
    """A replica that makes responses with ids of its own and answers for them."""
    made = 0

    async def script(conn: Conn) -> None:
        nonlocal made
        request = conn.request
        if not request.line.startswith("POST /v1/responses HTTP"):
            await conn.send(http(200, json.dumps({"id": request.path, "by": name}).encode()))
            return
        made += 1
        response = {"object": "response", "status": "completed", "id": f"resp_{name}{made}", "output": []}
        if request.json().get("stream"):
            created = {"type": "response.created", "sequence_number": 0, "response": response}
            event = b"event: response.created\ndata: %b\n\n" % json.dumps(created).encode()
            await conn.stream(event[:30], event[30:], b'event: response.completed\ndata: {"type":"response.completed"}\n\n')
        else:
            body = json.dumps({"metadata": {}, **response, "text": "x" * 9000}).encode()
            head, _, rest = http(200, body).partition(b"\r\n\r\n")
            await conn.send(head + b"\r\n\r\n" + rest[:20])
            await asyncio.sleep(0.02)  # the id comes in a later read
            await conn.send(rest[20:])

    return script


async def call(gateway: Gateway, method: str, path: str) -> Reply:
    async with Client(gateway.ports[0]) as client:
        if method == "POST":
            await client.post(path, b"")
        else:
            await client.get(path, method=method)
        return await client.reply()


@pytest.fixture
async def two(replica: Start, gateway: Start) -> tuple[Gateway, Scripted, Scripted]:
    r1, r2 = await replica(keeper("a")), await replica(keeper("b"))
    return await gateway(r1, r2, routing={"policy": "round_robin"}), r1, r2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("method", "suffix"), [("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("POST", "/cancel")])
async def test_a_response_is_asked_for_where_it_was_made(
    two: tuple[Gateway, Scripted, Scripted], stream: bool, method: str, suffix: str
) -> None:
    """GET, DELETE and cancel reach the maker, and no other, with path and query as they were."""
    gateway = two[0]
    for _ in range(6):
        made = await ask(gateway, {**ASK, "stream": stream}, "/v1/responses")
        maker = made.headers["x-kvgate-replica"]
        name = made.body.split(b'"id": "')[1].split(b'"')[0].decode()
        reply = await call(gateway, method, f"/v1/responses/{name}{suffix}")
        assert (reply.status, reply.headers["x-kvgate-replica"]) == (200, maker)
        assert reply.json()["id"] == f"/v1/responses/{name}{suffix}"
    assert {r.line.split(" ")[0] for r in two[1].requests} == {"POST", method}
    assert {len(r.requests) for r in two[1:]} == {6}


async def test_a_conversation_goes_on_where_its_last_response_is(two: tuple[Gateway, Scripted, Scripted]) -> None:
    """`previous_response_id` pins, request after request."""
    gateway = two[0]
    made = await ask(gateway, ASK, "/v1/responses")
    maker, last = made.headers["x-kvgate-replica"], made.json()["id"]
    for _ in range(5):
        reply = await ask(gateway, {**ASK, "previous_response_id": last}, "/v1/responses")
        assert reply.headers["x-kvgate-replica"] == maker
        last = reply.json()["id"]


async def test_an_unknown_response_is_404_unless_there_is_only_one_place(replica: Start, gateway: Start, two: Any) -> None:
    """With several replicas nobody knows whom to ask; a single one is asked."""
    refused(await call(two[0], "GET", "/v1/responses/resp_unknown"), 404, "response_not_found")
    single = await gateway(await replica(keeper("c")))
    assert (await call(single, "GET", "/v1/responses/resp_unknown")).json()["by"] == "c"


async def test_an_unknown_previous_response_is_the_engine_s_to_refuse(two: tuple[Gateway, Scripted, Scripted]) -> None:
    """After a restart the gateway remembers nothing, and says nothing it does not know."""
    assert (await ask(two[0], {**ASK, "previous_response_id": "resp_old"}, "/v1/responses")).status == 200


async def test_a_response_whose_replica_is_out_is_not_asked_of_another(two: tuple[Gateway, Scripted, Scripted]) -> None:
    """503 while its replica is away, naming it; once that is removed, 404."""
    gateway = two[0]
    made = await ask(gateway, ASK, "/v1/responses")
    maker, name = made.headers["x-kvgate-replica"], made.json()["id"]
    gateway.drain(maker, draining=True)
    assert maker in refused(await call(gateway, "GET", f"/v1/responses/{name}"), 503, "no_replica_ready")["message"]
    gateway.remove_replica(maker)
    refused(await call(gateway, "GET", f"/v1/responses/{name}"), 404, "response_not_found")
