"""Server-sent events, watched as they pass. Pure.

Bytes go through as they came. The one exception, on request: the event that tells usage and nothing else (`"choices":[]`), which the
gateway asked for and the client did not, is taken out; for that, up to 4 KB of an event that is not complete yet are held back.

Ordinary reads hold whole, ordinary events: those are recognised with a few searches. Everything else (events cut by reads, CR line ends,
comments, usage, errors, ends) is taken apart properly. Both ways give the same counts and bytes, wherever the stream is cut.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal

from gateway.wire.event_fields import read_event
from gateway.wire.usage import Usage, parse_usage

__all__ = ["SseScanner", "Usage", "parse_usage"]

HOLD_BYTES: Final = 4_096
# An event beyond this passes like any other, but is not looked into.
EVENT_BYTES: Final = 16 << 20

Shape = Literal["openai", "anthropic", "responses"]

_EVENT_END: Final = re.compile(rb"(?>\r\n|\n|\r){2}")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_USAGE: Final = re.compile(rb'"usage"[ \t\r\n]*:[ \t\r\n]*\{')
_NO_CHOICES: Final = re.compile(rb'"choices"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*\]')
_EMPTY_LIST: Final = re.compile(rb"\[[ \t\r\n]*\]")
# Whole events with a name and one line of data each, none of them an end or an error.
_NAMED_EVENTS: Final = re.compile(
    rb"(?:event: (?!(?:error|message_stop|response\.(?:completed|incomplete|failed))\n)[^\r\n]+\ndata: (?!\s*\[DONE\]\s*\n)[^\r\n]*\n\n)+"
)
# Names of events that end a stream, well or badly. Chat and completions have none: a bare [DONE] ends them.
_ENDS: Final = frozenset((b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"))
_FAILURES: Final = frozenset((b"error", b"response.failed"))


class SseScanner:
    """Feed it the body of one event stream, pass on what it returns, and `flush` at the end.

    `events`: data events so far, comments not counted. `data_seen`: whether the last feed held a data event or a piece of one. `done`: the
    stream said that it is complete. `error`, `first_is_error`: some event, or the very first, was an error. `usage`: JSON of the last event
    with a usage object; `tokens` reads it.
    """

    __slots__ = (
        "_clean",
        "_emitted",
        "_first_usage",
        "_late_lf",
        "_named",
        "_pending",
        "_strip",
        "_taken",
        "data_seen",
        "done",
        "error",
        "events",
        "first_is_error",
        "usage",
    )

    def __init__(self, strip_usage: bool = False, shape: Shape = "openai") -> None:
        self.events = 0
        self.data_seen = False
        self.done = False
        self.error = False
        self.first_is_error = False
        self.usage: bytes | None = None
        self._first_usage: bytes | None = None
        self._strip = strip_usage
        self._named = shape != "openai"
        # The event that is not complete yet, and how much of it was passed on already (only when stripping).
        self._pending = bytearray()
        self._emitted = 0
        # After an event that ended in CR at the end of a read, an LF still belongs to it. This is what to pass on for that LF.
        self._late_lf: bytes | None = None
        self._taken = False
        self._clean = True

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on now: `data` itself, unless something is taken out or held back."""
        if (
            self._clean
            and data.endswith(b"\n\n")
            and b'"error"' not in data
            and (b'"usage"' not in data or _only_null_usage(data))
            and (count := _count_named(data) if self._named else _count_plain(data))
        ):
            self.events += count
            self.data_seen = True
            return data
        return self._scan(data)

    def flush(self) -> bytes:
        """The end of the stream: whatever is held back. An unfinished line is passed on unread."""
        rest = bytes(self._pending)
        self._pending.clear()
        out = self._close(rest) if rest.endswith((b"\n", b"\r")) else rest[self._emitted :]
        self._emitted = 0
        self._clean = True
        return out if self._strip else b""

    @property
    def at_boundary(self) -> bool:
        """Whether what was passed on so far ends between two events: one of ours can follow, in place of what is held back."""
        if self._strip:
            return not self._emitted
        return not self._pending.strip(b"\r\n")

    @property
    def tokens(self) -> Usage | None:
        """Token counts that the stream told so far."""
        return parse_usage(self._first_usage, self.usage)

    def _scan(self, data: bytes) -> bytes:
        """The thorough way: splits off complete events, keeps the rest."""
        before = self.events
        kept = self._split(data)
        pending = self._pending
        if self._strip and (self._emitted or len(pending) > HOLD_BYTES):
            kept.append(bytes(pending[self._emitted :]))
            self._emitted = len(pending)
        if len(pending) > EVENT_BYTES:
            del pending[HOLD_BYTES:-HOLD_BYTES]
            self._emitted = min(self._emitted, len(pending))
        self._clean = not pending and self._late_lf is None
        self.data_seen = self.events != before or (not pending.startswith(b":") and bool(pending.strip(b"\r\n")))
        return b"".join(kept) if self._strip else data

    def _split(self, data: bytes) -> list[bytes]:
        """Closes every event that `data` completes; the rest waits in `_pending`. Returns what to pass on of the complete ones."""
        if self._clean and 0 < data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
            # One whole event, as engines send them: nothing to cut or to copy.
            return [self._close(data)]
        kept = []
        if self._late_lf is not None:
            if data.startswith(b"\n"):
                kept.append(self._late_lf)
                data = data[1:]
            if data or kept:
                self._late_lf = None
        pending = self._pending
        searched = max(0, len(pending) - 3)
        pending += data
        begin = 0
        for end in _event_ends(pending, searched):
            kept.append(self._close(bytes(pending[begin:end])))
            begin = end
        if begin and begin == len(pending) and pending.endswith(b"\r"):
            self._late_lf = b"" if self._taken else b"\n"
        del pending[:begin]
        return kept

    def _close(self, block: bytes) -> bytes:
        """Notes a complete event; returns what of it is still to be passed on."""
        emitted, self._emitted = self._emitted, 0
        self._taken = self._note(block) and self._strip and not emitted
        if self._taken:
            return block[: len(block) - len(block.lstrip(b"\r\n"))]
        return block[emitted:]

    def _note(self, block: bytes) -> bool:
        """Counts and reads one event; True if it tells usage and nothing else."""
        name, data = _fields(block)
        if data is None:
            return False
        self.events += 1
        if data.strip() == b"[DONE]":
            self.done = True
            return False
        has_usage = _USAGE.search(data) is not None
        if has_usage:
            self.usage = data
            self._first_usage = self._first_usage or data
        usage_only = has_usage and _NO_CHOICES.search(data) is not None
        if not (usage_only or self._named or b'"error"' in data):
            return False
        event = read_event(data)
        kind = (name if self._named else b"") or bytes(event.type).strip(b'"')
        self.done = self.done or (self._named and kind in _ENDS)
        if kind in _FAILURES or bytes(event.error) not in (b"", b"null") or bytes(event.object) == b'"error"':
            self.error = True
            self.first_is_error = self.first_is_error or self.events == 1
        return not self._named and usage_only and bytes(event.usage)[:1] == b"{" and _EMPTY_LIST.fullmatch(bytes(event.choices)) is not None


