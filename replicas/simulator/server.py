"""The replica on a port: routing, keys, faults, start and stop."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import uvloop

from replicas.simulator.endpoints import control, sim, tasks, text
from replicas.simulator.errors import ApiError
from replicas.simulator.faults import Fault
from replicas.simulator.faulty import FaultyReply, at_once, refuse
from replicas.simulator.options import Options
from replicas.simulator.replica import Call, Replica
from replicas.simulator.wire import Connection, Reply, Request

Handler = Callable[[Call], None]

WORK: dict[str, Handler] = {
    "/v1/chat/completions": text.chat,
    "/v1/completions": text.completions,
    "/v1/responses": text.responses,
    "/v1/messages": text.messages,
    "/v1/messages/count_tokens": text.count_tokens,
    "/v1/embeddings": tasks.embeddings,
    "/rerank": tasks.rerank,
    "/v1/rerank": tasks.rerank,
    "/v2/rerank": tasks.rerank,
    "/score": tasks.score,
    "/v1/score": tasks.score,
    "/v1/audio/transcriptions": tasks.transcriptions,
    "/v1/audio/translations": tasks.transcriptions,
    "/v1/audio/speech": tasks.speech,
    "/v1/images/generations": tasks.images,
    "/tokenize": tasks.tokenize,
    "/detokenize": tasks.detokenize,
}
CONTROL: dict[str, dict[str, Handler]] = {
    "/health": {"GET": control.health},
    "/ping": {"GET": control.health, "POST": control.health},
    "/version": {"GET": control.version},
    "/load": {"GET": control.load},
    "/metrics": {"GET": control.metrics},
    "/v1/models": {"GET": control.models},
    "/v1/load_lora_adapter": {"POST": control.load_adapter},
    "/v1/unload_lora_adapter": {"POST": control.unload_adapter},
    "/sim/faults": {"GET": sim.list_faults, "POST": sim.add_faults, "DELETE": sim.clear_faults},
    "/sim/state": {"GET": sim.state},
    "/sim/reset": {"POST": sim.reset},
}
DEVELOPMENT: dict[str, dict[str, Handler]] = {
    "/sleep": {"POST": control.sleep},
    "/wake_up": {"POST": control.wake_up},
    "/is_sleeping": {"GET": control.is_sleeping},
    "/pause": {"POST": control.pause},
    "/resume": {"POST": control.resume},
    "/is_paused": {"GET": control.is_paused},
    "/reset_prefix_cache": {"POST": control.reset_prefix_cache},
    "/server_info": {"GET": control.server_info},
}
STORED: dict[str, Handler] = {"GET": text.response, "DELETE": text.response}
GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # paths an API key protects
SWEEP_S = 1.0

log = logging.getLogger(__name__)


class Server:
    """One listening replica. `closing` is set once it takes no further requests on open connections."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.replica = Replica(options)
        self.connections: set[Connection] = set()
        self.closing = False
        self.closed = asyncio.Event()
        self._deserted = asyncio.Event()  # no connection is open
        self._deserted.set()
        self.url = ""
        self._routes: dict[str, dict[str, Handler]] = {path: {"POST": handler} for path, handler in WORK.items()}
        self._routes |= CONTROL | (DEVELOPMENT if options.dev_mode else {})
        self._keys = [key.encode() for key in options.api_keys]
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Listen; `url` tells where."""
        self._listener = await self._loop.create_server(lambda: Connection(self), self.options.host, self.options.port)
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    async def stop(self) -> None:
        """Drop everything at once."""
        self._listener.close()
        self._sweeper.cancel()
        self.replica.halt()
        for connection in list(self.connections):
            connection.transport.abort()
        await self._deserted.wait()
        self.closed.set()

    def terminate(self) -> None:
        """SIGTERM. Without a shutdown timeout the engine drops its work and clients are left waiting until they hang up; with one
        running requests finish while new ones get 500. A second signal ends the process at once."""
        if self.closing or self.replica.draining:
            os._exit(1)
        self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        if self.options.shutdown_timeout_s:
            self.replica.draining = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self.replica.quiet.wait(), self.options.shutdown_timeout_s)
        self.closing = True
        self._listener.close()
        self.replica.halt()
        for connection in list(self.connections):
            if connection.reply is None:
                connection.transport.close()
        if not self.options.shutdown_timeout_s:
            await self._deserted.wait()
        await self.stop()

    def opened(self, connection: Connection) -> None:
        """A client connected."""
        self.connections.add(connection)
        self._deserted.clear()

    def lost(self, connection: Connection) -> None:
        """A client is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._deserted.set()

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request, or act out a fault."""
        path = request.path
        work = path in WORK
        fault: Fault | None = None
        if not path.startswith("/sim/"):
            if self.replica.faults.starting(self._loop.time()):
                refuse(Reply(connection), request, ApiError(503, "The server is starting.", "Service Unavailable"))
                return
            fault = self.replica.faults.strike(path, self._loop.time(), work=work)
            self._record(request, fault, work=work)
            if fault is not None and at_once(fault, request, connection):
                return
        reply = Reply(connection) if fault is None else FaultyReply(connection, fault, path)
        if self.options.request_id_headers:
            reply.headers.append(("x-request-id", self.replica.request_id(request)))
        self._dispatch(request, reply)

    def _dispatch(self, request: Request, reply: Reply) -> None:
        methods = self._methods(request.path)
        handler = methods.get(request.method) if methods is not None else None
        if self._keys and request.path.startswith(GUARDED) and not self._authorised(request):
            reply.send(401, b'{"error":"Unauthorized"}')
        elif handler is not None:
            self._run(handler, request, reply)
        elif methods is not None:
            reply.headers.append(("allow", ", ".join(methods)))
            reply.send(405, b'{"detail":"Method Not Allowed"}')
        else:
            reply.send(404, b'{"detail":"Not Found"}')

    def _run(self, handler: Handler, request: Request, reply: Reply) -> None:
        try:
            handler(Call(self.replica, request, reply))
        except ApiError as error:
            refuse(reply, request, error)
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            refuse(reply, request, ApiError(500, str(error), "InternalServerError"))

    def _methods(self, path: str) -> dict[str, Handler] | None:
        known = self._routes.get(path)
        if known is not None or not path.startswith("/v1/responses/"):
            return known
        rest = path.removeprefix("/v1/responses/").split("/")
        if len(rest) == 1:
            return STORED
        return {"POST": text.response} if rest[1:] == ["cancel"] else None

    def _authorised(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and any(hmac.compare_digest(token.encode(), key) for key in self._keys)

    def _record(self, request: Request, fault: Fault | None, *, work: bool) -> None:
        asked = self.replica.asked
        name = request.path if request.path in self._routes else "other"
        asked[name] = asked.get(name, 0) + 1
        if work:
            entry = {"path": request.path, "at": time.time(), "headers": request.headers, "bytes": len(request.body)}
            self.replica.recent.append({**entry, "fault": fault.kind if fault is not None else None})

    def _sweep(self) -> None:
        """Close connections idle for longer than the keep-alive time."""
        limit = time.monotonic() - self.options.keep_alive_s
        for connection in list(self.connections):
            if connection.reply is None and connection.idle_since < limit:
                connection.transport.close()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)


async def serve(options: Options, announce: Callable[[str], None] | None = None) -> None:
    """Run a replica until SIGTERM or SIGINT. `announce` gets its URL once it listens."""
    server = Server(options)
    await server.start()
    if announce is not None:
        announce(server.url)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.terminate)
    await server.closed.wait()


def _print(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


def main(options: Options) -> int:
    """Run a replica as a process: prints its URL as the first line, returns the exit status."""
    try:
        uvloop.run(serve(options, _print))
    except OSError as error:
        sys.stderr.write(f"kvgate simulate: cannot listen on {options.host}:{options.port}: {error.strerror or error}\n")
        return 1
    return 0
