"""The number of metric series is bounded by the configuration, not by what clients send."""

from __future__ import annotations

import random
from typing import Any

from tests.integration.toolkit import CHAT, Client, ask, total

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")


def series(gateway: Any) -> int:
    page = gateway.collector.render()[0].decode()
    return sum(not line.startswith("#") for line in page.splitlines())


async def noise(gateway: Any, dice: random.Random, rounds: int) -> None:
    """Requests that differ in everything a client can choose."""
    async with Client(gateway.ports[0]) as client:
        for i in range(rounds):
            name = f"{i}-{dice.random()}"
            await client.post("/v1/chat/completions", {**CHAT, "model": f"typo-{name}", "user": name}, f"x-session-id: {name}\r\n")
            await client.reply()
            await client.post("/v1/chat/completions", {**CHAT, "user": name, "prompt_cache_key": name}, f"x-request-id: {name}\r\n")
            await client.reply()
            method = METHODS[i % len(METHODS)]
            await client.get(f"/v1/xyz{name}", f"x-{name}: 1\r\n", method)
            status, headers = await client.head()
            assert status == 404
            if method != "HEAD":
                await client.reader.readexactly(int(headers["content-length"]))


async def test_clients_cannot_add_series(replica: Any, gateway: Any) -> None:
    """A thousand typos, paths, methods and users later there are as many series as after the first few; unknown names share one value."""
    running = await gateway(await replica())
    dice = random.Random(1)
    await noise(running, dice, 20)
    before, page = series(running), len(running.collector.render()[0])
    await noise(running, dice, 400)
    assert series(running) == before
    assert len(running.collector.render()[0]) < page + 2000  # digits of counters
    assert total(running, "kvgate_requests_total", model="m") == 420
    assert total(running, "kvgate_requests_total", model="unknown", reason="model_not_found") == 420
    assert total(running, "kvgate_requests_total", model="unknown", endpoint="unknown", reason="unknown_path") == 420


async def test_replica_states_and_models_are_series_of_the_configuration(replica: Any, gateway: Any) -> None:
    """A model that was removed, or a replica, does not leave its gauges behind."""
    running = await gateway(await replica(), await replica())
    await ask(running)
    assert total(running, "kvgate_replica_state", replica="r2") == 1
    running.remove_replica("r2")
    running.table.tick(running.now())
    assert total(running, "kvgate_replica_state", replica="r2") == 0
