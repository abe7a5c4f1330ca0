from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.control import Client, Scraper
from gateway.engines import engine_named
from gateway.fleet import ServerState, Table, facts
from tests.unit.control.fake_engine import METRICS, FakeEngine, engine, table_of


class Scraped:
    """A fake engine that the table takes for `engine`, and a scraper on a clock that a test moves."""

    def __init__(self, fake: FakeEngine, table: Table, client: Client) -> None:
        self.fake = fake
        self.table = table
        self.now = 1.0
        self.scraper = Scraper(table, client, lambda: self.now)

    async def scrape(self) -> ServerState:
        await self.scraper.poll(self.table.servers()[0])
        return self.table.servers()[0]


@asynccontextmanager
async def scraped(name: str = "vllm", **more: Any) -> AsyncIterator[Scraped]:
    async with engine() as fake, Client() as client:
        table = table_of(fake.url, **more)
        if name:
            table.apply(facts.Identified(table.servers()[0].key, name, None, engine_named(name).traits), 0.0)
        yield Scraped(fake, table, client)


async def test_metrics_become_signals() -> None:
    """One reading: signals, their time, and the load of others."""
    async with scraped() as s:
        s.fake.be_vllm()
        server = await s.scrape()
        assert (server.signals.running, server.signals.kv_usage, server.signals_at) == (3, 0.25, 1.0)
        assert (server.foreign_running, server.foreign_waiting, server.scrape_error) == (3, 1, "")


async def test_own_requests_are_taken_off_as_they_were_when_the_question_was_asked() -> None:
    """A request that ends while the answer is on its way was still in it."""
    async with scraped() as s:
        s.fake.answers["/metrics"] = (200, METRICS.format(1, 0))
        slot = s.table.book(s.table.replicas("m")[0], uncached=5, prompt=5, streamed=True, now=0.5)
        slot.first_token(0.6)
        original = s.fake.handle

        async def release_meanwhile(request: Any) -> Any:
            slot.release(1.0)
            return await original(request)

        s.fake.handle = release_meanwhile  # type: ignore[method-assign]
        server = await s.scrape()
        assert (server.foreign_running, server.foreign_waiting) == (0, 0)


async def test_an_engine_without_metrics_is_not_asked() -> None:
    """There is nothing to read."""
    async with scraped("openai") as s:
        await s.scrape()
        assert s.fake.paths() == []


async def test_an_engine_that_is_not_known_yet_is_not_asked() -> None:
    """The prober comes first."""
    async with scraped("") as s:
        await s.scrape()
        assert s.fake.paths() == []


async def test_failures_are_reported_and_change_no_signal() -> None:
    """The last reading ages by itself; a failed one adds nothing."""
    async with scraped(sections={"scrape": {"timeout_s": 0.1}}) as s:
        s.fake.be_vllm()
        await s.scrape()
        s.fake.delays["/metrics"] = 5.0
        s.now = 2.0
        server = await s.scrape()
        assert (server.scrape_error, server.signals.running, server.signals_at) == ("no answer within 0.1 s", 3, 1.0)


async def test_missing_metrics_are_asked_for_rarely() -> None:
    """404 will not become 200 within a second; a server error may."""
    async with scraped() as s:
        for s.now in (1.0, 2.0, 30.9, 31.0):
            await s.scrape()
        assert len(s.fake.asked) == 2
        assert s.table.servers()[0].scrape_error == "/metrics answers 404"
        s.fake.answers["/metrics"] = (500, "")
        for s.now in (61.0, 62.0, 63.0):
            await s.scrape()
        assert len(s.fake.asked) == 5


async def test_a_page_that_is_no_exposition_is_all_unknown() -> None:
    """A wrong page must not read as an idle engine."""
    async with scraped() as s:
        s.fake.answers["/metrics"] = (200, "<html>hello</html>")
        server = await s.scrape()
        assert (server.signals.running, server.foreign_running, server.signals.kv_usage) == (None, None, None)
