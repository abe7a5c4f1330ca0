"""Every error the gateway can make, reached through a running gateway, in both dialects."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gateway.openai.errors import ERRORS
from gateway.settings import Settings
from tests.integration.scripts import sends
from tests.integration.toolkit import (
    CHAT,
    SSE_HEAD,
    STREAM,
    Client,
    Conn,
    Reply,
    Scripted,
    answers_ok,
    ask,
    eventually,
    framed,
    http,
    refused,
    running,
    settings_for,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.app import Gateway


class Scene:
    """Starts what a case needs and asks on the path it is played for."""

    def __init__(self, stack: AsyncExitStack, path: str) -> None:
        self._stack = stack
        self.path = path

    async def replica(self, script: Any) -> Scripted:
        replica = await Scripted(script).start()
        self._stack.push_async_callback(replica.stop)
        return replica

    async def gateway(self, script: Any = answers_ok, **sections: Any) -> Gateway:
        """A gateway over one replica with this script."""
        return await self.start(settings_for(await self.replica(script), **sections))

    async def start(self, settings: Settings) -> Gateway:
        return await self._stack.enter_async_context(running(settings))

    async def ask(self, gateway: Gateway, body: Any = CHAT, headers: str = "", path: str | None = None) -> Reply:
        return await ask(gateway, body, path or self.path, headers)

    async def raw(self, gateway: Gateway, data: bytes) -> Reply:
        async with Client(gateway.ports[0]) as client:
            await client.send(data.replace(b"PATH", self.path.encode()))
            return await client.reply()

    async def busy(self, gateway: Gateway, times: int = 1) -> None:
        """Keep the replica busy with requests of others."""
        for number in range(1, times + 1):
            client = await self._stack.enter_async_context(Client(gateway.ports[0]))
            await client.post("/v1/chat/completions", CHAT)
            await eventually(lambda n=number: len(gateway.service.running) == n)  # type: ignore[misc]


async def hold(conn: Conn) -> None:
    await conn.hold()


async def invalid_json(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(), b"{")


async def missing_model(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(), {})


async def invalid_request(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(), {"model": 5})


async def invalid_api_key(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(server={"api_keys": ["k"]}))


async def model_not_found(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(), {"model": "nope"})


async def response_not_found(scene: Scene) -> Reply:
    settings = settings_for(await scene.replica(hold), await scene.replica(hold))
    async with Client((await scene.start(settings)).ports[0]) as client:
        await client.get("/v1/responses/resp_1")
        return await client.reply()


async def unknown_path(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(), path=scene.path + "/nothing")


async def method_not_allowed(scene: Scene) -> Reply:
    return await scene.raw(await scene.gateway(), b"GET PATH HTTP/1.1\r\nhost: gw\r\n\r\n")


async def request_timeout(scene: Scene) -> Reply:
    gateway = await scene.gateway(server={"body_timeout_s": 0.2})
    return await scene.raw(gateway, b"POST PATH HTTP/1.1\r\nhost: gw\r\ncontent-length: 9\r\n\r\n{")


async def body_too_large(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(server={"max_body_bytes": 10}))


async def unsupported_encoding(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(), headers="content-encoding: br\r\n")


async def expectation_failed(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(), headers="expect: a miracle\r\n")


async def headers_too_large(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(limits={"headers": 5}), headers="x: y\r\n" * 9)


async def rate_limited(scene: Scene) -> Reply:
    gateway = await scene.gateway(hold, limits={"streams_per_key": 1})
    await scene.busy(gateway)
    return await scene.ask(gateway)


async def queue_full(scene: Scene) -> Reply:
    gateway = await scene.gateway(hold, r1={"max_inflight": 1}, admission={"queue_size": 0})
    await scene.busy(gateway)
    return await scene.ask(gateway)


async def queue_timeout(scene: Scene) -> Reply:
    gateway = await scene.gateway(hold, r1={"max_inflight": 1}, timeouts={"queue_s": 0.3})
    await scene.busy(gateway)
    return await scene.ask(gateway)


async def internal_error(scene: Scene) -> Reply:
    gateway = await scene.gateway()
    gateway.table.replicas("m")[0].settings = None  # type: ignore[assignment]
    return await scene.ask(gateway)


async def not_implemented(scene: Scene) -> Reply:
    return await scene.raw(await scene.gateway(), b"BREW PATH HTTP/1.1\r\nhost: gw\r\n\r\n")


async def upstream_connect(scene: Scene) -> Reply:
    replica = await scene.replica(hold)
    gateway = await scene.start(settings_for(replica, health={"interval_s": 60}))
    await replica.stop()
    return await scene.ask(gateway)


async def upstream_protocol(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(sends(b"SSH-2.0-OpenSSH\r\n\r\n")))


async def upstream_reset(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(sends(then="rst")))


async def upstream_auth(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(sends(http(401, b'{"error":"key sk-own"}')), r1={"api_key": "sk-own"}))


async def no_replica_ready(scene: Scene) -> Reply:
    return await scene.ask(await scene.start(settings_for(models=[{"name": "m"}])))


async def draining(scene: Scene) -> Reply:
    gateway = await scene.gateway(hold)
    async with Client(gateway.ports[0]) as client:
        await client.get("/livez")
        assert (await client.reply()).status == 200
        await scene.busy(gateway)
        gateway.service.serving = False
        await client.post(scene.path, CHAT)
        return await client.reply()


async def starting(scene: Scene) -> Reply:
    replica = await scene.replica(hold)
    replica.health = 503
    await replica.stop()
    discover = Settings.model_validate({"discover": [{"url": replica.url}]}).discover
    return await scene.ask(await scene.start(settings_for(models=[]).model_copy(update={"discover": discover})))


async def overloaded(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(server={"max_inflight_bytes": 10}))


async def first_byte_timeout(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(hold, timeouts={"first_byte_s": 0.3}), STREAM)


async def idle_timeout(scene: Scene) -> Reply:
    half = sends(SSE_HEAD + framed(b'data: {"a'), then="hold")
    return await scene.ask(await scene.gateway(half, timeouts={"idle_s": 0.3}), STREAM)


async def total_timeout(scene: Scene) -> Reply:
    return await scene.ask(await scene.gateway(hold, timeouts={"total_s": 0.3}))


async def http_version(scene: Scene) -> Reply:
    return await scene.raw(await scene.gateway(), b"POST PATH HTTP/3.0\r\nhost: gw\r\n\r\n")


CASES: dict[str, Callable[[Scene], Awaitable[Reply]]] = {
    case.__name__: case
    for case in (
        invalid_json, missing_model, invalid_request, invalid_api_key, model_not_found, response_not_found, unknown_path,
        method_not_allowed, request_timeout, body_too_large, unsupported_encoding, expectation_failed, headers_too_large, rate_limited,
        queue_full, queue_timeout, internal_error, not_implemented, upstream_connect, upstream_protocol, upstream_reset, upstream_auth,
        no_replica_ready, draining, starting, overloaded, first_byte_timeout, idle_timeout, total_timeout, http_version,
    )
}  # fmt: skip
OPENAI_ONLY = {"response_not_found"}


def test_every_error_of_the_table_has_its_case() -> None:
    """A new error code comes with a way to reach it."""
    assert set(CASES) == set(ERRORS)


@pytest.mark.parametrize("shape", ["openai", "anthropic"])
@pytest.mark.parametrize("code", CASES)
async def test_an_error_is_what_the_table_says(stack: AsyncExitStack, code: str, shape: str) -> None:
    """Status, code, dialect, retry headers; no address of a replica and no secret; and the connection or the next request is safe."""
    if code in OPENAI_ONLY and shape != "openai":
        pytest.skip("this endpoint speaks OpenAI's dialect only")
    scene = Scene(stack, {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[shape])
    async with asyncio.timeout(10):
        reply = await CASES[code](scene)
    refused(reply, ERRORS[code][0], code, shape=shape)
    assert b"sk-own" not in reply.body
    if code == "invalid_api_key":
        assert reply.headers["www-authenticate"] == "Bearer"
    if code == "method_not_allowed":
        assert reply.headers["allow"] == "POST"


async def test_errors_are_counted_under_their_code(stack: AsyncExitStack) -> None:
    """`kvgate_requests_total` has status and reason of each; a client's mistake is no replica's failure."""
    gateway = await Scene(stack, "/v1/chat/completions").gateway()
    for body, code, status in ((b"{", "invalid_json", "400"), ({"model": "x"}, "model_not_found", "404")):
        await ask(gateway, body)
        assert total(gateway, "kvgate_requests_total", reason=code, code=status, endpoint="chat_completions") == 1
    await ask(gateway, path="/nothing")
    assert total(gateway, "kvgate_requests_total", reason="unknown_path", code="404") == 1
    assert total(gateway, "kvgate_attempts_total") == 0
