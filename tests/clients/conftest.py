"""One fleet for all tests with real clients, and the clients of both kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import anthropic
import openai
import pytest

from tests.clients.fleet import KEY, Fleet, Served, every_kind_of_replica
from tests.clients.kinds import Claude, Gpt, entered


@pytest.fixture(scope="session")
def lasting_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Started once."""
    with every_kind_of_replica(tmp_path_factory.mktemp("gateway")) as fleet:
        yield fleet


@pytest.fixture
def fleet(lasting_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, all well."""
    yield lasting_fleet
    for replica in lasting_fleet.replicas.values():
        replica.mend()


@pytest.fixture
def gateway(fleet: Fleet) -> Served:
    return fleet.gateway


# Without certificates: reading those of all authorities takes longer than the tests.
GPT: dict[str, Callable[..., Gpt]] = {
    "sync": lambda **about: openai.OpenAI(http_client=openai.DefaultHttpxClient(verify=False), **about),
    "async": lambda **about: openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(verify=False), **about),
}
CLAUDE: dict[str, Callable[..., Claude]] = {
    "sync": lambda **about: anthropic.Anthropic(http_client=anthropic.DefaultHttpxClient(verify=False), **about),
    "async": lambda **about: anthropic.AsyncAnthropic(http_client=anthropic.DefaultAsyncHttpxClient(verify=False), **about),
}


@pytest.fixture(params=["sync", "async"])
async def gpt(request: pytest.FixtureRequest, gateway: Served) -> AsyncIterator[Gpt]:
    """OpenAI's client, of either kind."""
    async with entered(GPT[request.param](base_url=f"{gateway.url}/v1", api_key=KEY)) as client:
        yield client


@pytest.fixture
async def async_gpt(gateway: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's asynchronous client, with one retry."""
    async with entered(GPT["async"](base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=1)) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
async def claude(request: pytest.FixtureRequest, gateway: Served) -> AsyncIterator[Claude]:
    """Anthropic's client, of either kind. Its key goes out as `x-api-key`."""
    async with entered(CLAUDE[request.param](base_url=gateway.url, api_key=KEY)) as client:
        yield client
