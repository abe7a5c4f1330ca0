"""A real HTTP server on a free port that answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from gateway.fleet import Table
from gateway.settings import Settings

METRICS = (
    'vllm:num_requests_running{{engine="0"}} {}\nvllm:num_requests_waiting{{engine="0"}} {}\nvllm:kv_cache_usage_perc{{engine="0"}} 0.25\n'
)


class FakeEngine:
    """`answers`: path -> (status, text); a number of seconds in `delays` is waited first. Anything else is 404."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, tuple[int, str]] = {}
        self.delays: dict[str, float] = {}
        self.asked: list[web.Request] = []

    def be_vllm(self, *models: str, version: str = "0.12.0") -> None:
        listed = ",".join(f'{{"id":"{m}","object":"model","owned_by":"vllm","max_model_len":4096}}' for m in models or ("m",))
        self.answers |= {
            "/health": (200, ""),
            "/version": (200, f'{{"version":"{version}"}}'),
            "/metrics": (200, METRICS.format(3, 1)),
            "/v1/models": (200, f'{{"object":"list","data":[{listed}]}}'),
        }

    def paths(self) -> list[str]:
        return [request.path for request in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        await asyncio.sleep(self.delays.get(request.path, 0.0))
        status, text = self.answers.get(request.path, (404, '{"detail":"Not Found"}'))
        headers = {"location": self.url + "/elsewhere"} if 300 <= status < 400 else {}
        return web.Response(status=status, text=text, headers=headers)


@asynccontextmanager
async def engine(**ssl: Any) -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, **ssl)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.url = f"{'https' if ssl else 'http'}://{host}:{port}"
    try:
        yield fake
    finally:
        await runner.cleanup()


def table_of(url: str, *, sections: dict[str, Any] | None = None, **replica: Any) -> Table:
    entry = {"id": "r1", "url": url, **replica}
    quick = {"health": {"timeout_s": 0.5, "interval_s": 0.05}, "scrape": {"timeout_s": 0.5, "interval_s": 0.05}}
    return Table(Settings.model_validate({"models": [{"name": "m", "replicas": [entry]}], **quick, **(sections or {})}), 0.0)
