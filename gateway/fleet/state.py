"""What is known of one server and of one replica. Only `Table` and `Slot` change these; everybody else reads.

Own load (`inflight`, `backlog`, `prefilling`, `kv_booked`) is exact and moves with every request. Scraped load moves once a second and
is turned into what *others* send: `foreign_running`, `foreign_waiting`. None is unknown, never zero.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from gateway.fleet.breaker import Breaker
from gateway.fleet.facts import ModelInfo, Signals, Traits

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.fleet.slot import Slot
    from gateway.settings import BreakerSettings, ReplicaSettings

Health = Literal["unknown", "up", "down", "starting", "asleep"]
Origin = Literal["config", "admin", "discovered"]

RAMP_S: Final = 30.0
STEP_TOKENS: Final = 2048
MAX_NUM_SEQS: Final = 256
PREFILL_RATE: Final = 8000.0  # tokens per second, until learned
MEAN_PROMPT: Final = 512.0  # tokens, until learned
_LEAST_SHARE: Final = 0.1

_VOLATILE: Final = ("running", "waiting", "kv_usage", "gpu", "hit_rate")
_COUNTERS: Final = ("prefix_queries", "prefix_hits", "prompt_tokens", "cached_tokens")
_UNKNOWN: Final = dict.fromkeys(_VOLATILE)


class Fault(NamedTuple):
    """Why a replica cannot serve. The lower the `rank`, the less bad; from `HARD` on it is never tried, whatever happens to the others."""

    rank: int
    reason: str


REFUSES_KEY: Final = "refuses our key"

BACKING_OFF: Final = 1
ABSENT: Final = 2
BROKEN: Final = 3
DOWN: Final = 4
HARD: Final = 5


def _no_change() -> None:
    """Nobody watches yet."""


class ServerState:
    """One address: its health, its load, and what was learned about it. `key` is the base address requests are sent to."""

    __slots__ = (
        "_capacity", "_prefill_s", "_prefill_tokens", "_slots", "_step", "absent", "alive_at", "backlog", "backoff_reason",
        "backoff_until", "breaker", "changed", "client_errors", "counters", "drain_by", "draining", "engine", "engine_version",
        "failing_since", "fails", "forced", "foreign_running", "foreign_waiting", "health", "health_detail", "hit_rate", "inflight",
        "key", "kv_booked", "listed", "listed_at", "listing_error", "mean_prompt", "models", "passes", "prefill_rate", "prefilling",
        "requests", "scrape_error", "scrape_mark", "seen_running", "settings", "signals", "signals_at", "since", "tells_cached", "tpot",
        "traits", "unstreamed", "untold",
    )  # fmt: skip

    def __init__(self, key: str, settings: ReplicaSettings, breaker: BreakerSettings) -> None:
        self.key = key
        self.settings = settings
        self.changed: Callable[[], None] = _no_change
        # health
        self.health: Health = "unknown"
        self.health_detail = ""
        self.fails = self.passes = 0
        self.failing_since = self.alive_at = -math.inf
        self.since = -math.inf
        self.breaker = Breaker(breaker)
        self.backoff_until = -math.inf
        self.backoff_reason = ""
        self.requests = self.client_errors = 0
        self.draining = self.forced = False
        self.drain_by = math.inf
        # engine and models
        self.engine = ""
        self.engine_version: str | None = None
        self.traits = Traits()
        self.models: dict[str, ModelInfo] = {}
        self.listed: bool | None = None
        self.listed_at = -math.inf
        self.listing_error = ""
        self.absent: set[str] = set()
        # own load
        self.inflight = self.prefilling = self.backlog = self.kv_booked = 0
        self.unstreamed: deque[Slot] = deque()
        # scraped
        self.signals = Signals()
        self.signals_at = -math.inf
        self.counters: dict[str, float] = {}
        self.scrape_error = ""
        self.scrape_mark: tuple[float, int, int, int] | None = None
        self.foreign_running: float | None = None
        self.foreign_waiting: float | None = None
        # learned
        self.seen_running = 0.0
        self.hit_rate: float | None = None
        self.prefill_rate: float | None = None
        self.tpot: float | None = None
        self.mean_prompt = MEAN_PROMPT
        self.tells_cached = False  # some answer said how much of its prompt was cached
        self.untold = 0  # answers in a row that did not
        self._prefill_tokens = self._prefill_s = 0.0
        self.measure()

    def __repr__(self) -> str:
        return f"<ServerState {self.key} {self.health} inflight={self.inflight} backlog={self.backlog}>"

    @property
    def url(self) -> str:
        """The base address as configured."""
        return self.settings.url

    # -- read by routing ---------------------------------------------------------------------------------------------

    def capacity_tokens(self) -> int | None:
        """KV cache size in tokens over all ranks; None: unknown."""
        return self._capacity

    def step_tokens(self) -> int:
        """Token budget of one engine step over all ranks: configured, told by the engine, its default raised by what was seen."""
        return self._step

    def max_num_seqs(self) -> int:
        """Batch slots over all ranks: configured, told by the engine, its default raised by what was seen."""
        return self._slots

    def share(self, now: float) -> float:
        """The part of its normal load a server should get: ramps up from 0.1 to 1 over 30 s after it became usable."""
        return min(1.0, max(_LEAST_SHARE, (now - self.since) / RAMP_S))

    def fault(self, now: float) -> Fault | None:
        """Why nothing should be sent here; None: nothing speaks against it."""
        if self.draining:
            return Fault(HARD, "draining")
        if self.health == "asleep":
            return Fault(HARD, "asleep")
        if self.health in ("unknown", "starting"):
            return Fault(HARD, "not probed yet" if self.health == "unknown" else "starting")
        if self.health == "down":
            return Fault(DOWN, "down")
        if not self.breaker.allows(now):
            return Fault(BROKEN, "breaker open")
        if now < self.backoff_until:
            return Fault(BACKING_OFF, self.backoff_reason)
        return None

    def changes_at(self, now: float) -> float:
        """When the answer of `fault` may change by time alone."""
        times = [self.backoff_until]
        if self.breaker.opened_at is not None:
            times.append(self.breaker.retry_at())
        return min((t for t in times if t > now), default=math.inf)

    # -- written by Table --------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Settings, engine or reading are new: work out the sizes once, not per request."""
        own, told, traits = self.settings, self.signals, self.traits
        self._capacity = own.kv_tokens or told.kv_tokens
        self._step = own.step_tokens or told.step_tokens or max(traits.step_tokens or STEP_TOKENS, told.step_seen or 0) * told.ranks
        usual = max((traits.max_num_seqs or MAX_NUM_SEQS) * told.ranks, int(self.seen_running))
        self._slots = own.max_num_seqs or told.max_num_seqs or usual

    def probed(self, ok: bool, starting: bool, unhealthy_after: int, healthy_after: int, now: float) -> None:
        """Count a probe. Traffic that succeeded since the failures began starts their count anew: busy is not dead."""
        if ok:
            self.fails = 0
            self.passes += 1
            if self.health != "up" and self.health != "asleep" and self.passes >= healthy_after:
                self.health = "up"
            return
        self.passes = 0
        if self.fails == 0 or self.alive_at >= self.failing_since:
            self.fails = 0
            self.failing_since = now
        self.fails += 1
        if self.health not in ("up", "asleep") or self.fails >= unhealthy_after:
            self.health = "starting" if starting else "down"

    def scraping(self, now: float) -> None:
        """A scrape is on its way: remember own load, so that its answer can be told apart from foreign load."""
        self.scrape_mark = (now, self.inflight, self.prefilling, self.kv_booked)

    def scraped(self, signals: Signals, now: float) -> bool:
        """Take a reading; True when its counters or start time show that the engine was restarted since the last one."""
        before = self.signals
        asked_at, inflight, prefilling, kv_booked = self.scrape_mark or (now, self.inflight, self.prefilling, self.kv_booked)
        self.scrape_mark = None
        self.signals = signals
        self.signals_at = now
        self.scrape_error = ""
        self.kv_booked -= kv_booked
        restarted = self._restarted(signals)
        self.hit_rate = signals.hit_rate if restarted else _hit_rate(before, signals, self.hit_rate)
        # Between question and answer own load moved; the larger figure keeps own requests from passing for foreign ones.
        self._split(max(inflight, self.inflight), max(prefilling, self.prefilling))
        if signals.waiting is not None:
            self._settle_prefills(signals.waiting, asked_at, now)
        self.seen_running = max(self.seen_running, signals.running or 0.0)
        self.measure()
        return restarted

    def _restarted(self, signals: Signals) -> bool:
        """Compare with the last known value of each counter, however many readings ago it was there."""
        known = self.counters
        seen = {name: value for name in _COUNTERS if (value := getattr(signals, name)) is not None}
        restarted = any(value < known.get(name, value) for name, value in seen.items())
        start = signals.start_time
        if start is not None:
            restarted = restarted or abs(start - known.get("start_time", start)) > 1.0
            seen["start_time"] = start
        self.counters = seen if restarted else known | seen
        return restarted

    def _split(self, inflight: int, prefilling: int) -> None:
        running, waiting = self.signals.running, self.signals.waiting
        if running is None:
            self.foreign_running = self.foreign_waiting = None
            return
        foreign = max(0.0, running + (waiting or 0.0) - inflight)
        queued = min(foreign, max(0.0, (waiting or 0.0) - prefilling))
        self.foreign_waiting = None if waiting is None else queued
        self.foreign_running = foreign - queued

    def _settle_prefills(self, waiting: float, asked_at: float, now: float) -> None:
        """Requests without a first token of their own: the engine queues in order, so no more of them wait than it says."""
        queue = self.unstreamed
        step = self.step_tokens()
        surplus = sum(slot.prefilling for slot in queue) - waiting
        while surplus > 0:
            slot = queue[0]
            if slot.prefilling and (slot.booked_at > asked_at or (slot.uncached > step and slot.due > now)):
                return
            surplus -= slot.prefilling
            queue.popleft().prefilled()

    def sweep(self, now: float) -> float:
        """Release the prefill of requests past its predicted end; when to look again."""
        queue = self.unstreamed
        while queue:
            slot = queue[0]
            if slot.prefilling and slot.due > now:
                return slot.due
            waiting = self.signals.waiting
            if slot.prefilling and waiting and slot.booked_at < self.signals_at and waiting >= self.prefilling:
                # The engine says that everything sent still waits, this one included: the prediction was too bold.
                slot.due = now + max(0.1, now - slot.booked_at)
                return slot.due
            queue.popleft().prefilled()
        return math.inf

    def predict(self, slot: Slot, now: float) -> float:
        """The predicted end of prefill of a request that will not show its first token."""
        slot.due = now + self.backlog / (self.prefill_rate or PREFILL_RATE)
        self.unstreamed.append(slot)
        return slot.due

    def stale(self) -> None:
        """The scraped load is too old to mean anything; what does not move (sizes, counters) is kept."""
        self.signals = msgspec.structs.replace(self.signals, **_UNKNOWN)
        self.foreign_running = self.foreign_waiting = None

    def learn_prefill(self, tokens: int, seconds: float) -> None:
        """One more observed prefill: `tokens` of uncached work, own and ahead of it, took `seconds`."""
        if seconds > 0.0:
            self._prefill_tokens = 0.9 * self._prefill_tokens + tokens
            self._prefill_s = 0.9 * self._prefill_s + seconds
            self.prefill_rate = self._prefill_tokens / self._prefill_s

    def back_off(self, until: float, reason: str) -> None:
        """Leave the server alone for a while."""
        if until > self.backoff_until:
            self.backoff_until = until
            self.backoff_reason = reason


