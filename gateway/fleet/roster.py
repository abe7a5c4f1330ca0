"""Who belongs to the fleet: servers by address, replicas by model, names by alias. Membership only; load and health live in the states."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.fleet import naming
from gateway.fleet.address import address, short_id
from gateway.fleet.state import Origin, ReplicaState, ServerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.settings import ModelSettings, ReplicaSettings, Settings

_PER_SERVER = ("api_key", "ca_file", "max_num_seqs", "step_tokens", "kv_tokens")


class FleetError(ValueError):
    """A change of the fleet that cannot be made: a duplicate or an unknown replica id."""


class Source:
    """One configured, added or discovered server entry, and the replicas it stands for: one per model it serves."""

    __slots__ = ("forced", "id", "leave_by", "model", "origin", "replicas", "server", "settings")

    def __init__(self, source_id: str, model: str | None, settings: ReplicaSettings, origin: Origin, server: ServerState) -> None:
        self.id = source_id
        self.model = model
        self.settings = settings
        self.origin: Origin = origin
        self.server = server
        self.replicas: dict[str, ReplicaState] = {}
        self.leave_by = math.inf
        self.forced = False

    def shown(self) -> list[ReplicaState]:
        """The replicas to show: those that serve or still run something, else one without a model, so that no entry goes unseen."""
        leaving = self.leave_by < math.inf
        shown = [r for r in self.replicas.values() if leaving or r.inflight or not r.removed]
        if shown:
            return shown
        nameless = ReplicaState(self.id, self.model or "", self.server, self.settings, self.origin)
        nameless.problem = self.server.listing_error or ("lists no model" if self.server.listed else "models not listed yet")
        return [nameless]

    def inflight(self) -> int:
        """Requests running on behalf of this entry."""
        return sum(r.inflight for r in self.replicas.values())


class Roster:
    """Members and the names that lead to them."""

    def __init__(self, watch: Callable[[], None]) -> None:
        self.servers: dict[str, ServerState] = {}
        self.sources: dict[str, Source] = {}
        self.leaving: list[Source] = []
        self.by_model: dict[str, tuple[ReplicaState, ...]] = {}
        self.aliases: dict[str, str] = {}
        self._configured: dict[str, ModelSettings] = {}
        self._watch = watch

    # -- reading -----------------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> str | None:
        """The model a client means by this name: a model, an alias, an adapter; None: nobody serves it."""
        return name if name in self.by_model else self.aliases.get(name)

    def members(self, server: ServerState) -> Iterator[Source]:
        """The entries at this server, those on their way out excepted."""
        return (s for s in self.sources.values() if s.server is server)

    def replicas_at(self, server: ServerState) -> list[ReplicaState]:
        """Every replica at this server."""
        return [r for s in (*self.sources.values(), *self.leaving) if s.server is server for r in s.replicas.values()]

    def source(self, replica_id: str) -> Source:
        """The entry with this id; `FleetError` when there is none."""
        found = self.sources.get(replica_id)
        if found is None:
            raise FleetError(f"no replica has the id {replica_id!r}")
        return found

    # -- changing ----------------------------------------------------------------------------------------------------

    def reconfigure(self, settings: Settings, since: float) -> list[Source]:
        """Take the replicas of new settings; those added by hand stay. Returns the entries that are now leaving.

        An entry is the same when id, model and address are; it keeps its state and takes the new settings. `FleetError`, with nothing
        changed, when an id would stand for two replicas.
        """
        wanted = list(_entries(settings))
        added = {i: s for i, s in self.sources.items() if s.origin == "admin"}
        seen: set[str] = set(added)
        for source_id, *_ in wanted:
            if source_id in seen:
                raise FleetError(f"replica id {source_id!r} is used twice")
            seen.add(source_id)
        before = {i: s for i, s in self.sources.items() if i not in added}
        self.sources = {}
        self._configured = {m.name: m for m in settings.models}
        self.aliases = {alias: m.name for m in settings.models for alias in m.aliases}
        for source_id, model, entry, origin in wanted:
            old = before.get(source_id)
            if old is not None and (old.model, old.server.key) == (model, address(entry.url)):
                old.settings = entry
                old.origin = origin
                self.sources[source_id] = before.pop(source_id)
            else:
                self._enter(source_id, model, entry, origin, since, settings)
        self.sources |= added
        self.leaving.extend(before.values())
        self.refresh()
        return list(before.values())

    def add(self, model: str | None, entry: ReplicaSettings, origin: Origin, since: float, settings: Settings) -> Source:
        """One more entry; `FleetError` when its id is taken or its server is a replica of this model already."""
        source_id = entry.id or short_id(address(entry.url))
        if source_id in self.sources or any(s.id == source_id for s in self.leaving):
            raise FleetError(f"replica id {source_id!r} is used already")
        name = self.aliases.get(model, model) if model else None
        for other in self.sources.values():
            if (other.model, other.server.key) == (name, address(entry.url)):
                raise FleetError(f"this server is a replica of {name or 'its models'} already, as {other.id!r}")
        source = self._enter(source_id, name, entry, origin, since, settings)
        self.refresh()
        return source

    def remove(self, replica_id: str) -> Source:
        """Take an entry out of its models; it stays on the leaving list until it is forgotten."""
        source = self.source(replica_id)
        del self.sources[replica_id]
        self.leaving.append(source)
        self.refresh()
        return source

    def forget(self, source: Source) -> bool:
        """An entry is gone, and its server with it unless others use it: True then."""
        self.leaving.remove(source)
        last = not any(s.server is source.server for s in (*self.sources.values(), *self.leaving))
        if last:
            self.servers.pop(source.server.key, None)
        return last

    def refresh(self) -> None:
        """Derive replicas and model lists from the entries and from what their servers list."""
        for server in self.servers.values():
            _merge_settings(server, [s.settings for s in self.members(server)])
        taken = {*self._configured, *self.aliases, *(s.model for s in self.sources.values() if s.model)}
        by_model: dict[str, list[ReplicaState]] = {name: [] for name in self._configured}
        for source in self.sources.values():
            self._derive(source, taken)
            for replica in source.replicas.values():
                if not replica.removed:
                    by_model.setdefault(replica.model, []).append(replica)
        for source in self.leaving:
            for replica in source.replicas.values():
                replica.removed = True
        self.by_model = {name: tuple(replicas) for name, replicas in by_model.items()}

    def _enter(self, source_id: str, model: str | None, entry: ReplicaSettings, origin: Origin, since: float, settings: Settings) -> Source:
        key = address(entry.url)
        server = self.servers.get(key)
        if server is None:
            server = self.servers[key] = ServerState(key, entry, settings.breaker)
            server.changed = self._watch
            server.since = since
        source = self.sources[source_id] = Source(source_id, model, entry, origin, server)
        return source

    def _derive(self, source: Source, taken: set[str]) -> None:
        """The replicas of one entry. Those of models no longer listed are marked removed, so that what runs there can end."""
        names: dict[str, naming.Served] = {n.model: n for n in self._served(source, taken)}
        for name, served in names.items():
            replica = source.replicas.get(name)
            if replica is None:
                replica = source.replicas[name] = ReplicaState(source.id, name, source.server, source.settings, source.origin)
            replica.settings, replica.origin = source.settings, source.origin
            replica.served, replica.problem, replica.removed = served.served, served.problem, False
        for name, replica in source.replicas.items():
            replica.removed = name not in names

    def _served(self, source: Source, taken: set[str]) -> Sequence[naming.Served]:
        if source.model is None:
            return naming.everything(source.server, taken)
        known = self._configured.get(source.model)
        main = naming.configured(source.server, source.model, known.aliases if known else (), source.settings.served_model)
        return [main, *naming.adapters(source.server, main.served, taken)]


def _entries(settings: Settings) -> Iterable[tuple[str, str | None, ReplicaSettings, Origin]]:
    for model in settings.models:
        for entry in model.replicas:
            yield entry.id or short_id(address(entry.url)), model.name, entry, "config"
    for entry in settings.discover:
        yield entry.id or short_id(address(entry.url)), None, entry, "discovered"


def _merge_settings(server: ServerState, entries: list[ReplicaSettings]) -> None:
    """What holds for the address is taken from the first entry that says it; another engine is another thing to talk to."""
    if not entries:
        return
    first = entries[0]
    told = {name: next((v for e in entries if (v := getattr(e, name)) is not None), None) for name in _PER_SERVER}
    engine = next((e.engine for e in entries if e.engine != "auto"), "auto")
    headers = next((e.headers for e in entries if e.headers), {})
    if engine != server.settings.engine:
        server.engine = ""
    server.settings = first.model_copy(update={**told, "engine": engine, "headers": headers})
    server.measure()
