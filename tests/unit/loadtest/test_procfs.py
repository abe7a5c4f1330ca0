"""Reading process costs from /proc."""

import os
import time

import pytest

from loadtest import procfs

STAT = "4242 (tokio (run) :x) S 17 4242 4242 0 -1 4194304 900 0 0 0 111 22 33 44 20 0 9 0 5000 900 800 18446744073709551615 0 0"


def test_stat_survives_brackets_and_blanks_in_the_command_name() -> None:
    """Fields count from the last bracket; only time of reaped children is taken from the line."""
    assert procfs.Stat(pid=4242, parent=17, reaped_s=pytest.approx(77 / procfs.TICKS_PER_S)) == procfs.parse_stat(STAT)


def test_rss_is_bytes_and_nothing_for_a_zombie() -> None:
    """A process without memory lines has no memory."""
    assert procfs.parse_rss("Name:\tx\nVmRSS:\t       2 kB\nThreads:\t1\n") == 2048
    assert procfs.parse_rss("Name:\tx\nState:\tZ (zombie)\n") == 0


def test_busy_leaves_out_idle_and_disk_wait_but_not_stolen_time() -> None:
    """user, nice, system, irq, softirq and steal add up; idle, iowait and guest time do not."""
    text = "cpu  100 20 30 99999 88888 4 5 6 777 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert pytest.approx(165 / procfs.TICKS_PER_S) == procfs.parse_busy(text)


def test_family_finds_grandchildren_and_no_strangers() -> None:
    """The whole tree below the root, whatever the order of process ids."""
    assert {50, 7, 90, 3} == procfs.family(50, {7: 50, 90: 7, 3: 90, 8: 1, 1: 0, 50: 1})


def test_usage_of_this_process_agrees_with_its_own_clock() -> None:
    """The meter reads the same CPU time that the process itself sees, to well under a tick of 10 ms."""
    before = time.process_time()
    used = procfs.usage(os.getpid())
    assert before <= used.cpu_s <= time.process_time() + 60
    assert used.rss > 1_000_000
    assert used.processes >= 1


def test_usage_of_a_process_that_is_gone_is_nothing() -> None:
    """A process that ended between two looks does not break the report."""
    assert procfs.Usage(cpu_s=0, rss=0, processes=0) == procfs.usage(2**22 + 1)
