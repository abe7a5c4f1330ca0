"""Browsers: which pages may call, and what the gateway tells them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scripts import sends
from tests.integration.toolkit import Client, ask, http

Start = Any

KEY = "sk-client-0123456789"
APP = "origin: https://app.example\r\n"
PREFLIGHT = "access-control-request-method: POST\r\naccess-control-request-headers: authorization,content-type,x-stainless-os\r\n"


async def preflight(gateway: Any, headers: str) -> tuple[int, dict[str, str]]:
    async with Client(gateway.ports[0]) as client:
        await client.get("/v1/chat/completions", headers, "OPTIONS")
        return await client.head()


async def test_a_browser_of_an_allowed_origin_can_call(replica: Start, gateway: Start) -> None:
    """Preflight without a key; answers and refusals it can read; one allow-origin header, ours."""
    r1 = await replica(sends(http(200, b"{}", "access-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\n")))
    running = await gateway(r1, server={"api_keys": [KEY], "cors_origins": ["https://app.example"]})
    status, headers = await preflight(running, APP + PREFLIGHT)
    assert status == 204
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in headers["access-control-allow-methods"]
    assert {"authorization", "content-type", "x-stainless-os"} <= set(headers["access-control-allow-headers"].split(","))
    good = await ask(running, headers=f"{APP}x-api-key: {KEY}\r\n")
    wrong = await ask(running, headers=f"{APP}x-api-key: nope\r\n")
    broken = await ask(running, b"{", headers=f"{APP}x-api-key: {KEY}\r\n")
    assert (good.status, wrong.status, broken.status) == (200, 401, 400)
    for reply in (good, wrong, broken):
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        assert {"x-request-id", "x-kvgate-error", "retry-after"} <= set(reply.headers["access-control-expose-headers"].split(", "))
        assert "origin" in reply.headers["vary"].lower()
        assert "access-control-allow-credentials" not in reply.headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://app.example.evil", "http://app.example", "null", "https://app.example:444"]
)
async def test_other_origins_get_no_permission(replica: Start, gateway: Start, origin: str) -> None:
    """Their preflight is refused, their answers name no origin."""
    r1 = await replica(sends(http(200, b"{}", "access-control-allow-origin: *\r\n")))
    running = await gateway(r1, server={"cors_origins": ["https://app.example"]})
    status, headers = await preflight(running, f"origin: {origin}\r\n{PREFLIGHT}")
    assert status == 405
    assert "access-control-allow-origin" not in headers
    assert "access-control-allow-origin" not in (await ask(running, headers=f"origin: {origin}\r\n")).headers


async def test_cross_origin_calls_are_off_by_default(replica: Start, gateway: Start) -> None:
    """No permission of ours, and the replica's own headers pass as they are."""
    running = await gateway(await replica(sends(http(200, b"{}", "access-control-allow-origin: *\r\n"))))
    assert (await preflight(running, APP + PREFLIGHT))[0] == 405
    assert (await ask(running, headers=APP)).headers["access-control-allow-origin"] == "*"


async def test_any_origin_may_be_allowed(replica: Start, gateway: Start) -> None:
    """`*` in the configuration."""
    running = await gateway(await replica(), server={"cors_origins": ["*"]})
    assert (await ask(running, headers=APP)).headers["access-control-allow-origin"] in ("*", "https://app.example")
