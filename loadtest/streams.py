"""`python -m loadtest.streams`: many concurrent event streams through a proxy; is any cut, how late are events, what does each cost."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from loadtest import client, procfs, stats
from loadtest.overhead import measure
from loadtest.overhead.driver import Crowd, Doors
from loadtest.overhead.prompts import Requests
from loadtest.overhead.proxies import PROXIES, Proxy


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` at once, each of `events_per_s` events a second for `seconds`."""

    streams: int
    events_per_s: float
    seconds: float

    @property
    def events(self) -> int:
        """Events of one stream."""
        return round(self.events_per_s * self.seconds)


@dataclass(frozen=True, slots=True)
class Report:
    """Delays in ms: `delay_ms` from the moment an event was due by the replica's schedule, `replica_lag_ms` its own share.

    `us_per_chunk` is all CPU of the proxy over all events: idle loops and the opening of the streams are in it.
    """

    streams: int
    events: int
    expected: int
    faults: dict[str, int]
    delay_ms: dict[str, float]
    replica_lag_ms: dict[str, float]
    rss_idle: int
    rss_per_stream: float
    us_per_chunk: float | None


async def run(proxy: Proxy, load: Load, folder: Path) -> Report:
    """Starts the proxy before fresh raw replicas and sends the load. Raises StartError."""
    async with measure.replicas(4, folder / "replicas.log") as ports, measure.started(proxy, ports, folder) as (port, pid):
        for each in ports:
            await client.fetch(each, "GET", f"/control?interval_ms={1000 / load.events_per_s}")
        doors = Doors([port])
        crowd = Crowd(doors, Requests(2048, port, stream_events=load.events))
        crowd.tally.recording = True
        idle = procfs.usage(pid)
        await crowd.open(load.streams)
        peak = asyncio.ensure_future(_peak(pid, load.seconds / 2))
        await crowd.ended(load.seconds + 60)
        used = procfs.usage(pid).cpu_s - idle.cpu_s
        return _report(load, crowd, idle.rss, await peak, used)


async def _peak(pid: int, seconds: float) -> int:
    """Largest memory of the proxy in bytes while all streams are open."""
    looks = [procfs.usage(pid).rss]
    for _ in range(5):
        await asyncio.sleep(seconds / 5)
        looks.append(procfs.usage(pid).rss)
    return max(looks)


def _report(load: Load, crowd: Crowd, idle_rss: int, peak_rss: int, cpu_s: float) -> Report:
    tally = crowd.tally
    return Report(
        streams=load.streams,
        events=tally.events,
        expected=load.streams * load.events,
        faults=dict(tally.faults),
        delay_ms=stats.spread(value / 1e6 for value in tally.delays),
        replica_lag_ms=stats.spread(value / 1e6 for value in tally.lags),
        rss_idle=idle_rss,
        rss_per_stream=(peak_rss - idle_rss) / load.streams,
        us_per_chunk=stats.per_unit(cpu_s, 0.0, 0.0, tally.events),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.streams", description=__doc__)
    parser.add_argument("--proxy", choices=list(PROXIES), default="kvgate")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="events per second and stream; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each stream; default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the report there")
    args = parser.parse_args(argv)
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        report = uvloop.run(run(PROXIES[args.proxy], Load(args.streams, args.rate, args.seconds), Path(folder)))
    text = json.dumps(asdict(report), indent=1)
    print(text)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(text)
    return 1 if report.faults or report.events != report.expected else 0


if __name__ == "__main__":
    sys.exit(main())
