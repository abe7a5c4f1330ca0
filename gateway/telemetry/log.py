"""One wide line per request, written without ever making the event loop wait.

Lines are collected and written every 100 ms. A pipe nobody reads, a full disk or a closed terminal costs log lines, never a request:
a descriptor that would block is left alone until it can take more, and beyond `_MOST_HELD` the newest lines are dropped and counted.
"""

from __future__ import annotations

import os
import select
import stat
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gateway.settings import LogSettings
    from gateway.telemetry.masking import Mask
    from gateway.telemetry.records import ExchangeRecord

    CallLater = Callable[[float, Callable[[], None]], object]

_FLUSH_S = 0.1
_MOST_HELD = 4 << 20
_CLOSE_S = 1.0
_LONGEST_NAME = 200
_STANDARD = {"stdout": 1, "stderr": 2, "off": 2}


class RequestLog:
    """Takes exchange records; one per process. Before `start` and after `close` lines are only held.

    `dropped` counts lines that could not be written.
    """

    def __init__(self, settings: LogSettings, mask: Mask) -> None:
        self.dropped = 0
        self._mask = mask
        self._held = bytearray()
        self._call_later: CallLater | None = None
        self._armed = False
        self._owned = False
        self._fd = -1
        self._line: Callable[[ExchangeRecord], bytes] | None = None
        self._open(settings)

    def reconfigure(self, settings: LogSettings) -> None:
        """Take new settings; a file is opened again, which makes this the thing to do after rotating it. Raises OSError for a bad file."""
        self.flush()
        old, owned = self._fd, self._owned
        self._open(settings)
        if owned:
            os.close(old)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write every 100 ms while there is something to write."""
        self._call_later = loop.call_later
        self._arm()

    def record(self, rec: ExchangeRecord) -> None:
        """Add one line."""
        held = self._held
        if self._line is None:
            return
        if len(held) > _MOST_HELD:
            self.dropped += 1
            return
        secrets = self._mask.secrets
        if not _plain(rec.model) or not _plain(rec.id) or rec.model in secrets or rec.id in secrets:
            rec = msgspec.structs.replace(rec, model=self._made_plain(rec.model), id=self._made_plain(rec.id))
        held += self._line(rec)
        if not self._armed:
            self._arm()

    def flush(self, wait_s: float = 0.0) -> None:
        """Write what can be written without waiting longer than `wait_s` for each piece."""
        held = self._held
        try:
            while held and (self._regular or self._poll.poll(wait_s * 1000)):
                del held[: os.write(self._fd, held if self._regular else self._piece())]
        except OSError:
            # No reader, no space, no terminal: there is nobody left to tell but the counter.
            self._drop()

    def close(self) -> None:
        """Write the rest, giving a slow reader a second, and close the file if it is ours."""
        self.flush(_CLOSE_S)
        self._drop()
        self._call_later = None
        self._line = None
        if self._owned:
            os.close(self._fd)
            self._owned = False

    def _open(self, settings: LogSettings) -> None:
        fd = _STANDARD.get(settings.requests)
        self._owned = fd is None
        if fd is None:
            fd = os.open(settings.requests, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._fd = fd
        self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._line = _line(settings)

    def _arm(self) -> None:
        self._armed = self._call_later is not None and bool(self._held)
        if self._call_later is not None and self._held:
            self._call_later(_FLUSH_S, self._due)

    def _due(self) -> None:
        self.flush()
        self._arm()

    def _piece(self) -> bytes:
        """Whole lines up to what a pipe that is ready at all takes at once, which also keeps other writers out of the middle of a line."""
        piece = bytes(self._held[: select.PIPE_BUF])
        end = piece.rfind(b"\n") + 1
        return piece[:end] if end else piece

    def _made_plain(self, name: str) -> str:
        return ascii(self._mask(name[: 2 * _LONGEST_NAME])[:_LONGEST_NAME])[1:-1]

    def _drop(self) -> None:
        self.dropped += self._held.count(b"\n")
        self._held.clear()


def _line(settings: LogSettings) -> Callable[[ExchangeRecord], bytes] | None:
    """How a record is written, or None: the log is off, or its level silences lines about single requests."""
    if settings.requests == "off" or settings.level not in ("debug", "info"):
        return None
    return JsonLines() if settings.format == "json" else ConsoleLines()


class JsonLines:
    """Records as JSON lines, in the shape of the other events: `time`, `level`, `event`, then every field of the record."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._second = -1
        self._prefix = b""

    def __call__(self, rec: ExchangeRecord) -> bytes:
        second = int(rec.at)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime('{"time":"%Y-%m-%dT%H:%M:%S', time.gmtime(second)).encode()
        return b'%b.%03dZ","level":"info","event":"request",%b\n' % (self._prefix, (rec.at - second) * 1000, self._encode(rec)[1:])


class ConsoleLines:
    """Records for people: when, status, endpoint, model, replica, the times that matter, tokens, and who ended it when not the replica."""

    def __init__(self) -> None:
        self._second = -1
        self._prefix = ""

    def __call__(self, rec: ExchangeRecord) -> bytes:
        second = int(rec.at)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime("%H:%M:%S", time.localtime(second))
        text = (
            f"{self._prefix}.{int((rec.at - second) * 1000):03d} {rec.status} {rec.endpoint} {rec.model or '-'} "
            f"{'>'.join(replica for replica, _ in rec.tries) or '-'} {rec.duration_s:.3f}s{_details(rec)} {rec.id}\n"
        )
        return text.encode()


def _details(rec: ExchangeRecord) -> str:
    text = ""
    if rec.ttft_s is not None:
        text += f" ttft={rec.ttft_s:.3f}s"
    if rec.tpot_s is not None:
        text += f" tpot={rec.tpot_s * 1000:.1f}ms"
    if rec.queue_s >= 0.001:
        text += f" queued={rec.queue_s:.3f}s"
    if rec.prompt_tokens is not None:
        text += (
            f" tokens={rec.prompt_tokens}({'?' if rec.cached_tokens is None else rec.cached_tokens} cached)+{rec.completion_tokens or 0}"
        )
    if rec.reason or rec.ended_by != "replica":
        text += f" {rec.reason or 'ended'} by {rec.ended_by} while {rec.phase}"
    return text


def _plain(name: str) -> bool:
    """Is a name sent by a client fit for a log? It must not forge a line, steer a terminal, or fill the disk."""
    return len(name) <= _LONGEST_NAME and name.isprintable()
