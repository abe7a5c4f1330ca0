"""Every fault the simulator can act out, as seen on the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from replicas.simulator import Server
from tests.contract.simulated import drain, plain_client, simulated, simulated_process

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "ignore_eos": True}


@asynccontextmanager
async def faulty(*faults: dict[str, Any], **options: Any) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A replica that was told to fail while running."""
    async with simulated(model="m", **options) as (server, http):
        answer = await http.post("/sim/faults", json=list(faults))
        assert answer.status_code == 200, answer.text
        yield server, http


async def streamed(http: httpx.AsyncClient, url: str = "", *, timeout: float = 5) -> tuple[int, str, Exception | None]:
    """Status, text that arrived and what ended it early, of a streamed chat."""
    text = ""
    status = 0
    try:
        async with http.stream("POST", url + CHAT, json={**ASKED, "stream": True}, timeout=timeout) as answer:
            status = answer.status_code
            async for piece in answer.aiter_text():
                text += piece
    except httpx.HTTPError as error:
        return status, text, error
    return status, text, None


@pytest.mark.parametrize(
    ("kind", "status", "error_type"),
    [("500", 500, "InternalServerError"), ("503", 503, "Service Unavailable"), ("429", 429, "Too Many Requests")],
)
async def test_error_statuses(kind: str, status: int, error_type: str) -> None:
    """With the error object, once, and with retry-after where asked for."""
    async with faulty({"kind": kind, "count": 1, "retry_after": 2}) as (_, http):
        answer = await http.post(CHAT, json=ASKED)
        assert (answer.status_code, answer.json()["error"]["type"], answer.headers["retry-after"]) == (status, error_type, "2")
        assert (await http.post(CHAT, json=ASKED)).status_code == 200


async def test_reset_before_the_head() -> None:
    """The request is read, then the connection is reset."""
    async with faulty({"kind": "reset"}) as (server, http):
        status, _, error = await streamed(http)
        assert status == 0
        assert isinstance(error, httpx.ReadError)
        assert not server.replica.inflight


@pytest.mark.parametrize(
    ("kind", "expected"), [("reset", httpx.ReadError), ("fin", httpx.RemoteProtocolError), ("malformed", httpx.RemoteProtocolError)]
)
async def test_breaks_after_some_events(kind: str, expected: type[Exception]) -> None:
    """Exactly the events asked for arrive, then the stream breaks in the way asked for."""
    async with faulty({"kind": kind, "after": 3}) as (server, http):
        status, text, error = await streamed(http)
        assert (status, text.count("data: ")) == (200, 3)
        assert isinstance(error, expected)
        while server.replica.inflight:
            await asyncio.sleep(0.01)


async def test_breaks_of_whole_answers() -> None:
    """Half the body arrives, with the length of all of it announced."""
    async with faulty({"kind": "fin", "after": 1}) as (_, http):
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post(CHAT, json=ASKED)


async def test_malformed_from_the_start() -> None:
    """A head, then no chunk."""
    async with faulty({"kind": "malformed"}) as (_, http):
        status, text, error = await streamed(http)
        assert (status, text) == (200, "")
        assert isinstance(error, httpx.RemoteProtocolError)


async def test_junk_instead_of_a_head() -> None:
    """Bytes that are no HTTP."""
    async with faulty({"kind": "junk"}) as (_, http):
        _, _, error = await streamed(http)
        assert isinstance(error, httpx.RemoteProtocolError)


async def test_a_stalled_stream_stays_open() -> None:
    """After two events nothing more comes; hanging up frees the replica."""
    async with faulty({"kind": "stall", "after": 2}) as (server, http):
        status, text, error = await streamed(http, timeout=0.3)
        assert (status, text.count("data: ")) == (200, 2)
        assert isinstance(error, httpx.ReadTimeout)
        while server.replica.inflight:
            await asyncio.sleep(0.01)


async def test_a_hanging_replica_accepts_and_never_answers() -> None:
    """For as long as it is told to, health included where the scope says so."""
    async with faulty({"kind": "hang", "scope": "all", "for_s": 0.3}) as (_, http):
        with pytest.raises(httpx.ReadTimeout):
            await http.get("/health", timeout=0.1)
        await asyncio.sleep(0.3)
        assert (await http.get("/health")).status_code == 200


async def test_an_error_as_first_event() -> None:
    """Status 200, one error event, the end mark; the engine does no further work for it."""
    async with faulty({"kind": "error_event"}) as (server, http):
        status, text, error = await streamed(http)
        assert (status, error) == (200, None)
        assert text.startswith('data: {"error":{')
        assert text.endswith("\n\ndata: [DONE]\n\n")
        assert not server.replica.engine.busy
        answer = await http.post("/v1/messages", json={**ASKED, "stream": True})
        assert answer.text.startswith('event: error\ndata: {"type":"error"')


