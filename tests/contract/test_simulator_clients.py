"""The simulator as the official client libraries see it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from tests.contract.simulated import simulated

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}]}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client on a simulated replica that wants a key."""
    async with (
        simulated(model="m", api_keys=("secret",)) as (server, _),
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as out,
    ):
        yield out


@pytest.fixture
async def claude() -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client on a simulated replica."""
    async with (
        simulated(model="m") as (server, _),
        anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as out,
    ):
        yield out


async def test_openai_chat_whole(client: openai.AsyncOpenAI) -> None:
    """Text, finish reason and usage arrive typed."""
    answer = await client.chat.completions.create(**ASKED, max_tokens=6, extra_body={"ignore_eos": True})
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_openai_chat_stream(client: openai.AsyncOpenAI) -> None:
    """The stream ends by itself and gives usage last."""
    stream = await client.chat.completions.create(
        **ASKED, max_tokens=6, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) == 6
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_openai_tools(client: openai.AsyncOpenAI) -> None:
    """Streamed pieces of a call add up to the whole call."""
    whole = await client.chat.completions.create(**ASKED, tools=[TOOL], tool_choice="required")
    assert whole.choices[0].message.tool_calls is not None
    assert whole.choices[0].message.tool_calls[0].function.arguments == '{"city":"text"}'
    async with client.chat.completions.stream(**ASKED, tools=[TOOL], tool_choice="required") as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls is not None
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"city":"text"}'
    assert final.choices[0].finish_reason == "tool_calls"


async def test_openai_structured_output(client: openai.AsyncOpenAI) -> None:
    """A JSON schema is answered with JSON that fits."""
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}}
    answer = await client.chat.completions.create(
        **ASKED, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    )
    assert answer.choices[0].message.content == '{"answer":1}'


async def test_openai_completions(client: openai.AsyncOpenAI) -> None:
    """Whole with echo, and streamed."""
    answer = await client.completions.create(model="m", prompt="Once upon a time", max_tokens=3, echo=True)
    assert answer.choices[0].text.startswith("Once upon a time")
    chunks = [chunk async for chunk in await client.completions.create(model="m", prompt="Once", max_tokens=3, stream=True)]
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_openai_responses(client: openai.AsyncOpenAI) -> None:
    """Whole, streamed, read back, deleted."""
    answer = await client.responses.create(model="m", input="Say hello.")
    assert answer.output_text
    assert answer.status == "completed"
    assert (await client.responses.retrieve(answer.id)).output_text == answer.output_text
    await client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    async with client.responses.stream(model="m", input="Say hello.") as stream:
        final = await stream.get_final_response()
    assert final.output_text == answer.output_text


async def test_openai_embeddings(client: openai.AsyncOpenAI) -> None:
    """The client asks for base64 by default and unpacks it; equal texts have equal vectors."""
    first, second, third = (await client.embeddings.create(model="m", input=["a", "b", "a"], dimensions=8)).data
    assert len(first.embedding) == 8
    assert first.embedding == third.embedding
    assert first.embedding != second.embedding
    assert sum(value * value for value in first.embedding) == pytest.approx(1, abs=1e-5)


async def test_openai_models_audio_and_images(client: openai.AsyncOpenAI) -> None:
    """The other resources parse as well."""
    assert [model.id async for model in client.models.list()] == ["m"]
    heard = await client.audio.transcriptions.create(model="m", file=("a.wav", b"RIFF" + bytes(2000)))
    assert heard.text
    spoken = await client.audio.speech.create(model="m", voice="alloy", input="Hello")
    assert spoken.content
    drawn = await client.images.generate(model="m", prompt="a cat")
    assert drawn.data is not None
    assert drawn.data[0].b64_json


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "nobody"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"messages": None}, openai.BadRequestError),
    ],
)
async def test_openai_errors(client: openai.AsyncOpenAI, change: dict[str, object], error: type[openai.APIStatusError]) -> None:
    """Refusals raise the client's typed errors, streamed or not."""
    for stream in (False, True):
        with pytest.raises(error):
            await client.chat.completions.create(**{**ASKED, **change, "stream": stream})


async def test_openai_wrong_key(client: openai.AsyncOpenAI) -> None:
    """401 is an authentication error."""
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()


async def test_anthropic_whole(claude: anthropic.AsyncAnthropic) -> None:
    """A typed message with usage."""
    answer = await claude.messages.create(**ASKED, max_tokens=5)
    assert answer.content[0].type == "text"
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 5


async def test_anthropic_stream(claude: anthropic.AsyncAnthropic) -> None:
    """The accumulated stream is the whole message; cached input is reported apart from the rest."""
    whole = await claude.messages.create(**ASKED, max_tokens=500, system="x" * 400)
    assert whole.content[0].type == "text"
    async with claude.messages.stream(**ASKED, max_tokens=500, system="x" * 400) as stream:
        final = await stream.get_final_message()
    assert [block.text for block in final.content if block.type == "text"] == [whole.content[0].text]
    assert final.usage.output_tokens == whole.usage.output_tokens
    cached = (whole.usage.input_tokens - 1) // 16 * 16
    assert final.usage.cache_read_input_tokens == cached
    assert final.usage.input_tokens == whole.usage.input_tokens - cached


async def test_anthropic_tools(claude: anthropic.AsyncAnthropic) -> None:
    """A tool is called when one must be, with parsed input."""
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    async with claude.messages.stream(**ASKED, max_tokens=50, tools=[tool], tool_choice={"type": "any"}) as stream:
        final = await stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[0].type == "tool_use"
    assert final.content[0].input == {"city": "text"}


async def test_anthropic_counts_and_errors(claude: anthropic.AsyncAnthropic) -> None:
    """Counting agrees with usage; an unknown model is not found."""
    counted = await claude.messages.count_tokens(**ASKED)
    answer = await claude.messages.create(**ASKED, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens
    with pytest.raises(anthropic.NotFoundError):
        await claude.messages.create(**{**ASKED, "model": "nobody"}, max_tokens=1)
