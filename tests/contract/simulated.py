"""Simulated replicas for tests: inside the test's own loop, or as a process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from replicas.simulator import Options, Server


@asynccontextmanager
async def simulated(**options: Any) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A replica on a free port, and a client for it."""
    server = Server(Options(**{"port": 0, "preset": "instant", **options}))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=10, verify=False, trust_env=False) as http:
            yield server, http
    finally:
        await server.stop()


@asynccontextmanager
async def simulated_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A replica as a process of its own, and its URL."""
    command = (sys.executable, "-m", "replicas.simulator", "--port", "0", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process, (await asyncio.wait_for(process.stdout.readline(), 10)).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def plain_client() -> httpx.AsyncClient:
    """A client for a process, without proxies and certificates."""
    return httpx.AsyncClient(verify=False, trust_env=False, timeout=5)


async def drain(pieces: AsyncIterator[Any]) -> list[Any]:
    """All that is left of a stream."""
    return [piece async for piece in pieces]
