"""Parts for tests of the running gateway: scripted replicas on real sockets, a raw client, and a gateway in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway
from gateway.openai.errors import ERRORS
from gateway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
DONE = b"data: [DONE]\n\n"
VLLM_METRICS = "".join(
    f'vllm:{name}{{engine="0",model_name="m"}} 0.0\n'
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
    )
)


def chunk_json(content: str, **more: Any) -> str:
    """One chat.completion.chunk."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return json.dumps({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}, ensure_ascii=False)


def ev(content: str, **more: Any) -> bytes:
    """One event of a chat stream."""
    return f"data: {chunk_json(content, **more)}\n\n".encode()


def http(status: int, body: bytes = b"", headers: str = "content-type: application/json\r\n") -> bytes:
    """A response with content-length."""
    return f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def completion(content: str = "ok", **more: Any) -> bytes:
    """A non-streamed chat completion."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}
    message = {"role": "assistant", "content": content}
    body = {"id": "c", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return http(200, json.dumps({**body, "usage": usage, **more}).encode())


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    """One chunk of chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Received:
    """A request as a replica got it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    def header(self, name: str) -> str | None:
        """The value of a header, None when absent; fails on repeats."""
        values = [v for n, v in self.headers if n.lower() == name]
        assert len(values) <= 1, values
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


class Conn:
    """What a script does with one request."""

    def __init__(self, replica: Scripted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Received) -> None:
        self.replica = replica
        self.request = request
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError("the gateway hung up")
        self._writer.write(data)
        await self._writer.drain()

    async def stream(self, *events: bytes, every: float = 0.0, end: bytes = LAST_CHUNK) -> None:
        """A chunked event stream."""
        await self.send(SSE_HEAD)
        for event in events:
            await self.send(framed(event))
            if every:
                await asyncio.sleep(every)
        if end:
            await self.send(end)

    async def fin(self) -> None:
        self._writer.close()

    async def rst(self) -> None:
        if self._writer.is_closing():
            return
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def hold(self, seconds: float = 60) -> bool:
        """Send nothing until the peer hangs up (True) or the time is over (False)."""
        try:
            async with asyncio.timeout(seconds):
                return await self._reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True


Script = "Callable[[Conn], Awaitable[None]]"


async def answers_ok(conn: Conn) -> None:
    """The default script."""
    await conn.send(completion())


@dataclass
class Scripted:
    """A fake replica: answers probes, runs its script for everything else, and logs what it got and when peers hung up."""

    script: Callable[[Conn], Awaitable[None]] = answers_ok
    models: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 32768}]
    )
    metrics: str | None = VLLM_METRICS
    health: int = 200
    host: str = "127.0.0.1"
    health_delay: float = 0.0
    tls: ssl.SSLContext | None = None
    requests: list[Received] = field(default_factory=list)
    hangups: list[float] = field(default_factory=list)
    open: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> Scripted:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            while (request := await read_request(reader)) is not None:
                probe = self._probe(request)
                if probe is not None:
                    if request.path == "/health":
                        await asyncio.sleep(self.health_delay)
                    writer.write(probe)
                    continue
                self.requests.append(request)
                await self.script(Conn(self, reader, writer, request))
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.hangups.append(time.monotonic())
            self._tasks.discard(task)
            writer.close()

    def _probe(self, request: Received) -> bytes | None:
        if not request.line.startswith("GET "):
            return None
        path = request.path
        if path == "/health":
            return http(self.health)
        if path == "/v1/models":
            return http(200, json.dumps({"object": "list", "data": self.models}).encode())
        if path == "/version":
            return http(200, b'{"version":"0.32.0"}')
        if path == "/metrics":
            return http(404) if self.metrics is None else http(200, self.metrics.encode(), "content-type: text/plain\r\n")
        if path.startswith("/v1/responses/"):
            return None
        return http(404, b'{"detail":"Not Found"}')


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    """One request framed by content-length; None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise AssertionError(error.partial) from None
        return None
    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = [(n, v.strip()) for n, _, v in (h.partition(":") for h in lines)]
    length = next((int(v) for n, v in headers if n.lower() == "content-length"), 0)
    return Received(line, headers, await reader.readexactly(length))


