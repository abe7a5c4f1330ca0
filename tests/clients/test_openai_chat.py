"""Chat completions and completions through the gateway, as OpenAI's client sees them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import BaseModel

from tests.clients.kinds import Gpt, each, entered, every, got

if TYPE_CHECKING:
    from tests.clients.fleet import Served

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}
FOREVER = {"extra_body": {"ignore_eos": True}}


async def test_a_chat_is_answered_whole(gpt: Gpt) -> None:
    """Text, finish reason and usage arrive typed; the answer names the model as the engine does."""
    answer = await got(gpt.chat.completions.create(**ASKED, max_tokens=6, **FOREVER))
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details is not None
    assert answer.model == "org/tiny"


async def test_an_alias_is_the_model(gpt: Gpt) -> None:
    """A client that asks for gpt-4o gets what the operator put behind that name."""
    answer = await got(gpt.chat.completions.create(**{**ASKED, "model": "gpt-4o"}, max_tokens=1))
    assert answer.model == "org/tiny"


async def test_a_streamed_chat_says_the_same_as_the_whole_one(gpt: Gpt) -> None:
    """One chunk per token, the role first, the finish reason last; no usage and nothing empty, since it was not asked for."""
    whole = await got(gpt.chat.completions.create(**ASKED, max_tokens=6, seed=1, **FOREVER))
    chunks = await every(gpt.chat.completions.create(**ASKED, max_tokens=6, seed=1, stream=True, **FOREVER))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(c.usage is None and len(c.choices) == 1 for c in chunks)


async def test_usage_comes_last_when_it_is_asked_for(gpt: Gpt) -> None:
    """`include_usage` gives one more chunk, with no choices."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = await every(gpt.chat.completions.create(**ASKED, max_tokens=6, **options, **FOREVER))
    assert [bool(c.choices) for c in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].usage.completion_tokens == 6


async def test_tools_are_called_whole_and_streamed(gpt: Gpt) -> None:
    """Streamed pieces of a call add up to the whole call, and its result can be sent back."""
    asked = {**ASKED, "tools": [WEATHER], "tool_choice": "required"}
    message = (await got(gpt.chat.completions.create(**asked))).choices[0].message
    called = message.tool_calls[0].function
    assert json.loads(called.arguments) == {"city": "text"}
    async with entered(gpt.chat.completions.stream(**asked)) as stream:
        final = await got(stream.get_final_completion())
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls[0].function.arguments == called.arguments
    told = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    turns = [*ASKED["messages"], message.model_dump(exclude_none=True), told]
    assert (await got(gpt.chat.completions.create(model="m", messages=turns))).choices[0].message.content


class Answer(BaseModel):
    """What the model is to fill in."""

    answer: int


async def test_a_json_schema_is_followed_and_parsed(gpt: Gpt) -> None:
    """Structured output becomes an object of the asked class, streamed or not."""
    whole = await got(gpt.chat.completions.parse(**ASKED, response_format=Answer))
    assert whole.choices[0].message.parsed == Answer(answer=1)
    async with entered(gpt.chat.completions.stream(**ASKED, response_format=Answer)) as stream:
        final = await got(stream.get_final_completion())
    assert final.choices[0].message.parsed == Answer(answer=1)


async def test_log_probabilities_arrive(gpt: Gpt) -> None:
    """One entry per token with the asked number of alternatives, streamed or not."""
    asked = {**ASKED, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, **FOREVER}
    content = (await got(gpt.chat.completions.create(**asked))).choices[0].logprobs.content
    assert [len(token.top_logprobs) for token in content] == [2] * 4
    chunks = await every(gpt.chat.completions.create(**asked, stream=True))
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in content]


async def test_several_choices_arrive_apart(gpt: Gpt) -> None:
    """n=3 gives three choices; streamed, each chunk belongs to one of them."""
    asked = {**ASKED, "n": 3, "max_tokens": 4, **FOREVER}
    whole = await got(gpt.chat.completions.create(**asked))
    assert [c.index for c in whole.choices] == [0, 1, 2]
    texts = ["", "", ""]
    async for chunk in each(gpt.chat.completions.create(**asked, stream=True)):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [c.message.content for c in whole.choices]


async def test_completions_whole_and_streamed(gpt: Gpt) -> None:
    """Text after a prompt; echo repeats the prompt; several prompts give several choices."""
    whole = await got(gpt.completions.create(model="m", prompt="Once upon a time", max_tokens=3, echo=True))
    assert whole.choices[0].text.startswith("Once upon a time")
    chunks = await every(gpt.completions.create(model="m", prompt="Once upon a time", max_tokens=3, stream=True))
    assert "Once upon a time" + "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    many = await got(gpt.completions.create(model="m", prompt=["one", "two"], max_tokens=1))
    assert len(many.choices) == 2


async def test_raw_responses_show_who_answered_and_why(gpt: Gpt, gateway: Served) -> None:
    """The gateway's headers are there to read, and its explanation is found under the request's id."""
    turns = [{"role": "user", "content": f"A long story for {type(gpt).__name__}. " * 200}]
    seen = [await got(gpt.chat.completions.with_raw_response.create(model="m", messages=turns, max_tokens=1)) for _ in range(2)]
    first, second = (raw.headers for raw in seen)
    assert first["x-kvgate-replica"] == second["x-kvgate-replica"] in ("a", "b")
    assert (first["x-kvgate-model"], first["x-kvgate-attempts"]) == ("m", "1")
    assert (first["x-kvgate-prefix-hit"], float(second["x-kvgate-prefix-hit"]) > 0.9) == ("0.00", True)
    assert float(second["x-kvgate-overhead-ms"]) < 1000
    assert seen[1].request_id == second["x-request-id"]
    assert seen[1].parse().choices[0].message.content
    (decision,) = gateway.explain(second["x-request-id"])
    assert (decision["replica"], decision["actual"]["cached_tokens"] > 0) == (second["x-kvgate-replica"], True)


async def test_streamed_raw_responses_have_the_headers_too(gpt: Gpt) -> None:
    """Before the first chunk is read, and the context manager leaves nothing open."""
    manager = gpt.chat.completions.with_streaming_response.create(**ASKED, max_tokens=3, stream=True)
    async with entered(manager) as raw:
        assert raw.headers["x-kvgate-replica"] in ("a", "b")
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert await every(await got(raw.parse()))


async def test_a_request_id_of_the_client_is_kept(gpt: Gpt) -> None:
    """What the client calls its request is what the answer says."""
    asked = gpt.chat.completions.with_raw_response.create(**ASKED, max_tokens=1, extra_headers={"x-request-id": "mine-1"})
    assert (await got(asked)).headers["x-request-id"] == "mine-1"
