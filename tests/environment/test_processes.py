"""Looks at processes by what the kernel writes under /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dsprof.environment.processes import GONE, ProcessLook, look_at, process_start


def stat_of(folder: Path, state: str, began_ticks: int) -> None:
    fields = [state, *["0"] * 18, str(began_ticks), "0"]
    (folder / "7").mkdir()
    (folder / "7/stat").write_text(f"7 (a ) name) {' '.join(fields)}")
    (folder / "7/wchan").write_text("pipe_read\n")


def test_a_process_is_known_by_when_it_began(tmp_path: Path) -> None:
    stat_of(tmp_path, "S", 100)
    assert look_at(7, time.monotonic_ns(), tmp_path) == ProcessLook("S", "pipe_read")
    assert look_at(8, time.monotonic_ns(), tmp_path) == ProcessLook(GONE)


def test_one_of_the_same_number_that_began_later_is_another(tmp_path: Path) -> None:
    later_s = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**9 + 60
    stat_of(tmp_path, "S", later_s * os.sysconf("SC_CLK_TCK"))
    assert look_at(7, time.monotonic_ns(), tmp_path).state == GONE


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    stat_of(tmp_path, "Z", 100)
    assert look_at(7, time.monotonic_ns(), tmp_path).state == GONE


def test_a_real_process_that_is_stopped_and_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert look_at(child.pid, time.monotonic_ns()).state in "RSD"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert look_at(child.pid, time.monotonic_ns()).state == "T"
    finally:
        child.kill()
        child.wait()
    assert look_at(child.pid, time.monotonic_ns()).state == GONE


def test_a_process_that_its_parent_has_not_asked_about_is_dead() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert process_start(child) == 0
    assert process_start(os.getpid()) > 0
    os.waitpid(child, 0)
