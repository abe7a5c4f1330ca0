"""Base addresses as people write them, on both sides: slashes, /v1 and path prefixes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.toolkit import CHAT, Received, Scripted, ask, refused

if TYPE_CHECKING:
    from contextlib import AsyncExitStack


@dataclass
class Prefixed(Scripted):
    """A replica whose API begins below a path."""

    prefix: str = ""

    def _probe(self, request: Received) -> bytes | None:
        assert request.path.startswith(f"{self.prefix}/"), request.path
        return super()._probe(replace(request, line=request.line.replace(self.prefix, "", 1)))


@pytest.mark.parametrize(
    ("form", "prefix"),
    [
        ("http://{}", ""),
        ("http://{}/", ""),
        ("http://{}/v1", ""),
        ("http://{}/v1/", ""),
        ("HTTP://{}", ""),
        ("http://{}/pre/fix/v1", "/pre/fix"),
        ("http://{}/pre/fix/v1/", "/pre/fix"),
        ("http://{}/pre/fix", "/pre/fix"),
        ("http://{}/pre/fix/", "/pre/fix"),
    ],
)
async def test_a_replica_is_asked_at_its_own_paths(stack: AsyncExitStack, gateway: Any, form: str, prefix: str) -> None:
    """Never `/v1/v1`, never `//`; probes and metrics below the same prefix; the query as it came."""
    r1 = await Prefixed(prefix=prefix).start()
    stack.push_async_callback(r1.stop)
    running = await gateway(r1, r1={"url": form.format(f"127.0.0.1:{r1.port}")})
    for path in ("/v1/chat/completions", "/v1/chat/completions?a=%2F&b", "/tokenize"):
        assert (await ask(running, path=path)).status == 200
        assert r1.requests[-1].line == f"POST {prefix}{path} HTTP/1.1"
    assert [row.engine for row in running.table.snapshot(running.now())] == ["vllm"]


@pytest.mark.parametrize("base", ["", "/", "/v1/", "/v1/v1", "/api/v1", "/openai"])
async def test_a_client_with_another_base_is_told_the_path(replica: Any, gateway: Any, base: str) -> None:
    """A wrong base URL is a 404 that names the right path, and no redirect, which would lose the body."""
    reply = await ask(await gateway(await replica()), CHAT, f"{base}/chat/completions")
    assert "Did you mean /v1/chat/completions?" in refused(reply, 404, "unknown_path")["message"]
    assert "location" not in reply.headers
