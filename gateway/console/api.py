"""The admin port: metrics, replicas, explanations, configuration. Ordinary FastAPI; nothing here is on a request's path."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import Field

from gateway import __version__
from gateway.console.access import guard
from gateway.console.overview import Sources, rows
from gateway.fleet import FleetError
from gateway.settings import ReplicaSettings, SettingsError, public
from gateway.settings.kinds import ModelName

if TYPE_CHECKING:
    from gateway.routing import Decision, DecisionLog
    from gateway.settings import Settings
    from gateway.telemetry import Collector


_PAGE = resources.files("gateway.console").joinpath("page.html").read_bytes()
# It loads nothing from elsewhere, and nobody may frame it to have its buttons pressed.
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'"


class Operations(Sources, Protocol):
    """What the admin API needs of a running gateway."""

    settings: Settings
    decisions: DecisionLog
    collector: Collector

    def reload(self) -> list[str]: ...
    def add_replica(self, model: str, settings: ReplicaSettings) -> str: ...
    def remove_replica(self, replica_id: str) -> None: ...
    def drain(self, replica_id: str, *, draining: bool) -> None: ...
    def explain(self, request_id: str) -> list[Decision]: ...


class NewReplica(ReplicaSettings):
    """A replica to add until the process ends: the keys of the configuration file, and the model it serves."""

    model: ModelName = Field(description="The model it serves, as clients name it.")


def admin_app(ops: Operations) -> FastAPI:
    """The admin application over a running gateway."""
    app = FastAPI(title="kvgate admin", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    guarded = [Depends(guard(lambda: ops.settings.server.admin.token))]
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(FleetError)(_impossible)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Prometheus metrics; needs no token."""
        body, content_type = ops.collector.render(request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    @app.get("/", response_class=HTMLResponse, dependencies=guarded)
    async def page() -> Response:
        """The console: replicas and the latest decisions, for a browser."""
        return HTMLResponse(_PAGE, headers={"content-security-policy": _PAGE_POLICY, "cache-control": "no-store"})

    @app.get("/docs", include_in_schema=False, dependencies=guarded)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url="/openapi.json", title=app.title)

    @app.get("/openapi.json", include_in_schema=False, dependencies=guarded)
    async def openapi() -> JSONResponse:
        return JSONResponse(app.openapi())

    @app.get("/admin/replicas", dependencies=guarded)
    async def replicas() -> dict[str, Any]:
        """Every replica with its state, signals (each with its age; null is unknown), load and warnings."""
        return {"version": __version__, "policy": ops.settings.routing.policy, "replicas": rows(ops)}

    @app.post("/admin/replicas", status_code=201, dependencies=guarded)
    async def add_replica(new: NewReplica) -> dict[str, str]:
        """Add a replica; it gets traffic once it is healthy and lists the model. 409 when its id or its place is taken."""
        settings = ReplicaSettings.model_validate(new.model_dump(exclude={"model"}, exclude_unset=True))
        try:
            return {"id": ops.add_replica(new.model, settings)}
        except FleetError as error:
            raise HTTPException(409, str(error)) from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    @app.delete("/admin/replicas/{replica_id}", status_code=202, dependencies=guarded)
    async def remove_replica(replica_id: str) -> dict[str, str]:
        """Drain a replica, then forget it."""
        ops.remove_replica(replica_id)
        return {"id": replica_id, "state": "removing"}

    @app.post("/admin/replicas/{replica_id}/drain", dependencies=guarded)
    async def drain(replica_id: str) -> dict[str, Any]:
        """Send it nothing new; running requests finish."""
        ops.drain(replica_id, draining=True)
        return {"id": replica_id, "draining": True}

    @app.post("/admin/replicas/{replica_id}/undrain", dependencies=guarded)
    async def undrain(replica_id: str) -> dict[str, Any]:
        """Take it back into service."""
        ops.drain(replica_id, draining=False)
        return {"id": replica_id, "draining": False}

    @app.get("/admin/explain/{request_id:path}", dependencies=guarded)
    async def explain(request_id: str) -> dict[str, Any]:
        """Why a request goes or went where it did, one entry for each try, and whether the prediction was right."""
        tries = ops.explain(request_id)
        if not tries:
            raise HTTPException(404, f"No decision is kept for request {request_id[:200]!r}; the last {ops.decisions.max_entries:,} are.")
        return {"request_id": request_id, "tries": [_explained(ops, d) for d in tries]}

    @app.get("/admin/decisions", dependencies=guarded)
    async def decisions(limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> dict[str, Any]:
        """The newest decisions of finished tries first."""
        return {"decisions": [_explained(ops, d) for d in ops.decisions.recent(limit)]}

    @app.get("/admin/config", dependencies=guarded)
    async def config() -> dict[str, Any]:
        """The effective settings, secrets masked."""
        return public(ops.settings)

    @app.post("/admin/reload", dependencies=guarded)
    async def reload() -> Response:
        """Read the configuration file again. Faults change nothing."""
        try:
            return JSONResponse({"changed": ops.reload()})
        except SettingsError as error:
            return _faulty([str(fault) for fault in error.faults])
        except (FleetError, OSError) as error:
            return _faulty([str(error)])

    return app


def _explained(ops: Operations, decision: Decision) -> dict[str, Any]:
    """A decision as JSON, its time on the wall clock."""
    at = datetime.fromtimestamp(time.time() - (ops.now() - decision.at), UTC)
    return {**decision.explain(), "at": at.isoformat(timespec="milliseconds")}


def _faulty(faults: list[str]) -> Response:
    return JSONResponse({"detail": "; ".join(faults), "faults": faults}, status_code=400)


async def _invalid(_request: Request, error: Exception) -> Response:
    """One line per fault, and never the value: it may be a secret."""
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(str(part) for part in e['loc'][1:]) or 'body'}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
    return JSONResponse({"detail": "; ".join(faults), "faults": faults}, status_code=422)


async def _impossible(_request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": f"{error}; GET /admin/replicas lists them."}, status_code=404)
