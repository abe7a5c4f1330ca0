"""`python -m loadtest.routing`: routing policies, and rivals, on the same requests to fresh simulated replicas, one after the other."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import uvloop

from loadtest import client, gateway, procfs, rivals, stats
from loadtest.overhead.measure import started
from loadtest.overhead.proxies import PROXIES, Place, Proxy
from loadtest.overhead.replica import MODEL
from loadtest.overhead.report import table
from loadtest.processes import free_ports, running, until_ready
from loadtest.routing import counters
from loadtest.routing.openloop import OpenLoop, Outcome
from loadtest.routing.workload import Arrival, Shape, Texts, arrivals

POLICIES = ("weighted", "least_request", "round_robin", "session")


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many simulated replicas, and the options of each."""

    count: int
    options: tuple[str, ...]


@contextlib.asynccontextmanager
async def fleet(wanted: Fleet, folder: Path) -> AsyncIterator[tuple[list[int], list[int]]]:
    """Fresh simulated replicas; yields their ports and process ids."""
    ports = free_ports(wanted.count)
    with contextlib.ExitStack() as stack:
        pids = []
        for number, port in enumerate(ports):
            log = folder / f"replica-{number}.log"
            command = [sys.executable, "-m", "replicas.simulator", "--port", str(port), "--model", MODEL, *wanted.options]
            process = stack.enter_context(running([*command, "--seed", str(number)], log=log))
            await until_ready(process, lambda port=port: _healthy(port), log=log, timeout_s=30)  # type: ignore[misc]
            pids.append(process.pid)
        yield ports, pids


