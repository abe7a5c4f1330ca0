"""One polling task per server, started and ended as servers come and go."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

import structlog

if TYPE_CHECKING:
    from gateway.fleet import ServerState, Table

_RECONCILE_S = 0.5
_JITTER = 0.1

log = structlog.get_logger(__name__)


class Poll(Protocol):
    """What is done for one server again and again."""

    @property
    def interval_s(self) -> float:
        """Seconds between two beginnings."""

    async def poll(self, server: ServerState) -> None:
        """One round; errors of the server are facts, not exceptions."""


class PollLoop:
    """Keeps one task per server of the table. Rounds of one server never overlap; those of different servers are spread by jitter."""

    def __init__(self, table: Table, poll: Poll) -> None:
        self._table = table
        self._poll = poll
        self._tasks: dict[ServerState, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Runs until cancelled, and ends its tasks then."""
        try:
            while True:
                self._reconcile()
                await asyncio.sleep(_RECONCILE_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _reconcile(self) -> None:
        servers = set(self._table.servers())
        for server in servers - self._tasks.keys():
            self._tasks[server] = asyncio.create_task(self._watch(server))
        for server in self._tasks.keys() - servers:
            self._tasks.pop(server).cancel()

    async def _watch(self, server: ServerState) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._poll.poll(server)
            except Exception:
                # A fault of ours in reading one answer must not end the watch over the server.
                log.exception("poll failed", poll=type(self._poll).__name__, server=server.key)
            interval = self._poll.interval_s * random.uniform(1 - _JITTER, 1 + _JITTER)
            await asyncio.sleep(max(interval - (loop.time() - began), 0.02))
