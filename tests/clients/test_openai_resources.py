"""Everything but chat through the gateway, as OpenAI's client sees it."""

from __future__ import annotations

import openai
import pytest

from tests.clients.kinds import Gpt, entered, every, got

SOUND = b"RIFF" + bytes(1_500_000)


async def test_responses_are_made_read_continued_and_deleted(gpt: Gpt) -> None:
    """What follows a response goes to the replica that made it."""
    for _ in range(4):
        made = await got(gpt.responses.with_raw_response.create(model="m", input="Say hello."))
        replica, answer = made.headers["x-kvgate-replica"], made.parse()
        assert (answer.status, bool(answer.output_text)) == ("completed", True)
        read = await got(gpt.responses.with_raw_response.retrieve(answer.id))
        assert (read.headers["x-kvgate-replica"], read.parse().output_text) == (replica, answer.output_text)
        further = await got(gpt.responses.with_raw_response.create(model="m", input="Go on.", previous_response_id=answer.id))
        assert further.headers["x-kvgate-replica"] == replica
        await got(gpt.responses.delete(answer.id))
        with pytest.raises(openai.NotFoundError):
            await got(gpt.responses.retrieve(answer.id))


async def test_a_streamed_response_says_the_same_as_the_whole_one(gpt: Gpt) -> None:
    """Typed events from created to completed, which can be read back afterwards."""
    whole = await got(gpt.responses.create(model="m", input="Say hello."))
    async with entered(gpt.responses.stream(model="m", input="Say hello.")) as stream:
        events = await every(stream)
        final = await got(stream.get_final_response())
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert (await got(gpt.responses.retrieve(final.id))).output_text == whole.output_text


async def test_a_response_in_the_background_is_cancelled(gpt: Gpt) -> None:
    """By its id, at the replica that works on it."""
    queued = await got(gpt.responses.create(model="slow", input="Say hello.", background=True, max_output_tokens=5000))
    assert queued.status == "queued"
    assert (await got(gpt.responses.cancel(queued.id))).status == "cancelled"


async def test_a_response_nobody_made_is_not_found(gpt: Gpt) -> None:
    """Read, cancelled or deleted."""
    for call in (gpt.responses.retrieve, gpt.responses.cancel, gpt.responses.delete):
        with pytest.raises(openai.NotFoundError) as error:
            await got(call("resp_nowhere"))
        assert error.value.code == "response_not_found"


async def test_responses_call_tools(gpt: Gpt) -> None:
    """A function call is an item of the output."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "name": "weather", "parameters": parameters, "strict": False}
    answer = await got(gpt.responses.create(model="m", input="Say hello.", tools=[tool], tool_choice="required"))
    assert [(item.type, item.name, item.arguments) for item in answer.output] == [("function_call", "weather", '{"city":"text"}')]


async def test_embeddings(gpt: Gpt) -> None:
    """The client asks for base64 and unpacks it; a list of floats is the same vector."""
    first, second, third = (await got(gpt.embeddings.create(model="m", input=["a", "b", "a"], dimensions=8))).data
    assert first.embedding == third.embedding != second.embedding
    plain = await got(gpt.embeddings.create(model="m", input="a", dimensions=8, encoding_format="float"))
    assert plain.data[0].embedding == pytest.approx(first.embedding, abs=1e-6)


async def test_models_are_listed_and_read(gpt: Gpt) -> None:
    """By their public names, aliases too; one that is not there is not found."""
    names = [model.id for model in await every(gpt.models.list())]
    assert {"m", "solo", "slow"} <= set(names)
    assert (await got(gpt.models.retrieve("m"))).id == "m"
    assert (await got(gpt.models.retrieve("gpt-4o"))).object == "model"
    with pytest.raises(openai.NotFoundError) as error:
        await got(gpt.models.retrieve("nobody"))
    assert error.value.code == "model_not_found"


async def test_sound_is_uploaded_and_transcribed(gpt: Gpt) -> None:
    """A form of 1.5 MB, whose model is replaced by the replica's name for it; whole and streamed."""
    heard = await got(gpt.audio.transcriptions.create(model="m", file=("a.wav", SOUND)))
    assert heard.text
    events = await every(gpt.audio.transcriptions.create(model="m", file=("a.wav", SOUND[:5000]), stream=True))
    assert events


async def test_speech_arrives_as_bytes(gpt: Gpt) -> None:
    """Read at once or streamed."""
    whole = await got(gpt.audio.speech.create(model="m", voice="alloy", input="Hello there"))
    assert len(whole.content) > 1000
    async with entered(gpt.audio.speech.with_streaming_response.create(model="m", voice="alloy", input="Hello there")) as stream:
        assert b"".join(await every(stream.iter_bytes())) == whole.content


async def test_images_are_drawn(gpt: Gpt) -> None:
    """As base64."""
    drawn = await got(gpt.images.generate(model="m", prompt="a cat", n=2))
    assert [bool(image.b64_json) for image in drawn.data] == [True, True]
