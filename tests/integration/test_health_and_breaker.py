"""Which replicas get requests: healthy is not the same as answering, busy not the same as dead, and draining not the same as gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.scripts import at_rest, records, sends, streams, until
from tests.integration.toolkit import (
    DONE,
    STREAM,
    VLLM_METRICS,
    Client,
    Scripted,
    admin,
    ask,
    completion,
    ev,
    eventually,
    http,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AsyncExitStack

    from gateway.app import Gateway
    from gateway.fleet import ServerState
    from tests.integration.toolkit import Conn, Received

    Replica = Callable[..., Awaitable[Scripted]]
    Start = Callable[..., Awaitable[Gateway]]

pytestmark = pytest.mark.usefixtures("quiet")

OFTEN = {"interval_s": 0.05, "timeout_s": 0.2}
LONG = streams(*[ev("tok")] * 12, DONE, every=0.1)
WHOLE = ev("tok") * 12 + DONE


def server(gw: Gateway, n: int = 1) -> ServerState:
    """The n-th replica's server."""
    return gw.table.servers()[n - 1]


async def state(gw: Gateway, replica_id: str = "r1") -> str:
    """A replica's state as operators see it."""
    rows = (await admin(gw, "/admin/replicas")).json()["replicas"]
    return next(row["state"] for row in rows if row["id"] == replica_id)


