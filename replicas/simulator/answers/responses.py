"""/v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from replicas.simulator.answers.base import Answer, Choice, Usage, named


class ResponsesAnswer(Answer):
    """A response object, or its event sequence, which ends with `response.completed` and has no `[DONE]`."""

    prefix = "resp_"
    request: dict[str, Any] = {}  # fields of the request that the object repeats
    background = False
    _sequence = 0

    def opening(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        item = self._item(choices[0], "in_progress", "")
        events: list[tuple[str, dict[str, Any]]] = [
            ("response.created", {"response": self.object("in_progress")}),
            ("response.in_progress", {"response": self.object("in_progress")}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
        ]
        if choices[0].plan.tool is None:
            events.append(("response.content_part.added", {**self._place(choices[0]), "part": _part("")}))
        return b"".join(self._event(name, value) for name, value in events)

    def piece(self, choice: Choice, start: int, end: int) -> bytes:
        text = "".join(choice.plan.pieces[start:end])
        if choice.plan.tool is not None:
            return self._event("response.function_call_arguments.delta", {"item_id": f"fc_{self.id}", "output_index": 0, "delta": text})
        return self._event("response.output_text.delta", {**self._place(choice), "delta": text, "logprobs": []})

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        choice = choices[0]
        text = choice.plan.text
        status = _status(choice)
        if choice.plan.tool is None:
            events: list[tuple[str, dict[str, Any]]] = [
                ("response.output_text.done", {**self._place(choice), "text": text, "logprobs": []}),
                ("response.content_part.done", {**self._place(choice), "part": _part(text)}),
            ]
        else:
            arguments = {"item_id": f"fc_{self.id}", "output_index": 0, "arguments": text, "name": choice.plan.tool}
            events = [("response.function_call_arguments.done", arguments)]
        events += [
            ("response.output_item.done", {"output_index": 0, "item": self._item(choice, status, text)}),
            (f"response.{status}", {"response": self.finished(choices, usage)}),
        ]
        return b"".join(self._event(name, value) for name, value in events)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return orjson.dumps(self.finished(choices, usage))

    def finished(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The object of a response that is complete."""
        status = _status(choices[0])
        shown = {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached if usage.details else 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.completion,
        }
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self.object(status, [self._item(choices[0], status, choices[0].plan.text)], usage=shown, incomplete_details=incomplete)

    def object(self, status: str, output: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
        """The response object in any state."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": self.background,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": None,
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
            **self.request,
            **more,
        }

    def _event(self, name: str, value: dict[str, Any]) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return named(name, {"type": name, "sequence_number": number, **value})

    def _place(self, choice: Choice) -> dict[str, Any]:
        return {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}

    def _item(self, choice: Choice, status: str, text: str) -> dict[str, Any]:
        plan = choice.plan
        if plan.tool is not None:
            call = {"id": f"fc_{self.id}", "type": "function_call", "call_id": plan.call_id, "name": plan.tool}
            return {**call, "arguments": text, "status": status}
        content = [_part(text)] if text else []
        return {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(choice: Choice) -> str:
    return "incomplete" if choice.plan.finish == "length" else "completed"
