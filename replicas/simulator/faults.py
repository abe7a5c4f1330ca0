"""Faults on demand: what goes wrong, for which requests, how often and until when. Pure; acting them out is `faulty`'s."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

Kind = Literal[
    "slow", "stall", "reset", "fin", "500", "503", "429", "malformed", "junk", "slow_start", "crash", "hang", "error_event", "drop_done",
]  # fmt: skip

# These change the whole replica rather than one request.
AMBIENT = ("slow", "slow_start")


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """One fault. It strikes a request in `scope` with `probability`, at most `count` times, for `for_s` seconds from its start."""

    kind: Kind
    probability: float = 1.0
    count: int | None = None
    for_s: float | None = None
    after: int = 0  # stall, reset, fin, malformed, crash: events passed on before it strikes; 0: before the head
    factor: float = 10.0  # slow: steps take this many times as long
    seconds: float = 5.0  # slow_start: how long everything answers 503
    retry_after: float | None = None  # 503, 429: sent as retry-after
    scope: str = "work"  # "work": requests to the model; "all": health and metrics too; or a path prefix

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError("probability is between 0 and 1")
        if self.factor <= 0:
            raise ValueError("factor is above 0")
        if self.scope not in ("work", "all") and not self.scope.startswith("/"):
            raise ValueError("scope is work, all or a path prefix")

    def covers(self, path: str, *, work: bool) -> bool:
        """Whether requests to `path` are in its scope."""
        return self.scope == "all" or (work if self.scope == "work" else path.startswith(self.scope))


class Faults:
    """The faults in force, in the order given; the first that strikes wins."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._active: list[tuple[Fault, float]] = []  # fault, since
        self.struck: dict[str, int] = {}

    def add(self, fault: Fault, now: float) -> None:
        """Put a fault into force."""
        self._active.append((msgspec.structs.replace(fault), now))

    def clear(self) -> None:
        """End all faults."""
        self._active.clear()

    def active(self, now: float) -> list[Fault]:
        """Those still in force."""
        self._active = [(fault, since) for fault, since in self._active if _alive(fault, since, now)]
        return [fault for fault, _ in self._active]

    def strike(self, path: str, now: float, *, work: bool) -> Fault | None:
        """The fault this request meets, if any; uses up one of its `count`."""
        if not self._active:
            return None
        for fault in self.active(now):
            if fault.kind in AMBIENT or not fault.covers(path, work=work) or self._random.random() >= fault.probability:
                continue
            if fault.count is not None:
                fault.count -= 1
            self.struck[fault.kind] = self.struck.get(fault.kind, 0) + 1
            return fault
        return None

    def slowness(self, now: float) -> float:
        """What step times are multiplied by."""
        factor = 1.0
        if self._active:
            for fault in self.active(now):
                if fault.kind == "slow":
                    factor *= fault.factor
        return factor

    def starting(self, now: float) -> bool:
        """Whether the replica still pretends to load its model."""
        return bool(self._active) and any(fault.kind == "slow_start" for fault in self.active(now))


def parse(text: str) -> Fault:
    """`KIND` or `KIND:name=value,name=value`, as on the command line. ValueError tells what is wrong."""
    kind, _, rest = text.partition(":")
    pairs = dict(pair.partition("=")[::2] for pair in rest.split(",") if pair)
    try:
        return msgspec.convert({"kind": kind, **pairs}, Fault, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"fault {text!r}: {error}") from None


def _alive(fault: Fault, since: float, now: float) -> bool:
    limit = fault.seconds if fault.kind == "slow_start" else fault.for_s
    return (limit is None or now < since + limit) and (fault.count is None or fault.count > 0)
