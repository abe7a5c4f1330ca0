"""What a replica's hardware costs and holds: the constants behind every step time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one engine step: base + prefilled tokens + decoding sequences + tokens of context they attend to."""

    step_s: float
    prefill_token_s: float
    sequence_s: float
    context_token_s: float

    def seconds(self, prefill: int, decoding: int, context: int) -> float:
        """Length of a step that prefills `prefill` tokens and decodes `decoding` sequences over `context` tokens in total."""
        return self.step_s + prefill * self.prefill_token_s + decoding * self.sequence_s + context * self.context_token_s

    def scaled(self, speed: float) -> Cost:
        """The same machine, `speed` times as fast."""
        return Cost(self.step_s / speed, self.prefill_token_s / speed, self.sequence_s / speed, self.context_token_s / speed)


@dataclass(frozen=True, slots=True)
class Preset:
    """One kind of replica: its costs, KV cache in tokens, batch slots and token budget of a step."""

    cost: Cost
    kv_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int


PRESETS: dict[str, Preset] = {
    "h100-8b": Preset(Cost(0.006, 1 / 22_000, 30e-6, 4e-8), 420_000, 128, 4096),
    "h100x4-70b": Preset(Cost(0.014, 1 / 9_000, 60e-6, 2.6e-8), 460_000, 128, 2048),
    # Slow enough to watch, with a cache small enough to overflow by hand.
    "demo": Preset(Cost(0.030, 1 / 4_000, 500e-6, 1e-7), 65_536, 16, 1024),
    # Answers as fast as the event loop turns: for measuring what stands in front of it.
    "instant": Preset(Cost(0.0, 0.0, 0.0, 0.0), 4_194_304, 1024, 65_536),
}
