"""Keys: who may ask, and that no key ends up where it does not belong."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.toolkit import CHAT, Client, Conn, ask, eventually, refused

if TYPE_CHECKING:
    from tests.integration.toolkit import Received

    Start = Any

KEY, OTHER, OWN = "sk-client-0123456789", "sk-client-9876543210", "sk-replica-abcdef"
KEYED = {"api_keys": [KEY, {"key": OTHER, "name": "team-b"}]}


def bytes_of(seen: Received) -> str:
    return f"{seen.line} {seen.headers} {seen.body!r}"


PRESENTED = ["authorization: Bearer {}", "Authorization: bearer {}", "authorization:   BEARER   {}  ", "x-api-key: {}", "Api-Key: {}"]


@pytest.mark.parametrize("header", PRESENTED)
@pytest.mark.parametrize("own", [None, OWN])
async def test_a_client_s_key_opens_the_gateway_and_stays_there(replica: Start, gateway: Start, header: str, own: str | None) -> None:
    """Each of the three headers admits; the replica sees its own key or none, never the client's."""
    r1 = await replica()
    running = await gateway(r1, server=KEYED, r1={"api_key": own} if own else {})
    reply = await ask(running, headers=header.format(KEY) + "\r\n")
    assert reply.status == 200
    [seen] = r1.requests
    assert KEY not in bytes_of(seen)
    assert seen.header("authorization") == (f"Bearer {own}" if own else None)
    assert seen.header("x-api-key") is None and seen.header("api-key") is None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "authorization: \r\n",
        "authorization: Bearer \r\n",
        "authorization: Bearer\r\n",
        f"authorization: {KEY}\r\n",
        f"authorization: Basic {KEY}\r\n",
        f"authorization: Bearer {KEY}x\r\n",
        f"authorization: Bearer {KEY[:-1]}\r\n",
        f"authorization: Bearer {KEY.upper()}\r\n",
        f"authorization: Bearer {KEY} {KEY}\r\n",
        "authorization: Bearer k\xe9y\r\n",
        "authorization: Bearer \x80\xff\r\n",
        "x-api-key: \r\n",
        "api-key: nope\r\n",
        f"cookie: key={KEY}\r\n",
        f"x-kvgate-key: {KEY}\r\n",
        f"authorization: Bearer nope\r\nx-api-key: {KEY}\r\n",
        "authorization: Bearer " + "k" * 60_000 + "\r\n",
    ],
)
async def test_a_wrong_key_is_refused_before_the_body_is_read(replica: Start, gateway: Start, header: str) -> None:
    """401 with www-authenticate, on the head alone; the key is not repeated in the answer."""
    r1 = await replica()
    running = await gateway(r1, server=KEYED)
    async with Client(running.ports[0]) as client:
        await client.send(f"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n{header}content-length: 1000\r\n\r\n".encode("latin-1"))
        reply = await client.reply()
    error = refused(reply, 401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "nope" not in json.dumps(error) and KEY not in json.dumps(error)
    assert r1.requests == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (f"authorization: Bearer {KEY}\r\nauthorization: Bearer {KEY}\r\n", 200),
        (f"authorization: Bearer {KEY}\r\nauthorization: Bearer nope\r\n", 400),
        (f"x-api-key: {KEY}\r\nx-api-key: {OTHER}\r\n", 400),
        (f"authorization: Bearer {KEY}\r\nx-api-key: nope\r\n", 200),
    ],
)
async def test_credentials_that_disagree_are_refused(replica: Start, gateway: Start, headers: str, status: int) -> None:
    """Two different values of one header are ambiguous; `authorization` goes before the others."""
    r1 = await replica()
    assert (await ask(await gateway(r1, server=KEYED), headers=headers)).status == status


async def test_probes_need_no_key_and_the_model_list_does(replica: Start, gateway: Start) -> None:
    """Load balancers have no key; everything that tells about the fleet asks for one."""
    running = await gateway(await replica(), server=KEYED)
    for path, status in (
        ("/livez", 200),
        ("/readyz", 200),
        ("/health", 200),
        ("/v1/models", 401),
        ("/v1/models/m", 401),
        ("/nothing", 401),
    ):
        async with Client(running.ports[0]) as client:
            await client.get(path)
            assert (await client.reply()).status == status, path


async def test_requests_at_once_are_limited_per_key(replica: Start, gateway: Start) -> None:
    """Beyond `limits.streams_per_key` a key gets 429 while other keys are served."""

    async def hold(conn: Conn) -> None:
        await conn.hold()

    running = await gateway(await replica(hold), server=KEYED, limits={"streams_per_key": 1})
    async with Client(running.ports[0]) as client, Client(running.ports[0]) as other:
        await client.post("/v1/chat/completions", CHAT, f"authorization: Bearer {KEY}\r\n")
        await eventually(lambda: running.service.running)
        refused(await ask(running, headers=f"x-api-key: {KEY}\r\n"), 429, "rate_limited")
        await other.post("/v1/chat/completions", CHAT, f"authorization: Bearer {OTHER}\r\n")
        await eventually(lambda: len(running.service.running) == 2)


@pytest.mark.parametrize("own", [None, OWN])
async def test_a_client_s_authorization_travels_on_when_asked_to(replica: Start, gateway: Start, own: str | None) -> None:
    """`forward_auth` passes it, unless the replica has a key of its own: then that one is sent, alone."""
    r1 = await replica()
    running = await gateway(r1, server={"forward_auth": True}, r1={"api_key": own} if own else {})
    await ask(running, headers=f"authorization: Bearer {KEY}\r\nx-api-key: {OTHER}\r\n")
    assert r1.requests[0].header("authorization") == f"Bearer {own or KEY}"
    assert OTHER not in bytes_of(r1.requests[0])


async def test_a_replica_s_own_headers_are_sent_to_it_alone_and_win(replica: Start, gateway: Start) -> None:
    """What the configuration says of a replica is not for a client to override, and not for another replica to see."""
    r1, r2 = await replica(), await replica()
    running = await gateway(r1, r2, r1={"headers": {"X-Team": "blue", "authorization": f"Basic {OWN}"}}, routing={"policy": "round_robin"})
    for _ in range(2):
        await ask(running, headers=f"x-team: red\r\nauthorization: Bearer {KEY}\r\n")
    [one], [two] = r1.requests, r2.requests
    assert (one.header("x-team"), one.header("authorization")) == ("blue", f"Basic {OWN}")
    assert (two.header("x-team"), two.header("authorization")) == ("red", None)


@pytest.mark.parametrize(
    ("key", "length", "status"),
    [(KEY, len(json.dumps(CHAT)), 100), ("wrong", len(json.dumps(CHAT)), 401), (KEY, 1 << 30, 413), ("wrong", 1 << 30, 413)],
)
async def test_expect_is_answered_before_the_body_is_sent(replica: Start, gateway: Start, key: str, length: int, status: int) -> None:
    """100 at once for a request that will be taken, the refusal at once for the others; `Expect` stays here."""
    r1 = await replica()
    running = await gateway(r1, server={"api_keys": [KEY]})
    async with Client(running.ports[0]) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nauthorization: Bearer {key}\r\nexpect: 100-continue\r\n"
        await client.send(f"{head}content-length: {length}\r\n\r\n".encode())
        async with asyncio.timeout(0.5):
            assert (await client.head())[0] == status
        if status == 100:
            await client.send(json.dumps(CHAT).encode())
            assert (await client.reply()).status == 200
            assert r1.requests[0].header("expect") is None
        else:
            assert r1.requests == []
