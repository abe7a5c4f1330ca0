"""A place at a replica: what one request adds to the load of its server, and the only way that load goes down again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.fleet.state import ReplicaState, ServerState

# Below this much prefill the fixed cost of a step hides the rate.
_LEARN_TOKENS: Final = 512


class Slot:
    """Made by `Table.book`; `first_token` and `release` may be called any number of times and in any order.

    `ahead` is the server's uncached backlog (tokens) when this request was booked. `due` is the predicted end of prefill of a request
    that shows no first token; `prefilling` and `held` say which counters it still holds.
    """

    __slots__ = ("ahead", "booked_at", "due", "held", "prefilling", "prompt", "replica", "server", "streamed", "uncached")

    def __init__(self, replica: ReplicaState, server: ServerState, uncached: int, prompt: int, streamed: bool, now: float) -> None:
        self.replica = replica
        self.server = server
        self.uncached = uncached
        self.prompt = prompt
        self.streamed = streamed
        self.booked_at = now
        self.due = 0.0
        self.prefilling = self.held = True
        self.ahead = server.backlog
        server.inflight += 1
        server.prefilling += 1
        server.backlog += uncached
        server.kv_booked += prompt
        replica.inflight += 1

    def __repr__(self) -> str:
        return f"<Slot {self.replica.id} uncached={self.uncached} prefilling={self.prefilling} held={self.held}>"

    def first_token(self, now: float) -> None:
        """The answer has begun: the prefill is over, and its time teaches the server's prefill rate."""
        server = self.server
        server.alive_at = now
        if self.prefilling:
            self.prefilling = False
            server.prefilling -= 1
            server.backlog -= self.uncached
            work = self.ahead + self.uncached
            if work >= _LEARN_TOKENS and self.streamed:
                server.learn_prefill(work, now - self.booked_at)

    def progress(self, now: float) -> None:
        """The answer goes on: proof that the replica works, whatever its health endpoint says."""
        self.server.alive_at = now

    def prefilled(self) -> None:
        """The prefill is believed to be over, though nothing was seen of it."""
        if self.prefilling:
            self.prefilling = False
            self.server.prefilling -= 1
            self.server.backlog -= self.uncached

    def release(self, now: float, completion: int = 0) -> None:
        """The request is over, in whatever way. `completion`: tokens generated, which leave the KV cache with the prompt."""
        if not self.held:
            return
        self.held = False
        self.prefilled()
        server = self.server
        server.inflight -= 1
        server.kv_booked -= self.prompt + completion
        self.replica.inflight -= 1
        if server.breaker.probe is self:
            server.breaker.probe = None
            server.changed()
