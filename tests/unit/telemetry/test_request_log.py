"""The line per request: complete, in order, and never in the way."""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from gateway.settings import LogSettings
from gateway.telemetry import ExchangeRecord, Mask, RequestLog
from tests.unit.telemetry.telemetry_fakes import Timers, record

if TYPE_CHECKING:
    from pathlib import Path


def opened(path: Path, form: str = "json", mask: Mask | None = None, **settings: Any) -> tuple[RequestLog, Timers]:
    """A log into a file, and the timers it uses."""
    log = RequestLog(LogSettings.model_validate({"format": form, "requests": str(path), **settings}), mask or Mask())
    timers = Timers()
    log.start(timers)  # type: ignore[arg-type]  # all it needs of a loop
    return log, timers


def lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_json_line_has_everything_that_is_known(tmp_path: Path) -> None:
    """One wide line: every field of the record, beside time, level and event."""
    log, _ = opened(tmp_path / "log")
    log.record(record())
    log.close()
    (line,) = lines(tmp_path / "log")
    assert (line["time"], line["level"], line["event"]) == ("2025-12-01T12:23:45.250Z", "info", "request")
    assert set(line) == {"time", "level", "event", *ExchangeRecord.__struct_fields__}
    assert (line["model"], line["tries"], line["ttft_s"], line["ended_by"], line["phase"]) == (
        "llama",
        [["a", "ok"]],
        0.25,
        "replica",
        "done",
    )


def test_a_console_line_reads_well(tmp_path: Path) -> None:
    """What matters, and who ended it when that was not the replica."""
    log, _ = opened(tmp_path / "log", "console")
    log.record(record())
    failed = {"status": 502, "reason": "upstream_connect", "ended_by": "gateway", "phase": "connecting", "queue_s": 0.5}
    nothing = {"ttft_s": None, "tpot_s": None, "prompt_tokens": None, "tries": (("a", "connect"), ("b", "connect"))}
    log.record(record(id="req-2", **failed, **nothing))
    log.record(record(id="req-3", ended_by="client", phase="streaming", tries=(), cached_tokens=None))
    log.close()
    one, two, three = (line[12:] for line in (tmp_path / "log").read_text().splitlines())
    assert one == " 200 chat llama a 1.500s ttft=0.250s tpot=12.5ms tokens=1000(600 cached)+100 req-1"
    assert two == " 502 chat llama a>b 1.500s queued=0.500s upstream_connect by gateway while connecting req-2"
    assert three == " 200 chat llama - 1.500s ttft=0.250s tpot=12.5ms tokens=1000(? cached)+100 ended by client while streaming req-3"


def test_lines_are_written_together_after_a_moment(tmp_path: Path) -> None:
    """One timer for many lines, none while there is nothing to write."""
    log, timers = opened(tmp_path / "log")
    assert timers.pending == []
    for n in range(50):
        log.record(record(id=str(n)))
    assert [delay for delay, _ in timers.pending] == [0.1]
    assert lines(tmp_path / "log") == []
    timers.fire()
    assert [line["id"] for line in lines(tmp_path / "log")] == [str(n) for n in range(50)]
    assert timers.pending == []


def test_lines_from_before_the_start_are_kept(tmp_path: Path) -> None:
    """Nothing is lost while the loop is not running yet."""
    log = RequestLog(LogSettings(format="json", requests=str(tmp_path / "log")), Mask())
    log.record(record())
    timers = Timers()
    log.start(timers)  # type: ignore[arg-type]  # all it needs of a loop
    timers.fire()
    assert len(lines(tmp_path / "log")) == 1


@pytest.mark.parametrize("settings", [{"requests": "off"}, {"level": "warning"}, {"level": "error"}])
def test_it_can_be_silenced(tmp_path: Path, settings: dict[str, Any]) -> None:
    """By name, or by a level above info."""
    log, timers = opened(tmp_path / "log", **settings)
    log.record(record())
    assert timers.pending == []
    log.close()


