"""One request to the model, from the queue of the engine to the last byte of its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from replicas.simulator.answers import Answer, Choice, Usage
from replicas.simulator.engine import Job
from replicas.simulator.wire import Reply

if TYPE_CHECKING:
    from replicas.simulator.replica import Replica


class Track:
    """One choice on its way through the engine."""

    __slots__ = ("_generation", "choice", "job", "lora", "sent")

    def __init__(self, generation: Generation, choice: Choice, lora: str) -> None:
        self._generation = generation
        self.lora = lora
        self.choice = choice
        self.sent = 0
        self.job: Job

    def token(self, job: Job) -> None:
        """Called by the clockwork after every token."""
        self._generation.token(self, job)


class Generation:
    """Collects the tokens of all choices and writes them out, at once when streamed. Ends exactly once."""

    def __init__(self, replica: Replica, reply: Reply | None, answer: Answer, choices: Sequence[Choice], lora: str) -> None:
        """`reply` None: nobody waits for the answer (background responses)."""
        self._replica = replica
        self._reply = reply
        self._answer = answer
        self._stream = answer.params.stream and reply is not None
        self._interval = replica.options.stream_interval
        self._opened = False
        self.tracks = [Track(self, choice, lora) for choice in choices]
        self.choices = choices
        self.left = len(self.tracks)
        self.outcome = "running"
        self.ended: Callable[[Generation], None] | None = None
        if reply is not None:
            reply.gone = self.gone

    def token(self, track: Track, job: Job) -> None:
        """One more token of a choice."""
        if self._stream and (job.done or job.generated - track.sent >= self._interval):
            self._emit(track, job.generated)
        if job.done:
            self._complete(track)

    def usage(self) -> Usage:
        """Token counts so far: prompts once, whatever `n` is."""
        prompts = self.tracks[:: self._answer.params.n]
        return Usage(
            prompt=sum(track.job.prompt for track in prompts),
            completion=sum(track.job.generated for track in self.tracks),
            cached=sum(track.job.cached for track in prompts),
            details=self._replica.options.prompt_tokens_details,
        )

    def gone(self) -> None:
        """The client hung up: stop at once."""
        self.halt("aborted")

    def halt(self, outcome: str) -> None:
        """Take what is left out of the engine, without a word to the client."""
        for track in self.tracks:
            self._replica.engine.abort(track.job)
        self._settle(outcome)

    def cut_off(self) -> None:
        """Break the client's connection."""
        self.halt("reset")
        if self._reply is not None:
            self._reply.connection.reset()

    def cut_short(self) -> None:
        """End the answer here with finish reason `abort`, as `/sleep?mode=abort` and `/abort_requests` do."""
        for track in self.tracks:
            if not track.job.done:
                self._replica.engine.abort(track.job)
                self._replica.stats.finished["abort"] += 1
                track.choice.plan.pieces = track.choice.plan.pieces[: track.job.generated]
                track.choice.plan.finish = "abort"
                if self._stream:
                    self._emit(track, track.job.generated)
        self._finish()

    def _emit(self, track: Track, end: int) -> None:
        reply = self._reply
        assert reply is not None
        if not self._opened:
            self._opened = True
            reply.begin()
            opening = self._answer.opening(self.choices, self.usage())
            if opening:
                reply.event(opening)
        reply.event(self._answer.piece(track.choice, track.sent, end))
        track.sent = end

    def _complete(self, track: Track) -> None:
        plan = track.choice.plan
        limit = self._answer.params.max_tokens or len(plan.pieces)
        reason: Literal["length", "stop"] = "length" if plan.finish == "length" else "stop"
        self._replica.stats.ended(track.job, reason, choices=self._answer.params.n, max_tokens=limit)
        self.left -= 1
        if not self.left:
            self._finish()

    def _finish(self) -> None:
        reply = self._reply
        self._settle("done")
        if reply is None:
            return
        if self._stream:
            reply.end(self._answer.closing(self.choices, self.usage()))
        else:
            reply.send(200, self._answer.whole(self.choices, self.usage()), self._answer.content_type)

    def _settle(self, outcome: str) -> None:
        if self.outcome == "running":
            self.outcome = outcome
            self._replica.settled(self)
            if self.ended is not None:
                self.ended(self)
