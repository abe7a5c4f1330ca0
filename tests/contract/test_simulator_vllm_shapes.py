"""The simulator against the checks that hold for vLLM."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.simulated import simulated
from tests.contract.vllm_shapes import CHECKS, CHECKS_SIM, HELLO, Check, Probe, chat_usage_on_request, chat_whole


@pytest.mark.parametrize("check", [*CHECKS, *CHECKS_SIM], ids=lambda check: check.__name__)
async def test_the_simulator_has_the_shape_of_vllm(check: Check) -> None:
    """Every check that real vLLM passes, and those it passes with other models or flags."""
    async with simulated(model="m", max_model_len=4096) as (_, http):
        await check(Probe(http, "m"))


@pytest.mark.parametrize("check", [chat_whole, chat_usage_on_request], ids=lambda check: check.__name__)
async def test_cached_tokens_can_be_hidden(check: Check) -> None:
    """As vLLM does without its flag."""
    async with simulated(model="m", prompt_tokens_details=False) as (_, http):
        await check(Probe(http, "m", details=False))


async def test_keys_guard_the_api_and_nothing_else() -> None:
    """401 with a bare string under /v1; health and metrics stay open."""
    async with simulated(api_keys=("secret", "other")) as (_, http):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = await http.get("/v1/models", headers=headers)
            assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
        assert (await http.get("/v1/models", headers={"authorization": "Bearer other"})).status_code == 200
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200


async def test_served_names_and_adapters() -> None:
    """All names answer; the first is shown, an adapter shows its own."""
    async with simulated(model="org/model", served_model_names=("a", "b"), loras=("ad",)) as (_, http):
        shown = {}
        for name in ("a", "b", "ad"):
            answer = await http.post("/v1/chat/completions", json={"model": name, "messages": HELLO, "max_tokens": 1})
            shown[name] = answer.json()["model"]
        assert shown == {"a": "a", "b": "a", "ad": "ad"}
        cards = {card["id"]: (card["root"], card["parent"]) for card in (await http.get("/v1/models")).json()["data"]}
        assert cards == {"a": ("org/model", None), "b": ("org/model", None), "ad": ("ad", "a")}
        assert 'model_name="a"' in (await http.get("/metrics")).text
        assert (await http.post("/v1/chat/completions", json={"model": "org/model", "messages": HELLO})).status_code == 404


@pytest.mark.parametrize("other", [{"model": "ad"}, {"cache_salt": "tenant"}])
async def test_adapters_and_salts_do_not_share_a_cache(other: dict[str, str]) -> None:
    """The same prompt under another adapter or salt starts cold."""
    messages = [{"role": "user", "content": "x" * 2000}]
    async with simulated(model="m", loras=("ad",)) as (_, http):
        cached = []
        for extra in ({}, {}, other, other):
            body = {"model": "m", "messages": messages, "max_tokens": 1, **extra}
            cached.append((await http.post("/v1/chat/completions", json=body)).json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[0] == cached[2] == 0
        assert cached[1] == cached[3] > 0


async def test_a_conversation_hits_its_own_past() -> None:
    """The second turn finds prompt and answer of the first, to the block."""
    async with simulated(model="m") as (_, http):
        turns = [{"role": "user", "content": "y" * 400}]
        first = (await http.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 100, "ignore_eos": True})).json()
        turns += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        second = (await http.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 1})).json()
        past = first["usage"]["total_tokens"] - 1  # the last token is never computed
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == past // 16 * 16


async def test_request_ids_are_sent_back_on_demand() -> None:
    """With --enable-request-id-headers."""
    async with simulated(request_id_headers=True) as (_, http):
        answer = await http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "r1"})
        assert (answer.headers["x-request-id"], answer.json()["id"]) == ("r1", "cmpl-r1")


async def test_admission_limit() -> None:
    """Beyond `--max-num-queued-reqs` in flight: 503 at once, without retry-after, and counted."""
    async with simulated(model="m", max_num_queued_reqs=1, preset="demo") as (_, http):
        asked = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        async with http.stream("POST", "/v1/completions", json=asked) as running:
            assert running.status_code == 200
            answer = await http.post("/v1/completions", json={"prompt": "x"})
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Service Unavailable")
            assert "retry-after" not in answer.headers
            assert 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 1.0' in (await http.get("/metrics")).text


async def test_load_counts_requests_in_flight_when_asked_to() -> None:
    """With --enable-server-load-tracking."""
    asked = {"prompt": "x", "max_tokens": 500, "stream": True}
    async with simulated(load_tracking=True, preset="demo") as (_, http), http.stream("POST", "/v1/completions", json=asked):
        assert (await http.get("/load")).json() == {"server_load": 1}


async def test_a_client_that_hangs_up_ends_its_request() -> None:
    """The running gauge falls, blocks are free, and nothing counts as finished."""
    async with simulated(model="m", preset="demo") as (server, http):
        asked = {"prompt": "x" * 400, "max_tokens": 5000, "ignore_eos": True, "stream": True, "n": 2}
        async with http.stream("POST", "/v1/completions", json=asked) as answer:
            pieces = answer.aiter_bytes()
            await anext(pieces)
            assert len(server.replica.engine.running) == 2
        while server.replica.inflight:
            assert (await http.get("/health")).status_code == 200
        assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in (await http.get("/metrics")).text
        assert server.replica.engine.pool.used == 0
        assert set(server.replica.stats.finished.values()) == {0}


async def test_asleep_requests_hang_and_are_answered_on_waking() -> None:
    """Health stays 200 meanwhile; the cache is empty afterwards."""
    async with simulated(model="m") as (server, http):
        body = {"prompt": "x" * 400, "max_tokens": 2}
        await http.post("/v1/completions", json=body)
        await http.post("/sleep?level=1")
        pending = asyncio.ensure_future(http.post("/v1/completions", json=body))
        while not server.replica.inflight:
            await asyncio.sleep(0)
        assert (await http.get("/health")).status_code == 200
        assert not pending.done()
        await http.post("/wake_up")
        assert (await pending).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_sleep_aborts_what_runs() -> None:
    """A stream under way ends in good order with finish reason `abort`."""
    async with simulated(model="m", preset="demo") as (_, http):
        asked = {"messages": HELLO, "max_tokens": 5000, "ignore_eos": True, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=asked) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await http.post("/sleep?level=0")
            rest = [line async for line in lines if line]
        assert '"finish_reason":"abort"' in rest[-2]
        assert rest[-1] == "data: [DONE]"


async def test_stored_responses_can_be_read_continued_and_deleted() -> None:
    """A previous response's turns come before the new input."""
    async with simulated(model="m") as (_, http):
        first = (await http.post("/v1/responses", json={"input": "z" * 400, "max_output_tokens": 50})).json()
        assert (await http.get(f"/v1/responses/{first['id']}")).json() == first
        asked = {"input": "go on", "previous_response_id": first["id"], "max_output_tokens": 1}
        second = (await http.post("/v1/responses", json=asked)).json()
        assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]
        assert second["usage"]["input_tokens_details"]["cached_tokens"] >= 96
        assert (await http.delete(f"/v1/responses/{first['id']}")).json()["deleted"] is True
        assert (await http.get(f"/v1/responses/{first['id']}")).status_code == 404
        assert (await http.post("/v1/responses", json=asked)).status_code == 404