def _event_ends(data: bytearray, start: int) -> Iterator[int]:
    """Where events end, from `start` on."""
    if data.find(b"\r", start) >= 0:
        for match in _EVENT_END.finditer(data, start):
            yield match.end()
        return
    # Engines write plain line feeds, and a search for them is a hundred times faster than the pattern: events may be megabytes long.
    while (end := data.find(b"\n\n", start) + 2) > 1:
        yield end
        start = end


def _only_null_usage(data: bytes) -> bool:
    return data.count(b'"usage"') == data.count(b'"usage":null') + data.count(b'"usage": null')


def _count_plain(data: bytes) -> int:
    """How many events `data` holds if each starts with `data:` and ends in LF LF, and none is an end mark; else 0."""
    if b"\r" in data or b"[DONE]" in data or not data.startswith(b"data:"):
        return 0
    ends = data.count(b"\n\n")
    return ends if ends == 1 or data.count(b"\n\ndata:") == ends - 1 else 0


def _count_named(data: bytes) -> int:
    """The same for events that each have an `event:` line and one `data:` line."""
    return data.count(b"\n\n") if _NAMED_EVENTS.fullmatch(data) else 0


def _fields(block: bytes) -> tuple[bytes, bytes | None]:
    """Event name and data of an event by the rules of the HTML standard, section 9.2.6; data is None if it has none."""
    if block.startswith(b"data: ") and block.find(b"\n") == len(block) - 2 and b"\r" not in block:
        return b"", block[6:-2]
    name = b""
    values: list[bytes] = []
    for line in _LINE_END.split(block):
        field, _, value = line.partition(b":")
        if field == b"data":
            values.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, b"\n".join(values) if values else None