async def reaches(gw: Gateway, wanted: str, replica_id: str = "r1", within: float = 3) -> None:
    """Wait until operators see this state."""
    end = time.monotonic() + within
    while (seen := await state(gw, replica_id)) != wanted:
        assert time.monotonic() < end, f"still {seen}"
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running_streams(gw: Gateway, count: int) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Streams that have begun."""
    tasks = [asyncio.create_task(ask(gw, STREAM)) for _ in range(count)]
    await eventually(lambda: len(gw.service.running) == count)
    await asyncio.sleep(0.05)
    yield tasks


# -- answers ---------------------------------------------------------------------------------------------------------------


async def test_bad_requests_open_no_breaker(replica: Replica, gateway: Start) -> None:
    """A client that sends nonsense must not take the fleet down for the others."""
    r1, r2 = [await replica(sends(http(400, b'{"error":{"message":"bad"}}'))) for _ in range(2)]
    gw = await gateway(r1, r2)
    assert {(await ask(gw)).status for _ in range(50)} == {400}
    r1.script = r2.script = sends(completion())
    assert (await ask(gw)).status == 200
    assert [s.breaker.state(gw.now()) for s in gw.table.servers()] == ["closed", "closed"]


async def test_a_replica_that_only_answers_its_probes_is_left_out_until_it_heals(replica: Replica, gateway: Start) -> None:
    """200 to each probe, 500 to each request: passive checks take it out, and let it back within two cool-downs."""
    r1, r2 = await replica(sends(http(500, b'{"error":{"message":"dead engine"}}'))), await replica()
    gw = await gateway(r1, r2, breaker={"cooldown_s": 0.4}, health=OFTEN)
    done = records(gw)
    assert {(await ask(gw)).status for _ in range(40)} == {200}
    assert 5 <= len(r1.requests) < 10
    assert await state(gw) == "broken"
    r1.script = sends(completion())
    healed, began = len(r1.requests), time.monotonic()
    while len(r1.requests) < healed + 3:
        assert (await ask(gw)).status == 200
        assert time.monotonic() - began < 0.8 + 0.3
        await asyncio.sleep(0.01)
    assert await state(gw) == "up"
    assert done[-1].tries[-1][1] == "ok"


async def test_one_request_at_a_time_finds_out_whether_a_broken_replica_works_again(replica: Replica, gateway: Start) -> None:
    """After its cool-down a replica gets a single one, however many come at once; if that fails, it rests again."""
    r1, r2 = await replica(sends(http(500))), await replica()
    gw = await gateway(r1, r2, breaker={"failures": 1, "cooldown_s": 0.3})
    while not r1.requests:
        await ask(gw)
    for asked in (2, 3):
        await eventually(lambda: server(gw).breaker.state(gw.now()) == "half_open")
        replies = await asyncio.gather(*(ask(gw) for _ in range(20)))
        assert {reply.status for reply in replies} == {200}
        assert len(r1.requests) == asked
        assert server(gw).breaker.state(gw.now()) == "open"
    await at_rest(gw)


async def test_a_probing_request_whose_client_leaves_does_not_block_the_next_one(replica: Replica, gateway: Start) -> None:
    """Neither success nor failure: another request may try."""
    r1 = await replica(sends(http(500)))
    gw = await gateway(r1, breaker={"failures": 1, "cooldown_s": 0.2})
    await ask(gw)
    r1.script = sends(then="hold")
    await eventually(lambda: server(gw).breaker.state(gw.now()) == "half_open")
    async with Client(gw.ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        await eventually(lambda: server(gw).breaker.probe is not None)
    await at_rest(gw)
    r1.script = sends(completion())
    assert (await ask(gw)).status == 200
    assert server(gw).breaker.state(gw.now()) == "closed"


# -- probes ----------------------------------------------------------------------------------------------------------------


async def test_a_busy_replica_is_not_dead(replica: Replica, gateway: Start) -> None:
    """Its probes time out while its streams go on: it stays. When nothing comes from it any more, it goes."""
    r1, r2 = await replica(LONG), await replica(LONG)
    gw = await gateway(r1, r2, health={**OFTEN, "timeout_s": 0.1})
    async with running_streams(gw, 2) as tasks:
        assert (len(r1.requests), len(r2.requests)) == (1, 1)
        r1.health_delay = 5
        until_end = time.monotonic() + 0.9
        while time.monotonic() < until_end:
            assert server(gw).health == "up"
            await asyncio.sleep(0.02)
        assert {(await task).body for task in tasks} == {WHOLE}
    await reaches(gw, "down")


async def test_when_all_are_down_the_least_bad_is_tried(replica: Replica, gateway: Start) -> None:
    """Probes may be wrong about everybody at once: an answer is better than 503, which comes when that fails too."""
    r = await replica()
    gw = await gateway(r, health=OFTEN)
    r.health = 503
    await reaches(gw, "down")
    assert (await ask(gw)).status == 200
    await r.stop()
    reply = await ask(gw)
    assert (reply.status, reply.error_code) == (503, "no_replica_ready")
    assert int(reply.headers["retry-after"]) >= 1


class Flapping(Scripted):
    """Healthy at every second probe."""

    def _probe(self, request: Received) -> bytes | None:
        if request.path == "/health":
            self.health = 503 if self.health == 200 else 200
        return super()._probe(request)


async def test_a_probe_that_flaps_cuts_no_stream(stack: AsyncExitStack, gateway: Start) -> None:
    """Thresholds keep the state still, and a state never ends what runs."""
    r = await Flapping(LONG, health=503).start()
    stack.push_async_callback(r.stop)
    gw = await gateway(r, health=OFTEN)
    changes: list[str] = []
    gw.table.on_change.append(lambda _server, before, after: changes.append(f"{before} {after}"))
    async with running_streams(gw, 4) as tasks:
        assert {(await task).body for task in tasks} == {WHOLE}
    assert changes == []


async def test_a_replica_that_goes_down_keeps_its_running_streams(replica: Replica, gateway: Start) -> None:
    """Only new requests go elsewhere."""
    r1, r2 = await replica(LONG), await replica(LONG)
    gw = await gateway(r1, r2, health={**OFTEN, "unhealthy_after": 1})
    async with running_streams(gw, 2) as tasks:
        r1.health = 503
        await reaches(gw, "down")
        assert {(await ask(gw, STREAM)).headers["x-kvgate-replica"] for _ in range(1)} == {"r2"}
        assert {(await task).body for task in tasks} == {WHOLE}


async def test_a_new_replica_gets_requests_once_it_can_serve_them(replica: Replica, gateway: Start) -> None:
    """Not while it loads, not while it lists other models, but when it lists this one."""
    r1, r3 = await replica(), await replica(health=503, models=[{"id": "x"}, {"id": "y"}])
    gw = await gateway(r1, health=OFTEN)
    added = await admin(gw, "/admin/replicas", "POST", {"model": "m", "url": r3.url, "engine": "vllm", "id": "new"})
    assert added.status == 201
    for status, health in ((503, "down"), (200, "up")):
        r3.health = status
        await eventually(lambda health=health: server(gw, 2).health == health)
        assert await state(gw, "new") != "up"
        assert {(await ask(gw)).headers["x-kvgate-replica"] for _ in range(10)} == {"r1"}
    assert r3.requests == []
    r3.models = [{"id": "m"}]
    r3.health = 503
    await eventually(lambda: server(gw, 2).health == "down")
    r3.health = 200
    await reaches(gw, "up", "new")
    for _ in range(30):
        await ask(gw)
        if r3.requests:
            break
    assert r3.requests


async def test_a_sleeping_engine_is_left_alone(replica: Replica, gateway: Start) -> None:
    """vLLM asleep says 200 to probes and never answers requests: its metrics tell."""
    asleep = VLLM_METRICS + 'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n'
    r1, r2 = await replica(sends(then="hold"), metrics=asleep), await replica()
    gw = await gateway(r1, r2, scrape={"interval_s": 0.05})
    await reaches(gw, "asleep")
    assert {(await ask(gw)).headers["x-kvgate-replica"] for _ in range(10)} == {"r2"}
    r1.metrics, r1.script = asleep.replace("} 0.0\n", "} 1.0\n"), sends(completion())
    await reaches(gw, "up")
    assert r1.requests == []


async def test_an_engine_that_drains_itself_fails_nobody(replica: Replica, gateway: Start) -> None:
    """vLLM after SIGTERM finishes its streams, says 200 to probes and 500 to each new request: those go elsewhere."""
    r1, r2 = await replica(LONG), await replica(LONG)
    gw = await gateway(r1, r2)
    async with running_streams(gw, 2) as tasks:
        r1.script = sends(http(500, b'{"error":{"message":"cannot schedule new futures after shutdown"}}'))
        assert {(await ask(gw, STREAM)).body for _ in range(2)} == {WHOLE}
        assert {(await task).body for task in tasks} == {WHOLE}


# -- draining --------------------------------------------------------------------------------------------------------------


async def test_a_drained_replica_finishes_what_it_has(replica: Replica, gateway: Start) -> None:
    """New requests go elsewhere, its streams end normally, only then is it called drained; undrained it serves again."""
    r1, r2 = await replica(LONG), await replica(LONG)
    gw = await gateway(r1, r2)
    async with running_streams(gw, 6) as tasks:
        before = len(r1.requests)
        assert before
        assert (await admin(gw, "/admin/replicas/r1/drain", "POST")).status == 200
        assert await state(gw) == "draining"
        r2.script = sends(completion())
        assert {(await ask(gw)).headers["x-kvgate-replica"] for _ in range(20)} == {"r2"}
        assert {(reply.body, reply.complete) for reply in await asyncio.gather(*tasks)} == {(WHOLE, True)}
    await reaches(gw, "drained")
    assert len(r1.requests) == before
    assert (await admin(gw, "/admin/replicas/r1/undrain", "POST")).status == 200
    assert await state(gw) == "up"


@pytest.mark.parametrize("way", ["drain", "remove"])
async def test_a_drain_does_not_wait_for_ever(replica: Replica, gateway: Start, way: str) -> None:
    """At `drain.timeout_s` what still runs is cut: streams with an error event, others with 503. No failure is counted."""

    async def script(conn: Conn) -> None:
        await (streams(ev("a"), end=b"", then="hold") if conn.request.json().get("stream") else sends(then="hold"))(conn)

    r1 = await replica(script)
    gw = await gateway(r1, drain={"timeout_s": 0.4})
    done = records(gw)
    async with Client(gw.ports[0]) as client:
        await client.post("/v1/chat/completions", STREAM)
        await until(client, b"a")
        whole = asyncio.create_task(ask(gw))
        await eventually(lambda: len(r1.requests) == 2)
        began = time.monotonic()
        path, method = {"drain": ("/admin/replicas/r1/drain", "POST"), "remove": ("/admin/replicas/r1", "DELETE")}[way]
        assert (await admin(gw, path, method)).status in (200, 202)
        reply = await whole
        assert 0.4 <= time.monotonic() - began < 1
        assert (reply.status, reply.error_code) == (503, "draining")
        assert "shutting down" not in reply.json()["error"]["message"]
        rest = await client.reader.read()
    assert b'"draining"' in rest and not rest.endswith(b"0\r\n\r\n")
    await at_rest(gw)
    assert {(record.ended_by, record.tries[-1][1]) for record in done} == {("gateway", "cancelled")}
    if way == "drain":
        await reaches(gw, "drained")
    else:
        await eventually(lambda: not gw.table.replicas("m"))
        assert (await ask(gw)).status == 503