async def test_background_responses_can_be_cancelled() -> None:
    """Queued at once, cancelled on demand, and the engine is free again."""
    async with simulated(model="m", preset="demo") as (server, http):
        asked = {"input": "x", "background": True, "max_output_tokens": 5000}
        queued = (await http.post("/v1/responses", json=asked)).json()
        assert queued["status"] == "queued"
        cancelled = (await http.post(f"/v1/responses/{queued['id']}/cancel")).json()
        assert (cancelled["id"], cancelled["status"]) == (queued["id"], "cancelled")
        assert not server.replica.engine.busy


async def test_without_dev_mode_its_routes_are_not_there() -> None:
    """As vLLM without its environment switch."""
    async with simulated(dev_mode=False) as (_, http):
        assert (await http.post("/sleep")).status_code == 404


async def test_speech_and_images() -> None:
    """Bytes of the asked kind, and base64 pictures."""
    async with simulated(model="m") as (_, http):
        answer = await http.post("/v1/audio/speech", json={"model": "m", "input": "Hello there", "voice": "x"})
        assert (answer.headers["content-type"], len(answer.content)) == ("audio/mpeg", 1440)
        answer = await http.post("/v1/images/generations", json={"model": "m", "prompt": "a cat", "n": 2})
        assert len(answer.json()["data"]) == 2


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Two requests in one segment get two answers."""
    async with simulated(model="m") as (server, _):
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\nGET /load HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        assert text.index("version") < text.index("server_load")


async def test_what_is_no_http_is_refused() -> None:
    """400, as uvicorn answers."""
    async with simulated() as (server, _):
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"hello\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