async def _healthy(port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        return (await client.fetch(port, "GET", "/health"))[0] == 200
    return False


def contender(name: str) -> Proxy:
    """A rival by its name, or the gateway with a policy by the policy's name."""
    if name in PROXIES:
        return PROXIES[name]

    def config(place: Place) -> str:
        return gateway.configuration(MODEL, place.urls, port=place.port, admin_port=place.side_port, routing={"policy": name})

    return replace(PROXIES["kvgate"], name=f"kvgate-{name}", title=f"kvgate {name}", config=config)


async def compare(name: str, wanted: Fleet, shape: Shape, warm_s: float, folder: Path) -> dict[str, Any]:
    """One contender's figures for the requests after the first `warm_s` seconds. Raises StartError."""
    requests, texts = arrivals(shape), Texts(shape, MODEL)
    async with fleet(wanted, folder) as (ports, pids), started(contender(name), ports, folder) as (port, pid):
        loop = OpenLoop(port, texts)
        warm = asyncio.ensure_future(_after(warm_s, ports))
        meters = [procfs.usage(pid), procfs.usage(*pids)]
        driver, busy, start = time.process_time(), procfs.machine_busy(), time.monotonic()
        await loop.run(requests)
        elapsed = time.monotonic() - start
        shares = {
            "driver": (time.process_time() - driver) / elapsed,
            "proxy": (procfs.usage(pid).cpu_s - meters[0].cpu_s) / elapsed,
            "replicas": (procfs.usage(*pids).cpu_s - meters[1].cpu_s) / elapsed,
            "machine": (procfs.machine_busy() - busy) / elapsed / len(os.sched_getaffinity(0)),
        }
        served = [late - early for late, early in zip(await _served(ports), await warm, strict=True)]
    return {**figures(loop.outcomes, requests, warm_s), **spread(served), "cpu": shares, "faults": dict(loop.faults)}


async def _after(seconds: float, ports: list[int]) -> list[counters.Served]:
    await asyncio.sleep(seconds)
    return await _served(ports)


async def _served(ports: list[int]) -> list[counters.Served]:
    pages = await asyncio.gather(*(client.fetch(port, "GET", "/metrics") for port in ports))
    return [counters.served(page.decode()) for _, page in pages]


def figures(outcomes: Sequence[Outcome], requests: Sequence[Arrival], warm_s: float) -> dict[str, Any]:
    """Latencies in ms and the hit rate by the answers' own usage, of requests due after the warm-up."""
    counted = [outcome for outcome in outcomes if outcome.at >= warm_s]
    prompt = sum(outcome.prompt for outcome in counted)
    return {
        "requests": sum(arrival.at >= warm_s for arrival in requests),
        "answered": len(counted),
        "hit_rate_usage": sum(outcome.cached for outcome in counted) / prompt if prompt else None,
        "ttft_ms": stats.spread(outcome.ttft * 1000 for outcome in counted),
        "tpot_ms": stats.spread(outcome.tpot * 1000 for outcome in counted if outcome.tpot is not None),
        "lateness_ms": stats.spread(outcome.late * 1000 for outcome in counted),
    }


def spread(served: Sequence[counters.Served]) -> dict[str, Any]:
    """Hit rate by the replicas' own counters, and how evenly requests and computed tokens were spread (largest ÷ mean)."""
    return {
        "hit_rate_replicas": counters.hit_rate(served),
        "imbalance_requests": counters.imbalance(each.requests for each in served),
        "imbalance_prefill": counters.imbalance(each.queries - each.hits for each in served),
        "requests_by_replica": [each.requests for each in served],
    }


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """One row per contender."""
    headings = ["policy", "hit rate", "by usage", "TTFT ms p50", "p90", "p99", "TPOT ms p50", "p99", "max/mean requests", "prefill"]
    headings += ["late ms p99", "CPU: driver", "machine", "answered"]
    rows = []
    for name, result in results.items():
        ttft, tpot, cpu = result["ttft_ms"], result["tpot_ms"], result["cpu"]
        cells = [result["hit_rate_replicas"], result["hit_rate_usage"], ttft.get("p50"), ttft.get("p90"), ttft.get("p99")]
        cells += [tpot.get("p50"), tpot.get("p99"), result["imbalance_requests"], result["imbalance_prefill"]]
        cells += [result["lateness_ms"].get("p99"), cpu["driver"], cpu["machine"]]
        shown = ["-" if cell is None else f"{cell:.2f}" if cell < 10 else f"{cell:.0f}" for cell in cells]
        rows.append([name, *shown, f"{result['answered']}/{result['requests']}"])
    return table(headings, rows)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    default = Shape()
    parser = argparse.ArgumentParser(prog="python -m loadtest.routing", description=__doc__)
    parser.add_argument("--policies", default="weighted,least_request,round_robin", help="also names of rivals; default: %(default)s")
    for name in ("prefixes", "exponent", "rate", "seconds", "seed"):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help="default: %(default)s")
    for name in ("prefix_tokens", "question_tokens", "output_tokens"):
        option, value = f"--{name.replace('_', '-')}", getattr(default, name)
        parser.add_argument(option, type=int, nargs=2, default=value, metavar=("LEAST", "MOST"), help=f"default: {value[0]} {value[1]}")
    parser.add_argument("--warm", type=float, default=15.0, help="seconds at the start that do not count; default: %(default)s")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--preset", default="h100x4-70b")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--kv-tokens", type=int, default=150_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    for name in args.policies.split(","):
        if name not in POLICIES and name not in PROXIES:
            parser.error(f"no policy {name!r}; there are {', '.join((*POLICIES, *PROXIES))}")
        if name in rivals.PINS and not rivals.installed(name):
            parser.error(f"{name} is not installed: run python -m loadtest.rivals {name}")
    return args


def shape_of(args: argparse.Namespace) -> Shape:
    """The workload that a command line asks for."""
    return Shape(
        prefixes=args.prefixes,
        prefix_tokens=tuple(args.prefix_tokens),
        exponent=args.exponent,
        question_tokens=tuple(args.question_tokens),
        output_tokens=tuple(args.output_tokens),
        rate=args.rate,
        seconds=args.seconds,
        seed=args.seed,
    )


async def run(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Every contender in turn."""
    options = ("--preset", args.preset, "--speed", str(args.speed), "--kv-tokens", str(args.kv_tokens))
    wanted, shape = Fleet(args.replicas, options), shape_of(args)
    results = {}
    for name in args.policies.split(","):
        with tempfile.TemporaryDirectory() as folder:
            results[name] = await compare(name, wanted, shape, args.warm, Path(folder))
    document = {"shape": asdict(shape), "fleet": asdict(wanted), "warm_s": args.warm, "results": results}
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(document, indent=1))
    return results


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    gc.disable()
    results = uvloop.run(run(args))
    print(markdown(results))
    faults = {name: result["faults"] for name, result in results.items() if result["faults"]}
    print(f"faults: {json.dumps(faults) if faults else 'none'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
