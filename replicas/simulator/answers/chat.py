"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from replicas.simulator.answers.base import DONE, Answer, Choice, Usage, counts, event, logprob

MARK = "\x00"


class ChatAnswer(Answer):
    """`chat.completion` and its chunks."""

    prefix = "chatcmpl-"

    def opening(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The role chunks. Also prepares the frame into which plain content is put."""
        self._frames = {choice.index: self._frame(choice.index) for choice in choices} if self._plain(choices) else {}
        return b"".join(self._chunk(choice, {"role": "assistant", "content": ""}, 0) for choice in choices)

    def piece(self, choice: Choice, start: int, end: int) -> bytes:
        parts = choice.plan.pieces
        if self._frames and end < len(parts):
            before, after = self._frames[choice.index]
            return before + orjson.dumps(parts[start] if end - start == 1 else "".join(parts[start:end])) + after
        text = "".join(parts[start:end])
        delta = {"content": text} if choice.plan.tool is None else {"tool_calls": [self._tool_delta(choice, text, first=start == 0)]}
        return self._chunk(choice, delta, end, start=start, last=end == len(parts))

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        if not self.params.include_usage:
            return DONE
        return event({**self._base(), "choices": [], "usage": usage.openai(), "system_fingerprint": None}) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return orjson.dumps(
            {
                **self._base("chat.completion"),
                "choices": [self._choice(choice) for choice in choices],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": usage.openai(),
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "kv_transfer_params": None,
                "metrics": None,
            }
        )

    def _base(self, kind: str = "chat.completion.chunk") -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _plain(self, choices: Sequence[Choice]) -> bool:
        """Whether chunks differ in nothing but their text."""
        return self.params.logprobs is None and not self.params.continuous_usage and all(choice.plan.tool is None for choice in choices)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        choice = {"index": index, "delta": {"content": MARK}, "logprobs": None, "finish_reason": None, "token_ids": None}
        before, _, after = event({**self._base(), "choices": [choice]}).partition(orjson.dumps(MARK))
        return before, after

    def _chunk(self, choice: Choice, delta: dict[str, Any], end: int, *, start: int = 0, last: bool = False) -> bytes:
        shown = {"index": choice.index, "delta": delta, "logprobs": self._logprobs(choice, start, end), "finish_reason": None}
        if last:
            shown |= {"finish_reason": choice.plan.finish, "stop_reason": choice.plan.stop_reason}
        if "role" not in delta:
            shown["token_ids"] = None
        body = {**self._base(), "choices": [shown]}
        if "role" in delta:
            body["prompt_token_ids"] = None
        if self.params.continuous_usage:
            body["usage"] = counts(choice.prompt, end)
        return event(body)

    def _tool_delta(self, choice: Choice, arguments: str, *, first: bool) -> dict[str, Any]:
        if not first:
            return {"index": 0, "function": {"arguments": arguments}}
        function = {"name": choice.plan.tool, "arguments": arguments}
        return {"index": 0, "id": choice.plan.call_id, "type": "function", "function": function}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        plan = choice.plan
        calls = (
            [] if plan.tool is None else [{"id": plan.call_id, "type": "function", "function": {"name": plan.tool, "arguments": plan.text}}]
        )
        message = {
            "role": "assistant",
            "content": plan.text if plan.tool is None else None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": calls,
            "reasoning": None,
        }
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice, 0, len(plan.pieces)),
            "finish_reason": plan.finish,
            "stop_reason": plan.stop_reason,
            "token_ids": None,
        }

    def _logprobs(self, choice: Choice, start: int, end: int) -> dict[str, Any] | None:
        if self.params.logprobs is None or start == end:
            return None
        return {"content": [self._token(piece) for piece in choice.plan.pieces[start:end]]}

    def _token(self, piece: str) -> dict[str, Any]:
        token = {"token": piece, "logprob": logprob(piece), "bytes": list(piece.encode())}
        others = [{**token, "logprob": logprob(piece, rank)} for rank in range(self.params.logprobs or 0)]
        return {**token, "top_logprobs": others}
