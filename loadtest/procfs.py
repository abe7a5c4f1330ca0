"""What a process and all it started have cost, read from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of `/proc/PID/stat` a cost report needs; `reaped_s` is the CPU time of children that have ended."""

    pid: int
    parent: int
    reaped_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far and resident bytes right now of a process tree."""

    cpu_s: float
    rss: int
    processes: int


def parse_stat(text: str) -> Stat:
    """Reads a `/proc/PID/stat` line; the command name may hold blanks and brackets, so fields count from its last bracket."""
    opening, closing = text.index("("), text.rindex(")")
    fields = text[closing + 2 :].split()
    # man 5 proc: state is field 3, ppid 4, cutime 16, cstime 17.
    return Stat(pid=int(text[:opening]), parent=int(fields[1]), reaped_s=(int(fields[13]) + int(fields[14])) / TICKS_PER_S)


def parse_rss(text: str) -> int:
    """Resident bytes from the text of `/proc/PID/status`; 0 for a process that has ended."""
    for line in text.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def parse_busy(text: str) -> float:
    """Seconds all CPUs together have been busy (not idle, not waiting for disk), from the text of `/proc/stat`.

    Time stolen by the host counts as busy: it was not ours.
    """
    names = text.split("\n", 1)[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, names[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def family(root: int, parents: Mapping[int, int]) -> set[int]:
    """`root` and every process descended from it, given each process's parent."""
    found = {root}
    grown = True
    while grown:
        young = {pid for pid, parent in parents.items() if parent in found} - found
        found |= young
        grown = bool(young)
    return found


def usage(*roots: int) -> Usage:
    """What the processes in `roots` and all their descendants have used; those that vanish meanwhile count nothing."""
    stats = {stat.pid: stat for stat in _stats()}
    parents = {pid: stat.parent for pid, stat in stats.items()}
    alive = {pid for root in roots for pid in family(root, parents)} & stats.keys()
    cpu_s = sum(stats[pid].reaped_s + _cpu_clock(pid) for pid in alive)
    return Usage(cpu_s=cpu_s, rss=sum(map(_rss, alive)), processes=len(alive))


def machine_busy() -> float:
    """Seconds all CPUs together have been busy since boot."""
    return parse_busy((PROC / "stat").read_text())


def _cpu_clock(pid: int) -> float:
    """CPU seconds of all threads a process has had: clock_getcpuclockid(3), exact where /proc counts in ticks of 10 ms."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _stats() -> Iterator[Stat]:
    for text in _read(entry / "stat" for entry in PROC.iterdir() if entry.name.isdigit()):
        yield parse_stat(text)


def _rss(pid: int) -> int:
    return sum(parse_rss(text) for text in _read([PROC / str(pid) / "status"]))


def _read(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield path.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
