"""How requests spread over replicas, as seen from outside: by load, by cached prefixes, and by what the engines tell."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.toolkit import CHAT, VLLM_METRICS, Conn, Reply, Scripted, answers_ok, ask, completion, eventually

if TYPE_CHECKING:
    from gateway.app import Gateway

    Start = Any

PREFIX = "You are the assistant of the city library; be brief. " * 160  # some 8 KB


def slow(seconds: float) -> Any:
    async def script(conn: Conn) -> None:
        await asyncio.sleep(seconds)
        await conn.send(completion())

    return script


def prompt(text: str) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", "content": text}]}


def placed(replies: list[Reply]) -> Counter[str]:
    assert {r.status for r in replies} == {200}
    return Counter(r.headers["x-kvgate-replica"] for r in replies)


async def burst(gateway: Gateway, bodies: list[dict[str, Any]]) -> Counter[str]:
    return placed(list(await asyncio.gather(*(ask(gateway, body) for body in bodies))))


async def in_turn(gateway: Gateway, bodies: list[dict[str, Any]]) -> Counter[str]:
    return placed([await ask(gateway, body) for body in bodies])


async def fleet(replica: Start, size: int, script: Any = answers_ok) -> list[Scripted]:
    return [await replica(script) for _ in range(size)]


async def test_a_burst_between_two_scrapes_is_spread(replica: Start, gateway: Start) -> None:
    """What the gateway has just sent counts at once, though the engines' metrics have not moved."""
    running = await gateway(*await fleet(replica, 4, slow(1)))
    counts = await burst(running, [prompt(f"{i} " * 50) for i in range(40)])
    assert {name: 7 <= count <= 13 for name, count in counts.items()} == dict.fromkeys(["r1", "r2", "r3", "r4"], True)


async def test_a_shared_prefix_stays_on_one_replica_while_that_is_idle(replica: Start, gateway: Start) -> None:
    """One conversation after the other goes where the prefix is cached."""
    running = await gateway(*await fleet(replica, 4))
    counts = await in_turn(running, [prompt(f"{PREFIX} question {i}") for i in range(20)])
    assert counts.most_common(1)[0][1] >= 18


async def test_a_shared_prefix_is_no_reason_to_drown_a_replica(replica: Start, gateway: Start) -> None:
    """A crowd with one prefix is spread: no replica holds much more than an even share."""
    running = await gateway(*await fleet(replica, 4, slow(1)))
    await ask(running, prompt(f"{PREFIX} warm"))
    counts = await burst(running, [prompt(f"{PREFIX} question {i}") for i in range(120)])
    assert max(counts.values()) <= 1.5 * 120 / 4


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank"])
async def test_load_counts_on_every_endpoint(replica: Start, gateway: Start, path: str) -> None:
    """Not only chat is spread."""
    running = await gateway(*await fleet(replica, 2, slow(0.4)))
    bodies = [{"model": "m", "input": f"{i}", "prompt": f"{i}", "query": f"{i}", "documents": [], "messages": []} for i in range(12)]
    counts = placed(list(await asyncio.gather(*(ask(running, body, path) for body in bodies))))
    assert min(counts["r1"], counts["r2"]) >= 3


async def test_prompts_nobody_has_seen_go_to_the_idle_replica(replica: Start, gateway: Start) -> None:
    """A miss looks at load: a large cache elsewhere and a busy replica are no attraction."""

    async def busy_or_quick(conn: Conn) -> None:
        if b"slow" in conn.request.body:
            await conn.hold()
        await conn.send(completion())

    r1, r2 = await fleet(replica, 2, busy_or_quick)
    running = await gateway(r1, r2, routing={"allow_pinning": True})
    await ask(running, prompt(PREFIX), headers="x-kvgate-replica: r2\r\n")
    crowd = [asyncio.ensure_future(ask(running, prompt(f"slow {i} " * 40), headers="x-kvgate-replica: r1\r\n")) for i in range(20)]
    await eventually(lambda: len(r1.requests) == 20)
    counts = await in_turn(running, [prompt(f"new {i} " * 40) for i in range(20)])
    assert counts["r2"] >= 19
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def test_a_cached_prefix_outweighs_a_slight_difference_in_load(replica: Start, gateway: Start) -> None:
    """When the first home of a prefix is at its cap, the second one is chosen, not the somewhat idler replica without it."""

    async def script(conn: Conn) -> None:
        if b"hold" in conn.request.body:
            await conn.hold()
        await conn.send(completion())

    replicas = await fleet(replica, 3, script)
    running = await gateway(*replicas, r1={"max_inflight": 4}, routing={"allow_pinning": True})
    for home in ("r1", "r2"):
        assert (await ask(running, prompt(PREFIX), headers=f"x-kvgate-replica: {home}\r\n")).status == 200
    held = [
        asyncio.ensure_future(ask(running, prompt(f"hold {name} {i}"), headers=f"x-kvgate-replica: {name}\r\n"))
        for name, count in (("r1", 4), ("r2", 3), ("r3", 2))
        for i in range(count)
    ]
    await eventually(lambda: sum(len(r.requests) for r in replicas) == 2 + len(held))
    assert (await in_turn(running, [prompt(f"{PREFIX} question {i}") for i in range(6)])) == {"r2": 6}
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_an_idle_fleet_is_used_evenly(replica: Start, gateway: Start) -> None:
    """Ties do not always fall on the first replica."""
    running = await gateway(*await fleet(replica, 4))
    counts = await in_turn(running, [prompt(f"{i} something else " * 30) for i in range(60)])
    assert {name: 9 <= count <= 21 for name, count in counts.items()} == dict.fromkeys(["r1", "r2", "r3", "r4"], True)