async def test_openai_raises_on_an_error_event() -> None:
    """The event has the form the client library knows."""
    async with (
        faulty({"kind": "error_event"}) as (server, _),
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="m", messages=ASKED["messages"], stream=True)
        with pytest.raises(openai.APIError, match="Simulated fault"):
            await drain(stream)


async def test_a_stream_without_its_end_mark() -> None:
    """Ends cleanly as HTTP, without `[DONE]`."""
    async with faulty({"kind": "drop_done"}) as (_, http):
        status, text, error = await streamed(http)
        assert (status, error) == (200, None)
        assert '"finish_reason":"length"' in text
        assert "[DONE]" not in text


async def test_slow_steps() -> None:
    """Twenty tokens take twenty times as long as they should."""
    times = []
    async with simulated(model="m", preset="h100-8b", speed=10) as (_, http):
        for _ in range(2):
            start = time.perf_counter()
            await http.post(CHAT, json=ASKED)
            times.append(time.perf_counter() - start)
            await http.post("/sim/faults", json={"kind": "slow", "factor": 20})
    assert times[1] > 20 * 0.0006 * 20
    assert times[1] > 4 * times[0]


async def test_a_starting_replica_answers_503_on_every_path() -> None:
    """Until it is ready."""
    async with faulty({"kind": "slow_start", "seconds": 0.3}) as (_, http):
        for path in ("/health", "/v1/models", "/metrics"):
            assert (await http.get(path)).status_code == 503
        await asyncio.sleep(0.35)
        assert (await http.get("/health")).status_code == 200


async def test_faults_can_be_listed_and_cleared() -> None:
    """And wrong ones are refused with the reason."""
    async with faulty({"kind": "500"}) as (_, http):
        assert [fault["kind"] for fault in (await http.get("/sim/faults")).json()["faults"]] == ["500"]
        assert (await http.delete("/sim/faults")).json() == {"faults": []}
        assert (await http.post(CHAT, json=ASKED)).status_code == 200
        answer = await http.post("/sim/faults", json={"kind": "boom"})
        assert (answer.status_code, "boom" in answer.text) == (400, True)


async def test_state_tells_what_was_asked() -> None:
    """Latest requests with their headers, faults that struck, what the cache holds."""
    async with faulty({"kind": "500", "count": 1}) as (_, http):
        for number in range(2):
            await http.post(
                CHAT, json={**ASKED, "messages": [{"role": "user", "content": "x" * 200}]}, headers={"x-request-id": f"r{number}"}
            )
        state = (await http.get("/sim/state")).json()
        assert [(entry["headers"]["x-request-id"], entry["fault"]) for entry in state["recent"]] == [("r0", "500"), ("r1", None)]
        assert state["asked"] == {CHAT: 2}
        assert state["faults"]["struck"] == {"500": 1}
        assert (state["running"], state["inflight"]) == (0, 0)
        assert state["kv"]["cached"] > 0


async def test_reset_is_a_restart() -> None:
    """Running requests are cut off; faults, counters and cache are gone."""
    async with simulated(model="m", preset="demo") as (server, http):
        async with http.stream("POST", CHAT, json={**ASKED, "max_tokens": 5000, "stream": True}) as answer:
            pieces = answer.aiter_bytes()
            await anext(pieces)
            assert (await http.post("/sim/reset")).status_code == 200
            with pytest.raises(httpx.ReadError):
                await drain(pieces)
        state = (await http.get("/sim/state")).json()
        assert (state["inflight"], state["kv"]["cached"], state["prefix"]["queries"]) == (0, 0, 0)
        assert not server.replica.engine.busy
        assert (await http.post(CHAT, json=ASKED)).status_code == 200


async def test_a_crash_takes_the_process_with_it() -> None:
    """Two events, then the connection and the port are gone."""
    async with simulated_process("--preset", "instant", "--fault", "crash:after=2") as (process, url), plain_client() as http:
        status, text, error = await streamed(http, url)
        assert (status, text.count("data: ")) == (200, 2)
        assert isinstance(error, httpx.HTTPError)
        assert await asyncio.wait_for(process.wait(), 5) == 1
        with pytest.raises(httpx.ConnectError):
            await http.get(url + "/health")


async def test_resets_reach_the_client_as_such_from_a_process() -> None:
    """On uvloop as on asyncio."""
    async with simulated_process("--preset", "instant", "--fault", "reset:after=2") as (_, url), plain_client() as http:
        status, text, error = await streamed(http, url)
        assert (status, text.count("data: ")) == (200, 2)
        assert isinstance(error, httpx.ReadError)
