"""Generation: chat, completions, messages and responses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from replicas.simulator.answers import ChatAnswer, CompletionAnswer, MessagesAnswer, ResponsesAnswer
from replicas.simulator.bodies import ChatBody, CompletionBody, CountBody, MessagesBody, ResponsesBody, Sampled, check_ranges, decode
from replicas.simulator.errors import ApiError, bad_value
from replicas.simulator.generation import Generation
from replicas.simulator.planning import Params, chosen_tool, schema_of
from replicas.simulator.prompts import render
from replicas.simulator.replica import Call, Replica
from replicas.simulator.tokens import cells_of, pack, text_of

COMPLETION_TOKENS = 16  # default max_tokens of /v1/completions


def chat(call: Call) -> None:
    """POST /v1/chat/completions."""
    replica, request, reply = call
    body = decode(request, ChatBody)
    check_ranges(body)
    model, lora = replica.resolve(body.model)
    params = sampled(body)
    params.max_tokens = body.max_completion_tokens or body.max_tokens
    params.logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params.tool = chosen_tool(body.tools, body.tool_choice, last_text(body.messages))
    tools = None if body.tool_choice == "none" else body.tools
    answer = ChatAnswer(replica.request_id(request, body.request_id), model, int(time.time()), params)
    replica.generate(reply, answer, [pack(render(body.messages, tools), replica.options.text_bytes)], lora)


def completions(call: Call) -> None:
    """POST /v1/completions."""
    replica, request, reply = call
    body = decode(request, CompletionBody)
    check_ranges(body)
    model, lora = replica.resolve(body.model)
    params = sampled(body)
    params.logprobs = body.logprobs
    answer = CompletionAnswer(replica.request_id(request, body.request_id), model, int(time.time()), params)
    prompts = prompts_of(body.prompt, replica.options.text_bytes)
    generation = replica.generate(reply, answer, prompts, lora, default_output=COMPLETION_TOKENS)
    if params.echo:
        for choice in generation.choices:
            choice.echo = text_of(prompts[choice.index // params.n])


def messages(call: Call) -> None:
    """POST /v1/messages."""
    replica, request, reply = call
    body = decode(request, MessagesBody)
    check_ranges(body)
    model, lora = replica.resolve(body.model)
    params = Params(stream=bool(body.stream), max_tokens=body.max_tokens, stop=body.stop_sequences or ())
    tools = [{"name": tool.get("name"), "parameters": tool.get("input_schema")} for tool in body.tools or ()]
    params.tool = chosen_tool(tools, body.tool_choice, last_text(body.messages))
    answer = MessagesAnswer(replica.request_id(request), model, int(time.time()), params)
    replica.generate(reply, answer, [message_cells(body, replica.options.text_bytes)], lora)


def count_tokens(call: Call) -> None:
    """POST /v1/messages/count_tokens."""
    replica, request, reply = call
    body = decode(request, CountBody)
    replica.resolve(body.model)
    cells = message_cells(body, replica.options.text_bytes)
    reply.send(200, orjson.dumps({"input_tokens": len(cells) // replica.options.text_bytes}))


def responses(call: Call) -> None:
    """POST /v1/responses."""
    replica, request, reply = call
    body = decode(request, ResponsesBody)
    check_ranges(body)
    model, lora = replica.resolve(body.model)
    turns = conversation(replica, body)
    params = sampled(body)
    params.n = 1
    params.max_tokens = body.max_output_tokens
    params.schema = schema_of((body.text or {}).get("format"))
    params.tool = chosen_tool(body.tools, body.tool_choice, last_text(turns))
    answer = ResponsesAnswer(replica.request_id(request, body.request_id), model, int(time.time()), params)
    answer.background = bool(body.background)
    answer.request = {
        "instructions": body.instructions,
        "metadata": body.metadata,
        "previous_response_id": body.previous_response_id,
        "tools": body.tools or [],
    }
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    prompt = pack(render([*system, *turns], body.tools), replica.options.text_bytes)
    generation = replica.generate(None if answer.background else reply, answer, [prompt], lora)
    keep(replica, answer, generation, turns, stored=body.store is not False)
    if answer.background:
        replica.background[answer.id] = generation
        reply.send(200, orjson.dumps(visible(replica.responses[answer.id])))


def keep(replica: Replica, answer: ResponsesAnswer, generation: Generation, turns: list[dict[str, Any]], *, stored: bool) -> None:
    """Store the response as it is, and as it will be in the end."""
    if not (stored or answer.background):
        return

    def ended(generation: Generation) -> None:
        replica.background.pop(answer.id, None)
        done = generation.outcome == "done"
        value = answer.finished(generation.choices, generation.usage()) if done else answer.object("cancelled")
        said = [{"role": "assistant", "content": generation.choices[0].plan.text}] if done else []
        replica.store({**value, "_turns": [*turns, *said]})

    if answer.background:
        replica.store({**answer.object("queued"), "_turns": turns})
    generation.ended = ended


def response(call: Call) -> None:
    """GET or DELETE /v1/responses/{id}, POST /v1/responses/{id}/cancel."""
    replica, request, reply = call
    name = request.path.split("/")[3]
    stored = replica.responses.get(name)
    if stored is None:
        raise not_found(name)
    if request.method == "DELETE":
        del replica.responses[name]
        reply.send(200, orjson.dumps({"id": name, "object": "response", "deleted": True}))
        return
    if request.method == "POST":
        running = replica.background.get(name)
        if running is None:
            raise ApiError(400, "Cannot cancel a synchronous response.", "invalid_request_error", "response_id")
        running.halt("cancelled")
    reply.send(200, orjson.dumps(visible(replica.responses[name])))


def not_found(name: str) -> ApiError:
    """404 for a response this replica does not hold."""
    return ApiError(404, f"Response with id '{name}' not found.", "invalid_request_error", "response_id")


def visible(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored response without what is kept beside it."""
    return {key: value for key, value in stored.items() if key != "_turns"}


