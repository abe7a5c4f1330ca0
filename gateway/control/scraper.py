"""Reads the engines' metrics and turns them into `Scraped` facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.control.client import Client, Unreachable
from gateway.engines import engine_named, parse
from gateway.fleet import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.fleet import ServerState, Table

_NO_METRICS = (404, 405, 501)
_ASK_AGAIN_S = 30.0


class Scraper:
    """A `Poll`: one reading of one server's metrics per round."""

    def __init__(self, table: Table, client: Client, clock: Callable[[], float]) -> None:
        self._table = table
        self._client = client
        self._clock = clock
        self._pause: dict[str, float] = {}

    @property
    def interval_s(self) -> float:
        """Seconds between two readings of a server."""
        return self._table.settings.scrape.interval_s

    async def poll(self, server: ServerState) -> None:
        """Read once, if the engine is known and has metrics."""
        engine = engine_named(server.engine)
        if not server.engine or engine.metrics_path is None or self._clock() < self._pause.get(server.key, 0.0):
            return
        self._apply(facts.Scraping(server.key))
        try:
            answer = await self._client.get(server, engine.metrics_path, self._table.settings.scrape.timeout_s)
        except Unreachable as fault:
            self._apply(facts.ScrapeFailed(server.key, str(fault)))
            return
        if not answer.ok:
            if answer.status in _NO_METRICS:
                self._pause[server.key] = self._clock() + _ASK_AGAIN_S
            self._apply(facts.ScrapeFailed(server.key, f"{engine.metrics_path} answers {answer.status}"))
            return
        self._apply(facts.Scraped(server.key, engine.signals(parse(answer.body, engine.families), server.engine_version)))

    def _apply(self, fact: facts.Fact) -> None:
        self._table.apply(fact, self._clock())
