"""Reading the raw replicas' event streams: is every event there, once, in order, and how late did it come? Pure."""

from __future__ import annotations

import re
from array import array
from collections import Counter

_MARKS = re.compile(rb"#(\d{7}) (\d{19}) (\d{19})|end (\d{8}) (\d{7})|data: (\[DONE\])")


class Tally:
    """What many streams add up to. Times are ns of CLOCK_MONOTONIC; delays are kept only while `recording`."""

    def __init__(self) -> None:
        self.recording = False
        self.events = 0
        self.delays = array("q")
        """Read by the driver, after the moment the replica's schedule had the event due."""
        self.lags = array("q")
        """Written by the replica, after the moment it was due: the replica's own share of the delay."""
        self.paths = array("q")
        """Time to first event, less the time the replica itself took over it."""
        self.faults: Counter[str] = Counter()


class Watcher:
    """Checks one stream. `started_ns` is when its request was written."""

    __slots__ = ("_done", "_next", "_nonce", "_rest", "_started_ns", "_tally", "_total")

    def __init__(self, tally: Tally, nonce: bytes, started_ns: int) -> None:
        self._tally, self._nonce, self._started_ns = tally, nonce, started_ns
        self._rest = b""
        self._next = 0
        self._total: int | None = None
        self._done = False

    @property
    def begun(self) -> bool:
        """Whether the first event has come."""
        return self._next > 0

    def feed(self, data: bytes, now_ns: int) -> None:
        """Takes bytes as they arrive; an event counts when its blank line is here."""
        if self._rest:
            data = self._rest + data
        cut = data.rfind(b"\n\n") + 2
        if cut < 2:
            self._rest = data
            return
        self._rest = data[cut:]
        for number, due, sent, nonce, total, done in _MARKS.findall(data, 0, cut):
            if number:
                self._event(int(number), int(due), int(sent), now_ns)
            elif nonce:
                self._total = int(total) if nonce == self._nonce else -1
            elif done:
                self._done = True

    def verdict(self) -> str | None:
        """What is wrong with the stream now that it has ended; None if it is whole."""
        if self._total is None:
            return "ended without its last event"
        if self._total < 0:
            return "answer to another request"
        if self._total != self._next:
            return "events missing"
        return None if self._done and not self._rest else "ended without [DONE]"

    def _event(self, number: int, due: int, sent: int, now_ns: int) -> None:
        tally = self._tally
        tally.events += 1
        if number != self._next:
            tally.faults["event lost, repeated or out of order"] += 1
        self._next = number + 1
        if not tally.recording:
            return
        if number:
            tally.delays.append(now_ns - due)
            tally.lags.append(sent - due)
        else:
            tally.paths.append(now_ns - self._started_ns - (sent - due))
