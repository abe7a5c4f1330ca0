"""Ordinary events: structlog and every library's standard logging, one format, one stream, no secrets."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO

import orjson
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import EventDict, Processor

    from gateway.settings import LogSettings

# Libraries whose info lines repeat what the gateway says itself.
_QUIET = ("uvicorn.access", "uvicorn.error", "aiohttp.access", "asyncio", "watchfiles.main")


def set_up_events(settings: LogSettings, mask: Callable[[str], str], stream: TextIO | None = None) -> None:
    """Send all events to `stream` (stderr) in the configured format. Called again after a reload, it replaces what it set up."""
    out = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(out)
    handler.set_name("kvgate")
    handler.setFormatter(_Formatter(mask, shared, _renderers(settings.format, colors=out.isatty())))
    root = logging.getLogger()
    root.handlers = [h for h in root.handlers if h.get_name() != "kvgate"] + [handler]
    root.setLevel(settings.level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _renderers(form: str, *, colors: bool) -> list[Processor]:
    drop = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if form == "json":
        return [drop, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    return [drop, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback, timestamp_key="time")]


def _json(event: EventDict, **_: Any) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Masks the finished line, so that no field, message or traceback can carry a secret past it."""

    def __init__(self, mask: Callable[[str], str], foreign: list[Processor], renderers: list[Processor]) -> None:
        super().__init__(foreign_pre_chain=foreign, processors=renderers)
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        return self._mask(super().format(record))
