"""What answers teach about predictions: how many bytes a token has, and how far a replica's believed cache can be trusted.

Engines report how many prompt tokens were cached, in the answer or at least in their counters. Compared with the prediction
this moves the replica's confidence: a running average of accuracies, 0..1.
"""

from __future__ import annotations

from typing import Final

_START_BYTES_PER_TOKEN: Final = 4.0
_START_TOKENS: Final = 1000.0
_MEMORY_TOKENS: Final = 200_000.0  # prompts beyond this many tokens ago count for less
_LEAST_BYTES_PER_TOKEN, _MOST_BYTES_PER_TOKEN = 0.5, 64.0

_PACE: Final = 0.1  # of the confidence towards the newest accuracy
_CLEARLY: Final = 0.75  # predictions are converted from bytes: a hit above this part of one may be rounding
_WINDOW_TOKENS: Final = 20_000.0  # own prompt tokens between two readings of an engine's counters
_WINDOW_PACE: Final = 0.3
_OWN_TRAFFIC: Final = 0.8  # least share of own traffic for counters to say something about own predictions


class _TokenLength:
    """Mean bytes per token of a model's prompts: decaying sums, so that long prompts, for which it matters, weigh most."""

    __slots__ = ("mean", "size", "tokens")

    def __init__(self) -> None:
        self.tokens = _START_TOKENS
        self.size = _START_TOKENS * _START_BYTES_PER_TOKEN
        self.mean = _START_BYTES_PER_TOKEN

    def learn(self, size: int, tokens: int) -> None:
        keep = max(1.0 - tokens / _MEMORY_TOKENS, 0.5)
        self.size = self.size * keep + size
        self.tokens = self.tokens * keep + tokens
        self.mean = min(max(self.size / self.tokens, _LEAST_BYTES_PER_TOKEN), _MOST_BYTES_PER_TOKEN)


class _Window:
    """An engine's cumulative prefix counters at their last reading, and own finished prompts since (tokens)."""

    __slots__ = ("hits", "predicted", "prompt", "queries")

    def __init__(self, queries: float, hits: float) -> None:
        self.queries, self.hits = queries, hits
        self.prompt = self.predicted = 0.0


class Feedback:
    """Everything learned from answers, by model name or server key."""

    __slots__ = ("_lengths", "_windows", "confidence")

    def __init__(self) -> None:
        self.confidence: dict[str, float] = {}
        self._lengths: dict[str, _TokenLength] = {}
        self._windows: dict[str, _Window] = {}

    def bytes_per_token(self, model: str) -> float:
        """Mean bytes per prompt token; 4.0 until learned."""
        length = self._lengths.get(model)
        return _START_BYTES_PER_TOKEN if length is None else length.mean

    def learn_length(self, model: str, size: int, tokens: int) -> None:
        """A canonical prompt of `size` bytes had `tokens` tokens."""
        length = self._lengths.get(model)
        if length is None:
            length = self._lengths[model] = _TokenLength()
        length.learn(size, tokens)

    def compare(self, key: str, predicted: float, actual: int, slack: int) -> bool:
        """Learn from one answer; True when clearly less was cached than predicted.

        Tokens: `predicted` as matched, before confidence; `slack`, one engine block, may be missing without being a fault.
        """
        if predicted <= 0.0 and actual <= slack:
            return False
        self._move(key, 1.0 if actual + slack >= predicted else actual / predicted, _PACE)
        return actual + slack < predicted * _CLEARLY

    def compare_counters(self, key: str, prompt: int, predicted: float, queries: float, hits: float) -> None:
        """Learn from a finished prompt whose answer told nothing, by what the engine's prefix counters gained over many."""
        window = self._windows.get(key)
        if window is None or queries < window.queries:
            window = self._windows[key] = _Window(queries, hits)
        window.prompt += prompt
        window.predicted += predicted
        asked = queries - window.queries
        if window.prompt < _WINDOW_TOKENS or asked <= 0.0:
            return
        if window.predicted > 0.0 and window.prompt >= _OWN_TRAFFIC * asked:
            self._move(key, min(max((hits - window.hits) / window.predicted, 0.0), 1.0), _WINDOW_PACE)
        self._windows[key] = _Window(queries, hits)

    def restarted(self, key: str) -> None:
        """The engine's counters start again; what is known of its habits stays."""
        self._windows.pop(key, None)

    def forget(self, key: str) -> None:
        """The server is gone."""
        for table in (self.confidence, self._windows):
            table.pop(key, None)

    def _move(self, key: str, accuracy: float, pace: float) -> None:
        confidence = self.confidence.get(key, 1.0)
        self.confidence[key] = confidence + pace * (accuracy - confidence)
