"""The fleet for people and metrics: frozen rows, each signal with its age, and what an operator should know about a replica."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gateway.fleet.state import ABSENT, BACKING_OFF, BROKEN, DOWN, REFUSES_KEY, ReplicaState, ServerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.fleet.roster import Source

STATES = ("up", "backing_off", "absent", "broken", "down", "starting", "unknown", "asleep", "draining", "drained", "unusable")

_SILENCE = 20  # answers without cached_tokens that are no accident

_SOFT = {BACKING_OFF: "backing_off", ABSENT: "absent", BROKEN: "broken", DOWN: "down"}


class Reading(msgspec.Struct, frozen=True):
    """A signal: its value, None when unknown, and the seconds since it was learned, None when it never was."""

    value: float | None
    age_s: float | None


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of one model. `state` is one of `STATES`; `reason` says why it cannot serve, "" when it can."""

    id: str
    model: str
    server: str
    origin: str
    engine: str
    version: str | None
    state: str
    reason: str
    health: str
    health_detail: str
    breaker: str
    draining: bool
    served: str | None
    context_length: int | None
    share: float
    inflight: int
    backlog_tokens: int
    signals: dict[str, Reading]
    foreign_running: float | None
    foreign_waiting: float | None
    capacity_tokens: int | None
    step_tokens: int
    max_num_seqs: int
    prefill_tokens_per_s: float | None
    tpot_s: float | None
    warnings: tuple[str, ...]


def row(replica: ReplicaState, source: Source, now: float) -> ReplicaRow:
    """The row of one replica."""
    server = replica.server
    leaving = source.leave_by < math.inf
    reason = replica.usable(now) or ""
    return ReplicaRow(
        id=replica.id,
        model=replica.model,
        server=server.key,
        origin=replica.origin,
        engine=server.engine or server.settings.engine,
        version=server.engine_version,
        state=_state(replica, leaving, now),
        reason=reason,
        health=server.health,
        health_detail=server.health_detail,
        breaker=server.breaker.state(now),
        draining=server.draining or leaving,
        served=replica.served,
        context_length=replica.context_length,
        share=replica.share(now),
        inflight=replica.inflight,
        backlog_tokens=server.backlog,
        signals=_signals(server, now),
        foreign_running=server.foreign_running,
        foreign_waiting=server.foreign_waiting,
        capacity_tokens=server.capacity_tokens(),
        step_tokens=server.step_tokens(),
        max_num_seqs=server.max_num_seqs(),
        prefill_tokens_per_s=server.prefill_rate,
        tpot_s=server.tpot,
        warnings=tuple(text.format(r=replica).rstrip() for applies, text in _WARNINGS if applies(replica)),
    )


def _state(replica: ReplicaState, leaving: bool, now: float) -> str:
    server = replica.server
    if leaving:
        return "draining" if replica.inflight else "drained"
    if server.draining:
        return "draining" if server.inflight else "drained"
    fault = replica.fault(now)
    if fault is None:
        return "up"
    soft = _SOFT.get(fault.rank)
    if soft is not None:
        return soft
    return server.health if server.health in ("unknown", "starting", "asleep", "down") else "unusable"


def _signals(server: ServerState, now: float) -> dict[str, Reading]:
    age = now - server.signals_at if server.signals_at > -math.inf else None
    s = server.signals
    scraped = {"running": s.running, "waiting": s.waiting, "kv_usage": s.kv_usage, "gpu": s.gpu, "hit_rate": server.hit_rate}
    return {name: Reading(value, age) for name, value in scraped.items()}


def _never_scraped(replica: ReplicaState) -> bool:
    server = replica.server
    return server.health == "up" and server.traits.has_metrics and server.signals.running is None


def _no_kv_usage(replica: ReplicaState) -> bool:
    signals = replica.server.signals
    return signals.running is not None and signals.kv_usage is None


def _usage_untold(replica: ReplicaState) -> bool:
    """Engines may leave a zero out: silence counts once they report hits, or nothing at all, themselves."""
    server = replica.server
    return not server.tells_cached and server.untold >= _SILENCE and server.hit_rate != 0.0


# When it applies, and what is told about a replica `r`.
_WARNINGS: tuple[tuple[Callable[[ReplicaState], bool], str], ...] = (
    (lambda r: r.served is None and r.server.health == "up", "cannot serve: {r.problem}"),
    (lambda r: bool(r.server.listing_error), "model list not readable: {r.server.listing_error}"),
    (_never_scraped, "load of others is unknown: metrics not readable or without running requests {r.server.scrape_error}"),
    (_no_kv_usage, "KV cache usage is unknown: the metrics lack it"),
    (lambda r: bool(r.server.engine) and not r.server.traits.has_metrics, "load of others is unknown: this engine has no metrics"),
    (_usage_untold, "usage has no cached_tokens, predictions go unchecked {r.server.traits.usage_hint}"),
    (lambda r: r.server.signals.prefix_caching is False, "prefix caching is switched off in the engine"),
    (lambda r: r.server.health == "asleep", "asleep: requests would hang until the engine is woken"),
    (lambda r: r.server.backoff_reason == REFUSES_KEY, "refused the configured api_key"),
)
