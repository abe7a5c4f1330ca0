from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from gateway.control import FileWatcher


class Calls:
    """Counts reloads; `wait` until there are so many."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(10.0):
            while self.count < count:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(*files: Path) -> AsyncIterator[Calls]:
    calls = Calls()
    task = asyncio.create_task(FileWatcher(files, calls).run())
    await asyncio.sleep(0.3)
    try:
        yield calls
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_file_that_is_written_or_replaced_is_reported(tmp_path: Path) -> None:
    """Editors write in place or move a new file over the old one."""
    file = tmp_path / "kvgate.yaml"
    file.write_text("a")
    async with watching(file) as calls:
        file.write_text("b")
        await calls.wait(1)
        other = tmp_path / "new"
        other.write_text("c")
        other.rename(file)
        await calls.wait(2)


async def test_a_swapped_symlink_is_reported(tmp_path: Path) -> None:
    """Kubernetes keeps mounted files behind a link to a dated directory and swaps the link."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kvgate.yaml").write_text(name)
    (tmp_path / "..data").symlink_to("one")
    file = tmp_path / "kvgate.yaml"
    file.symlink_to("..data/kvgate.yaml")
    async with watching(file) as calls:
        (tmp_path / "..tmp").symlink_to("two")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await calls.wait(1)


async def test_nothing_is_reported_when_the_content_stays(tmp_path: Path) -> None:
    """Touching a file, its neighbours, or taking it away is no new configuration."""
    file = tmp_path / "kvgate.yaml"
    file.write_text("a")
    async with watching(file) as calls:
        file.touch()
        (tmp_path / "other").write_text("x")
        file.unlink()
        await asyncio.sleep(0.8)
        assert calls.count == 0
        file.write_text("b")
        await calls.wait(1)


def test_a_poke_reports_at_once_and_survives_a_failing_reload(tmp_path: Path) -> None:
    """SIGHUP reloads whether or not the file changed; a reload that fails is logged and the old state stays."""
    calls: list[int] = []

    def reload() -> None:
        calls.append(1)
        raise ValueError("a bad file")

    with structlog.testing.capture_logs() as logs:
        FileWatcher([tmp_path / "kvgate.yaml"], reload).poke()
    assert (len(calls), logs[0]["event"]) == (1, "reload failed")
