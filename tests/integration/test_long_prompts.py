"""Long prompts cost time to hash; nobody else may wait for that."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from tests.integration.process import Served, serving
from tests.integration.toolkit import DONE, STREAM, Client, Conn, admin, ask, completion, ev, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.toolkit import Scripted

PROMPTS, PROMPT_BYTES = 8, 10 << 20


async def answers(conn: Conn) -> None:
    if len(conn.request.body) < 1000:
        await conn.stream(*[ev(str(i)) for i in range(80)], DONE, every=0.05)
    else:
        await conn.send(completion())


async def test_long_prompts_do_not_hold_up_anybody(replica: Any, tmp_path: Path) -> None:
    """Eight prompts of 10 MiB at once: probes answer and a stream goes on meanwhile."""
    r1: Scripted = await replica(answers)
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"lorem ipsum " * (PROMPT_BYTES // 12))
    async with serving(tmp_path / "kvgate.yaml", {"models": [{"name": "m", "replicas": [{"url": r1.url}]}]}) as served:
        stream = asyncio.ensure_future(ask(served, STREAM))
        await eventually(lambda: r1.requests)
        prompts = [asyncio.ensure_future(ask(served, body)) for _ in range(PROMPTS)]
        waits: list[float] = []
        while not all(p.done() for p in prompts):
            waits.append(await probe(served))
            await asyncio.sleep(0.05)
        assert {(await p).status for p in prompts} == {200}
        assert (await stream).complete
        page = (await admin(served, "/metrics")).body.decode()
    assert len(r1.requests) == PROMPTS + 1
    # The gateway's own lag, which hashing on its loop would show in seconds; the probes wait for this busy process as well.
    assert float(page.split("\nkvgate_loop_lag_max_seconds ")[1].split("\n")[0]) < 0.5
    assert statistics.median(waits) < 0.3


async def probe(served: Served) -> float:
    began = time.monotonic()
    async with Client(served.ports[0]) as client:
        await client.get("/health")
        assert (await client.reply()).status == 200
    return time.monotonic() - began
