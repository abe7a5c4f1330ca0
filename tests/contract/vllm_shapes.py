"""What clients and gateways may rely on in vLLM's HTTP API, as checks that run against anything that claims to speak it.

Each check is `async (probe) -> None` and asserts. `CHECKS` lists those every generating vLLM passes; `CHECKS_SIM` those of
endpoints that need other models or flags than a small text model has. Written from observation of vLLM 0.32 on CPU, whose model of
random weights may end its answer at once: what must have text asks for the likeliest token, or for no end before the limit.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Probe:
    """A server under test. `http` has its URL as base and no key; `details`: it reports cached tokens."""

    http: httpx.AsyncClient
    model: str
    details: bool = True
    block: int = 16  # tokens per KV block

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """POST JSON with the model filled in."""
        return await self.http.post(path, json={"model": self.model, **body})

    async def events(self, path: str, **body: Any) -> list[tuple[str, Any]]:
        """POST with `stream`, return (event name or "", parsed data or "[DONE]") of every event."""
        answer = await self.post(path, stream=True, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "content-length" not in answer.headers
        return parse_events(answer.text)


Check = Callable[[Probe], Awaitable[None]]
HELLO = [{"role": "user", "content": "Say hello."}]


def parse_events(text: str) -> list[tuple[str, Any]]:
    """Events of a complete stream: every one ends with a blank line."""
    assert text.endswith("\n\n")
    out = []
    for block in text[:-2].split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        assert set(fields) <= {"event", "data"}
        data = fields["data"]
        out.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return out


def assert_error(answer: httpx.Response, status: int, kind: str, param: str | None) -> None:
    """The nested error object with an integer code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    assert "retry-after" not in answer.headers
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert (error["type"], error["code"], error["param"]) == (kind, status, param)
    assert error["message"]


def assert_usage(usage: dict[str, Any], *, completion: int, details: bool) -> None:
    """Counts that add up; details only where the server reveals them."""
    assert usage["completion_tokens"] == completion
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    if details:
        assert isinstance(usage["prompt_tokens_details"]["cached_tokens"], int)
    else:
        assert usage.get("prompt_tokens_details") is None


