"""`python -m loadtest.overhead`: what a proxy costs, ours and others', measured in turn inside one run."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from loadtest import gateway, rivals
from loadtest.overhead import measure, report
from loadtest.overhead.driver import Doors
from loadtest.overhead.measure import QUICK, Plan, Result, Turn
from loadtest.overhead.prompts import SDK_HEADERS
from loadtest.overhead.proxies import PROXIES
from loadtest.processes import StartError

RESULTS = Path(__file__).resolve().parents[1] / "results"
REPLICAS = 4


class Run:
    """All rounds over the chosen proxies; results are written after every turn, so that a broken run leaves what it has."""

    def __init__(self, names: Sequence[str], rounds: int, plan: Plan, out: Path) -> None:
        self.results: dict[str, list[measure.Figures]] = {name: [] for name in (report.DIRECT, *names)}
        self.faults: dict[str, dict[str, int]] = {name: {} for name in self.results}
        self._rounds, self._plan, self._out = rounds, plan, out

    async def run(self) -> None:
        """Every round starts with another proxy, so that drift of the machine favours none."""
        names = list(self.results)
        for number in range(self._rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                await self._turn(number, name)

    async def _turn(self, number: int, name: str) -> None:
        start = time.monotonic()
        try:
            result = await self._measure(name)
        except (StartError, OSError) as error:
            result = Result()
            result.faults[f"turn failed: {error}"] += 1
        self.results[name].append(result.figures)
        for fault, count in result.faults.items():
            self.faults[name][fault] = self.faults[name].get(fault, 0) + count
        self._save()
        print(f"round {number + 1} {name}: {time.monotonic() - start:.0f} s {brief(result)}", file=sys.stderr, flush=True)

    async def _measure(self, name: str) -> Result:
        async with measure.replicas(REPLICAS, self._out.parent / "logs" / "replicas.log") as ports:
            if name == report.DIRECT:
                return await Turn(self._plan, Doors(ports), ports, (), None).run()
            async with measure.started(PROXIES[name], ports, self._out.parent / "logs") as (port, pid):
                return await Turn(self._plan, Doors([port]), ports, (pid,), PROXIES[name]).run()

    def _save(self) -> None:
        document = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
            "python": platform.python_version(),
            "gateway": gateway.build(),
            "versions": rivals.PINS,
            "plan": dataclasses.asdict(self._plan),
            "rounds": self.results,
            "faults": self.faults,
            "summary": report.summarize(self.results),
        }
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._out.write_text(json.dumps(document, indent=1, default=dict))


def brief(result: Result) -> str:
    """The figures that matter most, and every fault."""
    names = ("us_per_request_2k", "us_per_request_60k", "us_per_chunk_100", "us_per_chunk_1000", "ttft_idle_p50_ms", "foreign_cpu")
    shown = [f"{name}={value:.2f}" for name in names if (value := result.figures.get(name)) is not None]
    return " ".join(shown + [f"FAULT {fault!r} {count} times" for fault, count in result.faults.items()])


def cpu_model() -> str:
    """Name of the processor, as the kernel tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.overhead", description=__doc__)
    parser.add_argument("--proxies", default=",".join(PROXIES), help="comma-separated; default: %(default)s")
    parser.add_argument("--rounds", type=int, help="default: 3, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="short windows, one round")
    parser.add_argument("--sdk-headers", action="store_true", help="send the 16 header fields of the OpenAI SDK instead of 5")
    parser.add_argument("--json", type=Path, default=RESULTS / "overhead.json", help="default: %(default)s; the table goes beside it")
    args = parser.parse_args(argv)
    args.names = args.proxies.split(",")
    for name in args.names:
        if name not in PROXIES:
            parser.error(f"no proxy {name!r}; there are {', '.join(PROXIES)}")
        if name in rivals.PINS and not rivals.installed(name):
            parser.error(f"{name} is not installed: run python -m loadtest.rivals {name}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    plan = QUICK if args.quick else Plan()
    if args.sdk_headers:
        plan = dataclasses.replace(plan, headers=SDK_HEADERS)
    # The driver's own collector would stop the clock of whoever is being measured.
    gc.disable()
    run = Run(args.names, args.rounds or (1 if args.quick else 3), plan, args.json)
    uvloop.run(run.run())
    labels = {name: proxy.label for name, proxy in PROXIES.items()}
    notes = [f"\n{PROXIES[name].label}: {PROXIES[name].note}.\n" for name in args.names if PROXIES[name].note]
    text = f"{report.markdown(report.summarize(run.results), labels)}\nMeasured: {gateway.build()}.\n{''.join(notes)}"
    args.json.with_suffix(".md").write_text(text)
    print(text)
    faults = {name: found for name, found in run.faults.items() if found}
    print(f"faults: {json.dumps(faults) if faults else 'none; every answer and every event arrived complete and correct'}")
    return 1 if faults.keys() - rivals.PINS.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
