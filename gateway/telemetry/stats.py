"""Counters of the data plane: plain numbers, touched once per exchange, read when someone scrapes.

Invariants: `record` allocates no metric object for a combination it has seen; nothing a client sends becomes a key of a dictionary here
unless configuration or discovery knows it, and every dictionary is bounded even if those were not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.telemetry.histogram import DURATION, OVERHEAD, QUEUE, TPOT, TTFT, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.telemetry.records import EndedBy, ExchangeRecord, Phase

    Key = tuple[str, str, int, str, EndedBy, Phase]

UNKNOWN: Final = "unknown"
_MAX_SERIES: Final = 10_000  # of any one metric; beyond it new combinations share one series
_MAX_MODELS: Final = 1_000


class ModelStats:
    """Everything counted per model."""

    __slots__ = ("cached", "completion", "duration", "prompt", "queue", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT)
        self.tpot = Histogram(TPOT)
        self.duration = Histogram(DURATION)
        self.queue = Histogram(QUEUE)
        self.prompt = self.cached = self.completion = 0


class Series:
    """Exchanges that ended alike: how often, and where their measurements go."""

    __slots__ = ("count", "model")

    def __init__(self, model: ModelStats) -> None:
        self.count = 0
        self.model = model


class Prefix:
    """Cached prompt tokens of one replica, predicted and as it reported them, over the answers that reported any figure."""

    __slots__ = ("actual", "predicted")

    def __init__(self) -> None:
        self.predicted = self.actual = 0


class Stats:
    """Takes exchange records; one per process. `knows_model` and `knows_endpoint` say which names may become label values."""

    def __init__(self, knows_model: Callable[[str], bool], knows_endpoint: Callable[[str], bool]) -> None:
        self.knows_model = knows_model
        self.knows_endpoint = knows_endpoint
        self.exchanges: dict[Key, Series] = {}
        self.attempts: dict[tuple[str, str], list[int]] = {}
        self.models: dict[str, ModelStats] = {}
        self.prefixes: dict[str, Prefix] = {}
        self.overhead = Histogram(OVERHEAD)
        self.reloads = {True: 0, False: 0}
        self.reloaded_last = True

    def record(self, rec: ExchangeRecord) -> None:
        """Count one finished exchange."""
        key = (rec.model, rec.endpoint, rec.status, rec.reason, rec.ended_by, rec.phase)
        series = self.exchanges.get(key) or self._series(key)
        series.count += 1
        for attempt in rec.tries:
            count = self.attempts.get(attempt) or self._attempts(attempt)
            count[0] += 1
        model = series.model
        model.duration.observe(rec.duration_s)
        if rec.attempts:
            model.queue.observe(rec.queue_s)
            self.overhead.observe(rec.overhead_s)
        ttft, tpot = rec.ttft_s, rec.tpot_s
        if ttft is not None:
            model.ttft.observe(ttft)
        if tpot is not None:
            model.tpot.observe(tpot)
        model.prompt += rec.prompt_tokens or 0
        model.completion += rec.completion_tokens or 0
        cached = rec.cached_tokens
        if cached is not None:
            model.cached += cached
            prefix = self.prefixes.get(rec.replica) or self._prefix(rec.replica)
            prefix.predicted += rec.predicted_tokens
            prefix.actual += cached

    def reloaded(self, *, ok: bool) -> None:
        """Count one reload of the settings."""
        self.reloads[ok] += 1
        self.reloaded_last = ok

    def _series(self, key: Key) -> Series:
        """The series for labels not seen before: names nobody configured become `unknown`."""
        model, endpoint, status, reason, ended_by, phase = key
        if model not in self.models and (len(self.models) >= _MAX_MODELS or not self.knows_model(model)):
            model = UNKNOWN
        if not self.knows_endpoint(endpoint):
            endpoint = UNKNOWN
        if not 100 <= status <= 599:
            status = 0
        if len(self.exchanges) >= _MAX_SERIES:
            model, endpoint, reason = UNKNOWN, UNKNOWN, UNKNOWN
        stats = self.models.setdefault(model, ModelStats())
        return self.exchanges.setdefault((model, endpoint, status, reason, ended_by, phase), Series(stats))

    def _attempts(self, key: tuple[str, str]) -> list[int]:
        return self.attempts.setdefault(key if len(self.attempts) < _MAX_SERIES else (UNKNOWN, UNKNOWN), [0])

    def _prefix(self, replica: str) -> Prefix:
        return self.prefixes.setdefault(replica if len(self.prefixes) < _MAX_SERIES else UNKNOWN, Prefix())
