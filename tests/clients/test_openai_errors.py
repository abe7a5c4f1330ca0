"""Every failure reaches OpenAI's client as the right exception, and its own retries happen where they help."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import openai
import pytest

from tests.clients.conftest import GPT
from tests.clients.fleet import Fleet
from tests.clients.kinds import Gpt, collect, every, got
from tests.integration.toolkit import Conn, Scripted, ev, running, settings_for

if TYPE_CHECKING:
    pass

HI = [{"role": "user", "content": "hi"}]


class Case(NamedTuple):
    """A request that fails: what it changes, the fault of the replica, and how it ends with one retry allowed."""

    name: str
    change: dict[str, Any]
    fault: dict[str, Any] | None
    error: type[openai.APIStatusError]
    status: int
    code: str
    param: str | None
    sends: int


CASES = (
    Case("unknown_model", {"model": "nobody"}, None, openai.NotFoundError, 404, "model_not_found", "model", 1),
    Case("no_model", {"model": ""}, None, openai.BadRequestError, 400, "missing_model", "model", 1),
    Case("engines_400", {"temperature": -1}, None, openai.BadRequestError, 400, "400", "temperature", 1),
    Case("long_body", {"user": "x" * 4_000_000}, None, openai.APIStatusError, 413, "body_too_large", None, 1),
    Case("dead", {"model": "dead"}, None, openai.InternalServerError, 503, "no_replica_ready", None, 2),
    Case("refused_key", {"model": "locked"}, None, openai.InternalServerError, 502, "upstream_auth", None, 1),
    Case("reset", {}, {"kind": "reset"}, openai.InternalServerError, 502, "upstream_reset", None, 2),
    Case("junk", {}, {"kind": "junk"}, openai.InternalServerError, 502, "upstream_protocol", None, 2),
    Case("engines_500", {}, {"kind": "500"}, openai.InternalServerError, 500, "500", None, 2),
    Case("hang", {}, {"kind": "hang"}, openai.InternalServerError, 504, "total_timeout", None, 1),
    Case("hang_streamed", {"stream": True}, {"kind": "hang"}, openai.InternalServerError, 504, "first_byte_timeout", None, 2),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_failures_are_typed_and_retried_where_it_helps(case: Case, fleet: Fleet, async_gpt: openai.AsyncOpenAI) -> None:
    """Exception class, status, code and field; the client tries again unless it is told that this is in vain."""
    if case.fault is not None:
        fleet.replicas["solo"].break_with(**case.fault)
    before = fleet.gateway.total("kvgate_requests_total")
    with pytest.raises(case.error) as caught:
        await async_gpt.chat.completions.create(**{"model": "solo", "messages": HI, "max_tokens": 1, **case.change})
    assert (type(caught.value), caught.value.status_code) == (case.error, case.status)
    assert (caught.value.code, caught.value.param) == (case.code, case.param)
    assert caught.value.message
    assert caught.value.request_id
    assert fleet.gateway.total("kvgate_requests_total") - before == case.sends


async def test_a_wrong_key_is_an_authentication_error(gpt: Gpt) -> None:
    """At every resource."""
    stranger = gpt.with_options(api_key="wrong")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: stranger.models.list(),
        lambda: stranger.chat.completions.create(model="m", messages=HI),
        lambda: stranger.audio.transcriptions.create(model="m", file=("a.wav", bytes(1_500_000))),
        lambda: stranger.responses.retrieve("resp_1"),
    )
    for call in calls:
        with pytest.raises(openai.AuthenticationError) as error:
            await every(call()) if call is calls[0] else await got(call())
        assert (error.value.code, error.value.type) == ("invalid_api_key", "invalid_request_error")


async def test_retry_after_is_obeyed(fleet: Fleet, async_gpt: openai.AsyncOpenAI) -> None:
    """While the one place is taken the client waits the second it is told to wait, then it is served."""
    asked = {"messages": HI, "max_tokens": 5000, "stream": True, "extra_body": {"ignore_eos": True}}
    async with await async_gpt.chat.completions.create(model="narrow", **asked) as stream:
        await anext(aiter(stream))
        with pytest.raises(openai.RateLimitError) as error:
            await async_gpt.with_options(max_retries=0).chat.completions.create(model="narrow", messages=HI)
        assert error.value.code == "queue_full"
        assert (error.value.response.headers["x-should-retry"], error.value.response.headers["retry-after-ms"]) == ("true", "1000")
        began = time.monotonic()
        refused = fleet.gateway.total("kvgate_requests_total", code="429")
        waiting = async_gpt.chat.completions.with_raw_response.create(model="narrow", messages=HI, max_tokens=1)
        answer = await _then(waiting, stream.close, lambda: fleet.gateway.total("kvgate_requests_total", code="429") > refused)
    assert 1.0 <= time.monotonic() - began < 2.5
    assert answer.retries_taken == 1


async def _then(waiting: Any, act: Callable[[], Any], when: Callable[[], bool]) -> Any:
    """Await something, and act meanwhile once a condition holds."""
    task = asyncio.ensure_future(waiting)
    while not when():
        await asyncio.sleep(0.02)
    await act()
    return await task


async def test_a_replica_that_asks_for_patience_is_given_it(fleet: Fleet, async_gpt: openai.AsyncOpenAI) -> None:
    """An engine's 503 with retry-after passes through; the client waits and succeeds."""
    fleet.replicas["solo"].break_with("503", count=1, retry_after=0.3)
    answer = await async_gpt.chat.completions.with_raw_response.create(model="solo", messages=HI, max_tokens=1)
    assert answer.retries_taken == 1


