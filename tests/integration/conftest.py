"""Fixtures for tests of the running gateway."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.integration.toolkit import Scripted, Stand, answers_ok, ask, eventually, running, settings_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from gateway.app import Gateway


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def replica(stack: AsyncExitStack) -> Callable[..., Awaitable[Scripted]]:
    """Start a scripted replica: `await replica(script, health=503)`."""

    async def start(script: Any = answers_ok, **options: Any) -> Scripted:
        scripted = await Scripted(script, **options).start()
        stack.push_async_callback(scripted.stop)
        return scripted

    return start


@pytest.fixture
async def gateway(stack: AsyncExitStack) -> Callable[..., Awaitable[Gateway]]:
    """Start a gateway over replicas: `await gateway(r1, r2, timeouts={...})`."""

    async def start(*replicas: Scripted, **sections: Any) -> Gateway:
        return await stack.enter_async_context(running(settings_for(*replicas, **sections)))

    return start


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The test fails when anything is logged as an error: no failure of others is one of ours."""
    yield
    assert [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR] == []


class _Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting() -> AsyncIterator[Stand]:
    """One replica and one gateway with small limits, for all tests of a module."""
    async with AsyncExitStack() as stack:
        replica = await Scripted().start()
        stack.push_async_callback(replica.stop)
        server = {"max_body_bytes": 1_000_000, "header_timeout_s": 0.5, "body_timeout_s": 0.5, "relay_paths": ["/v1/x"]}
        settings = settings_for(replica, server=server, limits={"headers": 128})
        yield Stand(await stack.enter_async_context(running(settings)), replica)


@pytest_asyncio.fixture(loop_scope="module")
async def stand(lasting: Stand) -> AsyncIterator[Stand]:
    """The lasting gateway: after each test nothing is left over, no error was logged, and the next request is served."""
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    lasting.replica.requests.clear()
    yield lasting
    service, budget = lasting.gateway.service, lasting.gateway.shared.budget
    await eventually(lambda: not service.running and not service.waiting.waiting and not budget.used)
    assert (await ask(lasting.gateway)).status == 200
    logging.getLogger().removeHandler(errors)
    assert errors.messages == []
