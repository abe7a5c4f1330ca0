"""What was seen of the fleet, as immutable facts. `Table.apply(fact, now)` is the only place where they change anything.

Servers are named by their key (base address), replicas by their id. None always means: not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gateway.settings import ReplicaSettings

Outcome = Literal[
    "ok", "client_error", "auth", "not_found", "backpressure", "server_error",
    "connect", "reset", "timeout", "protocol", "truncated", "cancelled",
]  # fmt: skip

# The outcomes that are a replica's own fault and count against it.
FAILURES = frozenset({"server_error", "connect", "reset", "timeout", "protocol", "truncated"})


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of an engine's metrics, summed over its data-parallel ranks where that makes sense.

    `kv_usage` and `gpu` are shares 0..1. Counters (`prefix_queries`, `prefix_hits`, `prompt_tokens`, `cached_tokens`) are in tokens
    since the engine's start. `step_seen` is the largest step, in tokens, that the engine reports to have run.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    gpu: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    hit_rate: float | None = None
    kv_tokens: int | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    step_tokens: int | None = None
    step_seen: int | None = None
    prefix_caching: bool | None = None
    asleep: bool | None = None
    start_time: float | None = None
    loras: tuple[str, ...] | None = None
    ranks: int = 1


class ModelInfo(msgspec.Struct, frozen=True):
    """One entry of a server's model list; `raw` is the engine's own JSON object. A LoRA adapter has a `parent`."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str | None = None
    raw: bytes = b"{}"


class Traits(msgspec.Struct, frozen=True):
    """What the kind of engine implies. Per-rank defaults apply until the engine or the settings say better."""

    step_tokens: int | None = None
    max_num_seqs: int | None = None
    checks_model: bool = True  # answers 404 to a model name it does not list
    has_metrics: bool = True
    usage_hint: str = ""  # what makes its usage carry cached_tokens


class Identified(msgspec.Struct, frozen=True):
    """What engine runs at a server."""

    server: str
    engine: str
    version: str | None
    traits: Traits


class Probed(msgspec.Struct, frozen=True):
    """A health probe ended. `starting`: the server answered that it is still loading."""

    server: str
    ok: bool
    starting: bool = False
    detail: str = ""


class Listed(msgspec.Struct, frozen=True):
    """A server listed its models; None: it has no such list."""

    server: str
    models: tuple[ModelInfo, ...] | None


class ListingFailed(msgspec.Struct, frozen=True):
    """The model list could not be read; the last one stays valid."""

    server: str
    detail: str


class Scraping(msgspec.Struct, frozen=True):
    """A reading of the metrics is about to be requested: own load from here on may or may not be in it."""

    server: str


class Scraped(msgspec.Struct, frozen=True):
    """The reading that the last `Scraping` announced."""

    server: str
    signals: Signals


class ScrapeFailed(msgspec.Struct, frozen=True):
    """The metrics could not be read."""

    server: str
    detail: str


class Settled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt at a replica is over; times in seconds from when it was dispatched, tokens as the usage reported them.

    `model` and `missing` matter to `not_found` alone: the answer said that the model itself does not exist there. `server` (its key)
    keeps the fact right even when the id has moved to another address meanwhile.
    """

    replica: str
    outcome: Outcome
    status: int = 0
    ttft: float | None = None
    tpot: float | None = None
    uncached: int = 0
    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    duration: float = 0.0
    retry_after: float | None = None
    model: str = ""
    missing: bool = False
    server: str = ""


class Draining(msgspec.Struct, frozen=True):
    """Send nothing new to the address of this replica; what runs there may finish."""

    replica: str


class Undrained(msgspec.Struct, frozen=True):
    """The address of this replica takes requests again."""

    replica: str


class Added(msgspec.Struct, frozen=True):
    """One more replica, of a model or (None) of every model the server lists."""

    model: str | None
    settings: ReplicaSettings
    origin: Literal["config", "admin", "discovered"] = "admin"


class Removed(msgspec.Struct, frozen=True):
    """A replica leaves: nothing new is sent, what runs may finish, then it is forgotten."""

    replica: str


Fact = (
    Identified | Probed | Listed | ListingFailed | Scraping | Scraped | ScrapeFailed | Settled | Draining | Undrained | Added | Removed
)  # fmt: skip
