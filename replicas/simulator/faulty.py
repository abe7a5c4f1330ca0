"""Replies that go wrong in the way a fault says."""

from __future__ import annotations

import asyncio
import os

from replicas.simulator.errors import ApiError
from replicas.simulator.faults import Fault
from replicas.simulator.wire import JSON, Connection, Reply, Request, head

LANDING_S = 0.02  # what was written before a break gets this long to arrive
STATUSES = {"500": (500, "InternalServerError"), "503": (503, "Service Unavailable"), "429": (429, "Too Many Requests")}


def at_once(fault: Fault, request: Request, connection: Connection) -> bool:
    """Act out a fault that strikes before the request is looked at; False: it strikes later, or not at this stage."""
    if fault.kind in STATUSES:
        status, kind = STATUSES[fault.kind]
        refuse(Reply(connection), request, ApiError(status, "Simulated fault.", kind), fault.retry_after)
    elif fault.kind == "hang":
        Reply(connection)
    elif fault.kind == "junk":
        connection.transport.write(b"\x00\x01 this is not HTTP \xff\r\n\r\n")
        connection.transport.close()
    elif fault.kind in BREAKS and fault.kind != "malformed" and not fault.after:
        Reply(connection)
        BREAKS[fault.kind](connection)
    else:
        return False
    return True


def refuse(reply: Reply, request: Request, error: ApiError, retry_after: float | None = None) -> None:
    """Answer with an error in the shape of the endpoint."""
    if retry_after is not None:
        reply.headers.append(("retry-after", f"{retry_after:g}"))
    reply.send(error.status, error.body(request.path))


class FaultyReply(Reply):
    """A reply that passes on `fault.after` events and then fails."""

    __slots__ = ("_fault", "_path", "_struck")

    def __init__(self, connection: Connection, fault: Fault, path: str) -> None:
        super().__init__(connection)
        self._fault = fault
        self._path = path
        self._struck = False

    def send(self, status: int, body: bytes, content_type: str = JSON, *, close: bool = False) -> None:
        """Of a whole answer half is sent; faults of event streams leave it alone."""
        if self._fault.kind in ("error_event", "drop_done") or not self.open:
            super().send(status, body, content_type, close=close)
            return
        extra = [("content-length", str(len(body))), ("content-type", content_type)]
        self._write(head(status, [*extra, *self.headers]) + body[: len(body) // 2])
        self._strike()

    def event(self, data: bytes) -> None:
        if self._struck:
            return
        if self._fault.kind == "error_event":
            self._fail_first()
        elif self._fault.kind != "drop_done" and self.events >= self._fault.after:
            self._strike()
        else:
            super().event(data)

    def end(self, data: bytes = b"") -> None:
        if self._struck:
            return
        if self._fault.kind == "drop_done":
            super().end(data.removesuffix(b"data: [DONE]\n\n"))
        elif data and self.events >= self._fault.after:
            self._strike()
        else:
            super().end(data)

    def _fail_first(self) -> None:
        self._struck = True
        error = ApiError(500, "Simulated fault.", "InternalServerError").event(self._path)
        stop, self.gone = self.gone, None
        super().event(error)
        super().end(b"" if error.startswith(b"event:") else b"data: [DONE]\n\n")
        if stop is not None:
            stop()

    def _strike(self) -> None:
        self._struck = True
        if self._fault.kind == "malformed":
            self._write(self.head)
        BREAKS[self._fault.kind](self.connection)


def _reset(connection: Connection) -> None:
    asyncio.get_running_loop().call_later(LANDING_S, connection.reset)


def _close(connection: Connection) -> None:
    connection.transport.close()


def _malform(connection: Connection) -> None:
    connection.transport.write(b"ZZ\r\nnot a chunk")
    connection.transport.close()


def _crash(_: Connection) -> None:
    asyncio.get_running_loop().call_later(LANDING_S, os._exit, 1)


def _stall(_: Connection) -> None:
    pass


# What becomes of the connection once a fault strikes.
BREAKS = {"reset": _reset, "fin": _close, "malformed": _malform, "crash": _crash, "stall": _stall}