async def chat_whole(probe: Probe) -> None:
    answer = await probe.post("/v1/chat/completions", messages=HELLO, max_tokens=5, ignore_eos=True)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", probe.model)
    (choice,) = body["choices"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert {"stop_reason"} <= set(choice)
    assert {"prompt_logprobs", "kv_transfer_params", "service_tier"} <= set(body)
    assert_usage(body["usage"], completion=5, details=probe.details)


async def chat_stream(probe: Probe) -> None:
    events = await probe.events("/v1/chat/completions", messages=HELLO, max_tokens=5, ignore_eos=True)
    assert events[-1] == ("", "[DONE]")
    chunks = [data for _, data in events[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(isinstance(chunk["choices"][0]["delta"]["content"], str) for chunk in chunks[1:])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


async def streamed_and_whole_agree(probe: Probe) -> None:
    asked = {"messages": HELLO, "max_tokens": 8, "temperature": 0, "seed": 1}
    whole = (await probe.post("/v1/chat/completions", **asked)).json()["choices"][0]["message"]["content"]
    events = await probe.events("/v1/chat/completions", **asked)
    assert "".join(data["choices"][0]["delta"]["content"] for _, data in events[:-1]) == whole


async def chat_usage_on_request(probe: Probe) -> None:
    events = await probe.events(
        "/v1/chat/completions", messages=HELLO, max_tokens=3, ignore_eos=True, stream_options={"include_usage": True}
    )
    *chunks, last, (_, done) = events
    assert done == "[DONE]"
    assert last[1]["choices"] == []
    assert_usage(last[1]["usage"], completion=3, details=probe.details)
    assert all(data["choices"] and data.get("usage") is None for _, data in chunks)


async def usage_on_every_chunk(probe: Probe) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await probe.events("/v1/chat/completions", messages=HELLO, max_tokens=3, ignore_eos=True, stream_options=options)
    usages = [data["usage"] for _, data in events[:-1]]
    assert [usage["completion_tokens"] for usage in usages] == sorted(usage["completion_tokens"] for usage in usages)
    assert usages[-1]["completion_tokens"] == 3


async def completion_whole_and_stream(probe: Probe) -> None:
    body = (await probe.post("/v1/completions", prompt="Once upon", max_tokens=4, ignore_eos=True)).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["logprobs"]) == ("length", None)
    assert_usage(body["usage"], completion=4, details=probe.details)
    events = await probe.events("/v1/completions", prompt="Once upon", max_tokens=4, ignore_eos=True)
    assert events[-1] == ("", "[DONE]")
    assert {data["object"] for _, data in events[:-1]} == {"text_completion"}
    assert events[-2][1]["choices"][0]["finish_reason"] == "length"


async def several_choices(probe: Probe) -> None:
    body = (await probe.post("/v1/chat/completions", messages=HELLO, max_tokens=3, n=3, ignore_eos=True, temperature=1)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 9
    events = await probe.events("/v1/chat/completions", messages=HELLO, max_tokens=3, n=3, ignore_eos=True)
    ended = [data["choices"][0]["index"] for _, data in events[:-1] if data["choices"][0]["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]


async def several_prompts(probe: Probe) -> None:
    body = (await probe.post("/v1/completions", prompt=["one", "two"], max_tokens=2, ignore_eos=True)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 4


async def prompts_of_tokens(probe: Probe) -> None:
    tokens = (await probe.post("/tokenize", prompt="Once upon a time")).json()["tokens"]
    body = (await probe.post("/v1/completions", prompt=tokens, max_tokens=2)).json()
    assert body["usage"]["prompt_tokens"] == len(tokens)


async def log_probabilities(probe: Probe) -> None:
    body = (await probe.post("/v1/chat/completions", messages=HELLO, max_tokens=2, ignore_eos=True, logprobs=True, top_logprobs=2)).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == 2
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
    body = (await probe.post("/v1/completions", prompt="Once", max_tokens=2, ignore_eos=True, logprobs=1)).json()
    assert {"text_offset", "token_logprobs", "tokens", "top_logprobs"} == set(body["choices"][0]["logprobs"])


async def repeated_prompts_are_cached(probe: Probe) -> None:
    if not probe.details:
        return
    messages = [{"role": "user", "content": "A prompt nobody has sent before, and quite long. " * 40}]
    usages = [(await probe.post("/v1/chat/completions", messages=messages, max_tokens=1)).json()["usage"] for _ in range(2)]
    prompt = usages[0]["prompt_tokens"]
    assert [usage["prompt_tokens_details"]["cached_tokens"] or 0 for usage in usages] == [0, (prompt - 1) // probe.block * probe.block]


async def request_ids_become_response_ids(probe: Probe) -> None:
    for path, prefix, asked in (("/v1/chat/completions", "chatcmpl", {"messages": HELLO}), ("/v1/completions", "cmpl", {"prompt": "x"})):
        body = {"model": probe.model, "max_tokens": 1, **asked}
        answer = await probe.http.post(path, json=body, headers={"x-request-id": f"abc-{prefix}"})
        assert answer.json()["id"].startswith(f"{prefix}-abc-{prefix}")
        assert "x-request-id" not in answer.headers


async def responses_whole_and_stream(probe: Probe) -> None:
    body = (await probe.post("/v1/responses", input="Say hello.", max_output_tokens=4, temperature=0)).json()
    assert body["id"].startswith("resp_")
    assert body["object"] == "response"
    assert body["status"] in ("completed", "incomplete")
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
    events = await probe.events("/v1/responses", input="Say hello.", max_output_tokens=4, temperature=0)
    names = [name for name, _ in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] in ("response.completed", "response.incomplete")
    assert all(data["type"] == name for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert events[-1][1]["response"]["usage"]["output_tokens"] > 0
    missing = await probe.http.get("/v1/responses/resp_nowhere")
    assert missing.status_code == 404


async def messages_whole_and_stream(probe: Probe) -> None:
    body = (await probe.post("/v1/messages", messages=HELLO, max_tokens=4, temperature=0)).json()
    assert (body["type"], body["role"]) == ("message", "assistant")
    assert body["stop_reason"] in ("end_turn", "max_tokens")
    assert {"input_tokens", "output_tokens"} <= set(body["usage"])
    events = await probe.events("/v1/messages", messages=HELLO, max_tokens=4, temperature=0)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert events[-2][1]["usage"]["output_tokens"] > 0
    counted = (await probe.post("/v1/messages/count_tokens", messages=HELLO)).json()
    assert counted["input_tokens"] > 0


async def tokenise_and_back(probe: Probe) -> None:
    body = (await probe.post("/tokenize", prompt="Once upon a time")).json()
    assert set(body) == {"count", "max_model_len", "tokens", "token_strs"}
    assert body["count"] == len(body["tokens"])
    assert body["token_strs"] is None
    back = (await probe.post("/detokenize", tokens=body["tokens"])).json()
    assert set(back) == {"prompt"}
    assert "Once upon a time" in back["prompt"]
    chat = (await probe.post("/tokenize", messages=HELLO)).json()
    usage = (await probe.post("/v1/chat/completions", messages=HELLO, max_tokens=1)).json()["usage"]
    assert chat["count"] == usage["prompt_tokens"]


async def model_listing(probe: Probe) -> None:
    body = (await probe.http.get("/v1/models")).json()
    assert body["object"] == "list"
    card = next(card for card in body["data"] if card["id"] == probe.model)
    assert (card["object"], card["owned_by"], card["parent"]) == ("model", "vllm", None)
    assert card["max_model_len"] > 0
    assert {"created", "root", "permission"} <= set(card)


async def small_endpoints(probe: Probe) -> None:
    health = await probe.http.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert (await probe.http.get("/ping")).status_code == 200
    assert set((await probe.http.get("/version")).json()) == {"version"}
    assert (await probe.http.get("/load")).json() == {"server_load": 0}


async def metrics_page(probe: Probe) -> None:
    answer = await probe.http.get("/metrics")
    assert answer.headers["content-type"] in (f"text/plain; version={v}; charset=utf-8" for v in ("0.0.4", "1.0.0"))
    kinds = {family.name: family.type for family in text_string_to_metric_families(answer.text)}
    gauges = ("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc", "cache_config_info")
    counters = (
        "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "num_preemptions", "request_success",
        "prompt_tokens_by_source", "external_prefix_cache_queries", "external_prefix_cache_hits",
    )  # fmt: skip
    histograms = (
        "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
        "request_inference_time_seconds", "iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens",
    )  # fmt: skip
    for kind, names in (("gauge", gauges), ("counter", counters), ("histogram", histograms)):
        assert {name: kinds.get(f"vllm:{name}") for name in names} == dict.fromkeys(names, kind)
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name in ("vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_count"):
                assert set(sample.labels) == {"engine", "model_name"}


async def metrics_count(probe: Probe) -> None:
    async def total(name: str) -> float:
        page = (await probe.http.get("/metrics")).text
        return sum(sample.value for family in text_string_to_metric_families(page) for sample in family.samples if sample.name == name)

    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total")
    before = [await total(name) for name in names]
    usage = (await probe.post("/v1/chat/completions", messages=HELLO, max_tokens=4, ignore_eos=True)).json()["usage"]
    after = [await total(name) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [usage["prompt_tokens"], 4, usage["prompt_tokens"]]
    assert await total("vllm:num_requests_running") == 0


async def errors(probe: Probe) -> None:
    chat = "/v1/chat/completions"
    json_type = {"content-type": "application/json"}
    assert_error(await probe.http.post(chat, json={"model": probe.model}), 400, "Bad Request", "body.messages")
    assert_error(await probe.http.post(chat, content=b'{"model": "m", ]', headers=json_type), 400, "Bad Request", "body.15")
    assert_error(await probe.http.post(chat, content=b"{}", headers={"content-type": "text/plain"}), 400, "Bad Request", None)
    assert_error(await probe.post(chat, messages=HELLO, temperature=-1), 400, "BadRequestError", "temperature")
    limit = next(card["max_model_len"] for card in (await probe.http.get("/v1/models")).json()["data"] if card["id"] == probe.model)
    assert_error(await probe.post(chat, messages=HELLO, max_tokens=limit + 1), 400, "BadRequestError", "max_tokens")
    long = await probe.post(chat, messages=[{"role": "user", "content": "word " * limit}], stream=True)
    assert_error(long, 400, "BadRequestError", "input_tokens")
    assert "maximum context length" in long.text
    unknown = await probe.http.post(chat, json={"model": "nobody", "messages": HELLO})
    assert_error(unknown, 404, "NotFoundError", "model")
    assert "does not exist" in unknown.text


async def answers_are_as_long_as_there_is_room(probe: Probe) -> None:
    limit = next(card["max_model_len"] for card in (await probe.http.get("/v1/models")).json()["data"] if card["id"] == probe.model)
    tokens = (await probe.post("/tokenize", prompt="x" * 100)).json()["tokens"]
    prompt = (tokens * limit)[: limit - 4]
    for asked in ({"max_tokens": 16}, {}):
        answer = await probe.post("/v1/completions", prompt=prompt, ignore_eos=True, **asked)
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 4)
    assert_error(await probe.post("/v1/completions", prompt=[*prompt, *prompt[:4]]), 400, "BadRequestError", "max_tokens")


async def anthropic_errors(probe: Probe) -> None:
    answer = await probe.http.post("/v1/messages", json={"model": "nobody", "messages": HELLO, "max_tokens": 1})
    assert answer.status_code == 404
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "NotFoundError")
    assert body["error"]["message"]


async def framework_errors(probe: Probe) -> None:
    answer = await probe.http.get("/nowhere")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    answer = await probe.http.get("/v1/chat/completions")
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})


async def unknown_fields_are_ignored(probe: Probe) -> None:
    answer = await probe.post("/v1/chat/completions", messages=HELLO, max_tokens=1, guided_regex="[a-z]+", invented={"x": 1})
    assert answer.status_code == 200


async def tool_calls(probe: Probe) -> None:
    function = {"name": "weather", "description": "x", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    asked = {"messages": HELLO, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    choice = (await probe.post("/v1/chat/completions", **asked)).json()["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert (choice["finish_reason"], call["type"], call["function"]["name"]) == ("tool_calls", "function", "weather")
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    events = await probe.events("/v1/chat/completions", **asked)
    deltas = [data["choices"][0]["delta"] for _, data in events[:-1]]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert [("id" in piece, "name" in piece["function"]) for piece in pieces] == [(True, True)] + [(False, False)] * (len(pieces) - 1)
    assert isinstance(json.loads("".join(piece["function"]["arguments"] for piece in pieces)), dict)


async def embedding_vectors(probe: Probe) -> None:
    body = (await probe.post("/v1/embeddings", input=["one", "two"])).json()
    assert body["object"] == "list"
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert all(isinstance(number, float) for number in body["data"][0]["embedding"])
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0


async def ranking(probe: Probe) -> None:
    documents = ["nothing here", "blue whale in the sea", "sea"]
    body = (await probe.post("/v1/rerank", query="whale sea", documents=documents, top_n=2)).json()
    assert [result["index"] for result in body["results"]] == [1, 2]
    assert body["results"][0]["document"]["text"] == documents[1]
    body = (await probe.post("/v1/score", text_1="whale", text_2=documents)).json()
    assert [item["index"] for item in body["data"]] == [0, 1, 2]


async def sound(probe: Probe) -> None:
    files = {"file": ("a.wav", b"RIFF" + bytes(5000), "audio/wav")}
    for kind in ("transcriptions", "translations"):
        answer = await probe.http.post(f"/v1/audio/{kind}", data={"model": probe.model}, files=files)
        assert answer.json()["text"]
        answer = await probe.http.post(f"/v1/audio/{kind}", data={"model": probe.model, "stream": "true"}, files=files)
        events = parse_events(answer.text)
        assert events[-1] == ("", "[DONE]")
        assert events[0][1]["object"] == f"{kind.removesuffix('s')}.chunk"


async def adapters(probe: Probe) -> None:
    assert (await probe.http.post("/v1/load_lora_adapter", json={"lora_name": "extra", "lora_path": "/x"})).status_code == 200
    again = await probe.http.post("/v1/load_lora_adapter", json={"lora_name": "extra", "lora_path": "/x"})
    assert (again.status_code, again.json()["error"]["type"]) == (400, "InvalidUserInput")
    card = next(card for card in (await probe.http.get("/v1/models")).json()["data"] if card["id"] == "extra")
    assert card["parent"] == probe.model
    body = (await probe.http.post("/v1/chat/completions", json={"model": "extra", "messages": HELLO, "max_tokens": 1})).json()
    assert body["model"] == "extra"
    assert (await probe.http.post("/v1/unload_lora_adapter", json={"lora_name": "extra"})).status_code == 200
    assert (await probe.http.post("/v1/unload_lora_adapter", json={"lora_name": "extra"})).status_code == 404


async def sleeping(probe: Probe) -> None:
    assert (await probe.http.post("/sleep?level=1")).json() == {"status": "sleeping", "level": 1}
    assert (await probe.http.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await probe.http.get("/health")).status_code == 200
    assert 'sleep_state="weights_offloaded"} 1.0' in (await probe.http.get("/metrics")).text
    assert (await probe.http.post("/wake_up")).json() == {"status": "awake", "tags": None}
    assert (await probe.http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await probe.post("/v1/chat/completions", messages=HELLO, max_tokens=1)).status_code == 200


CHECKS: tuple[Check, ...] = (
    chat_whole, chat_stream, streamed_and_whole_agree, chat_usage_on_request, usage_on_every_chunk, completion_whole_and_stream,
    several_choices, several_prompts, prompts_of_tokens, log_probabilities, repeated_prompts_are_cached, request_ids_become_response_ids,
    messages_whole_and_stream, responses_whole_and_stream, tokenise_and_back, model_listing, small_endpoints, metrics_page, metrics_count,
    errors, answers_are_as_long_as_there_is_room, anthropic_errors, framework_errors, unknown_fields_are_ignored,
)  # fmt: skip
CHECKS_SIM: tuple[Check, ...] = (tool_calls, embedding_vectors, ranking, sound, adapters, sleeping)
