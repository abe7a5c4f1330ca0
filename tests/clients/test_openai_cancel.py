"""A client that gives up frees its replica within a second, however it goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.clients.fleet import Fleet, soon
from tests.clients.kinds import Gpt, each, entered, got

if TYPE_CHECKING:
    from collections.abc import Callable

LONG: dict[str, Any] = {
    "model": "slow",
    "messages": [{"role": "user", "content": "Tell me everything."}],
    "max_tokens": 5000,
    "extra_body": {"ignore_eos": True},
}


def free(fleet: Fleet) -> None:
    """The engine computes nothing any more, and the gateway's books say so."""
    soon(lambda: not fleet.replicas["slow"].state["inflight"])
    soon(lambda: not fleet.gateway.total("kvgate_requests_running"))
    soon(lambda: not fleet.gateway.total("kvgate_replica_inflight_requests"))


async def test_a_stream_left_by_its_context_manager(gpt: Gpt, fleet: Fleet) -> None:
    """Leaving the block in mid-stream hangs up."""
    async with entered(await got(gpt.chat.completions.create(**LONG, stream=True))) as stream:
        async for _ in each(stream):
            assert fleet.replicas["slow"].state["running"] == 1
            break
    free(fleet)


async def test_a_closed_stream(gpt: Gpt, fleet: Fleet) -> None:
    """close() does the same."""
    stream = await got(gpt.chat.completions.create(**LONG, stream=True))
    async for _ in each(stream):
        break
    await got(stream.close())
    free(fleet)


async def test_an_unread_raw_stream(gpt: Gpt, fleet: Fleet) -> None:
    """Leaving a raw response whose stream was never read."""
    async with entered(gpt.chat.completions.with_streaming_response.create(**LONG, stream=True)):
        assert fleet.replicas["slow"].state["running"] == 1
    free(fleet)


async def test_a_timeout_of_the_client(gpt: Gpt, fleet: Fleet) -> None:
    """The client waits 0.3 s for a whole answer, then nobody works on it."""
    with pytest.raises(openai.APITimeoutError):
        await got(gpt.with_options(timeout=0.3, max_retries=0).chat.completions.create(**LONG))
    free(fleet)


async def test_a_response_and_a_transcription_left_in_mid_stream(gpt: Gpt, fleet: Fleet) -> None:
    """Other streams are no different."""
    calls: tuple[Callable[[], Any], ...] = (
        lambda: gpt.responses.create(model="slow", input="Go on.", stream=True, max_output_tokens=5000),
        lambda: gpt.audio.transcriptions.create(model="slow", file=("a.wav", bytes(50_000)), stream=True),
    )
    for call in calls:
        async with entered(await got(call())) as stream:
            async for _ in each(stream):
                break
        free(fleet)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_task(async_gpt: openai.AsyncOpenAI, fleet: Fleet, *, stream: bool) -> None:
    """Cancelling the task that waits for the answer, or reads it."""

    async def read() -> None:
        async for _ in await async_gpt.chat.completions.create(**LONG, stream=stream):
            pass

    task = asyncio.ensure_future(read())
    while fleet.replicas["slow"].state["running"] != 1:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    free(fleet)


async def test_a_closed_client(async_gpt: openai.AsyncOpenAI, fleet: Fleet) -> None:
    """Closing the client closes its streams."""
    streams = [await async_gpt.chat.completions.create(**LONG, stream=True) for _ in range(3)]
    for stream in streams:
        await anext(aiter(stream))
    await async_gpt.close()
    free(fleet)
