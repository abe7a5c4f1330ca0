"""The data plane as one object: what the front calls for each request, and what exchanges share.

It owns the routes to the replicas, the waiting room, the set of running exchanges and the sweep that keeps their deadlines. It
reads the fleet's table and reports to it; it never talks to the control plane.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.admission.keys import KeyRing
from gateway.admission.waiting import WaitingRoom
from gateway.exchange.aftermath import Aftermath, refusal
from gateway.exchange.attempt import Attempt
from gateway.exchange.cors import Cors
from gateway.exchange.exchange import Exchange
from gateway.exchange.outbound import Route
from gateway.exchange.own import OwnAnswers
from gateway.exchange.pins import ResponsePins
from gateway.exchange.refused import Refused
from gateway.exchange.replies import error_response
from gateway.exchange.retry import RetryBudget, outcome_of
from gateway.openai.endpoints import EndpointTable, Refusal
from gateway.routing.filters import AT_CAPACITY
from gateway.wire.upstream import Pool, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.fleet import ReplicaState, Table
    from gateway.fleet.facts import Outcome
    from gateway.openai.view import RequestView
    from gateway.routing import Decision, DecisionLog, Router
    from gateway.settings import Settings
    from gateway.telemetry.records import EndedBy, ExchangeRecord
    from gateway.wire.front import FrontProtocol, FrontShared, RequestHead, Sink

T = TypeVar("T")

PARTS: Final = 8

SHUTTING_DOWN: Final = "This gateway is shutting down."
_SANE_ID: Final = re.compile(rb"[\w.:/+=-]{1,128}", re.ASCII)


class Service:
    """Everything requests share. `hooks` receive one frozen record for each finished exchange."""

    def __init__(
        self,
        settings: Settings,
        table: Table,
        router: Router,
        decisions: DecisionLog,
        shared: FrontShared,
        hooks: Sequence[Callable[[ExchangeRecord], None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.table = table
        self.router = router
        self.shared = shared
        self.aftermath = Aftermath(table, router, decisions, hooks, loop)
        self.loop = loop
        self.clock = time.monotonic  # uvloop's own time moves in whole milliseconds
        self.pins = ResponsePins()
        self.seed = secrets.randbits(64)  # nobody outside may predict block hashes
        self.waiting: WaitingRoom[Exchange] = WaitingRoom(settings.admission.queue_size)
        self.running: set[Exchange] = set()
        self.started = False
        self.draining = False
        self.serving = True
        self._routes: dict[ReplicaState, Route] = {}
        self._pools: dict[tuple[str, str | None], Pool] = {}
        self._refuses_usage: set[str] = set()
        self.latest: dict[str, Decision] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unseen: list[Exchange] = []
        self._part = 1
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="prepare")
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take new settings; running requests finish under the old ones where they already used them."""
        self.settings = settings
        self.keys = KeyRing(settings.server.api_keys)
        self.cors = Cors(settings.server.cors_origins)
        self.endpoints = EndpointTable(settings.server.relay_paths)
        self.waiting.size = settings.admission.queue_size
        self.retries = RetryBudget(settings.retries.budget)
        self.own = OwnAnswers(self)
        for pool in self._pools.values():
            pool.connect_s = settings.timeouts.connect_s

    # -- what the front calls ----------------------------------------------------------------------------------------

    def connected(self, front: FrontProtocol) -> bool:
        """May this client open one more connection?"""
        limit = self.settings.limits.connections_per_address
        if limit is None or self._trusted(front.peer):
            return True
        return sum(c.peer == front.peer for c in self.shared.connections) <= limit

    def client(self, front: FrontProtocol, head: RequestHead) -> str:
        """The address a request comes from: as a trusted proxy in front tells it, else the peer's."""
        forwarded = head.fields.get(b"x-forwarded-for")
        if forwarded is None or not self._trusted(front.peer):
            return front.peer
        return forwarded.rsplit(b",", 1)[-1].strip().decode("latin-1")

    def _trusted(self, address: str) -> bool:
        proxies = self.settings.server.trusted_proxies
        return bool(proxies) and any(ipaddress.ip_address(address.split("%")[0]) in network for network in proxies)

    def disconnected(self, front: FrontProtocol) -> None:
        """A client connection ended."""

    def head(self, front: FrontProtocol, head: RequestHead) -> Sink | None:
        """Decide from the head alone: answer at once, or take the request and with it its body."""
        own = self.own.public(front, head)
        try:
            taken = self._admit(front, head) if own is None else own
        except Refused as fault:
            taken = self.own.refusal(front, head, fault)
        if isinstance(taken, bytes):
            front.answer(taken)
            return None
        self.running.add(taken)
        return taken

    def _admit(self, front: FrontProtocol, head: RequestHead) -> Exchange | bytes:
        key = self.keys.admit(head.fields)
        if key is None:
            raise Refused("invalid_api_key", "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'.")
        found = self.endpoints.match(head.method, head.path)
        if isinstance(found, Refusal):
            raise Refused(found.code, found.message, allow=found.allow)
        if not found.routed:
            return self.own.keyed(front, head, found)
        if not self.serving:
            raise Refused("draining", SHUTTING_DOWN, retry_after=1)
        if self._too_many_streams(key):
            raise Refused("rate_limited", "Too many requests run at once for this key (limits.streams_per_key).", retry_after=1)
        return Exchange(self, front, head, found, key)

    def refuse(self, front: FrontProtocol, status: int, code: str, message: str, target: bytes | None) -> bytes:
        """A complete answer for a fault the front found in a request's framing, or while its body came in."""
        sink = front.sink
        if isinstance(sink, Exchange):
            sink.reason = code  # the front ends it next, and it is counted then
            sink.status, reply = error_response(sink, code, message, None, None)
            return reply
        return self.own.fault(front, code, message, target)

    # -- routing -----------------------------------------------------------------------------------------------------

    def place(self, exchange: Exchange) -> bool:
        """Choose a replica, book it and send the request. Everything up to the write happens before any other request is looked at."""
        now = self.clock()
        query = exchange.query
        assert query is not None
        candidates, fail_open = self.table.candidates(exchange.model, now)
        refused = self.table.refused(exchange.model, now) if len(candidates) < len(self.table.replicas(exchange.model)) else ()
        decision = self.router.plan(query, candidates, now, fail_open=fail_open, refused=refused)
        decision.request_id = exchange.request_id
        exchange.decision = decision
        replica = decision.replica
        if replica is None:
            return False
        self.router.placed(decision, replica, now)
        self.latest[exchange.model] = decision
        slot = self.table.book(replica, uncached=decision.uncached, prompt=query.tokens, streamed=exchange.stream, now=now)
        exchange.start(decision, Attempt(exchange, decision, replica, slot, now))
        return True

    def others(self, exchange: Exchange, attempt: Attempt) -> bool:
        """Is there another replica that has not been tried?"""
        query = exchange.query
        if query is None or query.pin is not None:
            return False
        tried = {*query.exclude, attempt.replica.id}
        return any(r.id not in tried for r in self.table.candidates(exchange.model, self.clock())[0])

    def wait(self, exchange: Exchange) -> None:
        """Nobody can take this request now: let it wait if that can help, else refuse it."""
        now = self.clock()
        busy = self._busy(exchange)
        admission = self.settings.admission
        patience = min(self.settings.timeouts.queue_s, admission.max_wait_s) if busy else admission.wait_for_replica_s
        exchange.lane = frozenset(replica for replica, reason in self._filtered(exchange) if reason != AT_CAPACITY)
        if patience <= 0:
            code, message = self.why_waiting(exchange)
            exchange.refuse(code, message, retry_after=self.table.retry_after(exchange.model, now))
        elif self.waiting.enter(exchange, now + patience):
            exchange.queued()
        else:
            exchange.refuse("queue_full", f"{self.waiting.waiting} requests wait already; nothing can take this one.", retry_after=1)

    def why_waiting(self, exchange: Exchange) -> tuple[str, str]:
        """(code, message) for a request that cannot wait any longer."""
        if self._busy(exchange):
            return "queue_timeout", f"Every replica of {exchange.model!r} stayed at its limit while the request waited."
        pin = exchange.query and exchange.query.pin
        who = f"The replica {pin!r}, which this request is bound to, cannot" if pin else f"No replica of {exchange.model!r} can"
        return "no_replica_ready", f"{who} serve right now."

    def _busy(self, exchange: Exchange) -> bool:
        return any(reason == AT_CAPACITY for _, reason in self._filtered(exchange))

    def _filtered(self, exchange: Exchange) -> Sequence[tuple[str, str]]:
        """The replicas that could not take this request when it was last looked at, with the reasons."""
        return () if exchange.decision is None else exchange.decision.filtered

    def pump(self, model: str) -> None:
        """Give waiting requests to replicas that have become free."""
        while any(self._admit_waiting(exchange) for exchange in self.waiting.heads(model)):
            pass

    def _admit_waiting(self, exchange: Exchange) -> bool:
        placed = self.place(exchange)
        if placed:
            self.waiting.leave(exchange)
        return placed

    def route(self, replica: ReplicaState) -> Route:
        """The way to a replica, made when it is first needed."""
        route = self._routes.get(replica)
        if route is None or route.settings is not replica.settings:
            route = self._routes[replica] = Route(self._pool(replica), replica)
        return route

    def _pool(self, replica: ReplicaState) -> Pool:
        ca_file = replica.settings.ca_file
        key = (replica.server.key, ca_file)
        pool = self._pools.get(key)
        if pool is None:
            target = Target.parse(replica.settings.url, ca_file)
            pool = self._pools[key] = Pool(target, loop=self.loop, connect_s=self.settings.timeouts.connect_s)
        return pool

    def removed(self, replica: ReplicaState) -> None:
        """A replica is gone for good: so is the way to it, and the pool that no other replica uses."""
        self._routes.pop(replica, None)
        for key, pool in list(self._pools.items()):
            if self.table.server(key[0]) is None:
                pool.close()
                del self._pools[key]

    def cut_off(self, replica: ReplicaState) -> None:
        """A replica's drain took too long: end what still runs there."""
        for exchange in list(self.running):
            if exchange.attempt is not None and exchange.attempt.replica.server is replica.server:
                exchange.cancel("draining", "The replica that had this request was taken out of service.")

    # -- what an exchange asks ---------------------------------------------------------------------------------------

    def request_id(self, head: RequestHead | None) -> bytes:
        """The client's request id if it sent a sane one, else a new one."""
        given = None if head is None else head.fields.get(b"x-request-id")
        if given is not None and _SANE_ID.fullmatch(given):
            return given
        return b"req-%016x" % random.getrandbits(64)

    def unknown_model(self, name: str) -> Refused:
        """404 for a name nobody serves; 503 while replicas whose models are not known yet may still serve it."""
        shown = name if len(name) <= 200 else name[:200] + "…"
        if self.table.discovering():
            return Refused("starting", f"The replicas are still being discovered; {shown!r} may be served shortly.", "model", retry_after=1)
        return Refused("model_not_found", f"The model {shown!r} does not exist here; GET /v1/models lists the ones that do.", "model")

    def only_replica(self) -> str | None:
        """The id of the one replica there is, when there is only one."""
        ids = [r.id for m in self.table.models() for r in self.table.replicas(m)]
        return ids[0] if len(ids) == 1 else None

    def injects(self, exchange: Exchange, replica: ReplicaState) -> bool:
        """Ask this replica for usage on the client's behalf?"""
        view = exchange.view
        return (
            view is not None
            and view.stream
            and exchange.endpoint.injects
            and self.settings.usage.inject
            and view.injectable
            and replica.server.key not in self._refuses_usage
        )

    def injection_refused(self, replica: ReplicaState) -> None:
        """This engine does not know `stream_options`: do not send it there again."""
        self._refuses_usage.add(replica.server.key)

    def model_to_send(self, view: RequestView, replica: ReplicaState) -> str | None:
        """The model name to splice in for this replica; None when the client's own spelling is right."""
        served = replica.served
        return served if served is not None and served != view.model else None

    def outcome(self, status: int, own_key: bool) -> Outcome:
        """How a replica's status counts."""
        return outcome_of(status, own_key=own_key)

    def spawn(self, coroutine: Any) -> None:
        """Run a coroutine beside the loop's callbacks; errors in it are logged, never lost."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Run CPU work in a thread, so that streams are not held up."""
        return await self.loop.run_in_executor(self._threads, work, *args)

    # -- what an exchange tells --------------------------------------------------------------------------------------

    def tried(self, exchange: Exchange, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt is over."""
        self.aftermath.tried(exchange, attempt, outcome, self.clock())
        self._freed(exchange.model)

    def ended(self, exchange: Exchange, attempt: Attempt | None, outcome: Outcome, ended_by: EndedBy) -> None:
        """An exchange is over, with its last attempt unless that was told before."""
        self.running.discard(exchange)
        self.aftermath.ended(exchange, attempt, outcome, ended_by, self.clock())
        self._freed(exchange.model)

    def refused(self, front: FrontProtocol, request_id: bytes, status: int, code: str) -> None:
        """A request was answered from its head, or was none at all: it is counted and logged like the others."""
        self.aftermath.record(refusal(request_id, status, code, front.peer))

    def _freed(self, model: str) -> None:
        if self.waiting.waiting:
            self.loop.call_soon(self.pump, model)

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called often: look at the deadlines of one more part of the running exchanges, so that all are seen once in `PARTS` calls and
        no stream waits for a look at a thousand others.
        """
        if not self._unseen:
            self._unseen = list(self.running)
            self._part = len(self._unseen) // PARTS + 1
        part = self._unseen[-self._part :]
        del self._unseen[-self._part :]
        for exchange in part:
            if not exchange.settled:
                exchange.tick(now)

    def sweep(self, now: float) -> None:
        """Called four times a second: requests that wait for a replica, idle upstream connections."""
        if self.waiting.waiting:
            for waiter in self.waiting.overdue(now):
                waiter.expired()
            for model in self.waiting.models():
                self.pump(model)
        for pool in self._pools.values():
            pool.sweep(now)

    async def finish_all(self, timeout_s: float) -> bool:
        """Wait until every exchange has ended and its answer has left the process; True when all have ended in time."""
        until = self.clock() + timeout_s
        while self._unfinished() and self.clock() < until:  # noqa: ASYNC110  # once, at the end
            await asyncio.sleep(0.02)
        return not self.running

    def _unfinished(self) -> bool:
        return bool(self.running) or any(front.busy for front in self.shared.connections)

    def close(self) -> None:
        """Cut what still runs and close every upstream connection."""
        for exchange in list(self.running):
            exchange.cancel("draining", SHUTTING_DOWN)
        self.aftermath.settle()
        for pool in self._pools.values():
            pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _too_many_streams(self, key: str) -> bool:
        limit = self.settings.limits.streams_per_key
        return limit is not None and sum(e.key == key for e in self.running) >= limit
