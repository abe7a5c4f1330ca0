"""One proxy's turn in one round: start it before fresh replicas, load it in every way, return its figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadtest import client, procfs, stats
from loadtest.overhead.driver import FOREVER, ClosedLoop, Crowd, Doors, Probes
from loadtest.overhead.prompts import PLAIN_HEADERS, Requests
from loadtest.overhead.proxies import Place, Proxy
from loadtest.processes import free_ports, running, until_ready

Figures = dict[str, float | None]

THINK_MS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard each way of loading is. `crowds`: open streams → events per second of each."""

    idle_s: float = 3.0
    warm_s: float = 1.0
    window_s: float = 5.0
    probe_s: float = 6.0
    connections: int = 32
    sizes: Mapping[str, int] = field(default_factory=lambda: {"2k": 2048, "60k": 61440})
    crowds: Mapping[int, float] = field(default_factory=lambda: {100: 20.0, 1000: 10.0})
    headers: str = PLAIN_HEADERS


QUICK = Plan(idle_s=1.5, warm_s=0.5, window_s=2.0, probe_s=2.5)


@dataclass(slots=True)
class Result:
    """What a turn found: figures by name, and what went wrong how often."""

    figures: Figures = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two looks at the clock."""

    elapsed_s: float
    cpu_s: float
    units: int
    rss: int


@contextlib.asynccontextmanager
async def replicas(count: int, log: Path) -> AsyncIterator[list[int]]:
    """Fresh raw replicas; yields their ports."""
    ports: list[int] = []

    async def listening() -> bool:
        ports[:] = _printed_ports(log)
        return bool(ports)

    with running([sys.executable, "-m", "loadtest.overhead.replica", "--count", str(count)], log=log) as process:
        await until_ready(process, listening, log=log, timeout_s=20)
        yield ports


@contextlib.asynccontextmanager
async def started(proxy: Proxy, ports: list[int], folder: Path) -> AsyncIterator[tuple[int, int]]:
    """The proxy in front of the replicas, answering chat; yields its port and process id. Raises StartError."""
    port, side_port = free_ports(2)
    place = Place(port, side_port, tuple(ports), folder / f"{proxy.name}.config")
    if proxy.config:
        place.config.parent.mkdir(parents=True, exist_ok=True)
        place.config.write_text(proxy.config(place))
    log = folder / f"{proxy.name}.log"
    with running(proxy.command(place), log=log, env=proxy.env) as process:
        await until_ready(process, lambda: _answers(proxy, port), log=log, timeout_s=proxy.start_timeout_s)
        yield port, process.pid


def _printed_ports(log: Path) -> list[int]:
    text = log.read_text()
    return list(json.loads(text)) if text.endswith("]\n") else []


async def _answers(proxy: Proxy, port: int) -> bool:
    """Ready by its own word, and chat requests arrive for as many times in a row as would meet every replica."""
    body = Requests(2048, port, seed=9).next()[0].split(b"\r\n\r\n", 1)[1]
    try:
        if proxy.ready and (await client.fetch(port, "GET", proxy.ready))[0] != 200:
            return False
        for _ in range(8):
            if (await client.fetch(port, "POST", "/v1/chat/completions", body))[0] != 200:
                return False
    except (OSError, TimeoutError):
        return False
    return True


class Turn:
    """Measures what listens on `doors`, whose processes descend from `roots`."""

    def __init__(self, plan: Plan, doors: Doors, replica_ports: list[int], roots: tuple[int, ...], proxy: Proxy | None) -> None:
        self.result = Result()
        self._plan, self._doors, self._ports, self._roots = plan, doors, replica_ports, roots
        self._crowds = {count: pace for count, pace in plan.crowds.items() if proxy is None or count <= proxy.most_streams}
        self._crowds |= proxy.stream_pace if proxy else {}
        self._probes_per_s = proxy.probes_per_s if proxy else 50.0
        self._idle_share = 0.0
        self._driver_share = 0.0

    async def run(self) -> Result:
        """All measurements in order of growing appetite, so that memory figures come first."""
        busy, own, start = procfs.machine_busy(), self._own_cpu(), time.monotonic()
        if self._roots:
            await self._idle()
        await self._ttft("idle", warm=True)
        for count, pace in self._crowds.items():
            await self._crowd(count, pace)
        if self._roots:
            for name, size in self._plan.sizes.items():
                await self._requests(name, size)
        others = procfs.machine_busy() - busy - (self._own_cpu() - own)
        self.result.figures["foreign_cpu"] = max(0.0, others) / (time.monotonic() - start)
        self.result.figures["driver_share_max"] = self._driver_share
        return self.result

    async def _idle(self) -> None:
        window = await self._window(self._plan.idle_s, lambda: 0)
        self._idle_share = window.cpu_s / window.elapsed_s
        self.result.figures |= {"idle_cpu_share": self._idle_share, "rss_idle": window.rss}

    async def _ttft(self, name: str, *, warm: bool = False) -> None:
        probes = Probes(self._doors, headers=self._plan.headers)
        if warm:
            await probes.run(0.5, self._probes_per_s)
            probes.tally.paths = type(probes.tally.paths)("q")
        await probes.run(self._plan.probe_s, self._probes_per_s)
        probes.close()
        self.result.faults += probes.tally.faults
        spread = stats.spread(value / 1e6 for value in probes.tally.paths)
        self.result.figures |= {f"ttft_{name}_{part}_ms": spread.get(part) for part in ("p50", "p99")}

    async def _crowd(self, count: int, pace: float) -> None:
        await self._control(f"?think_ms={THINK_MS}&interval_ms={1000 / pace}")
        before = procfs.usage(*self._roots).rss
        crowd = Crowd(self._doors, Requests(2048, self._doors.first, stream_events=FOREVER, headers=self._plan.headers, seed=2))
        await crowd.open(count)
        await asyncio.sleep(self._plan.warm_s)
        crowd.tally.recording = True
        window = await self._window(self._plan.window_s, lambda: crowd.tally.events)
        crowd.tally.recording = False
        await self._ttft(str(count))
        await self._control("/finish")
        await crowd.ended()
        self.result.faults += crowd.tally.faults
        delays = stats.spread(value / 1e6 for value in crowd.tally.delays)
        self.result.figures |= {f"delay_{count}_{part}_ms": delays.get(part) for part in ("p50", "p99", "max")}
        self.result.figures[f"events_per_s_{count}"] = window.units / window.elapsed_s
        if self._roots:
            self._cost(f"us_per_chunk_{count}", window)
            self.result.figures[f"rss_per_stream_{count}"] = (window.rss - before) / count

    async def _requests(self, name: str, size: int) -> None:
        loop = ClosedLoop(self._doors, Requests(size, self._doors.first, headers=self._plan.headers, seed=4))
        loop.start(self._plan.connections)
        await asyncio.sleep(self._plan.warm_s)
        del loop.latencies[:]
        window = await self._window(self._plan.window_s, lambda: loop.done)
        await loop.stop()
        self.result.faults += loop.faults
        spread = stats.spread(value / 1e6 for value in loop.latencies)
        self.result.figures |= {f"latency_{name}_{part}_ms": spread.get(part) for part in ("p50", "p99")}
        self._cost(f"us_per_request_{name}", window)
        self.result.figures[f"requests_per_s_{name}"] = window.units / window.elapsed_s

    async def _window(self, seconds: float, count: Callable[[], int]) -> Window:
        usage, units, driver, start = procfs.usage(*self._roots), count(), time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        # Counted before the processes are read: reading takes milliseconds in which more work is done.
        units, elapsed = count() - units, time.monotonic() - start
        after = procfs.usage(*self._roots)
        self._driver_share = max(self._driver_share, (time.process_time() - driver) / elapsed)
        return Window(elapsed, after.cpu_s - usage.cpu_s, units, after.rss)

    def _cost(self, name: str, window: Window) -> None:
        self.result.figures[name] = stats.per_unit(window.cpu_s, self._idle_share, window.elapsed_s, window.units)

    def _own_cpu(self) -> float:
        # The driver is this process; the replicas and the proxy are its children.
        return procfs.usage(os.getpid()).cpu_s

    async def _control(self, wish: str) -> None:
        for port in self._ports:
            await client.fetch(port, "GET", f"/control{wish}")
