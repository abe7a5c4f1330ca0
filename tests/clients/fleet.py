"""Simulated replicas and a gateway as processes of their own, which outlive the loops of single tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.process import COMMAND, ENV, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "sk-client"  # what clients show the gateway
INNER_KEY = "sk-inner"  # what the gateway shows one of the replicas

HTTP = httpx.Client(trust_env=False, timeout=10)
START_S = 20.0


@dataclass(frozen=True)
class Simulated:
    """A simulated replica in a process of its own."""

    url: str

    def break_with(self, kind: str, **more: Any) -> None:
        """Put a fault into force."""
        HTTP.post(f"{self.url}/sim/faults", json={"kind": kind, **more}).raise_for_status()

    def mend(self) -> None:
        """End all faults."""
        HTTP.delete(f"{self.url}/sim/faults").raise_for_status()

    @property
    def state(self) -> dict[str, Any]:
        """The engine at this moment."""
        return HTTP.get(f"{self.url}/sim/state").json()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Served:
    """A running `kvgate serve`."""

    port: int
    admin_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name with these labels, whatever their others are."""
        page = HTTP.get(f"{self.admin}/metrics").text.splitlines(keepends=True)
        lines = "".join(line for line in page if line.startswith((f"{name} ", f"{name}{{")))
        assert lines or labels, f"there is no metric {name}"
        found = (s for family in text_string_to_metric_families(lines) for s in family.samples)
        return sum(s.value for s in found if labels.items() <= s.labels.items())

    def replicas(self) -> dict[str, dict[str, Any]]:
        """What the gateway knows of each replica, by id."""
        return {row["id"]: row for row in HTTP.get(f"{self.admin}/admin/replicas").json()["replicas"]}

    def explain(self, request_id: str) -> list[dict[str, Any]]:
        """The decisions made for a request, one for each try."""
        return HTTP.get(f"{self.admin}/admin/explain/{request_id}").json()["tries"]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Fleet:
    """A gateway and the replicas it knows, by name."""

    gateway: Served
    replicas: dict[str, Simulated] = field(default_factory=dict)


@contextmanager
def every_kind_of_replica(folder: Path) -> Iterator[Fleet]:
    """A gateway with all a client can meet, as models: `m` on two replicas that know it by another name, `solo` on one, `slow` on one
    that can be watched, `narrow` on the same with room for one request, `locked` whose key is refused, `dead` where nothing listens.
    """
    with ExitStack() as stack, socket.socket() as nothing:
        nothing.bind(("127.0.0.1", 0))
        instant = ("--preset", "instant", "--model")
        a, b, solo, slow = simulated(
            stack,
            (*instant, "org/tiny"),
            (*instant, "org/tiny"),
            (*instant, "solo", "--api-key", INNER_KEY),
            ("--preset", "demo", "--model", "slow"),
        )
        urls = {
            "m": [{"id": "a", "url": a.url, "served_model": "org/tiny"}, {"id": "b", "url": b.url, "served_model": "org/tiny"}],
            "solo": [{"id": "solo", "url": solo.url, "api_key": INNER_KEY}],
            "locked": [{"id": "locked", "url": solo.url, "api_key": "sk-stale", "served_model": "solo"}],
            "slow": [{"id": "slow", "url": slow.url}],
            "narrow": [{"id": "narrow", "url": slow.url, "served_model": "slow", "max_inflight": 1}],
            "dead": [{"id": "dead", "url": f"http://127.0.0.1:{nothing.getsockname()[1]}"}],
        }
        settings = {
            "server": {"api_keys": [KEY], "max_body_bytes": 4_000_000},
            "models": [{"name": n, "replicas": r, **({"aliases": ["gpt-4o"]} if n == "m" else {})} for n, r in urls.items()],
            "admission": {"queue_size": 0},
            "timeouts": {"first_byte_s": 0.5, "idle_s": 0.5, "unary_s": 1.0},
            "breaker": {"failures": 1000, "min_requests": 1000},
        }
        gateway = stack.enter_context(served(folder, settings))
        yield Fleet(gateway, {"a": a, "b": b, "solo": solo, "slow": slow})


def simulated(stack: ExitStack, *kinds: tuple[str, ...]) -> list[Simulated]:
    """Simulated replicas on free ports, one for each list of arguments, killed at the end."""
    command = (sys.executable, "-m", "replicas.simulator", "--port", "0")
    processes = [stack.enter_context(subprocess.Popen((*command, *kind), stdout=subprocess.PIPE, text=True)) for kind in kinds]
    for process in processes:
        stack.callback(process.kill)
    return [Simulated(process.stdout.readline().strip()) for process in processes if process.stdout is not None]


@contextmanager
def served(folder: Path, settings: dict[str, Any]) -> Iterator[Served]:
    """`kvgate serve` with these settings on free ports."""
    file, events = folder / "kvgate.yaml", folder / "events.log"
    write(file, settings)
    with events.open("w") as log, subprocess.Popen((COMMAND, "serve", "-c", str(file)), env=ENV, stderr=log) as process:
        try:
            yield _once_serving(process, events)
        finally:
            process.kill()


def _once_serving(process: subprocess.Popen[bytes], events: Path) -> Served:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "serving":
                return Served(*(int(event[name].rsplit(":", 1)[1]) for name in ("public", "admin")))
        time.sleep(0.02)
    raise AssertionError(f"the gateway does not serve: {events.read_text()}")


def soon(condition: Callable[[], Any], within: float = 1.0) -> None:
    """Wait until a condition holds; fails when it does not in time."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.02)
