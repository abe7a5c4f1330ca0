"""Load on a proxy: closed loops of requests, crowds of open streams, probes of the time to first event."""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections import Counter
from collections.abc import Sequence

from loadtest import client
from loadtest.overhead.events import Tally, Watcher
from loadtest.overhead.prompts import PLAIN_HEADERS, Requests

FOREVER = 100_000
"""Events of a stream that ends when the replica is told to end it."""

_DIALS_AT_ONCE = 32


class Doors:
    """The ports a load goes to, taken in turn: one for a proxy, all replicas when there is none."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.first = ports[0]
        self._turn = itertools.cycle(ports)

    async def connect(self) -> client.Connection:
        return await client.connect(next(self._turn))


class ClosedLoop:
    """Connections that each send the next request when the last was answered. Every answer is checked."""

    def __init__(self, doors: Doors, requests: Requests) -> None:
        self.requests = requests
        self.done = 0
        self.latencies = array("q")
        self.faults: Counter[str] = Counter()
        self.active = True
        self._doors = doors
        self._workers: list[asyncio.Task[None]] = []

    def start(self, connections: int) -> None:
        """Begins; returns at once."""
        self._workers = [asyncio.ensure_future(self._work()) for _ in range(connections)]

    async def stop(self) -> None:
        """Lets the running requests finish and closes the connections."""
        self.active = False
        await asyncio.wait_for(asyncio.gather(*self._workers), 60)

    async def _work(self) -> None:
        while self.active:
            try:
                turn = _Turn(self, await self._doors.connect())
            except OSError as error:
                self.faults[f"connect: {error}"] += 1
                await asyncio.sleep(0.1)
                continue
            turn.send()
            await turn.over
            turn.connection.close()


class _Turn:
    """One connection's share of a closed loop, until it breaks or the loop stops. No task switch between requests."""

    def __init__(self, loop: ClosedLoop, connection: client.Connection) -> None:
        self.connection = connection
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = loop
        self._answer = b""
        self._nonce = b""
        self._started_ns = 0

    def send(self) -> None:
        request, self._nonce = self._loop.requests.next()
        self._answer = b""
        self._started_ns = time.monotonic_ns()
        self.connection.send(request, self)

    def body(self, data: bytes) -> None:
        self._answer += data

    def finished(self, status: int, connection: client.Connection) -> None:
        loop = self._loop
        loop.latencies.append(time.monotonic_ns() - self._started_ns)
        loop.done += 1
        if status != 200:
            loop.faults[f"status {status}"] += 1
        elif b"nonce-" + self._nonce not in self._answer or not self._answer.rstrip().endswith(b"}"):
            loop.faults["wrong or incomplete answer"] += 1
        if loop.active and connection.open:
            self.send()
        else:
            self._end()

    def failed(self, reason: str) -> None:
        self._loop.faults[reason] += 1
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class Stream:
    """One stream request on one connection; `over` is set when it has ended, well or not."""

    def __init__(self, tally: Tally) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over: asyncio.Future[client.Connection | None] = asyncio.get_running_loop().create_future()
        self._tally = tally
        self._watcher: Watcher | None = None

    def send(self, connection: client.Connection, requests: Requests) -> None:
        request, nonce = requests.next()
        self._watcher = Watcher(self._tally, nonce, time.monotonic_ns())
        connection.send(request, self)

    def body(self, data: bytes) -> None:
        watcher = self._watcher
        assert watcher is not None
        watcher.feed(data, time.monotonic_ns())
        if not self.begun.done() and watcher.begun:
            self.begun.set_result(None)

    def finished(self, status: int, connection: client.Connection) -> None:
        assert self._watcher is not None
        fault = f"status {status}" if status != 200 else self._watcher.verdict()
        self._end(fault, connection if connection.open else None)

    def failed(self, reason: str) -> None:
        self._end(reason, None)

    def _end(self, fault: str | None, connection: client.Connection | None) -> None:
        if fault:
            self._tally.faults[fault] += 1
        if not self.begun.done():
            self.begun.set_result(None)
        if not self.over.done():
            self.over.set_result(connection)


class Crowd:
    """Many streams open at once, each on its own connection, until the replicas are told to end them."""

    def __init__(self, doors: Doors, requests: Requests) -> None:
        self.tally = Tally()
        self._doors, self._requests = doors, requests
        self._streams: list[Stream] = []
        self._connections: list[client.Connection] = []

    async def open(self, count: int, *, timeout_s: float = 90.0) -> None:
        """Opens `count` streams and waits until each has its first event. A stream that fails to is a fault in the tally."""
        gate = asyncio.Semaphore(_DIALS_AT_ONCE)
        await asyncio.gather(*(self._open(gate) for _ in range(count)))
        _, late = await asyncio.wait([stream.begun for stream in self._streams], timeout=timeout_s)
        self.tally.faults.update({"no first event in time": len(late)} if late else {})

    async def ended(self, timeout_s: float = 30.0) -> None:
        """Waits until the replicas have ended all streams, then closes the connections."""
        _, hanging = await asyncio.wait([stream.over for stream in self._streams], timeout=timeout_s)
        self.tally.faults.update({"did not end": len(hanging)} if hanging else {})
        for connection in self._connections:
            connection.close()

    async def _open(self, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                connection = await self._doors.connect()
            except OSError as error:
                self.tally.faults[f"connect: {error}"] += 1
                return
            stream = Stream(self.tally)
            self._connections.append(connection)
            self._streams.append(stream)
            stream.send(connection, self._requests)
            # The gate also paces the dials: a burst of a thousand would measure listen queues.
            await asyncio.wait([stream.begun], timeout=5)


class Probes:
    """Short streams started at a steady pace whether or not the last has ended, on kept-alive connections."""

    def __init__(self, doors: Doors, *, headers: str = PLAIN_HEADERS) -> None:
        self.tally = Tally()
        self.tally.recording = True
        self._doors = doors
        self._requests = Requests(2048, doors.first, stream_events=1, headers=headers, seed=3)
        self._idle: list[client.Connection] = []

    async def run(self, seconds: float, per_s: float) -> None:
        """Sends `per_s` probes a second for `seconds`, then waits for their ends."""
        loop = asyncio.get_running_loop()
        start, running = loop.time(), []
        for number in range(int(seconds * per_s)):
            await asyncio.sleep(max(0.0, start + number / per_s - loop.time()))
            running.append(asyncio.ensure_future(self._probe()))
        await asyncio.gather(*running)

    def close(self) -> None:
        """Closes the kept connections."""
        for connection in self._idle:
            connection.close()

    async def _probe(self) -> None:
        while self._idle and not self._idle[-1].open:
            self._idle.pop()
        try:
            connection = self._idle.pop() if self._idle else await self._doors.connect()
        except OSError as error:
            self.tally.faults[f"connect: {error}"] += 1
            return
        stream = Stream(self.tally)
        stream.send(connection, self._requests)
        try:
            kept = await asyncio.wait_for(stream.over, 10)
        except TimeoutError:
            self.tally.faults["did not end"] += 1
            return
        if kept is not None:
            self._idle.append(kept)
