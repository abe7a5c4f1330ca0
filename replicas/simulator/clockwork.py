"""Runs an engine against a real event loop: the only place of the simulator where steps take time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from replicas.simulator.engine import Engine, Job, Step

# A late timer is made up for by the next steps up to this much; beyond it the host is overloaded, not merely imprecise.
CATCH_UP_S = 0.05


class Owner(Protocol):
    """Who a job belongs to."""

    def token(self, job: Job) -> None:
        """`job` got its next token; `job.done` tells whether it was the last."""


class Clockwork:
    """Steps the engine for as long as it has work and is not paused. Owners are told after each step."""

    def __init__(self, engine: Engine, *, slowness: Callable[[float], float], stepped: Callable[[Step, list[Job]], None]) -> None:
        self.engine = engine
        self.paused = False
        self._slowness = slowness
        self._stepped = stepped
        self._loop = asyncio.get_running_loop()
        self._turning = False
        self._due = 0.0

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    def add(self, job: Job) -> None:
        """Queue a job. What arrives in one turn of the loop can share its first step."""
        self.engine.add(job)
        self._wake()

    def pause(self) -> None:
        """Stop after the step under way."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        self._wake()

    def _wake(self) -> None:
        if not self._turning and not self.paused:
            self._turning = True
            self._due = self.now()
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        now = self.now()
        step = None if self.paused else self.engine.begin(now)
        if step is None:
            self._turning = False
            return
        seconds = step.seconds * self._slowness(now)
        if seconds:
            self._due = max(self._due, now - CATCH_UP_S) + seconds
            self._loop.call_at(self._due, self._finish, step)
        else:
            self._loop.call_soon(self._finish, step)

    def _finish(self, step: Step) -> None:
        emitted = self.engine.finish(step, self.now())
        self._stepped(step, emitted)
        for job in emitted:
            job.owner.token(job)
        self._begin()