@pytest.mark.parametrize("kind", ["reset", "500", "error_event"])
async def test_another_replica_answers_unnoticed(kind: str, fleet: Fleet, gpt: Gpt) -> None:
    """A fault of one replica before the first byte costs the client nothing but time."""
    client = gpt.with_options(max_retries=0)
    for name in ("a", "b"):
        fleet.replicas[name].break_with(kind)
        assert await every(client.chat.completions.create(model="m", messages=HI, max_tokens=2, stream=True))
        fleet.replicas[name].mend()


@pytest.mark.parametrize("kind", ["reset", "fin", "malformed"])
async def test_a_broken_stream_raises(kind: str, fleet: Fleet, gpt: Gpt) -> None:
    """What came before the break is delivered, then an error is raised: never an end that looks like success."""
    fleet.replicas["solo"].break_with(kind, after=3)
    chunks: list[Any] = []
    with pytest.raises(openai.APIError) as error:
        await collect(gpt.chat.completions.create(model="solo", messages=HI, stream=True), chunks)
    assert len(chunks) == 3
    assert error.value.code in ("upstream_reset", "upstream_protocol")
    assert "solo" in error.value.message


async def test_a_stream_that_stalls_raises(fleet: Fleet, gpt: Gpt) -> None:
    """After `idle_s` without a byte."""
    fleet.replicas["solo"].break_with("stall", after=2)
    with pytest.raises(openai.APIError) as error:
        await every(gpt.chat.completions.create(model="solo", messages=HI, stream=True))
    assert error.value.code == "idle_timeout"


async def test_a_broken_response_raises(fleet: Fleet, gpt: Gpt) -> None:
    """The error event of the responses API is understood as one."""
    fleet.replicas["solo"].break_with("reset", after=5)
    with pytest.raises(openai.APIError) as error:
        await every(gpt.responses.create(model="solo", input="Say hello.", stream=True))
    assert error.value.code == "upstream_reset"


@pytest.mark.parametrize(("inject", "error"), [(False, openai.APIConnectionError), (True, openai.APIError)])
async def test_a_stream_cut_within_an_event_raises(*, inject: bool, error: type[openai.APIError]) -> None:
    """What is half sent is not made whole by an error behind it: the connection breaks. What was still held back is replaced by one."""

    async def script(conn: Conn) -> None:
        await conn.stream(ev("one"), ev("two")[:20], end=b"")
        await conn.fin()

    replica = await Scripted(script).start()
    chunks: list[Any] = []
    try:
        async with (
            running(settings_for(replica, usage={"inject": inject})) as gateway,
            GPT["async"](base_url=f"http://127.0.0.1:{gateway.ports[0]}/v1", api_key="none") as client,
        ):
            with pytest.raises(openai.APIError) as caught:
                await collect(client.chat.completions.create(model="m", messages=HI, stream=True), chunks)
    finally:
        await replica.stop()
    assert type(caught.value) is error
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["one"]
