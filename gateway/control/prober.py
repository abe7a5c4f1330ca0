"""Finds out what engine a server runs, whether it is well, and which models it lists. Produces facts only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from gateway.control.client import Answer, Client, Unreachable
from gateway.engines import Engine, Evidence, detect, engine_named, read_models
from gateway.fleet import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.fleet import ServerState, Table

LIST_AGAIN_S = 10.0

_NO_LIST = (404, 405, 501)
_REFUSED = (401, 403)


class _Version(msgspec.Struct):
    version: str


class Prober:
    """A `Poll`: one health probe of one server per round, with the identification and listing that are due."""

    def __init__(self, table: Table, client: Client, clock: Callable[[], float]) -> None:
        self._table = table
        self._client = client
        self._clock = clock

    @property
    def interval_s(self) -> float:
        """Seconds between two probes of a server."""
        return self._table.settings.health.interval_s

    async def poll(self, server: ServerState) -> None:
        """Probe once. Models are listed before a server is reported up, so that it is never asked for one it does not have."""
        engine = await self._engine(server)
        if engine is None:
            return
        try:
            answer = await self._get(server, engine.health_path)
        except Unreachable as fault:
            self._apply(facts.Probed(server.key, ok=False, detail=str(fault)))
            return
        health = engine.health(answer.status, answer.body)
        detail = "" if health == "up" else f"{engine.health_path} answers {answer.status}"
        if health == "up" and server.health != "up":
            await self._ask_version(server, engine)
        if health == "up" and (server.health != "up" or self._clock() - server.listed_at >= LIST_AGAIN_S):
            await self._list(server, engine)
        self._apply(facts.Probed(server.key, ok=health == "up", starting=health == "starting", detail=detail))

    async def _engine(self, server: ServerState) -> Engine | None:
        """What runs there, as configured or found out; None, with a failed probe reported, when the server does not tell."""
        configured = server.settings.engine
        if configured != "auto":
            engine = engine_named(configured)
            self._identified(server, engine, server.engine_version)
            return engine
        if server.engine and server.health not in ("down", "starting"):
            return engine_named(server.engine)
        # What comes back after an outage may be another engine, or another version of it.
        results = await asyncio.gather(*(self._try(server, path) for path in ("/version", "/metrics", "/v1/models")))
        version, metrics, models = answers = [None if isinstance(r, Unreachable) else r for r in results]
        if None in answers or all(a is None or a.status >= 500 for a in answers):
            starting = any(a is not None and a.status == 503 for a in answers)
            self._apply(facts.Probed(server.key, ok=False, starting=starting, detail=_silence(results)))
            return None
        engine = detect(Evidence(_version(version), metrics.body if metrics and metrics.ok else None, _models(models)))
        self._identified(server, engine, _version(version))
        return engine

    async def _ask_version(self, server: ServerState, engine: Engine) -> None:
        if engine.version_path is not None:
            version = _version(await self._ask(server, engine.version_path))
            self._identified(server, engine, version or server.engine_version)

    def _identified(self, server: ServerState, engine: Engine, version: str | None) -> None:
        if (server.engine, server.engine_version) != (engine.name, version):
            self._apply(facts.Identified(server.key, engine.name, version, engine.traits))

    async def _list(self, server: ServerState, engine: Engine) -> None:
        try:
            answer = await self._get(server, engine.models_path)
            if answer.status in _NO_LIST:
                self._apply(facts.Listed(server.key, None))
            elif answer.ok:
                self._apply(facts.Listed(server.key, read_models(answer.body)))
            else:
                refused = ", it refuses the configured api_key" if answer.status in _REFUSED else ""
                raise ValueError(f"{engine.models_path} answers {answer.status}{refused}")
        except (Unreachable, ValueError) as fault:
            self._apply(facts.ListingFailed(server.key, str(fault)))

    async def _ask(self, server: ServerState, path: str) -> Answer | None:
        """An answer, or None when there is none."""
        result = await self._try(server, path)
        return None if isinstance(result, Unreachable) else result

    async def _try(self, server: ServerState, path: str) -> Answer | Unreachable:
        """An answer, or why there is none."""
        try:
            return await self._get(server, path)
        except Unreachable as fault:
            return fault

    async def _get(self, server: ServerState, path: str) -> Answer:
        return await self._client.get(server, path, self._table.settings.health.timeout_s)

    def _apply(self, fact: facts.Fact) -> None:
        self._table.apply(fact, self._clock())


def _version(answer: Answer | None) -> str | None:
    if answer is None or not answer.ok:
        return None
    try:
        return msgspec.json.decode(answer.body, type=_Version).version[:64]
    except msgspec.MsgspecError:
        return None


def _models(answer: Answer | None) -> tuple[facts.ModelInfo, ...] | None:
    if answer is None or not answer.ok:
        return None
    try:
        return read_models(answer.body)
    except ValueError:
        return None


def _silence(results: list[Answer | Unreachable]) -> str:
    """What a server says that does not tell what it is."""
    fault = next((str(r) for r in results if isinstance(r, Unreachable)), None)
    statuses = sorted({r.status for r in results if not isinstance(r, Unreachable)})
    return fault or f"answers {', '.join(map(str, statuses))} to everything"