@pytest.mark.parametrize("policy", ["round_robin", "least_request", "weighted"])
async def test_every_policy_serves_and_spreads(replica: Start, gateway: Start, policy: str) -> None:
    """All replicas get something of a crowd."""
    running = await gateway(*await fleet(replica, 3, slow(0.3)), routing={"policy": policy})
    counts = await burst(running, [prompt(f"{i} " * 50) for i in range(30)])
    assert min(counts.values()) >= 5 and len(counts) == 3


async def test_a_session_keeps_its_replica(replica: Start, gateway: Start) -> None:
    """By header or by `user`, under the session policy; different sessions spread."""
    running = await gateway(*await fleet(replica, 3), routing={"policy": "session"})
    homes = set()
    for session in range(12):
        by_header = {(await ask(running, headers=f"x-session-id: s{session}\r\n")).headers["x-kvgate-replica"] for _ in range(3)}
        by_user = {(await ask(running, {**CHAT, "user": f"s{session}"})).headers["x-kvgate-replica"] for _ in range(3)}
        assert len(by_header) == len(by_user) == 1
        homes |= by_header
    assert homes == {"r1", "r2", "r3"}


def vllm(running: float, waiting: float, kv: float, kv_name: str = "kv_cache_usage_perc", engine: str = "0") -> str:
    labels = f'{{engine="{engine}",model_name="m"}}'
    return f"vllm:num_requests_running{labels} {running}\nvllm:num_requests_waiting{labels} {waiting}\nvllm:{kv_name}{labels} {kv}\n"


METRICS = [
    ("old names", vllm(3, 1, 0.5, "gpu_cache_usage_perc"), {"running": 3, "waiting": 1, "kv_usage": 0.5}),
    ("new names", vllm(3, 1, 0.5), {"running": 3, "waiting": 1, "kv_usage": 0.5}),
    ("two engines", vllm(3, 1, 0.2) + vllm(4, 0, 0.6, engine="1"), {"running": 7, "waiting": 1}),
    ("not a number", vllm(3, 1, float("nan")), {"running": 3, "kv_usage": None}),
    ("garbage", "<html>not metrics</html>", {"running": None, "kv_usage": None}),
    ("another engine's names", 'sglang:num_running_reqs{model_name="m"} 3\nsglang:token_usage 0.5\n', {"kv_usage": None}),
    ("llama.cpp's names", "llamacpp:requests_processing 3\nllamacpp:kv_cache_usage_ratio 0.5\n", {"kv_usage": None}),
    ("a list in JSON", '[{"iter":1,"gpuMemUsage":5}]', {"kv_usage": None}),
    ("empty", "", {"running": None, "kv_usage": None}),
    ("none", None, {"running": None, "kv_usage": None}),
]


@pytest.mark.parametrize(("metrics", "known"), [pytest.param(text, known, id=name) for name, text, known in METRICS])
async def test_metrics_are_understood_or_unknown(replica: Start, gateway: Start, metrics: str | None, known: dict[str, Any]) -> None:
    """Old and new names, several engines, other engines, none: read right, or unknown, which is neither idle nor full; requests flow."""
    other = await replica(metrics=VLLM_METRICS)
    running = await gateway(await replica(metrics=metrics), other, scrape={"interval_s": 0.05})

    def signals() -> dict[str, float | None]:
        [row] = [row for row in running.table.snapshot(running.now()) if row.id == "r1"]
        return {name: reading.value for name, reading in row.signals.items()}

    await eventually(lambda: {name: signals().get(name) for name in known} == known)
    counts = await in_turn(running, [prompt(f"{i} whatever " * 30) for i in range(12)])
    assert set(counts) <= {"r1", "r2"}
    assert (await ask(running)).status == 200
