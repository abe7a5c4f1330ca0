"""What telemetry is told: one frozen record per exchange, and plain rows about replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

EndedBy = Literal["client", "replica", "gateway", "timeout"]
Phase = Literal["admit", "queued", "connecting", "waiting", "streaming", "done"]


class ExchangeRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One client request from arrival to its end, by whatever path it ended.

    Times are seconds, sizes bytes. `at` is the wall clock at arrival; `status` what the client was sent (0: nothing); `reason` the
    gateway's error code, or "". `tries` are (replica, outcome) in order. `predicted_tokens`: prompt tokens expected in the chosen
    replica's cache. None is unknown, never zero. No prompt text, no key, no address of a replica.
    """

    id: str
    at: float
    model: str
    endpoint: str
    status: int
    reason: str = ""
    ended_by: EndedBy = "replica"
    phase: Phase = "done"
    replica: str = ""
    attempts: int = 0
    tries: tuple[tuple[str, str], ...] = ()
    stream: bool = False
    duration_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    queue_s: float = 0.0
    overhead_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    predicted_tokens: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    client: str = ""
    key: str = ""


class Reading(Protocol):
    """One signal of a replica."""

    @property
    def age_s(self) -> float | None:
        """Seconds since it was learned; None: never."""


class ReplicaRow(Protocol):
    """A replica of one model as metrics show it: the part of the fleet's rows that is read here."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def inflight(self) -> int:
        """Requests of this gateway running there."""

    @property
    def signals(self) -> Mapping[str, Reading]: ...