def conversation(replica: Replica, body: ResponsesBody) -> list[dict[str, Any]]:
    """The turns before the answer, those of the previous response first."""
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        stored = replica.responses.get(body.previous_response_id)
        if stored is None:
            raise not_found(body.previous_response_id)
        earlier = stored["_turns"]
    return [*earlier, *([{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input)]


def sampled(body: Sampled) -> Params:
    """Sampling parameters as the planner takes them."""
    options = body.stream_options
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or ()
    return Params(
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        n=body.n or 1,
        max_tokens=body.max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=stop,
        seed=body.seed or 0,
        ignore_eos=bool(body.ignore_eos),
        schema=schema_of(body.response_format),
        salt=body.cache_salt or "",
        echo=body.echo,
    )


def prompts_of(prompt: str | Sequence[Any], width: int) -> list[bytes]:
    """Cells of each prompt: text, tokens, or a list of either."""
    if isinstance(prompt, str):
        return [pack((prompt.encode("utf-8", "surrogatepass"),), width)]
    tokens = [item for item in prompt if isinstance(item, int)]
    if tokens and len(tokens) == len(prompt):
        try:
            return [cells_of(tokens, width)]
        except ValueError as error:
            raise bad_value(str(error).capitalize(), "prompt") from None
    if tokens:
        raise bad_value("Prompts are texts or lists of tokens, not both.", "prompt")
    return [prompts_of(item, width)[0] if item else b"" for item in prompt] or [b""]


def message_cells(body: MessagesBody | CountBody, width: int) -> bytes:
    """Cells of an Anthropic request."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    return pack(render([*system, *body.messages], body.tools), width)


def last_text(turns: Sequence[Mapping[str, Any]]) -> str:
    """Text of the last message."""
    content = turns[-1].get("content") if turns else None
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
