"""/v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from replicas.simulator.answers.base import DONE, Answer, Choice, Usage, counts, event, logprob


class CompletionAnswer(Answer):
    """`text_completion`, streamed under the same name."""

    prefix = "cmpl-"

    def piece(self, choice: Choice, start: int, end: int) -> bytes:
        plan = choice.plan
        text = "".join(plan.pieces[start:end])
        last = end == len(plan.pieces)
        shown = {
            "index": choice.index,
            "text": choice.echo + text if start == 0 else text,
            "logprobs": self._logprobs(choice, start, end),
            "finish_reason": plan.finish if last else None,
            "stop_reason": plan.stop_reason if last else None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        body = {**self._base(), "choices": [shown]}
        if self.params.continuous_usage:
            body["usage"] = counts(choice.prompt, end)
        return event(body)

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        if not self.params.include_usage:
            return DONE
        return event({**self._base(), "choices": [], "usage": usage.openai(), "system_fingerprint": None}) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        shown = [
            {
                "index": choice.index,
                "text": choice.echo + choice.plan.text,
                "logprobs": self._logprobs(choice, 0, len(choice.plan.pieces)),
                "finish_reason": choice.plan.finish,
                "stop_reason": choice.plan.stop_reason,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
            for choice in choices
        ]
        extra = {"service_tier": None, "system_fingerprint": None, "usage": usage.openai(), "kv_transfer_params": None, "metrics": None}
        return orjson.dumps({**self._base(), "choices": shown, **extra})

    def _base(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def _logprobs(self, choice: Choice, start: int, end: int) -> dict[str, Any] | None:
        if self.params.logprobs is None:
            return None
        tokens = choice.plan.pieces[start:end]
        offset = len("".join(choice.plan.pieces[:start]))
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        values = [logprob(token) for token in tokens]
        tops = [{token: value} for token, value in zip(tokens, values, strict=True)]
        return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}
