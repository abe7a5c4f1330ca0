"""The messages API through the gateway, as Anthropic's client sees it."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.clients.fleet import Fleet, soon
from tests.clients.kinds import Claude, collect, each, entered, every, got

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}]}
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


async def test_a_message_whole_and_streamed(claude: Claude) -> None:
    """The accumulated stream is the whole message."""
    whole = await got(claude.messages.create(**ASKED, max_tokens=200, system="Be kind."))
    assert (whole.content[0].type, whole.model) == ("text", "org/tiny")
    async with entered(claude.messages.stream(**ASKED, max_tokens=200, system="Be kind.")) as stream:
        said = "".join([text async for text in each(stream.text_stream)])
        final = await got(stream.get_final_message())
    assert said == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_raw_events_arrive_in_order(claude: Claude) -> None:
    """From message_start to message_stop."""
    names = [event.type for event in await every(claude.messages.create(**ASKED, max_tokens=3, stream=True))]
    assert (names[:2], names[-3:]) == (
        ["message_start", "content_block_start"],
        ["content_block_stop", "message_delta", "message_stop"],
    )


async def test_tools(claude: Claude) -> None:
    """Called with parsed input, whole and streamed, and the result can be sent back."""
    asked = {**ASKED, "max_tokens": 50, "tools": [TOOL], "tool_choice": {"type": "any"}}
    whole = await got(claude.messages.create(**asked))
    async with entered(claude.messages.stream(**asked)) as stream:
        final = await got(stream.get_final_message())
    for message in (whole, final):
        assert message.stop_reason == "tool_use"
        assert (message.content[0].name, message.content[0].input) == ("weather", {"city": "text"})
    result = {"type": "tool_result", "tool_use_id": final.content[0].id, "content": "sunny"}
    turns = [*ASKED["messages"], {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    assert (await got(claude.messages.create(model="m", messages=turns, max_tokens=5))).content[0].text


async def test_tokens_are_counted(claude: Claude) -> None:
    """As many as the engine then reports."""
    counted = await got(claude.messages.count_tokens(**ASKED))
    answer = await got(claude.messages.create(**ASKED, max_tokens=1))
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


async def test_the_gateways_headers_are_there(claude: Claude) -> None:
    """On raw responses."""
    raw = await got(claude.messages.with_raw_response.create(**ASKED, max_tokens=1))
    assert raw.headers["x-kvgate-replica"] in ("a", "b")
    assert raw.headers["x-request-id"]


@pytest.mark.parametrize(
    ("change", "error", "status", "kind"),
    [
        ({"model": "nobody"}, anthropic.NotFoundError, 404, "not_found_error"),
        ({"model": ""}, anthropic.BadRequestError, 400, "invalid_request_error"),
        ({"system": "x" * 4_000_000}, anthropic.ContentTooLargeError, 413, "request_too_large"),
        ({"model": "dead"}, anthropic.ServiceUnavailableError, 503, "overloaded_error"),
        ({"model": "locked"}, anthropic.InternalServerError, 502, "api_error"),
        ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError, 400, "BadRequestError"),
    ],
)
async def test_failures_are_typed(
    claude: Claude, change: dict[str, str], error: type[anthropic.APIStatusError], status: int, kind: str
) -> None:
    """The gateway's own errors and the engine's, as the client's exceptions with Anthropic's error object."""
    with pytest.raises(anthropic.APIStatusError) as caught:
        await got(claude.with_options(max_retries=0).messages.create(**{**ASKED, "max_tokens": 1, **change}))
    assert (type(caught.value), caught.value.status_code, caught.value.body["error"]["type"]) == (error, status, kind)


@pytest.mark.parametrize(("model", "sends"), [("dead", 2), ("locked", 1)])
async def test_it_tries_again_where_that_helps(fleet: Fleet, claude: Claude, model: str, sends: int) -> None:
    """A replica may come back; a key that is refused stays refused."""
    before = fleet.gateway.total("kvgate_requests_total")
    with pytest.raises(anthropic.APIStatusError):
        await got(claude.with_options(max_retries=1).messages.create(**{**ASKED, "model": model}, max_tokens=1))
    assert fleet.gateway.total("kvgate_requests_total") - before == sends


async def test_a_wrong_key_is_an_authentication_error(claude: Claude) -> None:
    """Sent as `x-api-key`."""
    with pytest.raises(anthropic.AuthenticationError) as error:
        await got(claude.with_options(api_key="wrong").messages.create(**ASKED, max_tokens=1))
    assert error.value.body["error"]["type"] == "authentication_error"


async def test_a_broken_stream_raises(fleet: Fleet, claude: Claude) -> None:
    """An error event after the part that came."""
    fleet.replicas["solo"].break_with("reset", after=4)
    events: list[Any] = []
    with pytest.raises(anthropic.APIError):
        await collect(claude.messages.create(**{**ASKED, "model": "solo"}, max_tokens=50, stream=True), events)
    assert [event.type for event in events][:2] == ["message_start", "content_block_start"]


async def test_a_message_left_in_mid_stream_frees_the_replica(fleet: Fleet, claude: Claude) -> None:
    """Within a second."""
    async with entered(claude.messages.stream(**{**ASKED, "model": "slow"}, max_tokens=5000)) as stream:
        async for _ in each(stream):
            break
    soon(lambda: not fleet.replicas["slow"].state["inflight"])
    soon(lambda: not fleet.gateway.total("kvgate_requests_running"))
