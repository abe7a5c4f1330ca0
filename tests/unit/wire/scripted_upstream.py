"""A replica that does exactly what a test tells it, on a real socket, and a sink that writes down what it is told."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.wire.headers import Header
from gateway.wire.upstream import Call, Pool, Target, UpstreamError

REQUEST = [b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n", b"hello"]


class Peer:
    """The replica's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """The next request, whole; b"" when the client has hung up."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            return head + await self.reader.readexactly(int(length or 0))
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def send(self, *pieces: bytes) -> None:
        """Writes each piece on its own, giving the other side a chance to read in between."""
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(0)
        await self.writer.drain()

    async def hung_up(self) -> bool:
        """Waits until the client has closed."""
        try:
            return not await self.reader.read(1 << 20)
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Makes the other side see a reset."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


class Replica:
    """`peers`: every connection so far. `url`: where it listens."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def sockets_in(self, state: int) -> int:
        """How many of this process's client sockets to the replica are in a TCP state (1 established, 8 close-wait)."""
        rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
        return sum(int(row[2].partition(":")[2], 16) == self.port and int(row[3], 16) == state for row in rows)


@asynccontextmanager
async def replica(script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Replica]:
    """Runs `script` for each connection; the connection stays open after it until the test is over."""
    made = Replica()
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        made.peers.append(peer)
        try:
            await script(peer)
            await over.wait()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, host, 0, ssl=tls, backlog=1024)
    made.port = server.sockets[0].getsockname()[1]
    made.scheme = "https" if tls else "http"
    try:
        yield made
    finally:
        over.set()
        server.close()
        await asyncio.sleep(0.01)


class Sink:
    """Keeps what a call reports, in order. `act` may do something at each report."""

    def __init__(self, act: Callable[[str], None] | None = None) -> None:
        self.told: list[str] = []
        self.status = 0
        self.headers: list[Header] = []
        self.length: int | None = None
        self.body = b""
        self.error: UpstreamError | None = None
        self.over = asyncio.Event()
        self.act = act

    def _note(self, what: str) -> None:
        assert not self.over.is_set(), f"{what} after the end"
        if self.told[-1:] != ["payload"] or what != "payload":
            self.told.append(what)
        if what in ("finished", "failed"):
            self.over.set()
        if self.act is not None:
            self.act(what)

    def sent(self) -> None:
        self._note("sent")

    def response(self, status: int, headers: list[Header], length: int | None) -> None:
        self.status, self.headers, self.length = status, headers, length
        self._note("response")

    def payload(self, data: bytes) -> None:
        assert data
        self.body += data
        self._note("payload")

    def finished(self) -> None:
        self._note("finished")

    def failed(self, error: UpstreamError) -> None:
        self.error = error
        self._note("failed")

    async def wait(self) -> "Sink":
        async with asyncio.timeout(5):
            await self.over.wait()
        return self


def pool_for(replica: Replica | str, *, connect_s: float = 2.0, ca_file: str | None = None, **options: float) -> Pool:
    url = replica if isinstance(replica, str) else replica.url
    return Pool(Target.parse(url, ca_file), loop=asyncio.get_running_loop(), connect_s=connect_s, **options)  # type: ignore[arg-type]


async def ask(pool: Pool, parts: list[bytes] | None = None, *, method: bytes = b"POST", fresh: bool = False) -> Sink:
    """One request to its end."""
    sink = Sink()
    pool.send(parts or REQUEST, sink, method=method, fresh=fresh)
    return await sink.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that happens by itself within moments."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


__all__ = ["REQUEST", "Call", "Peer", "Replica", "Sink", "ask", "pool_for", "replica", "until"]
