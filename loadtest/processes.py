"""Starting, awaiting and stopping the programs a load test needs, each in a process group of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class StartError(RuntimeError):
    """A program ended, or did not become ready in time. The message ends with the tail of its log."""


@contextmanager
def running(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `argv` with both outputs going to the file `log`; ends the whole process group on leaving."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago. All are held until the last is known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def until_ready(process: subprocess.Popen[bytes], ready: Callable[[], Awaitable[bool]], *, log: Path, timeout_s: float) -> float:
    """Waits until `ready()` is true; returns the seconds it took. Raises StartError."""
    start = time.monotonic()
    while not await ready():
        ended = process.poll() is not None
        if ended or time.monotonic() - start > timeout_s:
            reason = f"ended with code {process.returncode}" if ended else f"not ready after {timeout_s:g} s"
            raise StartError(f"{reason}; its log ends:\n{tail(log)}")
        await asyncio.sleep(0.1)
    return time.monotonic() - start


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _end(process: subprocess.Popen[bytes], grace_s: float = 5.0) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
