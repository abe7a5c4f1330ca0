"""The floor: a plain byte pipe on uvloop. It reads no HTTP; one upstream connection per client connection, replicas in turn."""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One side of a pipe. Bytes that arrive before the other side exists are kept."""

    def __init__(self) -> None:
        self._other: End | None = None
        self._early: list[bytes] = []
        self.transport: asyncio.Transport | None = None

    def join(self, other: End) -> None:
        """Connects both sides."""
        self._other = other
        other._other = self
        if self._early and other.transport is not None:
            other.transport.write(b"".join(self._early))
        if self.transport is None or self.transport.is_closing():
            other.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
        elif self._other.transport is not None:
            self._other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None:
            self._other.close()

    def pause_writing(self) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other.transport.resume_reading()

    def close(self) -> None:
        """Closes this side after what was written has gone out."""
        if self.transport is not None:
            self.transport.close()


class Front(End):
    """The client's side: dials the next replica as soon as it exists."""

    def __init__(self, ports: Iterator[int], dials: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._port = next(ports)
        self._dials = dials

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        dial = asyncio.ensure_future(self._dial())
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    async def _dial(self) -> None:
        try:
            _, back = await asyncio.get_running_loop().create_connection(End, "127.0.0.1", self._port)
        except OSError:
            self.close()
            return
        self.join(back)


async def serve(port: int, replicas: list[int]) -> None:
    """Listens on `port` for ever."""
    ports, dials = itertools.cycle(replicas), set[asyncio.Task[None]]()
    await asyncio.get_running_loop().create_server(lambda: Front(ports, dials), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Plain byte pipe")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("replicas", type=int, nargs="+", help="ports on this machine")
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.replicas))


if __name__ == "__main__":
    main()
