"""The fleet's one table: `apply(fact)` is the only writer, `book` the only way to add load, `snapshot` the view for people and metrics.

Verdicts are cached: `candidates` costs one dict lookup until a fact changes something or a back-off, cool-down or reading runs out.
Pure: time is passed in, in seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.fleet import facts as f
from gateway.fleet.roster import FleetError, Roster, Source
from gateway.fleet.settling import settle
from gateway.fleet.slot import Slot
from gateway.fleet.snapshot import ReplicaRow, row
from gateway.fleet.state import HARD, ReplicaState, ServerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.settings import Settings

    Verdict = tuple[tuple[ReplicaState, ...], bool]

_HALVE_S = 30.0


class Table:
    """The fleet.

    Callbacks, each a list to append to: `on_restart(replica)`: its caches are empty or gone, forget its prefixes; `on_forced(replica)`:
    its drain took too long, cut what runs there; `on_removed(replica)`: it is gone; `on_change(server, before, after)`: its health
    changed.
    """

    def __init__(self, settings: Settings, now: float) -> None:
        self.settings = settings
        self.on_restart: list[Callable[[ReplicaState], None]] = []
        self.on_forced: list[Callable[[ReplicaState], None]] = []
        self.on_removed: list[Callable[[ReplicaState], None]] = []
        self.on_change: list[Callable[[ServerState, str, str], None]] = []
        self._verdicts: dict[str, Verdict] = {}
        self._valid_until = math.inf
        self._sweep_at = math.inf
        self._halve_at = now + _HALVE_S
        self._roster = Roster(self.changed)
        # Engines that were there before the gateway are warm: only those that come later start slowly.
        self._roster.reconfigure(settings, since=-math.inf)

    # -- hot path ----------------------------------------------------------------------------------------------------

    def candidates(self, model: str, now: float) -> Verdict:
        """(replicas that can serve the model now, False); when there is none, (the least bad ones, True), both perhaps empty."""
        if now >= self._sweep_at:
            self._sweep(now)
        if now >= self._valid_until:
            self.changed()
        verdict = self._verdicts.get(model)
        if verdict is None:
            verdict = self._verdicts[model] = self._judge(model, now)
        return verdict

    def book(self, replica: ReplicaState, *, uncached: int, prompt: int, streamed: bool, now: float) -> Slot:
        """Count a request as sent to this replica: `uncached` of its `prompt` tokens have to be computed there."""
        server = replica.server
        slot = Slot(replica, server, uncached, prompt, streamed, now)
        if not streamed:
            due = server.predict(slot, now)
            if due < self._sweep_at:
                self._sweep_at = due
        breaker = server.breaker
        if breaker.opened_at is not None and breaker.allows(now):
            breaker.probe = slot
            self.changed()
        return slot

    def changed(self) -> None:
        """Something that decides who can serve has changed."""
        for replicas, _ in self._verdicts.values():
            for replica in replicas:
                replica.clear_until = -math.inf
        self._verdicts.clear()
        self._valid_until = math.inf

    def _judge(self, model: str, now: float) -> Verdict:
        faults = [(r, r.fault(now)) for r in self._roster.by_model.get(model, ())]
        for replica, fault in faults:
            until = replica.server.changes_at(now)
            self._valid_until = min(self._valid_until, until)
            replica.clear_until = until if fault is None else -math.inf
        usable = tuple(r for r, fault in faults if fault is None)
        if usable:
            return usable, False
        soft = [(fault.rank, r) for r, fault in faults if fault is not None and fault.rank < HARD]
        least = min((rank for rank, _ in soft), default=HARD)
        return tuple(r for rank, r in soft if rank == least), bool(soft)

    def _sweep(self, now: float) -> None:
        again = math.inf
        stale_after = self.settings.scrape.stale_after_s
        for server in self._roster.servers.values():
            if server.unstreamed:
                again = min(again, server.sweep(now))
            if server.signals_at + stale_after > now:
                again = min(again, server.signals_at + stale_after)
            elif server.signals_at > -math.inf:
                server.stale()
        self._sweep_at = again

    # -- reading -----------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """Every model that can be asked for: configured, discovered, adapters; aliases not included."""
        return sorted(self._roster.by_model)

    def aliases(self) -> dict[str, str]:
        """Alias -> model."""
        return self._roster.aliases

    def resolve(self, name: str) -> str | None:
        """The model meant by a name (its own, an alias, a discovered model, an adapter), or None."""
        return self._roster.resolve(name)

    def replicas(self, model: str) -> tuple[ReplicaState, ...]:
        """All replicas of a model, able to serve or not."""
        return self._roster.by_model.get(model, ())

    def replica(self, replica_id: str) -> ReplicaState | None:
        """The replica with this id (of its first model); None: there is none."""
        source = self._roster.sources.get(replica_id)
        return None if source is None else next((r for r in source.replicas.values() if not r.removed), None)

    def servers(self) -> list[ServerState]:
        """Every server that is to be watched."""
        return list(self._roster.servers.values())

    def server(self, key: str) -> ServerState | None:
        """The server at this base address."""
        return self._roster.servers.get(key)

    def listing(self, model: str) -> f.ModelInfo | None:
        """What an engine says about a model; None while nobody has listed it."""
        for replica in self.replicas(model):
            info = replica.server.models.get(replica.served or "")
            if info is not None:
                return info
        return None

    def discovering(self) -> bool:
        """Are there replicas whose models are found out and not known yet?"""
        return any(s.model is None and s.server.listed is None for s in self._roster.sources.values())

    def refused(self, model: str, now: float) -> list[tuple[str, str]]:
        """(id, reason) of every replica of the model that cannot serve now."""
        return [(r.id, reason) for r in self.replicas(model) if (reason := r.usable(now)) is not None]

    def retry_after(self, model: str, now: float) -> float:
        """Seconds after which asking again may help; at least 1."""
        times = [r.server.changes_at(now) - now for r in self.replicas(model)]
        return max(1.0, min([self.settings.health.interval_s, *times]))

    def snapshot(self, now: float) -> list[ReplicaRow]:
        """One row per replica and model, those on their way out included; a server whose models are unknown has one without a model."""
        if now >= self._sweep_at:
            self._sweep(now)
        sources = [*self._roster.sources.values(), *self._roster.leaving]
        return [row(replica, source, now) for source in sources for replica in source.shown()]

    # -- writing -----------------------------------------------------------------------------------------------------

    def apply(self, fact: f.Fact, now: float) -> None:
        """Take one fact in. `FleetError` for an operator's change that cannot be made; facts about what is gone are ignored."""
        if isinstance(fact, f.Settled):
            settle(self, fact, now)
            return
        if isinstance(fact, f.Draining | f.Undrained | f.Added | f.Removed):
            _CHANGES[type(fact)](self, fact, now)
            return
        server = self._roster.servers.get(fact.server)
        if server is not None:
            _SIGHTS[type(fact)](self, server, fact, now)

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Take new settings: unchanged replicas keep their state, missing ones drain, replicas added by hand stay.

        `FleetError`, with nothing changed, when an id would be used twice.
        """
        leaving = self._roster.reconfigure(settings, since=math.inf)
        self.settings = settings
        for server in self._roster.servers.values():
            server.breaker.rules = settings.breaker
        for source in leaving:
            source.leave_by = now + settings.drain.timeout_s
        self.changed()

    def tick(self, now: float) -> None:
        """Called about once a second: ends drains, forgets replicas that left, lets old client errors fade."""
        if now >= self._sweep_at:
            self._sweep(now)
        if now >= self._halve_at:
            self._halve_at = now + _HALVE_S
            for server in self._roster.servers.values():
                server.requests //= 2
                server.client_errors //= 2
        self._end_drains(now)
        for source in list(self._roster.leaving):
            self._end_leaving(source, now)

    def server_of(self, fact: f.Settled) -> ServerState | None:
        """The server an attempt was made at."""
        if fact.server:
            return self._roster.servers.get(fact.server)
        source = self._roster.sources.get(fact.replica)
        return None if source is None else source.server

    def forget_caches(self, server: ServerState) -> None:
        """The engine's KV cache is empty: whoever remembers prefixes there must forget them."""
        self._call(self.on_restart, self._roster.replicas_at(server))

    def move(self, server: ServerState, before: str, now: float) -> None:
        """A server's health is no longer `before`."""
        self.changed()
        if server.health == "up" and (before != "unknown" or server.since > now):
            server.since = now
        elif before == "up":
            self.forget_caches(server)
        for callback in self.on_change:
            callback(server, before, server.health)

    def _end_drains(self, now: float) -> None:
        for server in self._roster.servers.values():
            if server.draining and server.inflight and now >= server.drain_by and not server.forced:
                server.forced = True
                self._call(self.on_forced, self._roster.replicas_at(server))

    def _end_leaving(self, source: Source, now: float) -> None:
        replicas = list(source.replicas.values())
        if not source.inflight():
            if self._roster.forget(source):
                self._call(self.on_restart, replicas)
            self._call(self.on_removed, replicas)
        elif now >= source.leave_by and not source.forced:
            source.forced = True
            self._call(self.on_forced, replicas)

    @staticmethod
    def _call(callbacks: Sequence[Callable[[ReplicaState], None]], replicas: Sequence[ReplicaState]) -> None:
        for replica in replicas:
            for callback in callbacks:
                callback(replica)

    # -- one method per kind of fact ---------------------------------------------------------------------------------

    def _identified(self, server: ServerState, fact: f.Identified, now: float) -> None:
        server.engine, server.engine_version, server.traits = fact.engine, fact.version, fact.traits
        server.tells_cached, server.untold = False, 0
        server.measure()
        self._relist()

    def _probed(self, server: ServerState, fact: f.Probed, now: float) -> None:
        before = server.health
        rules = self.settings.health
        server.health_detail = fact.detail
        server.probed(fact.ok, fact.starting, rules.unhealthy_after, rules.healthy_after, now)
        if server.health != before:
            self.move(server, before, now)

    def _listed(self, server: ServerState, fact: f.Listed, now: float) -> None:
        server.listed = fact.models is not None
        server.listed_at = now
        server.listing_error = ""
        models = {m.id: m for m in fact.models or ()}
        if server.absent or models != server.models or not models:
            server.absent.clear()
            server.models = models
            self._relist()

    def _listing_failed(self, server: ServerState, fact: f.ListingFailed, now: float) -> None:
        server.listing_error = fact.detail
        if server.listed is None:
            self._relist()

    def _relist(self) -> None:
        self._roster.refresh()
        self.changed()

    def _scraping(self, server: ServerState, fact: f.Scraping, now: float) -> None:
        server.scraping(now)

    def _scraped(self, server: ServerState, fact: f.Scraped, now: float) -> None:
        if server.scraped(fact.signals, now):
            self.forget_caches(server)
        self._sweep_at = min(self._sweep_at, now + self.settings.scrape.stale_after_s)
        asleep = fact.signals.asleep
        before = server.health
        if asleep is not None and asleep != (before == "asleep") and (asleep or before == "asleep"):
            server.health = "asleep" if asleep else "up"
            self.move(server, before, now)

    def _scrape_failed(self, server: ServerState, fact: f.ScrapeFailed, now: float) -> None:
        server.scrape_error = fact.detail

    def _draining(self, fact: f.Draining, now: float) -> None:
        server = self._roster.source(fact.replica).server
        if not server.draining:
            server.draining = True
            server.drain_by = now + self.settings.drain.timeout_s
            self.changed()

    def _undrained(self, fact: f.Undrained, now: float) -> None:
        server = self._roster.source(fact.replica).server
        server.draining = server.forced = False
        server.drain_by = math.inf
        self.changed()

    def _added(self, fact: f.Added, now: float) -> None:
        self._roster.add(fact.model, fact.settings, fact.origin, math.inf, self.settings)
        self.changed()

    def _removed(self, fact: f.Removed, now: float) -> None:
        self._roster.remove(fact.replica).leave_by = now + self.settings.drain.timeout_s
        self.changed()


_SIGHTS: dict[type, Callable[..., None]] = {
    f.Identified: Table._identified,
    f.Probed: Table._probed,
    f.Listed: Table._listed,
    f.ListingFailed: Table._listing_failed,
    f.Scraping: Table._scraping,
    f.Scraped: Table._scraped,
    f.ScrapeFailed: Table._scrape_failed,
}
_CHANGES: dict[type, Callable[..., None]] = {
    f.Draining: Table._draining,
    f.Undrained: Table._undrained,
    f.Added: Table._added,
    f.Removed: Table._removed,
}

__all__ = ["FleetError", "Table"]
