"""/v1/messages, in Anthropic's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from replicas.simulator.answers.base import Answer, Choice, Usage, named
from replicas.simulator.planning import Plan


class MessagesAnswer(Answer):
    """A message, or its event sequence, which ends with `message_stop` and has no `[DONE]`."""

    prefix = "chatcmpl-"

    def opening(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        plan = choices[0].plan
        block = self._block(plan, "") if plan.tool is None else {**self._block(plan, ""), "input": {}}
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        return named("message_start", {"type": "message_start", "message": self._message([], None, _usage(usage, 0))}) + named(
            "content_block_start", start
        )

    def piece(self, choice: Choice, start: int, end: int) -> bytes:
        text = "".join(choice.plan.pieces[start:end])
        delta = {"type": "text_delta", "text": text} if choice.plan.tool is None else {"type": "input_json_delta", "partial_json": text}
        return named("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        plan = choices[0].plan
        delta = {"stop_reason": _stop_reason(plan), "stop_sequence": plan.stop_reason}
        return b"".join(
            (
                named("content_block_stop", {"type": "content_block_stop", "index": 0}),
                named("message_delta", {"type": "message_delta", "delta": delta, "usage": _usage(usage, usage.completion)}),
                named("message_stop", {"type": "message_stop"}),
            )
        )

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        plan = choices[0].plan
        message = self._message([self._block(plan, plan.text)], _stop_reason(plan), _usage(usage, usage.completion))
        return orjson.dumps({**message, "stop_sequence": plan.stop_reason})

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def _block(self, plan: Plan, text: str) -> dict[str, Any]:
        if plan.tool is None:
            return {"type": "text", "text": text}
        return {"type": "tool_use", "id": plan.call_id, "name": plan.tool, "input": _arguments(text)}


def _arguments(text: str) -> Any:
    """Arguments cut short by `max_tokens` are no JSON."""
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}


def _usage(usage: Usage, output: int) -> dict[str, Any]:
    cached = usage.cached if usage.details else None
    return {
        "input_tokens": usage.prompt - (cached or 0),
        "output_tokens": output,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": cached,
    }


def _stop_reason(plan: Plan) -> str:
    if plan.stop_reason is not None:
        return "stop_sequence"
    return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "abort": "end_turn"}[plan.finish]
