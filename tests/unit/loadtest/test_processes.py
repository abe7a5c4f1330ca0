"""Starting and stopping programs for a load test."""

import sys
from pathlib import Path

import pytest

from loadtest import procfs
from loadtest.processes import StartError, free_ports, running, until_ready

PARENT = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


async def test_leaving_ends_the_whole_group(tmp_path: Path) -> None:
    """Children of the program are gone with it."""
    log = tmp_path / "log"
    with running([sys.executable, "-c", PARENT], log=log) as process:

        async def printed() -> bool:
            return log.read_text().endswith("\n")

        await until_ready(process, printed, log=log, timeout_s=20)
        child = int(log.read_text())
        assert procfs.usage(process.pid).processes == 2
    assert process.returncode is not None
    assert procfs.usage(child).rss == 0


async def test_a_program_that_dies_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """The error says the exit code and shows the log."""

    async def never() -> bool:
        return False

    log = tmp_path / "log"
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    expected = pytest.raises(StartError, match=r"(?s)ended with code 3.*no such model")
    with running(command, log=log) as process, expected:
        await until_ready(process, never, log=log, timeout_s=20)


def test_free_ports_differ() -> None:
    """No port is handed out twice."""
    assert len(set(free_ports(20))) == 20
