"""The composition root: builds every part of a gateway, starts it, and stops it in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import ssl
import time
from typing import TYPE_CHECKING

import structlog
import uvicorn

from gateway import __version__
from gateway.console.api import admin_app
from gateway.console.overview import scores
from gateway.control import Control, FileWatcher
from gateway.exchange.service import PARTS, Service
from gateway.fleet import FleetError, Table, facts
from gateway.fleet.address import address, short_id
from gateway.openai.endpoints import ENDPOINT_NAMES
from gateway.routing import DecisionLog, PrefixIndex, Router
from gateway.settings import ReplicaSettings, SettingsError, changes, needs_restart, secrets, warnings_for
from gateway.telemetry import Collector, Gauge, LoopLag, Mask, RequestLog, Stats, set_up_events
from gateway.wire.front import BodyBudget, FrontLimits, FrontProtocol, FrontShared
from gateway.wire.upstream import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from gateway.routing import Decision
    from gateway.settings import Settings

SWEEP_S = 0.25
BACKLOG = 2048
DISCOVERY_S = 3.0  # how long the start waits for the first look at the replicas

log = structlog.get_logger("kvgate")


class Gateway:
    """One gateway process. `read` gives the settings anew for a reload; `watch` is the file whose changes call for one."""

    def __init__(self, settings: Settings, read: Callable[[], Settings] | None = None, watch: Path | None = None) -> None:
        self.settings = settings
        self._read = read
        self._loop = asyncio.get_running_loop()
        self.now = time.monotonic  # uvloop's own time moves in whole milliseconds
        self.mask = Mask(secrets(settings))
        set_up_events(settings.log, self.mask)
        self.table = Table(settings, self.now())
        self.router = Router(settings, PrefixIndex(settings.routing.index_mb << 20, settings.routing.block_bytes))
        self.decisions = DecisionLog()
        self.shared = FrontShared(
            front_limits(settings), BodyBudget(settings.server.max_inflight_bytes), now=self.now, call_soon=self._loop.call_soon
        )
        self.request_log = RequestLog(settings.log, self.mask)
        self.stats = Stats(self._knows_model, ENDPOINT_NAMES.__contains__)
        hooks = (self.stats.record, self.request_log.record)
        self.service = Service(settings, self.table, self.router, self.decisions, self.shared, hooks, self._loop)
        self.control = Control(self.table, self.now)
        self.lag = LoopLag(self._loop)
        self.collector = self._collector()
        self.ports: tuple[int, int] = (0, 0)
        self._server: asyncio.Server | None = None
        self._admin: uvicorn.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._stop = asyncio.Event()
        tls = settings.server.tls
        watched = [f for f in (watch, tls.cert, tls.key) if f is not None]
        self._watcher = FileWatcher(watched, self.try_reload) if watched else None
        self._hear_table()

    def _hear_table(self) -> None:
        table, router = self.table, self.router
        table.on_restart.append(router.forget)
        table.on_removed.append(router.removed)
        table.on_removed.append(self.service.removed)
        table.on_forced.append(self.service.cut_off)
        table.on_change.append(lambda server, before, after: log.info("replica", server=server.key, before=before, after=after))

    def _knows_model(self, name: str) -> bool:
        return name in self.table.models()

    def _collector(self) -> Collector:
        service, shared = self.service, self.shared
        gauges = (
            Gauge("kvgate_requests_running", "Requests taken and not ended.", lambda: len(service.running)),
            Gauge("kvgate_requests_waiting", "Requests waiting for a replica.", lambda: service.waiting.waiting),
            Gauge("kvgate_client_connections", "Open client connections.", lambda: len(shared.connections)),
            Gauge("kvgate_request_body_bytes", "Request bodies held in memory.", lambda: shared.budget.used),
        )
        return Collector(
            self.stats,
            self.lag,
            version=__version__,
            fleet=lambda: self.table.snapshot(self.now()),
            scores=lambda: scores(self),
            blocks=self.router.index_blocks,
            gauges=gauges,
        )

    @property
    def latest(self) -> Mapping[str, Decision]:
        """The last decision of each model."""
        return self.service.latest

    # -- start -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open both ports and look at the replicas once. Raises OSError when a port cannot be opened."""
        raise_file_limit()
        server = self.settings.server
        self._tls = tls_context(self.settings)
        public = listen(server.host, server.port)
        admin = listen(server.admin.host, server.admin.port)
        self.ports = (public.getsockname()[1], admin.getsockname()[1])
        await self._start_admin(admin)
        await self.control.start(*([self._watcher.run()] if self._watcher is not None else []))
        self._server = await self._loop.create_server(
            lambda: FrontProtocol(self.service, self.shared),  # type: ignore[arg-type, return-value]  # a protocol by its methods
            sock=public,
            ssl=self._tls,
            backlog=BACKLOG,
        )
        self._sweep()
        self.lag.start()
        self.request_log.start(self._loop)
        await self.control.first_look(DISCOVERY_S)
        self.service.started = True
        for warning in warnings_for(self.settings):
            log.warning(warning)
        log.info(
            "serving", public=f"{server.host}:{self.ports[0]}", admin=f"{server.admin.host}:{self.ports[1]}", models=self.table.models()
        )
        # What exists now lives as long as the process; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)

    async def _start_admin(self, sock: socket.socket) -> None:
        sock.listen(BACKLOG)  # so that whoever comes before uvicorn is ready waits instead of being turned away
        config = uvicorn.Config(admin_app(self), log_config=None, access_log=False, lifespan="off", server_header=False)
        self._admin = _AdminServer(config)
        self._tasks.append(self._loop.create_task(self._admin.serve(sockets=[sock])))

    def _sweep(self, turn: int = 0) -> None:
        # Scheduled first: whatever goes wrong in one turn, deadlines go on being kept.
        self._sweeper = self._loop.call_later(SWEEP_S / PARTS, self._sweep, (turn + 1) % PARTS)
        now = self.now()
        self.service.tick(now)
        if turn == 0:
            self.shared.sweep(now)
            self.service.sweep(now)
            self.table.tick(now)

    # -- reload ------------------------------------------------------------------------------------------------------

    def reload(self) -> list[str]:
        """Read the configuration again and apply it. Returns the changed settings; raises SettingsError and changes nothing on faults."""
        if self._read is None:
            return []
        try:
            new = self._read()
            self.table.reconfigure(new, self.now())
        except (SettingsError, FleetError):
            self.stats.reloaded(ok=False)
            raise
        old, self.settings = self.settings, new
        changed = changes(old, new)
        for path in needs_restart(changed):
            log.warning("takes effect after a restart", setting=path)
        self.mask.know(secrets(new))
        set_up_events(new.log, self.mask)
        self.request_log.reconfigure(new.log)
        self.router.reconfigure(new)
        self.service.configure(new)
        self.shared.limits = front_limits(new)
        self.shared.budget.limit = new.server.max_inflight_bytes
        self._reload_certificate()
        self.stats.reloaded(ok=True)
        if changed:
            log.info("configuration reloaded", changed=changed)
        return changed

    def try_reload(self) -> None:
        """Reload from a signal or a file change: faults are logged, the running configuration stays."""
        try:
            self.reload()
        except SettingsError as error:
            for fault in error.faults:
                log.error("configuration not reloaded", fault=str(fault))
        except (FleetError, OSError, ssl.SSLError) as error:
            log.error("configuration not reloaded", fault=str(error))

    def _reload_certificate(self) -> None:
        tls = self.settings.server.tls
        if self._tls is not None and tls.cert:
            self._tls.load_cert_chain(tls.cert, tls.key)

    # -- what operators do -------------------------------------------------------------------------------------------

    def add_replica(self, model: str, settings: ReplicaSettings) -> str:
        """Add a replica until the process ends; returns its id.

        Raises FleetError when its id or its place is taken, ValueError when it cannot be talked to as told.
        """
        Target.parse(settings.url, settings.ca_file)
        name = settings.id or short_id(address(settings.url))
        if settings.api_key is not None:
            self.mask.know([settings.api_key.get_secret_value()])
        self.mask.know(settings.headers.values())
        self.table.apply(facts.Added(model, settings.model_copy(update={"id": name})), self.now())
        return name

    def remove_replica(self, replica_id: str) -> None:
        """Drain a replica, then forget it. Raises FleetError for an unknown id."""
        self.table.apply(facts.Removed(replica_id), self.now())

    def drain(self, replica_id: str, *, draining: bool) -> None:
        """Send a replica nothing new, or take it back. Raises FleetError for an unknown id."""
        self.table.apply(facts.Draining(replica_id) if draining else facts.Undrained(replica_id), self.now())

    def explain(self, request_id: str) -> list[Decision]:
        """The decisions made for a request, one for each try so far; empty when none is kept."""
        running = [e.decision for e in self.service.running if e.request_id.decode("latin-1") == request_id]
        return [*self.decisions.get(request_id), *(d for d in running if d is not None)]

    # -- stop --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second signal exits at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)
        self._loop.add_signal_handler(signal.SIGHUP, self.try_reload)
        await self.start()
        await self._stop.wait()
        await self.stop()

    def _signalled(self) -> None:
        if self._stop.is_set():
            log.warning("second signal: exiting at once")
            self.request_log.close()
            os._exit(1)  # neither open streams nor other threads may delay this
        self._stop.set()

    async def stop(self) -> None:
        """Drain: say no on readyz, keep serving for the grace time, let running requests finish, then close everything."""
        shutdown = self.settings.server.shutdown
        self.service.draining = True
        log.info("draining", running=len(self.service.running))
        await asyncio.sleep(shutdown.grace_s)
        self.service.serving = False
        self.shared.drain()
        if self._server is not None:
            self._server.close()
        done = await self.service.finish_all(shutdown.timeout_s)
        if not done:
            log.warning("requests cut at the shutdown timeout", running=len(self.service.running))
        self.service.close()
        await self.control.stop()
        await self._stop_admin()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.lag.stop()
        self.request_log.close()

    async def _stop_admin(self) -> None:
        if self._admin is not None:
            self._admin.should_exit = True
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(task, 5)


class _AdminServer(uvicorn.Server):
    """uvicorn without its signal handling: the process has one owner of signals, and that is the gateway."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def front_limits(settings: Settings) -> FrontLimits:
    """The limits the front applies, from the settings."""
    server, limits = settings.server, settings.limits
    return FrontLimits(
        header_bytes=limits.header_bytes,
        headers=limits.headers,
        max_body_bytes=server.max_body_bytes,
        header_timeout_s=server.header_timeout_s,
        body_timeout_s=server.body_timeout_s,
        keepalive_s=server.keepalive_s,
        write_stall_s=server.write_stall_s,
    )


def listen(host: str, port: int) -> socket.socket:
    """A bound TCP socket for an IPv4 or IPv6 host. Raises OSError naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    sock.setblocking(False)
    return sock


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS for the public port, when a certificate is configured."""
    tls = settings.server.tls
    if not tls.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(tls.cert, tls.key)
    return context


def raise_file_limit() -> None:
    """Each stream holds two sockets, and running out of descriptors makes uvloop drop connections silently."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 1_048_576, hard))
