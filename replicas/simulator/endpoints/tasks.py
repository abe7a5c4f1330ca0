"""Everything that is not a conversation: embeddings, rerank, score, audio, images, tokens."""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from replicas.simulator.answers import Answer, Choice, Usage
from replicas.simulator.answers.transcriptions import TranscriptionAnswer, TranslationAnswer
from replicas.simulator.bodies import (
    DetokenizeBody,
    EmbeddingBody,
    ImageBody,
    RerankBody,
    ScoreBody,
    SpeechBody,
    TokenizeBody,
    decode,
    form,
    missing,
)
from replicas.simulator.endpoints.text import prompts_of
from replicas.simulator.errors import bad_value
from replicas.simulator.planning import Limits, Params, Plan
from replicas.simulator.prompts import render
from replicas.simulator.replica import Call, Replica
from replicas.simulator.tokens import cells_of, ids, pack, text_of

AUDIO_BYTES_PER_TOKEN = 640
SPEECH_BYTES_PER_TOKEN = 480
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


class PooledAnswer(Answer):
    """The answer of a task that only prefills: `render(usage)` gives the body."""

    def __init__(self, request_id: str, model: str, render: Callable[[Usage], bytes], content_type: str = "application/json") -> None:
        super().__init__(request_id, model, int(time.time()), Params())
        self.content_type = content_type
        self._render = render

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return self._render(usage)


def embeddings(call: Call) -> None:
    """POST /v1/embeddings."""
    replica = call.replica
    body = decode(call.request, EmbeddingBody)
    model, _ = replica.resolve(body.model)
    prompts = prompts_of(body.input, replica.options.text_bytes)
    size = body.dimensions or replica.options.embedding_size
    name = f"embd-{replica.request_id(call.request)}"

    def render_body(usage: Usage) -> bytes:
        vectors = [replica.writer.vector(prompt, size) for prompt in prompts]
        shown = [_base64(vector) if body.encoding_format == "base64" else vector for vector in vectors]
        data = [{"index": index, "object": "embedding", "embedding": value} for index, value in enumerate(shown)]
        return orjson.dumps({**_listing(name, model), "data": data, "usage": _prefilled(usage)})

    _prefill(call, prompts, render_body, body.model)


def rerank(call: Call) -> None:
    """POST /v1/rerank and its aliases."""
    replica = call.replica
    body = decode(call.request, RerankBody)
    model, _ = replica.resolve(body.model)
    texts = [document if isinstance(document, str) else str(document.get("text", "")) for document in body.documents]
    name = f"rerank-{replica.request_id(call.request)}"

    def render_body(usage: Usage) -> bytes:
        scored = [(_score(replica, body.query, text), index) for index, text in enumerate(texts)]
        scored.sort(key=lambda pair: (-pair[0], pair[1]))
        results = [
            {"index": index, "document": {"text": texts[index], "multi_modal": None}, "relevance_score": score} for score, index in scored
        ]
        counts = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
        return orjson.dumps({"id": name, "model": model, "usage": counts, "results": results[: body.top_n or None]})

    _prefill(call, _pairs(replica, [(body.query, text) for text in texts]), render_body, body.model)


