"""The control plane's background work as one thing to start and stop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gateway.control.client import Client
from gateway.control.loops import PollLoop
from gateway.control.prober import Prober
from gateway.control.scraper import Scraper

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gateway.fleet import Table

_LOOK_S = 0.02


class Control:
    """Probes and scrapes every server of the table until stopped. `also`: further loops to run beside them."""

    def __init__(self, table: Table, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, *also: Coroutine[Any, Any, None]) -> None:
        """Begin watching."""
        # A client each: probes that hang in many dead servers must not hold up the scrapes of live ones.
        probes, scrapes = [await self._stack.enter_async_context(Client()) for _ in range(2)]
        loops = (
            PollLoop(self._table, Prober(self._table, probes, self._clock)),
            PollLoop(self._table, Scraper(self._table, scrapes, self._clock)),
        )
        self._tasks = [asyncio.create_task(work) for work in (*(loop.run() for loop in loops), *also)]

    async def first_look(self, timeout_s: float) -> None:
        """Wait until every server has been probed once, but not longer than `timeout_s`: a dead replica must not delay the start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(server.health == "unknown" for server in self._table.servers()):  # noqa: ASYNC110  # once, at the start
                    await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """End all loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
