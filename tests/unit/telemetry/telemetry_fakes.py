"""Records and rows for telemetry tests."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.telemetry import ExchangeRecord

AT = 1_764_591_825.25  # 2025-12-01T12:23:45.250Z


def record(**fields: Any) -> ExchangeRecord:
    """A well-ended streamed chat request."""
    usual: dict[str, Any] = {
        "id": "req-1", "at": AT, "model": "llama", "endpoint": "chat", "status": 200, "replica": "a", "attempts": 1,
        "tries": (("a", "ok"),), "stream": True,
        "duration_s": 1.5, "ttft_s": 0.25, "tpot_s": 0.0125, "queue_s": 0.0, "overhead_s": 0.0001, "prompt_tokens": 1000,
        "cached_tokens": 600, "completion_tokens": 100, "predicted_tokens": 500, "bytes_in": 2000, "bytes_out": 9000, "client": "10.0.0.9",
        "key": "ci",
    }  # fmt: skip
    return ExchangeRecord(**usual | fields)


class Signal(NamedTuple):
    """A signal with its age."""

    age_s: float | None


class Row(NamedTuple):
    """A replica row as the fleet gives them."""

    id: str
    state: str = "up"
    inflight: int = 0
    signals: dict[str, Signal] = {}


class Timers:
    """Stands in for a loop: keeps what was asked for, and runs it when told."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Any]] = []

    def call_later(self, delay: float, callback: Any) -> Any:
        """As an event loop's."""
        entry = (delay, callback)
        self.pending.append(entry)
        return _Handle(self.pending, entry)

    def fire(self) -> None:
        """Run everything that is due."""
        due, self.pending[:] = list(self.pending), []
        for _, callback in due:
            callback()


class _Handle(NamedTuple):
    pending: list[Any]
    entry: Any

    def cancel(self) -> None:
        self.pending.remove(self.entry)