def score(call: Call) -> None:
    """POST /v1/score and its alias."""
    replica = call.replica
    body = decode(call.request, ScoreBody)
    model, _ = replica.resolve(body.model)
    first, second = _texts(body.text_1 or body.queries, "text_1"), _texts(body.text_2 or body.documents, "text_2")
    if len(first) not in (1, len(second)):
        raise bad_value("Input lengths must be either 1:1, 1:N or N:N")
    pairs = list(zip(first * (len(second) // len(first)), second, strict=True))
    name = f"score-{replica.request_id(call.request)}"

    def render_body(usage: Usage) -> bytes:
        data = [{"index": index, "object": "score", "score": _score(replica, *pair)} for index, pair in enumerate(pairs)]
        return orjson.dumps({**_listing(name, model), "data": data, "usage": _prefilled(usage)})

    _prefill(call, _pairs(replica, pairs), render_body, body.model)


def transcriptions(call: Call) -> None:
    """POST /v1/audio/transcriptions and /v1/audio/translations."""
    replica, request, reply = call
    fields = form(request)
    if "file" not in fields:
        raise missing("file")
    model, lora = replica.resolve(fields.get("model", b"").decode("utf-8", "replace"))
    params = Params(stream=fields.get("stream", b"").lower() in (b"true", b"1"))
    params.include_usage = fields.get("stream_include_usage", b"").lower() in (b"true", b"1")
    kind = TranslationAnswer if request.path.endswith("translations") else TranscriptionAnswer
    answer = kind(replica.request_id(request), model, int(time.time()), params)
    sound = fields["file"]
    cells = pack((sound[: max(1, len(sound) // AUDIO_BYTES_PER_TOKEN) * replica.options.text_bytes],), replica.options.text_bytes)
    replica.generate(reply, answer, [cells], lora)


def speech(call: Call) -> None:
    """POST /v1/audio/speech: bytes that pass for sound."""
    replica = call.replica
    body = decode(call.request, SpeechBody)
    prompts = prompts_of(body.input, replica.options.text_bytes)
    count = len(prompts[0]) // replica.options.text_bytes * SPEECH_BYTES_PER_TOKEN
    kind = f"audio/{ {'mp3': 'mpeg'}.get(body.response_format or 'mp3', body.response_format) }"
    _prefill(call, prompts, lambda _: replica.writer.random(prompts[0]).randbytes(count), body.model, kind)


def images(call: Call) -> None:
    """POST /v1/images/generations: one pixel each."""
    replica = call.replica
    body = decode(call.request, ImageBody)
    data = [{"b64_json": base64.b64encode(PIXEL).decode(), "url": None, "revised_prompt": None}] * (body.n or 1)
    prompts = prompts_of(body.prompt, replica.options.text_bytes)
    _prefill(call, prompts, lambda _: orjson.dumps({"created": int(time.time()), "data": data}), body.model)


def tokenize(call: Call) -> None:
    """POST /tokenize."""
    replica, request, reply = call
    body = decode(request, TokenizeBody)
    replica.resolve(body.model)
    width = replica.options.text_bytes
    if body.messages is not None:
        cells = pack(render(body.messages, body.tools, answer=body.add_generation_prompt), width)
    elif body.prompt is not None:
        cells = prompts_of(body.prompt, width)[0]
    else:
        raise missing("prompt")
    tokens = ids(cells, width)
    texts = [text_of(cells[at : at + width]) for at in range(0, len(cells), width)] if body.return_token_strs else None
    shown = {"count": len(tokens), "max_model_len": replica.max_model_len, "tokens": tokens, "token_strs": texts}
    reply.send(200, orjson.dumps(shown))


def detokenize(call: Call) -> None:
    """POST /detokenize."""
    replica, request, reply = call
    body = decode(request, DetokenizeBody)
    replica.resolve(body.model)
    try:
        reply.send(200, orjson.dumps({"prompt": text_of(cells_of(body.tokens, replica.options.text_bytes))}))
    except ValueError as error:
        raise bad_value(str(error).capitalize(), "tokens") from None


def _prefill(
    call: Call,
    prompts: list[bytes],
    render_body: Callable[[Usage], bytes],
    name: str | None,
    content_type: str = "application/json",
) -> None:
    """Compute `prompts` and answer with `render_body(usage)`."""
    replica, request, reply = call
    replica.admit()
    model, lora = replica.resolve(name)
    limits = Limits(replica.max_model_len)
    choices = []
    for index, prompt in enumerate(prompts):
        length = replica.length(prompt)
        limits.output(length, None)
        choices.append(Choice(index, Plan([""], "stop"), length))
    replica.enqueue(reply, PooledAnswer(replica.request_id(request), model, render_body, content_type), prompts, choices, lora)


def _listing(name: str, model: str) -> dict[str, Any]:
    return {"id": name, "object": "list", "created": int(time.time()), "model": model}


def _prefilled(usage: Usage) -> dict[str, Any]:
    return {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt, "completion_tokens": 0, "prompt_tokens_details": None}


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _texts(value: str | list[str] | None, name: str) -> list[str]:
    if not value:
        raise missing(name)
    return [value] if isinstance(value, str) else value


def _pairs(replica: Replica, pairs: list[tuple[str, str]]) -> list[bytes]:
    return [
        pack((first.encode(), second.encode()), replica.options.text_bytes) or b"?" * replica.options.text_bytes for first, second in pairs
    ]


def _score(replica: Replica, query: str, text: str) -> float:
    """Share of the query's words found in the text, with a little noise to break ties."""
    words = set(query.lower().split())
    found = len(words & set(text.lower().split())) / (len(words) or 1)
    return round(0.98 * found + 0.02 * replica.writer.random(f"{query}\0{text}".encode()).random(), 6)