def test_a_new_file_is_used_after_a_rotation(tmp_path: Path) -> None:
    """Reconfiguring opens the path again; lines held go to the old file."""
    log, _ = opened(tmp_path / "log")
    log.record(record(id="old"))
    (tmp_path / "log").rename(tmp_path / "log.1")
    log.reconfigure(LogSettings(format="json", requests=str(tmp_path / "log")))
    log.record(record(id="new"))
    log.close()
    assert [line["id"] for line in lines(tmp_path / "log.1") + lines(tmp_path / "log")] == ["old", "new"]


def test_a_bad_file_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    """A reload that cannot be done changes nothing."""
    log, _ = opened(tmp_path / "log")
    with pytest.raises(OSError, match="nowhere"):
        log.reconfigure(LogSettings(requests=str(tmp_path / "nowhere" / "log")))
    log.record(record())
    log.close()
    assert len(lines(tmp_path / "log")) == 1


@pytest.mark.parametrize("form", ["json", "console"])
def test_names_sent_by_clients_cannot_forge_lines(tmp_path: Path, form: str) -> None:
    """Nor steer the terminal of whoever reads them."""
    log, _ = opened(tmp_path / "log", form)
    log.record(record(model="a\n12:00:00 200 forged\x1b[2J\u2028\x85\ud800", id="i\r\n"))
    log.close()
    text = (tmp_path / "log").read_bytes()
    assert text.count(b"\n") == 1
    assert b"\r" not in text
    assert b"\x1b" not in text


def test_long_names_are_cut(tmp_path: Path) -> None:
    """A client cannot fill the disk with one request."""
    log, _ = opened(tmp_path / "log")
    log.record(record(model="m" * 1_000_000))
    log.close()
    assert len((tmp_path / "log").read_bytes()) < 1500


def test_a_secret_where_a_name_belongs_is_masked(tmp_path: Path) -> None:
    """Someone mixed up two variables, and the key was sent as the model."""
    log, _ = opened(tmp_path / "log", mask=Mask(["sk-secret"]))
    log.record(record(model="sk-secret", id="sk-secret"))
    log.close()
    assert "sk-secret" not in (tmp_path / "log").read_text()


class Pipe:
    """A log that writes to a pipe instead of standard output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int = 4096) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, size)
        monkeypatch.setattr("gateway.telemetry.log._STANDARD", {"stdout": self.writer})
        monkeypatch.setattr("gateway.telemetry.log._CLOSE_S", 0.01)
        self.log = RequestLog(LogSettings(format="json"), Mask())
        self.timers = Timers()
        self.log.start(self.timers)  # type: ignore[arg-type]  # all it needs of a loop

    def read(self) -> bytes:
        """Everything in the pipe."""
        os.set_blocking(self.reader, False)
        data = b""
        while True:
            try:
                piece = os.read(self.reader, 65_536)
            except BlockingIOError:
                return data
            if not piece:
                return data
            data += piece


def test_a_reader_that_is_slow_never_blocks_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output may be a pipe nobody reads for a while: lines wait, whole and in order, and the loop goes on."""
    pipe = Pipe(monkeypatch)
    for n in range(40):
        pipe.log.record(record(id=str(n)))
    pipe.timers.fire()
    first = pipe.read()
    assert first.endswith(b"}\n")
    assert len(pipe.timers.pending) == 1
    data = first
    for _ in range(20):
        pipe.timers.fire()
        data += pipe.read()
    assert [json.loads(line)["id"] for line in data.splitlines()] == [str(n) for n in range(40)]
    assert pipe.log.dropped == 0


def test_lines_nobody_takes_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and what was lost is known."""
    pipe = Pipe(monkeypatch)
    monkeypatch.setattr("gateway.telemetry.log._MOST_HELD", 10_000)
    for n in range(100):
        pipe.log.record(record(id=str(n)))
    pipe.timers.fire()
    pipe.log.close()
    assert pipe.log.dropped + len(pipe.read().splitlines()) == 100
    assert pipe.log.dropped > 50


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken pipe is no reason to fail a request."""
    pipe = Pipe(monkeypatch)
    os.close(pipe.reader)
    pipe.log.record(record())
    pipe.timers.fire()
    pipe.log.record(record())
    pipe.log.close()
    assert pipe.log.dropped == 2


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    """/dev/full stands for it."""
    log = RequestLog(LogSettings(requests="/dev/full"), Mask())
    log.record(record())
    log.flush()
    log.close()
    assert log.dropped == 1
