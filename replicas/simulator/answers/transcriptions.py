"""/v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from replicas.simulator.answers.base import DONE, Answer, Choice, Usage, event


class TranscriptionAnswer(Answer):
    """Text for a sound file; `translation` only changes the name of the chunks."""

    prefix = "trsc-"
    kind = "transcription.chunk"
    seconds = 1

    def piece(self, choice: Choice, start: int, end: int) -> bytes:
        plan = choice.plan
        last = end == len(plan.pieces)
        delta = {"content": "".join(plan.pieces[start:end]), "reasoning": None}
        return event({**self._base(), "choices": [{"delta": delta, "finish_reason": plan.finish if last else None, "stop_reason": None}]})

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        if not self.params.include_usage:
            return DONE
        return event({**self._base(), "choices": [], "usage": usage.openai()}) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return orjson.dumps({"text": choices[0].plan.text, "usage": {"type": "duration", "seconds": self.seconds}})

    def _base(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}


class TranslationAnswer(TranscriptionAnswer):
    """The same for translations."""

    prefix = "trsl-"
    kind = "translation.chunk"
