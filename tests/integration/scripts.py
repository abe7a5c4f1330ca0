"""Ready-made scripts for replicas, and what a gateway still holds when its requests are over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Literal

from tests.integration.toolkit import LAST_CHUNK, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from gateway.app import Gateway
    from gateway.telemetry import ExchangeRecord
    from tests.integration.toolkit import Client, Conn

    Script = Callable[[Conn], Awaitable[None]]

End = Literal["keep", "fin", "rst", "hold"]

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 8}}


async def ends(conn: Conn, how: End) -> None:
    """What becomes of the connection after the last byte."""
    if how == "fin":
        await conn.fin()
    elif how == "rst":
        await asyncio.sleep(0.03)  # let the bytes before it arrive: a reset may overtake them
        await conn.rst()
    elif how == "hold":
        await conn.hold()


def sends(*pieces: bytes, then: End = "keep", every: float = 0.0) -> Script:
    """Answer with these bytes, `every` seconds apart."""

    async def script(conn: Conn) -> None:
        for piece in pieces:
            await conn.send(piece)
            if every:
                await asyncio.sleep(every)
        await ends(conn, then)

    return script


def streams(*events: bytes, every: float = 0.0, end: bytes = LAST_CHUNK, then: End = "keep") -> Script:
    """Answer with a chunked event stream."""

    async def script(conn: Conn) -> None:
        await conn.stream(*events, every=every, end=end)
        await ends(conn, then)

    return script


def in_turn(*scripts: Script) -> Script:
    """The first request meets the first script, the next one the next; the last one stays."""
    left = list(scripts)

    async def script(conn: Conn) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(conn)

    return script


@contextlib.contextmanager
def deaf(port: int) -> Iterator[None]:
    """A port on which connecting takes for ever: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(2):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield


def records(gateway: Gateway) -> list[ExchangeRecord]:
    """The record of every exchange that ends from here on."""
    kept: list[ExchangeRecord] = []
    aftermath = gateway.service.aftermath
    aftermath._hooks = (*aftermath._hooks, kept.append)
    return kept


def held(gateway: Gateway) -> dict[str, Any]:
    """Everything a request can hold on to, what is nothing left out: empty when no request runs."""
    service, table = gateway.service, gateway.table
    pools = service._pools.values()
    replicas = [r for model in table.models() for r in table.replicas(model)]
    everything = {
        "running": len(service.running),
        "waiting": service.waiting.waiting,
        "body bytes": gateway.shared.budget.used,
        "busy upstream connections": sum(p.open - p.idle for p in pools),
        "dials": sum(len(p._dials) for p in pools),
        "tasks": len(service._tasks),
        "pending prefills": sum(map(len, gateway.router._pending.values())),
        "replica inflight": sum(r.inflight for r in replicas),
        **{name: sum(getattr(s, name) for s in table.servers()) for name in ("inflight", "prefilling", "backlog")},
        "breaker probes": sum(s.breaker.probe is not None for s in table.servers()),
        "negative counters": [s for s in table.servers() if min(s.inflight, s.prefilling, s.backlog) < 0],
    }
    return {name: value for name, value in everything.items() if value}


async def at_rest(gateway: Gateway, within: float = 1.0) -> None:
    """Wait until nothing is held any more."""
    try:
        await eventually(lambda: not held(gateway), within)
    except AssertionError:
        raise AssertionError(f"still held after {within} s: {held(gateway)}") from None


async def until(client: Client, mark: bytes) -> bytes:
    """Read the raw answer up to and including a mark."""
    async with asyncio.timeout(3):
        return await client.reader.readuntil(mark)


async def rest(client: Client) -> tuple[bytes, bool]:
    """Everything up to the end of the connection, and whether that was an orderly close (False: a reset)."""
    data = b""
    async with asyncio.timeout(5):
        try:
            while piece := await client.reader.read(65536):
                data += piece
        except ConnectionError:
            return data, False
    return data, True
