"""What routing costs, by fleet size and prompt length: `python -m tests.perf.routing_cost`.

CPU time of the best of many short runs, in microseconds, over the real fleet table. The first line hashes 2 KB on the same machine,
so that figures from different machines can be compared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from gateway.fleet import ReplicaState, Table, facts
from gateway.routing import Query, Router, chain
from gateway.settings import Settings

SIZES = (1, 8, 64, 256)
PROMPTS = (2_048, 61_440)
SHARED = 1_024


def best_us(work: Callable[[], object], runs: int = 200, repeats: int = 20) -> float:
    """Microseconds of CPU for one call, in the fastest of `runs` runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.thread_time_ns()
        for _ in range(repeats):
            work()
        best = min(best, (time.thread_time_ns() - start) / repeats / 1e3)
    return best


def fleet(count: int) -> tuple[Settings, tuple[ReplicaState, ...]]:
    """A fleet of vLLM servers, all up and scraped once."""
    replicas = [{"id": f"r{n}", "url": f"http://10.0.{n >> 8}.{n & 255}:8000"} for n in range(count)]
    settings = Settings.model_validate({"models": [{"name": "m", "replicas": replicas}]})
    table = Table(settings, 0.0)
    signals = facts.Signals(running=1.0, waiting=0.0, kv_usage=0.2, kv_tokens=400_000, block_size=16)
    for server in table.servers():
        table.apply(facts.Listed(server.key, (facts.ModelInfo("m", max_model_len=131_072),)), 1.0)
        table.apply(facts.Probed(server.key, ok=True), 1.0)
        table.apply(facts.Scraping(server.key), 1.0)
        table.apply(facts.Scraped(server.key, signals), 1.0)
    return settings, table.candidates("m", 2.0)[0]


def costs(count: int, size: int) -> tuple[float, float]:
    """(plan, plan + placed + first_token + settled) for a prompt that shares its first KB with what the replicas hold."""
    settings, replicas = fleet(count)
    router = Router(settings)
    rng = random.Random(count)
    shared = rng.randbytes(SHARED)
    queries = [Query("m", chain(shared + rng.randbytes(size - SHARED), 1, 256), size // 4, size=size) for _ in range(4_000)]

    def whole() -> None:
        query = queries[rng.randrange(len(queries))]
        decision = router.plan(query, replicas, 2.0)
        assert decision.replica is not None
        router.placed(decision, decision.replica, 2.0)
        router.first_token(decision)
        router.settled(decision, decision.replica, size // 4, decision.predicted)

    for _ in range(500):
        whole()
    runs = 200 if count < 64 else 20
    return best_us(lambda: router.plan(queries[0], replicas, 2.0), runs), best_us(whole, runs)


def main() -> None:
    """Print one line for each fleet size and prompt length."""
    data = random.Random(1).randbytes(2_048)
    print(f"hashing 2 KB: {best_us(lambda: chain(data, 1, 256)):.1f} us")
    for count in SIZES:
        for size in PROMPTS:
            plan, whole = costs(count, size)
            print(f"{count:4d} replicas, {size:6d} B: plan {plan:6.1f} us, plan to settle {whole:6.1f} us")


if __name__ == "__main__":
    main()
