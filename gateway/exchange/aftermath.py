"""What remains to be done when a request is over and nobody waits for it any more: learn, count, log.

It is taken up right after the turn of the loop in which requests ended, for all of them together. Bytes go out first, and the same
few steps repeated cost about half of what they cost in between other work.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from gateway.fleet import facts
from gateway.telemetry.records import EndedBy, ExchangeRecord

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from gateway.exchange.attempt import Attempt
    from gateway.exchange.exchange import Exchange
    from gateway.fleet import Table
    from gateway.fleet.facts import Outcome
    from gateway.routing import DecisionLog, Router

    Hook = Callable[[ExchangeRecord], None]
    Ended = tuple[Exchange, Attempt | None, Outcome, EndedBy, float]

log = structlog.get_logger("kvgate")


class Aftermath:
    """Feeds router, fleet and decision log with what attempts taught, and the hooks with one record for each request."""

    def __init__(
        self, table: Table, router: Router, decisions: DecisionLog, hooks: Sequence[Hook], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._table = table
        self._router = router
        self._decisions = decisions
        self._hooks = hooks
        self._loop = loop
        self._ended: list[Ended] = []

    def ended(self, exchange: Exchange, attempt: Attempt | None, outcome: Outcome, ended_by: EndedBy, now: float) -> None:
        """An exchange is over, its last `attempt` too unless that was told before (None)."""
        ended = self._ended
        if not ended:
            self._loop.call_soon(self.settle)
        ended.append((exchange, attempt, outcome, ended_by, now))

    def settle(self) -> None:
        """Do what is due."""
        ended, self._ended = self._ended, []
        for exchange, attempt, outcome, ended_by, now in ended:
            try:
                if attempt is not None:
                    self.tried(exchange, attempt, outcome, now)
                elif not exchange.tries and exchange.decision is not None:
                    exchange.decision.outcome = exchange.reason  # nobody could take it: that is worth an explanation too
                    self._decisions.add(exchange.decision)
                self.record(_record(exchange, ended_by, now))
            except Exception:
                # One request's fault must not lose the slots and counts of all that ended with it.
                log.exception("a finished request could not be booked", request=exchange.request_id.decode("latin-1"))

    def record(self, record: ExchangeRecord) -> None:
        """Give one record to everybody who counts."""
        for hook in self._hooks:
            hook(record)

    def tried(self, exchange: Exchange, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt is over: release its slot and pass on what was learned."""
        replica, decision = attempt.replica, attempt.decision
        prompt = cached = completion = None
        if outcome == "ok" and (usage := attempt.usage()) is not None:
            prompt, completion, cached = exchange.usage = usage
        ttft = None
        if attempt.scanner is not None and (first := attempt.first_at) is not None:
            ttft = first - attempt.began
            exchange.ttft = first - exchange.began
            if completion is not None and completion > 1:
                exchange.tpot = (now - first) / (completion - 1)
        attempt.slot.release(now, completion or 0)
        self._router.settled(decision, replica, prompt, cached, not exchange.skips_cache, outcome)
        decision.finished(outcome, prompt, cached, exchange.ttft)
        self._decisions.add(decision)
        self._table.apply(
            facts.Settled(
                replica=replica.id,
                outcome=outcome,
                status=attempt.status,
                ttft=ttft,
                tpot=exchange.tpot,
                uncached=decision.uncached,
                prompt=prompt,
                cached=cached,
                completion=completion,
                duration=now - attempt.began,
                retry_after=attempt.retry_after() if outcome == "backpressure" else None,
                model=exchange.model,
                missing=outcome == "not_found" and attempt.model_missing(),
                server=replica.server.key,
            ),
            now,
        )


def refusal(request_id: bytes, status: int, code: str, client: str) -> ExchangeRecord:
    """The record of a request that was answered from its head, or was none at all."""
    return ExchangeRecord(
        id=request_id.decode("latin-1"),
        at=time.time(),
        model="",
        endpoint="",
        status=status,
        reason=code,
        ended_by="gateway",
        phase="admit",
        client=client,
    )


def _record(exchange: Exchange, ended_by: EndedBy, now: float) -> ExchangeRecord:
    usage, decision, tries = exchange.usage, exchange.decision, exchange.tries
    duration = now - exchange.began
    prompt, completion, cached = (None, None, None) if usage is None else usage
    return ExchangeRecord(
        id=exchange.request_id.decode("latin-1"),
        at=time.time() - duration,
        model=exchange.model,
        endpoint=exchange.endpoint.name,
        status=exchange.status,
        reason=exchange.reason,
        ended_by=ended_by,
        phase="done" if ended_by == "replica" and not exchange.reason else exchange.phase,
        replica=tries[-1][0] if tries else "",
        attempts=len(tries),
        tries=tuple(tries),
        stream=exchange.stream,
        duration_s=duration,
        ttft_s=exchange.ttft,
        tpot_s=exchange.tpot,
        queue_s=exchange.queue_s,
        overhead_s=exchange.overhead,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        predicted_tokens=0 if decision is None else decision.predicted,
        bytes_in=exchange.bytes_in,
        bytes_out=exchange.bytes_out,
        client=exchange.service.client(exchange.front, exchange.head),
        key=exchange.key,
    )
