"""Whatever happens, in whatever order: no counter below zero, none left over, no verdict out of date."""

from __future__ import annotations

import random
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet import Signals, Slot, Table, facts
from gateway.fleet.state import HARD
from tests.unit.fleet.kit import fleet, r, settled

STEPS = (
    "book",
    "book_unary",
    "first",
    "release",
    "scraping",
    "scraped",
    "scrape_failed",
    "restart",
    "probe_ok",
    "probe_bad",
    "settle",
    "tick",
    "look",
)
OUTCOMES: tuple[facts.Outcome, ...] = get_args(facts.Outcome)


class Walk:
    """A random walk over a fleet of two, with everything a gateway does to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.table = fleet(2)
        self.now = 0.0
        self.slots: list[Slot] = []

    def step(self, name: str) -> None:
        self.now += self.random.choice((0.0, 0.0, 0.01, 0.3, 2.0, 9.0))
        replica = r(self.table, self.random.choice(("r1", "r2")))
        key = replica.server.key
        tokens = self.random.randrange(0, 5000)
        match name:
            case "book" | "book_unary":
                slot = self.table.book(replica, uncached=tokens // 2, prompt=tokens, streamed=name == "book", now=self.now)
                self.slots.append(slot)
            case "first" if self.slots:
                self.random.choice(self.slots).first_token(self.now)
            case "release" if self.slots:
                slot = self.random.choice(self.slots)
                slot.release(self.now, self.random.randrange(100))
            case "scraping":
                self.table.apply(facts.Scraping(key), self.now)
            case "scraped" | "restart":
                counter = 0.0 if name == "restart" else self.now * 100
                signals = Signals(running=self.random.randrange(9), waiting=self.random.randrange(9), kv_usage=0.5, prompt_tokens=counter)
                self.table.apply(facts.Scraped(key, signals), self.now)
            case "scrape_failed":
                self.table.apply(facts.ScrapeFailed(key, "no answer"), self.now)
            case "probe_ok" | "probe_bad":
                self.table.apply(facts.Probed(key, ok=name == "probe_ok"), self.now)
            case "settle":
                settled(self.table, self.random.choice(OUTCOMES), self.now, replica.id, missing=self.random.random() < 0.5, model="m")
            case "fail":
                settled(self.table, self.random.choice(("reset", "server_error")), self.now, replica.id, times=5)
            case "tick":
                self.table.tick(self.now)
            case "look":
                self.table.candidates("m", self.now)


def servers_add_up(table: Table, slots: list[Slot]) -> None:
    for server in table.servers():
        mine = [s for s in slots if s.server is server]
        assert server.inflight == sum(s.held for s in mine)
        assert server.prefilling == sum(s.prefilling for s in mine)
        assert server.backlog == sum(s.uncached for s in mine if s.prefilling)
        assert min(server.inflight, server.prefilling, server.backlog) >= 0
        assert (server.foreign_running or 0.0) >= 0.0
        assert (server.foreign_waiting or 0.0) >= 0.0


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(STEPS), max_size=60))
def test_counters_always_equal_what_the_live_slots_hold(seed: int, steps: list[str]) -> None:
    """Own load is the sum over running requests after every step, and zero after the last one."""
    walk = Walk(seed)
    for name in steps:
        walk.step(name)
        servers_add_up(walk.table, walk.slots)
    for slot in walk.slots:
        slot.release(walk.now)
    walk.table.candidates("m", walk.now + 1e6)
    for server in walk.table.servers():
        walk.table.apply(facts.Scraping(server.key), walk.now + 1e6)
        walk.table.apply(facts.Scraped(server.key, Signals(running=0, waiting=0)), walk.now + 1e6)
        assert (server.inflight, server.prefilling, server.backlog, server.kv_booked, len(server.unstreamed)) == (0, 0, 0, 0, 0)
        assert (server.foreign_running, server.foreign_waiting, server.breaker.probe) == (0, 0, None)
    assert [row.inflight for row in walk.table.snapshot(walk.now + 1e6)] == [0, 0]


def verdict(table: Table, now: float) -> tuple[list[str], bool]:
    """Who can serve, worked out from scratch."""
    faults = [(replica.id, replica.fault(now)) for replica in table.replicas("m")]
    usable = [name for name, fault in faults if fault is None]
    if usable:
        return usable, False
    soft = [(fault.rank, name) for name, fault in faults if fault is not None and fault.rank < HARD]
    return [name for rank, name in soft if rank == min(soft)[0]], bool(soft)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from([*STEPS, "fail", "look", "look"]), max_size=80))
def test_cached_verdicts_are_those_a_fresh_look_would_give(seed: int, steps: list[str]) -> None:
    """Caching who can serve must never be seen from outside, however time passes."""
    walk = Walk(seed)
    for name in steps:
        walk.step(name)
        if walk.random.random() < 0.5:
            replicas, fail_open = walk.table.candidates("m", walk.now)
            assert ([replica.id for replica in replicas], fail_open) == verdict(walk.table, walk.now)
        for replica in walk.table.replicas("m"):
            fault = replica.fault(walk.now)
            assert replica.usable(walk.now) == (None if fault is None else fault.reason)
