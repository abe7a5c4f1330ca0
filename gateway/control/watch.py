"""Notices that the configuration file, or another watched file, has changed.

Directories are watched, not files: editors and Kubernetes replace a file, or a symlink on the way to it, rather than write into it.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from watchfiles import awatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = structlog.get_logger(__name__)


class FileWatcher:
    """Calls `changed()` when the content of a watched file is another one, or when `poke` is called: `poke` is the SIGHUP handler.

    Exceptions of `changed` are logged; the watch goes on.
    """

    def __init__(self, files: Iterable[str | Path], changed: Callable[[], None]) -> None:
        self._files = [Path(f).absolute() for f in files]
        self._changed = changed
        self._seen = self._contents()

    def poke(self) -> None:
        """Report a change, whether there is one or not."""
        self._seen = self._contents()
        try:
            self._changed()
        except Exception:
            log.exception("reload failed")

    async def run(self) -> None:
        """Runs until cancelled."""
        stop = asyncio.Event()
        try:
            async for _ in awatch(*self._directories(), stop_event=stop, recursive=False, debounce=400):
                # A file that cannot be read is about to come back, or gone: neither is something to load.
                if any(new not in (None, old) for new, old in zip(self._contents(), self._seen, strict=True)):
                    self.poke()
        finally:
            stop.set()

    def _directories(self) -> set[Path]:
        """Where a change of a file shows: where its name is, and where a symlink leads."""
        return {d for f in self._files for d in (f.parent, f.resolve().parent)}

    def _contents(self) -> list[bytes | None]:
        return [_digest(f) for f in self._files]


def _digest(file: Path) -> bytes | None:
    """What a file holds, in short; None while it cannot be read."""
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=16).digest()
    except OSError:
        return None
