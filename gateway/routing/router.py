"""The router: plans where a request goes, books the choice, and learns from what came of it.

Everything here is synchronous and takes the time as an argument. A choice is booked (`placed`) before anything else happens,
so that the next request of a burst already sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.routing.feedback import Feedback
from gateway.routing.filters import Candidates, admit, usable, why_none
from gateway.routing.history import History
from gateway.routing.index import PrefixIndex
from gateway.routing.policies import POLICIES, guard
from gateway.routing.query import Query, Weights
from gateway.routing.record import Booking, Decision
from gateway.routing.scoring import ID, Row, measure, slow_start

if TYPE_CHECKING:
    from gateway.fleet import ReplicaState
    from gateway.settings import Settings

_DEFAULT_CAPACITY: Final = 4_000_000  # tokens, for an engine that does not tell: feedback corrects it
_DEFAULT_ENGINE_BLOCK: Final = 64  # tokens
_LEAST_PROMPT: Final = 64  # tokens: in shorter prompts the chat template is too large a part to measure a token by
_AGED_OUT: Final = 4  # one wrong prediction costs a replica's believed cache at most one block in this many


class Router:
    """Places the requests of every model by one policy. `settings.routing` and the models' own weights are what it reads."""

    def __init__(self, settings: Settings, index: PrefixIndex | None = None) -> None:
        self.index = index or PrefixIndex(settings.routing.index_mb << 20, settings.routing.block_bytes)
        self.feedback = Feedback()
        self.history = History()
        self._keys: dict[str, str] = {}  # replica id -> server key
        self._known: dict[str, tuple[Sequence[ReplicaState], Candidates]] = {}  # model -> the last verdict of the fleet
        self._pending: dict[str, dict[int, int]] = {}  # server key -> first new block of a running prefill -> its touch
        self._take(settings)

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings. What was learned stays, except that another block size starts the index afresh."""
        self._take(settings)
        self.index.reset(settings.routing.index_mb << 20, settings.routing.block_bytes)

    def _take(self, settings: Settings) -> None:
        self.policy = settings.routing.policy
        self._pick, self._guarded = POLICIES[self.policy]
        self._load_guard = settings.routing.load_guard
        self._weights = Weights.of(settings.routing.weights)
        self._model_weights = {model.name: Weights.of(model.weights) for model in settings.models if model.weights is not None}

    def estimate(self, model: str, size: int) -> int:
        """Estimate the tokens of a canonical prompt of `size` bytes."""
        return round(size / self.feedback.bytes_per_token(model))

    def index_blocks(self) -> dict[str, int]:
        """Blocks in the index by replica id; replicas at one server show the same cache."""
        return {replica: self.index.blocks(key) for replica, key in self._keys.items()}

    # -- the plan ----------------------------------------------------------------------------------------------------

    def plan(
        self,
        query: Query,
        candidates: Sequence[ReplicaState],
        now: float,
        *,
        fail_open: bool = False,
        refused: Sequence[tuple[str, str]] = (),
    ) -> Decision:
        """Choose a replica. Nothing is booked yet; `decision.replica` is None when no candidate may serve.

        A tuple of candidates that comes again is a verdict of the fleet that still holds: it is not questioned again. `refused`
        are (id, reason) of replicas the fleet has already ruled out, for the record.
        """
        weights = self._model_weights.get(query.model, self._weights)
        decision = Decision(query, self.policy, weights, now, fail_open=fail_open)
        admitted = admit(query, self._usable(query.model, candidates, now, fail_open))
        decision.filtered = [*refused, *admitted.filtered] if refused else admitted.filtered
        if not admitted.ids:
            decision.reason = why_none(decision.filtered)
            return decision
        depths = self.index.matches(admitted.keys, query.chain)
        block_tokens = self.index.block_bytes / self.feedback.bytes_per_token(query.model)
        rows = measure(admitted, depths, self.feedback.confidence, query.tokens, block_tokens, weights)
        decision.rows, decision.candidates = rows, admitted.replicas
        row, decision.reason = (rows[0], "only_candidate") if len(rows) == 1 else self._choose(decision, admitted, rows, query, now)
        at = rows.index(row)
        decision.choose(admitted.replicas[at], row, depths[at])
        return decision

    def _usable(self, model: str, replicas: Sequence[ReplicaState], now: float, fail_open: bool) -> Candidates:
        known = self._known.get(model)
        if known is not None and known[0] is replicas:
            return known[1]
        candidates = usable(replicas, now, fail_open=fail_open)
        if isinstance(replicas, tuple):
            self._known[model] = (replicas, candidates)
        return candidates

    def _choose(self, decision: Decision, candidates: Candidates, rows: list[Row], query: Query, now: float) -> tuple[Row, str]:
        if self._load_guard is None or not self._guarded:
            return self._pick(rows, query, self.history)
        within, decision.guard_limit = guard(rows, self._load_guard, slow_start(candidates, now))
        if within is not rows:
            decision.left_out = tuple([row[ID] for row in rows if row not in within])
        return self._pick(within, query, self.history)

    # -- what became of it -------------------------------------------------------------------------------------------

    def placed(self, decision: Decision, replica: ReplicaState, now: float) -> None:
        """Book the request at a replica, before it is sent."""
        self.history.placed(replica.id)
        query, key = decision.query, replica.server.key
        self._keys[replica.id] = key
        chain, index = () if query is None else query.chain, self.index
        if replica is not decision.replica:
            decision.switch(replica, index.match(key, chain))
        if query is None or not chain:
            return
        known = decision.depth  # nothing has touched the index since the plan
        pending = self._pending.setdefault(key, {})
        booking = Booking(key, known, 0, True)
        if known:
            booking.prior = index.touched(key, chain[known - 1])
            booking.comparable = not pending or pending.keys().isdisjoint(chain[:known])
        booking.touch = index.touch(key, chain, self._capacity(query.model, replica))
        if known < len(chain):
            booking.head = chain[known]
            pending[booking.head] = booking.touch
        decision.booking = booking

    def _capacity(self, model: str, replica: ReplicaState) -> int:
        server = replica.server
        if server.signals.prefix_caching is False:
            return 0
        tokens = server.capacity_tokens() or _DEFAULT_CAPACITY
        return int(tokens * self.feedback.bytes_per_token(model) / self.index.block_bytes)

    def first_token(self, decision: Decision) -> None:
        """The prefill is over: the replica holds the prompt now, and predictions that rest on it can be judged."""
        booking = decision.booking
        if booking is not None:
            booking.begun = True
            self._unmark(booking)

    def _unmark(self, booking: Booking) -> None:
        pending = self._pending.get(booking.key)
        if pending and booking.head is not None and pending.get(booking.head) == booking.touch:
            del pending[booking.head]

    def settled(
        self,
        decision: Decision,
        replica: ReplicaState,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        comparable: bool = True,
        outcome: str = "ok",
    ) -> None:
        """Learn from a finished try, once. Tokens as the engine reported them, None where it did not.

        `comparable` is False when the cached tokens say nothing about the prediction, as when the request asks the engine not
        to read its cache. A try that failed before its first token takes its booking back, so that nobody is sent after it.
        """
        query, booking = decision.query, decision.booking
        decision.release()
        if query is None:
            return
        if booking is not None:
            self._unmark(booking)
            if outcome != "ok" and not booking.begun:
                self.index.retract(booking.key, query.chain, booking.known, booking.touch)
        if not prompt_tokens:
            return
        if prompt_tokens >= _LEAST_PROMPT and query.chain:
            size = query.size or len(query.chain) * self.index.block_bytes
            self.feedback.learn_length(query.model, size, prompt_tokens)
        decision.comparable = comparable and booking is not None and booking.comparable
        if decision.comparable and booking is not None and query.tokens:
            self._judge(replica, booking, decision.matched / query.tokens * prompt_tokens, prompt_tokens, cached_tokens)

    def _judge(self, replica: ReplicaState, booking: Booking, predicted: float, prompt: int, cached: int | None) -> None:
        key, signals = booking.key, replica.server.signals
        if cached is not None:
            if self.feedback.compare(key, predicted, cached, signals.block_size or _DEFAULT_ENGINE_BLOCK):
                # The engine evicts least recently used first: everything older than this prompt's old blocks went before
                # them. The prompt was computed again just now, so its own blocks stay.
                self.index.expire(key, booking.prior, 1 + self.index.blocks(key) // _AGED_OUT)
        elif signals.prefix_queries is not None and signals.prefix_hits is not None:
            self.feedback.compare_counters(key, prompt, predicted, signals.prefix_queries, signals.prefix_hits)

    def forget(self, replica: ReplicaState) -> None:
        """A replica restarted, so its cache is empty."""
        key = replica.server.key
        self.index.clear(key)
        self._pending.pop(key, None)
        self.feedback.restarted(key)

    def removed(self, replica: ReplicaState) -> None:
        """A replica is gone. Its server's cache is forgotten with the last replica there."""
        self.history.forget(replica.id)
        self._known.clear()
        key = self._keys.pop(replica.id, None)
        if key is not None and key not in self._keys.values():
            self.forget(replica)
            self.feedback.forget(key)