class ReplicaState:
    """One server in its role as a replica of one model. `served`: the model's name there; None when unresolved, `problem` says why."""

    __slots__ = ("clear_until", "id", "inflight", "model", "origin", "problem", "removed", "served", "server", "settings")

    def __init__(self, replica_id: str, model: str, server: ServerState, settings: ReplicaSettings, origin: Origin) -> None:
        self.id = replica_id
        self.model = model
        self.server = server
        self.settings = settings
        self.origin: Origin = origin
        self.served: str | None = None
        self.problem = ""
        self.removed = False
        self.inflight = 0
        self.clear_until = -math.inf  # nothing speaks against it before that time, unless a fact says so

    def __repr__(self) -> str:
        return f"<ReplicaState {self.id} of {self.model!r} at {self.server.key} {self.server.health}>"

    @property
    def context_length(self) -> int | None:
        """Longest prompt plus answer in tokens, configured or as the engine lists it; an adapter has that of its base model."""
        if self.settings.context_length:
            return self.settings.context_length
        models = self.server.models
        info = models.get(self.served or "")
        if info is not None and info.max_model_len is None:
            info = models.get(info.parent or "")
        return None if info is None else info.max_model_len

    def fault(self, now: float) -> Fault | None:
        """Why this replica cannot serve now, with how bad that is."""
        if self.removed:
            return Fault(HARD, "removed")
        fault = self.server.fault(now)
        if fault is not None and fault.rank >= HARD:
            return fault
        if self.served is None:
            return Fault(HARD, "down" if self.server.health == "down" else self.problem)
        if fault is None and self.served in self.server.absent:
            return Fault(ABSENT, "model absent")
        return fault

    def usable(self, now: float) -> str | None:
        """None when it can serve now, else the reason why not."""
        if now < self.clear_until:
            return None
        fault = self.fault(now)
        return None if fault is None else fault.reason

    def share(self, now: float) -> float:
        """The part of its normal load it should get, 0.1..1 (slow start)."""
        return self.server.share(now)


def _hit_rate(before: Signals, after: Signals, last: float | None) -> float | None:
    if after.hit_rate is not None:
        return after.hit_rate
    if before.prefix_queries is None or before.prefix_hits is None or after.prefix_queries is None or after.prefix_hits is None:
        return last
    asked = after.prefix_queries - before.prefix_queries
    return (after.prefix_hits - before.prefix_hits) / asked if asked > 0 else last
