"""Replicas that cost next to nothing: just enough of vLLM's HTTP API for a proxy to believe in them.

`python -m loadtest.overhead.replica --count 4` listens on as many free ports and prints them as one JSON line.

Every answer can be checked for completeness by the driver:
- a plain completion repeats the `nonce-NNNNNNNN` of its request;
- each event of a stream holds its number, the time it was due and the time it was written (CLOCK_MONOTONIC, ns, which all
  processes of a machine share); event 0 holds the time its request had arrived instead of the time due;
- the last event holds the nonce and the number of events before it.

`GET /control?think_ms=5&interval_ms=100` sets the pace of streams to come, `GET /control/finish` ends the open ones properly,
`GET /control/counts` tells what was served. Only the driver calls these, directly.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import time
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import httptools
import uvloop

MODEL = "raw"
NONCE = b"nonce-"
NONCE_DIGITS = 8

_STREAM = re.compile(rb'"stream"\s*:\s*true')
_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')
_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="raw"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="raw"}} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="raw"}} 0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="raw"}} 0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="raw"}} 0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="32768"}} 1
"""
_LISTING = {
    "object": "list",
    "data": [
        {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "vllm", "root": MODEL, "parent": None, "max_model_len": 131072}
    ],
}
_USAGE_JSON = b'{"prompt_tokens":512,"total_tokens":528,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":0}}'
_COMPLETION = (
    b'{"id":"chatcmpl-%b","object":"chat.completion","created":1700000000,"model":"raw","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"nonce-%b and that is all there is to say about it.","refusal":null,"tool_calls":[]},'
    b'"logprobs":null,"finish_reason":"stop"}],"usage":' + _USAGE_JSON + b"}"
)
_CHUNK = (
    b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1700000000,"model":"raw","choices":'
    b'[{"index":0,"delta":{%b"content":"%b"},"logprobs":null,"finish_reason":%b}]}\n\n'
)
_USAGE_CHUNK = (
    b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1700000000,"model":"raw","choices":[],'
    b'"usage":' + _USAGE_JSON + b"}\n\n"
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Replica:
    """One listening port: the pace of its streams and what it has served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.think_s = 0.005
        self.interval_s = 0.1
        self.streams: set[Stream] = set()
        self.completions = self.streams_begun = self.streams_ended = self.events = 0

    def control(self, path: str, query: str) -> bytes:
        """Carries out a driver's wish; answers with the counts."""
        wishes = dict(parse_qsl(query))
        self.think_s = float(wishes.get("think_ms", self.think_s * 1000)) / 1000
        self.interval_s = float(wishes.get("interval_ms", self.interval_s * 1000)) / 1000
        if path.endswith("/finish"):
            for stream in tuple(self.streams):
                stream.finish()
        counts = {"completions": self.completions, "begun": self.streams_begun, "ended": self.streams_ended, "events": self.events}
        return json.dumps(counts).encode()

    def page(self, path: str, query: str) -> tuple[int, str, bytes]:
        """Status, content type and body of everything that is not a completion."""
        if path.startswith("/control"):
            return 200, "application/json", self.control(path, query)
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4", _METRICS.format(running=len(self.streams)).encode()
        if path == "/v1/models":
            return 200, "application/json", json.dumps(_LISTING).encode()
        if path == "/version":
            return 200, "application/json", b'{"version":"0.12.0"}'
        if path in {"/health", "/ping"}:
            return 200, "text/plain", b""
        return 404, "application/json", b'{"detail":"Not Found"}'


class Connection(asyncio.Protocol):
    """One connection of a proxy."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._stream: Stream | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        if self._url == b"/v1/chat/completions":
            self._complete(body)
            return
        parts = urlsplit(self._url.decode())
        self._answer(*self._replica.page(parts.path, parts.query))

    def _complete(self, body: bytes) -> None:
        start = body.rfind(NONCE) + len(NONCE)
        nonce = body[start : start + NONCE_DIGITS]
        if _STREAM.search(body):
            limit = _MAX_TOKENS.search(body)
            self._stream = Stream(self._replica, self.transport, nonce, int(limit[1]) if limit else 16, bool(_USAGE.search(body)))
            return
        self._replica.completions += 1
        self._answer(200, "application/json", _COMPLETION % (nonce, nonce))

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        reason = "OK" if status == 200 else "Not Found"
        head = f"HTTP/1.1 {status} {reason}\r\nserver: uvicorn\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


class Stream:
    """One open event stream: head at once, the first event after the replica's thinking time, then one every interval."""

    def __init__(self, replica: Replica, transport: asyncio.Transport, nonce: bytes, limit: int, usage: bool) -> None:
        self._replica, self._transport = replica, transport
        self._nonce, self._limit, self._usage = nonce, limit, usage
        self._interval_s = replica.interval_s
        self._arrived_ns = time.monotonic_ns()
        self._sent = 0
        before, after = (_CHUNK % (nonce, b"", b"\0", b"null")).split(b"\0")
        stamp = b"#%07d %019d %019d"
        size = len(before) + len(after) + len(stamp % (0, 0, 0))
        # Built once per stream: a percent sign can only come from the nonce, which is digits.
        self._event = b"%x\r\n" % size + before + stamp + after + b"\r\n"
        replica.streams.add(self)
        replica.streams_begun += 1
        transport.write(_STREAM_HEAD)
        self._due = replica.loop.time() + replica.think_s
        self._timer = replica.loop.call_at(self._due, self._first)

    def finish(self) -> None:
        """Ends the stream as an engine would: stop reason, usage if asked for, `[DONE]`, last chunk."""
        self.cancel()
        last = _CHUNK % (self._nonce, b"", b"end %b %07d" % (self._nonce, self._sent), b'"stop"')
        usage = _USAGE_CHUNK % self._nonce if self._usage else b""
        self._transport.write(_framed(last) + (_framed(usage) if usage else b"") + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self._replica.streams_ended += 1

    def cancel(self) -> None:
        """Stops sending. Idempotent."""
        self._timer.cancel()
        self._replica.streams.discard(self)

    def _first(self) -> None:
        stamp = b"#%07d %019d %019d" % (0, self._arrived_ns, time.monotonic_ns())
        self._write(_framed(_CHUNK % (self._nonce, b'"role":"assistant",', stamp, b"null")))

    def _next(self) -> None:
        self._write(self._event % (self._sent, int(self._due * 1e9), time.monotonic_ns()))

    def _write(self, event: bytes) -> None:
        self._transport.write(event)
        self._sent += 1
        self._replica.events += 1
        if self._sent >= self._limit:
            self.finish()
            return
        self._due += self._interval_s
        self._timer = self._replica.loop.call_at(self._due, self._next)


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


async def serve(count: int) -> None:
    """Listens on `count` free ports, prints them, serves for ever."""
    loop = asyncio.get_running_loop()
    servers: list[Any] = []
    for _ in range(count):
        replica = Replica(loop)
        servers.append(await loop.create_server(lambda replica=replica: Connection(replica), "127.0.0.1", 0, backlog=4096))  # type: ignore[misc]
    gc.freeze()
    gc.disable()
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trivial vLLM-shaped replicas")
    parser.add_argument("--count", type=int, default=4)
    uvloop.run(serve(parser.parse_args().count))


if __name__ == "__main__":
    main()
