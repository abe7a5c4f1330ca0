"""An open loop of streamed chats: each is sent when it is due, however slow the others are. Says how late it was itself."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest import client
from loadtest.routing.workload import Arrival, Texts

_COUNT = rb'"%b"\s*:\s*(\d+)'
_PROMPT, _COMPLETION, _CACHED = (re.compile(_COUNT % name) for name in (b"prompt_tokens", b"completion_tokens", b"cached_tokens"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answered request. Seconds; `late` is how long after its time it was sent, `ttft` counts from the sending."""

    at: float
    late: float
    ttft: float
    tpot: float | None
    prompt: int
    cached: int


class Chat:
    """Collects one streamed answer."""

    def __init__(self) -> None:
        self.done: asyncio.Future[client.Connection] = asyncio.get_running_loop().create_future()
        self.first = 0.0
        self.last = 0.0
        self.status = 0
        self.data = b""

    def body(self, data: bytes) -> None:
        if not self.first and b"data:" in data:
            self.first = time.monotonic()
        self.data += data

    def finished(self, status: int, connection: client.Connection) -> None:
        self.last, self.status = time.monotonic(), status
        self.done.set_result(connection)

    def failed(self, reason: str) -> None:
        self.done.set_exception(ConnectionError(reason))

    def outcome(self, arrival: Arrival, start: float, sent: float) -> Outcome | str:
        """What came of it, or what was wrong."""
        if self.status != 200:
            return f"status {self.status}"
        prompt, completion, cached = (_number(pattern, self.data) for pattern in (_PROMPT, _COMPLETION, _CACHED))
        if prompt is None or not self.data.rstrip().endswith(b"data: [DONE]"):
            return "incomplete answer"
        if completion != arrival.output:
            return f"{completion} tokens instead of {arrival.output}"
        tpot = (self.last - self.first) / (completion - 1) if completion > 1 else None
        return Outcome(arrival.at, sent - start - arrival.at, self.first - sent, tpot, prompt, cached or 0)


class OpenLoop:
    """Sends arrivals to a port on kept-alive connections."""

    def __init__(self, port: int, texts: Texts) -> None:
        self.outcomes: list[Outcome] = []
        self.faults: Counter[str] = Counter()
        self._port, self._texts = port, texts
        self._idle: list[client.Connection] = []
        self._start = 0.0

    async def run(self, arrivals: Sequence[Arrival], *, drain_s: float = 60.0) -> None:
        """Sends all; waits for their answers at most `drain_s` after the last was sent."""
        self._start = time.monotonic()
        running = []
        for arrival in arrivals:
            wait = self._start + arrival.at - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            running.append(asyncio.ensure_future(self._chat(arrival)))
        _, hanging = await asyncio.wait(running, timeout=drain_s)
        for task in hanging:
            task.cancel()
        self.faults.update({"unanswered": len(hanging)} if hanging else {})
        for connection in self._idle:
            connection.close()

    async def _chat(self, arrival: Arrival) -> None:
        try:
            while self._idle and not self._idle[-1].open:
                self._idle.pop()
            connection = self._idle.pop() if self._idle else await client.connect(self._port)
            request = client.request("POST", "/v1/chat/completions", self._port, self._texts.body(arrival))
            chat, sent = Chat(), time.monotonic()
            connection.send(request, chat)
            self._idle.append(await chat.done)
        except OSError as error:
            self.faults[str(error)] += 1
            return
        outcome = chat.outcome(arrival, self._start, sent)
        if isinstance(outcome, str):
            self.faults[outcome] += 1
        else:
            self.outcomes.append(outcome)


def _number(pattern: re.Pattern[bytes], data: bytes) -> int | None:
    found = pattern.findall(data)
    return int(found[-1]) if found else None
