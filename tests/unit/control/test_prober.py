from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.control import Client, Prober
from gateway.fleet import Table
from tests.unit.control.fake_engine import FakeEngine, engine, table_of


class Watched:
    """A fake engine, the table that knows it, and a prober on a clock that a test moves."""

    def __init__(self, fake: FakeEngine, table: Table, client: Client) -> None:
        self.fake = fake
        self.table = table
        self.now = 1.0
        self.prober = Prober(table, client, lambda: self.now)

    async def probe(self, times: int = 1) -> str:
        for _ in range(times):
            await self.prober.poll(self.table.servers()[0])
        return self.table.servers()[0].health

    def why_not(self) -> list[tuple[str, str]]:
        return self.table.refused("m", self.now)


@asynccontextmanager
async def watched(**replica: Any) -> AsyncIterator[Watched]:
    async with engine() as fake, Client() as client:
        yield Watched(fake, table_of(fake.url, **replica), client)


async def test_a_vllm_server_is_recognised_and_ready_after_one_round() -> None:
    """Engine, version, models and health: nothing needs to be configured."""
    async with watched() as w:
        w.fake.be_vllm("m")
        assert await w.probe() == "up"
        server = w.table.servers()[0]
        assert (server.engine, server.engine_version, w.why_not()) == ("vllm", "0.12.0", [])
        assert w.table.replicas("m")[0].context_length == 4096


async def test_a_server_that_tells_nothing_is_a_plain_openai_one() -> None:
    """A model list is all that is needed."""
    async with watched() as w:
        w.fake.answers["/v1/models"] = (200, '{"data":[{"id":"m"}]}')
        assert await w.probe() == "up"
        assert (w.table.servers()[0].engine, w.why_not()) == ("openai", [])


async def test_a_server_without_a_model_list_serves_what_is_configured() -> None:
    """Something answers, and the file says what it is."""
    async with watched(engine="openai") as w:
        assert await w.probe() == "up"
        assert w.why_not() == []


async def test_a_configured_engine_is_not_asked_what_it_is() -> None:
    """The file is believed; only the version is asked for."""
    async with watched(engine="vllm") as w:
        w.fake.be_vllm("m", version="0.8.5")
        assert await w.probe() == "up"
        assert w.table.servers()[0].engine_version == "0.8.5"
        assert w.fake.paths() == ["/health", "/version", "/v1/models"]


async def test_no_traffic_before_it_has_loaded_and_lists_the_model() -> None:
    """An open port, then 503, then health without the model: none of these can serve."""
    async with watched(engine="vllm") as w:
        w.fake.answers["/health"] = (503, "")
        assert await w.probe() == "down"
        w.fake.be_vllm("other", "second")
        assert await w.probe() == "up"
        assert w.why_not() == [("r1", "lists other, second: set served_model")]
        w.fake.be_vllm("m")
        w.now += 11.0
        await w.probe()
        assert w.why_not() == []


async def test_a_server_that_answers_503_to_everything_is_starting() -> None:
    """Loading servers say so on every path."""
    async with watched() as w:
        w.fake.answers = dict.fromkeys(("/version", "/metrics", "/v1/models", "/health"), (503, ""))
        assert await w.probe() == "starting"
        assert w.why_not() == [("r1", "starting")]


async def test_models_are_listed_again_every_ten_seconds() -> None:
    """Adapters come and go while a server stays up."""
    async with watched() as w:
        w.fake.be_vllm("m")
        counts = []
        for w.now in (1.0, 3.0, 5.0, 11.5, 13.0):
            await w.probe()
            counts.append(w.fake.paths().count("/v1/models"))
        assert [b - a for a, b in itertools.pairwise(counts)] == [0, 0, 1, 0]


async def test_a_failing_list_keeps_a_server_that_is_well() -> None:
    """The list may be broken while the service is not."""
    async with watched() as w:
        w.fake.be_vllm("m")
        await w.probe()
        w.fake.answers["/v1/models"] = (500, "")
        w.now += 11.0
        assert await w.probe() == "up"
        assert (w.why_not(), w.table.servers()[0].listing_error) == ([], "/v1/models answers 500")


async def test_a_wrong_key_is_said_so() -> None:
    """401 on the model list is the most useful hint there is."""
    async with watched(engine="vllm", api_key="wrong") as w:
        w.fake.be_vllm("m")
        w.fake.answers["/v1/models"] = (401, "")
        await w.probe()
        assert w.why_not() == [("r1", "/v1/models answers 401, it refuses the configured api_key")]


async def test_what_comes_back_may_be_another_engine() -> None:
    """After an outage everything is asked anew."""
    async with watched() as w:
        w.fake.be_vllm("m")
        await w.probe()
        w.fake.answers = {}
        w.fake.delays = dict.fromkeys(("/health", "/version", "/metrics", "/v1/models"), 0.0)
        assert await w.probe(3) == "down"
        w.fake.answers["/v1/models"] = (200, '{"data":[{"id":"m"}]}')
        assert await w.probe() == "up"
        assert (w.table.servers()[0].engine, w.why_not()) == ("openai", [])


async def test_an_engine_is_not_guessed_from_half_of_its_answers() -> None:
    """A metrics page that is late once must not make a vLLM server a nameless one for good."""
    async with watched(sections={"health": {"timeout_s": 0.1}}) as w:
        w.fake.be_vllm("m")
        w.fake.delays["/metrics"] = 5.0
        w.fake.answers["/v1/models"] = (200, '{"data":[{"id":"m"}]}')
        assert await w.probe() == "down"
        w.fake.delays.clear()
        assert await w.probe() == "up"
        assert w.table.servers()[0].engine == "vllm"


@pytest.mark.parametrize("body", ["", "<html>", "[]", '{"data":null}'])
async def test_a_list_that_is_none_is_an_error_not_an_empty_list(body: str) -> None:
    """A proxy's login page is no model list."""
    async with watched(engine="vllm") as w:
        w.fake.be_vllm("m")
        w.fake.answers["/v1/models"] = (200, body)
        assert await w.probe() == "up"
        assert "not a model list" in w.why_not()[0][1]