@dataclass
class Reply:
    """A response as the client got it. `complete`: it ended as its framing says."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    arrivals: list[tuple[float, bytes]]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error_code(self) -> Any:
        return self.json()["error"]["code"]


class Client:
    """One raw client connection."""

    def __init__(self, port: int, host: str = "127.0.0.1", **options: Any) -> None:
        self._port = port
        self._host = host
        self._options = options
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, limit=1 << 24, **self._options)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: Any, headers: str = "") -> None:
        """Send a POST; the body is JSON unless bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "" if "content-type" in headers.lower() else "content-type: application/json\r\n"
        await self.send(f"POST {path} HTTP/1.1\r\nhost: gw\r\n{kind}{headers}content-length: {len(data)}\r\n\r\n".encode("latin-1") + data)

    async def get(self, path: str, headers: str = "", method: str = "GET") -> None:
        await self.send(f"{method} {path} HTTP/1.1\r\nhost: gw\r\n{headers}\r\n".encode("latin-1"))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response (names lower case; repeats joined)."""
        raw = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = raw[:-4].decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = f"{headers[name.lower()]}, {value.strip()}" if name.lower() in headers else value.strip()
        return int(status.split(" ")[1]), headers

    async def reply(self, within: float = 60) -> Reply:
        """The whole next response."""
        async with asyncio.timeout(within):
            return await self._reply()

    async def _reply(self) -> Reply:
        status, headers = await self.head()
        arrivals: list[tuple[float, bytes]] = []
        complete = True
        try:
            async for data in self._body(status, headers):
                arrivals.append((time.monotonic(), data))  # noqa: PERF401  # what came before a failure counts
        except (asyncio.IncompleteReadError, ConnectionError):
            complete = False
        return Reply(status, headers, b"".join(d for _, d in arrivals), complete, arrivals)

    async def _body(self, status: int, headers: dict[str, str]) -> AsyncIterator[bytes]:
        if status in (204, 304):
            return
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
                data = await self.reader.readexactly(size + 2)
                assert data[-2:] == b"\r\n"
                yield data[:-2]
            assert await self.reader.readexactly(2) == b"\r\n"
        elif "content-length" in headers:
            left = int(headers["content-length"])
            while left:
                data = await self.reader.read(min(left, 1 << 20))
                if not data:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(data)
                yield data
        else:
            while data := await self.reader.read(65536):
                yield data


class Ports(Protocol):
    """A gateway in this process or another one: its public and its admin port."""

    ports: tuple[int, int]


async def ask(gateway: Ports, body: Any = CHAT, path: str = "/v1/chat/completions", headers: str = "") -> Reply:
    """One request on a connection of its own."""
    async with Client(gateway.ports[0]) as client:
        await client.post(path, body, headers)
        return await client.reply()


async def admin(gateway: Ports, path: str, method: str = "GET", body: Any = None, headers: str = "") -> Reply:
    """One request to the admin port; a body is sent as JSON."""
    data = b"" if body is None else json.dumps(body).encode()
    kind = "" if method == "GET" or "content-type" in headers else "content-type: application/json\r\n"
    async with Client(gateway.ports[1]) as client:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}{headers}content-length: {len(data)}\r\nconnection: close\r\n\r\n"
        await client.send(head.encode("latin-1") + data)
        return await client.reply()


def samples(gateway: Gateway, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """What /metrics says under a sample name: labels -> value."""
    text = gateway.collector.render()[0].decode()
    found = (s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name)
    return {frozenset(s.labels.items()): s.value for s in found}


def total(gateway: Gateway, name: str, **labels: str) -> float:
    """The sum of the samples with these labels, whatever their others are."""
    return sum(value for found, value in samples(gateway, name).items() if labels.items() <= found)


def settings_for(*replicas: Scripted, **sections: Any) -> Settings:
    """Settings with free ports and the replicas as r1, r2, … of model `m`."""
    server = {"host": "127.0.0.1", "port": 0, "admin": {"port": 0}, **sections.pop("server", {})}
    urls = [{"url": r.url, **sections.pop(f"r{i}", {})} for i, r in enumerate(replicas, 1)]
    models = sections.pop("models", [{"name": "m", "replicas": urls}])
    return Settings.model_validate({"log": {"requests": "off"}, "server": server, "models": models, **sections})


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway in this process; at the end nothing may be left over."""
    gateway = Gateway(settings)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def eventually(condition: Callable[[], Any], within: float = 3.0) -> None:
    """Wait until a condition holds; fails when it does not in time."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        await asyncio.sleep(0.02)


class Stand(NamedTuple):
    """A gateway and its one replica."""

    gateway: Gateway
    replica: Scripted


def refused(reply: Reply, status: int, code: str, *, shape: str = "openai") -> dict[str, Any]:
    """Assert that a reply is one of the gateway's errors, whole and in the right dialect; returns its error object."""
    assert (reply.status, reply.headers.get("x-kvgate-error")) == (status, code), reply
    assert reply.complete
    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert reply.headers.get("x-request-id"), reply.headers
    assert reply.headers.get("x-should-retry") == {True: "true", False: "false", None: None}[ERRORS[code][2]]
    assert ("retry-after" in reply.headers) == (reply.headers.get("x-should-retry") == "true")
    assert int(reply.headers.get("retry-after", 1)) >= 1
    body = reply.json()
    error: dict[str, Any] = body["error"]
    if shape == "anthropic":
        assert body["type"] == "error"
        assert set(error) == {"type", "message"}
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
    assert error["message"]
    assert "Traceback" not in error["message"] and "127.0.0.1" not in error["message"]
    return error
