from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gateway.control import PollLoop
from gateway.fleet import ServerState, Table, facts
from gateway.settings import ReplicaSettings
from tests.unit.control.fake_engine import table_of


class CountingPoll:
    """Counts rounds per server; may fail or hang."""

    interval_s = 0.02

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}
        self.running = self.most = 0
        self.fails = False

    async def poll(self, server: ServerState) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            self.rounds[server.key] = self.rounds.get(server.key, 0) + 1
            if self.fails:
                raise RuntimeError("a fault in reading an answer")
            await asyncio.sleep(0.01)
        finally:
            self.running -= 1


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not holds():
            await asyncio.sleep(0.01)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_servers_are_polled_from_when_they_come_until_they_go() -> None:
    """A server that is added is watched without a restart, one that is removed no longer."""
    table = table_of("http://127.0.0.1:1")
    poll = CountingPoll()
    task = asyncio.create_task(PollLoop(table, poll).run())
    first, second = "http://127.0.0.1:1", "http://127.0.0.1:2"
    await until(lambda: poll.rounds.get(first, 0) >= 3)
    table.apply(facts.Added("m", ReplicaSettings(id="x", url=second)), 1.0)
    await until(lambda: poll.rounds.get(second, 0) >= 3)
    table.apply(facts.Removed("r1"), 2.0)
    table.tick(3.0)
    await asyncio.sleep(0.6)
    seen = poll.rounds[first]
    await asyncio.sleep(0.1)
    assert poll.rounds[first] == seen
    await stop(task)


async def test_a_fault_in_one_round_does_not_end_the_watch() -> None:
    """Errors are logged, and the next round comes."""
    poll = CountingPoll()
    poll.fails = True
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(PollLoop(table_of("http://127.0.0.1:1"), poll).run())
        await until(lambda: sum(poll.rounds.values()) >= 3)
        await stop(task)
    assert {entry["event"] for entry in logs} == {"poll failed"}


async def test_ending_the_loop_ends_its_tasks() -> None:
    """Nothing is left running."""
    poll = CountingPoll()
    table: Table = table_of("http://127.0.0.1:1")
    task = asyncio.create_task(PollLoop(table, poll).run())
    await until(lambda: bool(poll.rounds))
    await stop(task)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (poll.running, poll.most) == (0, 1)
