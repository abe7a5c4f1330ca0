"""The record of a decision: cheap to make on every request, rendered in full only when somebody asks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.routing.scoring import BACKLOG, BUSY, HIT, ID, MATCHED, QUEUE, SCORE, UNCACHED, Row, terms

if TYPE_CHECKING:
    from gateway.fleet import ReplicaState
    from gateway.routing.filters import Filtered
    from gateway.routing.query import Query, Weights

# Upper estimates of what CPython spends, in bytes.
_DECISION_BYTES: Final = 1200
_ROW_BYTES: Final = 360
_REASON_BYTES: Final = 80

_UNMEASURED: Row = ("", 0.0, None, None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1)


class Booking:
    """What `Router.placed` wrote into the index, until it is settled or taken back.

    `known` blocks were there before, last named by touch `prior`; `head` is the first new block, None when there was none.
    """

    __slots__ = ("begun", "comparable", "head", "key", "known", "prior", "touch")

    def __init__(self, key: str, known: int, prior: int, comparable: bool) -> None:
        self.key = key
        self.known = known
        self.prior = prior
        self.comparable = comparable
        self.begun = False
        self.touch = 0
        self.head: int | None = None


class Decision:
    """Where a request goes and why.

    `replica` is None when nothing can serve; `reason` then says why, and otherwise which rule decided. Of the chosen replica:
    `matched` prompt tokens are in the index, `predicted` of them are believed to be cached, `hit` is that as a share of the
    prompt (0..1), and `uncached` tokens remain to be computed. The `actual_…` tokens, `ttft` (seconds) and `outcome` come later.
    """

    # Defaults of the class: an instance, made for every request, holds only what differs.
    replica: ReplicaState | None = None
    reason = ""
    rows: Sequence[Row] = ()
    candidates: Sequence[ReplicaState] = ()
    filtered: Filtered = ()
    left_out: tuple[str, ...] = ()
    guard_limit: float | None = None
    hit = 0.0
    matched = 0
    predicted = 0
    uncached = 0
    depth = 0  # blocks of the prompt in the index, at the chosen replica
    booking: Booking | None = None
    request_id = b""
    actual_cached: int | None = None
    actual_prompt: int | None = None
    comparable: bool | None = None
    ttft: float | None = None
    outcome = ""
    attempts = 1

    def __init__(self, query: Query, policy: str, weights: Weights, now: float, *, fail_open: bool) -> None:
        self.query: Query | None = query
        self.model = query.model
        self.tokens = query.tokens
        self.policy = policy
        self.weights = weights
        self.at = now
        self.fail_open = fail_open

    def __repr__(self) -> str:
        chosen = "nothing" if self.replica is None else self.replica.id
        return f"<Decision {chosen} by {self.policy}/{self.reason}, hit {self.hit:.2f}, {len(self.rows)} candidates>"

    def choose(self, replica: ReplicaState, row: Row, depth: int) -> None:
        """Take this replica, measured as `row`, with `depth` blocks of the prompt in the index."""
        self.replica = replica
        self.depth = depth
        self.hit = row[HIT]
        self.matched = round(row[MATCHED])
        self.uncached = round(row[UNCACHED])
        self.predicted = self.tokens - self.uncached

    def switch(self, replica: ReplicaState, depth: int) -> None:
        """Take another replica than the one planned."""
        self.choose(replica, next((row for row in self.rows if row[ID] == replica.id), _UNMEASURED), depth)

    def finished(self, outcome: str, prompt: int | None, cached: int | None, ttft: float | None) -> None:
        """Note what became of it: tokens as the engine reported them, seconds to the first token; None is unknown."""
        self.outcome = outcome
        self.actual_prompt, self.actual_cached, self.ttft = prompt, cached, ttft

    def release(self) -> None:
        """Let go of what only the running request needs: chains of long prompts, replicas."""
        self.query = None
        self.booking = None
        self.candidates = ()

    @property
    def ranked(self) -> list[ReplicaState]:
        """The other measured candidates in the order to try them: best score first, those the load guard left out last."""
        pairs = [(row[ID] in self.left_out, -row[SCORE], at) for at, row in enumerate(self.rows)]
        order = [self.candidates[at] for *_, at in sorted(pairs)] if self.candidates else []
        return [replica for replica in order if replica is not self.replica]

    def size(self) -> int:
        """Estimated bytes this record takes once it is released."""
        return _DECISION_BYTES + _ROW_BYTES * len(self.rows) + _REASON_BYTES * (len(self.filtered) + len(self.left_out))

    def explain(self) -> dict[str, Any]:
        """Everything that went into the decision, as plain JSON values."""
        return {
            "request_id": self.request_id.decode("latin-1"),
            "at": self.at,
            "model": self.model,
            "replica": None if self.replica is None else self.replica.id,
            "policy": self.policy,
            "reason": self.reason,
            "fail_open": self.fail_open,
            "weights": self.weights._asdict(),
            "prompt_tokens_estimated": self.tokens,
            "candidates": [self._candidate(row) for row in sorted(self.rows, key=lambda row: -row[SCORE])],
            "filtered": [{"replica": name, "reason": reason} for name, reason in self.filtered],
            "load_guard": {"limit": _rounded(self.guard_limit), "left_out": list(self.left_out)},
            "predicted": {"hit": _rounded(self.hit), "cached_tokens": self.predicted, "uncached_tokens": self.uncached},
            "actual": self._actual(),
            "outcome": self.outcome or None,
            "attempts": self.attempts,
        }

    def _candidate(self, row: Row) -> dict[str, Any]:
        return {
            "replica": row[ID],
            "chosen": self.replica is not None and row[ID] == self.replica.id,
            "left_out_by_load_guard": row[ID] in self.left_out,
            "score": _rounded(row[SCORE]),
            "terms": {name: {part: _rounded(value) for part, value in term.items()} for name, term in terms(row, self.weights).items()},
            "matched_tokens": round(row[MATCHED]),
            "uncached_tokens": round(row[UNCACHED]),
            "requests": row[BUSY],
            "backlog_tokens": round(row[BACKLOG]),
            "queue_steps": _rounded(row[QUEUE]),
        }

    def _actual(self) -> dict[str, Any]:
        prompt, cached = self.actual_prompt, self.actual_cached
        return {
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "hit": _rounded(cached / prompt) if prompt and cached is not None else None,
            "ttft_s": _rounded(self.ttft),
            "learned_from": self.comparable,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class DecisionLog:
    """The last decisions by request id, bounded in number and in estimated bytes. A request has one decision for each try."""

    def __init__(self, max_entries: int = 10_000, max_bytes: int = 32 * 1024 * 1024) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.bytes = 0
        self._tries: OrderedDict[bytes, list[Decision]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, decision: Decision) -> None:
        """Keep a decision under its `request_id`; the oldest requests make room."""
        decision.release()
        tries = self._tries.get(decision.request_id)
        if tries is None:
            self._tries[decision.request_id] = [decision]
        else:
            tries.append(decision)
            decision.attempts = len(tries)
        self.bytes += decision.size()
        self._count += 1
        while self._count > self.max_entries or self.bytes > self.max_bytes:
            _, oldest = self._tries.popitem(last=False)
            self._count -= len(oldest)
            self.bytes -= sum(old.size() for old in oldest)

    def get(self, request_id: str) -> list[Decision]:
        """The decisions made for a request, one for each try; empty when none is kept."""
        return self._tries.get(request_id.encode("latin-1", "replace"), [])

    def recent(self, limit: int) -> list[Decision]:
        """The newest decisions, newest first."""
        newest: list[Decision] = []
        for tries in reversed(self._tries.values()):
            newest += reversed(tries)
            if len(newest) >= limit:
                break
        return newest[:limit]
