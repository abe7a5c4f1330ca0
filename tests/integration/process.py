"""The real command in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gateway.cli import main

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COMMAND = str(Path(sys.executable).with_name("kvgate"))
# Compiled once for all processes, and not beside the sources.
ENV = {"PATH": "/usr/bin:/bin", "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "kvgate-tests-pycache")}


@dataclass
class Ran:
    """What a finished command left."""

    code: int
    out: str
    err: str


async def command(*args: str, env: dict[str, str] | None = None) -> Ran:
    """Run one short command in this process, which saves the second that Python takes to start."""
    return await asyncio.to_thread(_command, args, env or {})


def _command(args: tuple[str, ...], env: dict[str, str]) -> Ran:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["kvgate", *args])
        for name, value in env.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())


async def kvgate(*args: str, env: dict[str, str] | None = None) -> Ran:
    """Run one command to its end."""
    process = await asyncio.create_subprocess_exec(
        COMMAND, *args, env={**ENV, **(env or {})}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return Ran(process.returncode or 0, out.decode(), err.decode())


class Served:
    """A running `kvgate serve`: `ports` are (public, admin), `lines` what it has written to stderr so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ports = (0, 0)
        self.lines: list[str] = []

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.ports[1]}"

    async def until_serving(self) -> None:
        """Read the log until both ports are open."""
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.lines.append(line)
            event = json.loads(line)
            if event["event"] == "serving":
                public, admin = (int(event[name].rsplit(":", 1)[1]) for name in ("public", "admin"))
                self.ports = (public, admin)
                return
        raise AssertionError("".join(self.lines))

    async def read_on(self) -> None:
        """Keep reading the log."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.lines.append(line.decode())


@contextlib.asynccontextmanager
async def serving(file: Path, settings: dict[str, Any], *args: str, env: dict[str, str] | None = None) -> AsyncIterator[Served]:
    """`kvgate serve -c FILE` on free ports, killed at the end."""
    write(file, settings)
    process = await asyncio.create_subprocess_exec(
        COMMAND, "serve", "-c", str(file), *args,
        env={**ENV, **(env or {})}, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    served = Served(process)
    reading = None
    try:
        await asyncio.wait_for(served.until_serving(), 20)
        reading = asyncio.ensure_future(served.read_on())
        yield served
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


def write(file: Path, settings: dict[str, Any]) -> None:
    """Settings as a file, with free ports and a log that can be read."""
    server = {"host": "127.0.0.1", "port": 0, "admin": {"port": 0}, **settings.get("server", {})}
    file.write_text(yaml.safe_dump({"log": {"format": "json", "requests": "off"}, **settings, "server": server}))
