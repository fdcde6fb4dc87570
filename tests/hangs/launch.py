"""Starts one run of a case, waits until it hangs for good, and ends it as was drawn.

The launcher is a process of its own, as torchrun's is: it hosts the store, and can be killed. It
is started ahead of its run, since importing torch takes seconds.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.hangs import machine, network
from tests.hangs.cases import CASES
from tests.hangs.draw import Draw
from tests.hangs.rank import LONG_S
from tests.ports import free_port

WITHIN_S = 60
"""A run that has neither ended nor been judged so long after its fault is ended all the same."""

_STARTS_WITHIN_S = 300
"""The fault comes by then, also on a busy machine."""

_ANSWERS_S = 1

_ALARM = re.compile(r"^dsprof: (?!slow, not stuck|steps recorded)", re.MULTILINE)
"""What a watchdog says of a run that is stuck; it says no more once the run is judged."""


@dataclass(frozen=True)
class Outcome:
    """`judged_s`: from the fault to the first paragraph of a watchdog; None: there was none."""

    judged_s: float | None
    live: str = ""  # what `dsprof hang --live` said of ranks that outlived their launcher


def start_launcher() -> subprocess.Popen[str]:
    """Start a process that can launch one run; it ends when this one does."""
    program = [sys.executable, "-m", "tests.hangs.launch"]
    return subprocess.Popen(program, stdin=subprocess.PIPE, text=True, start_new_session=True)


def run(launcher: subprocess.Popen[str], case: str, draw: Draw, folder: Path) -> Outcome:
    """Run a case in `folder`, which must be new."""
    folder.mkdir(parents=True)
    assert launcher.stdin is not None
    launcher.stdin.write(f"{case} {draw.seed} {draw.ranks} {folder}\n")
    launcher.stdin.close()
    try:
        _until(
            lambda: len(_ranks(folder)) == draw.ranks or launcher.poll() is not None,
            _STARTS_WITHIN_S,
        )
        ranks = _ranks(folder)
        _until(lambda: (folder / "stalled").exists() or not _alive(ranks), _STARTS_WITHIN_S)
        if CASES[case].is_calm:
            _until(lambda: not _alive(ranks), 2 * WITHIN_S)
            return Outcome(_judged_s(folder))
        _until(lambda: _is_settled(case, folder, ranks), WITHIN_S)
        judged_s = _judged_s(folder)
        live = _end(case, draw, launcher, ranks, folder)
    finally:
        _clean_up(launcher, folder)
    return Outcome(judged_s, live)


def _end(
    case: str, draw: Draw, launcher: subprocess.Popen[str], ranks: list[int], folder: Path
) -> str:
    match draw.end:
        case "interrupt":
            _signal(ranks, signal.SIGINT)
        case "terminate":
            _signal(ranks, signal.SIGTERM)
        case "walltime":
            _signal(ranks, signal.SIGTERM)
            _until(lambda: not _alive(ranks), 2)
            _signal(ranks, signal.SIGKILL)
        case "kill":
            _signal(ranks, signal.SIGKILL)
        case "kill_launcher":
            launcher.kill()
            command = [sys.executable, "-m", "dsprof", "hang", "--live", str(folder / "trace")]
            done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
            _signal(ranks, signal.SIGKILL)
            return done.stdout or done.stderr
        case "timeout":
            others = [pid for rank, pid in enumerate(ranks) if rank != draw.culprit]
            _until(lambda: not _alive(others), 4 * CASES[case].timeout_s)
            _signal(ranks, signal.SIGTERM)
    _until(lambda: not _alive(ranks), 4)
    return ""


def alarms(folder: Path) -> list[Path]:
    """Return the logs in which a watchdog called the run stuck, the first one first."""
    logs = [
        path
        for path in folder.glob("rank*.log")
        if _ALARM.search(path.read_text("utf-8", "replace"))
    ]
    return sorted(logs, key=lambda path: path.stat().st_mtime)


def has_said(folder: Path, words: str) -> bool:
    """Say whether a watchdog has said what these words match."""
    logs = (path.read_text("utf-8", "replace") for path in folder.glob("rank*.log"))
    return any(re.search(f"^dsprof: {words}", log, re.MULTILINE) for log in logs)


def _is_settled(case: str, folder: Path, ranks: list[int]) -> bool:
    """Say whether watchdogs have had their say, or all ranks have ended."""
    if not _alive(ranks):
        return True
    stalled = folder / "stalled"
    if said := alarms(folder):  # a moment for the others, who answer meanwhile
        return time.time() - said[-1].stat().st_mtime > _ANSWERS_S
    unnoticed_s = 2 * CASES[case].timeout_s
    return stalled.exists() and time.time() - stalled.stat().st_mtime > unnoticed_s


def _judged_s(folder: Path) -> float | None:
    said, stalled = alarms(folder)[:1], folder / "stalled"
    if not (said and stalled.exists()):
        return None
    return said[0].stat().st_mtime - int(stalled.read_text()) / 1e9


def _ranks(folder: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(word) for word in (folder / "pids").read_text().split()]
    return []


def _alive(pids: list[int]) -> list[int]:
    alive = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.append(pid)
    return alive


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in _alive(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _clean_up(launcher: subprocess.Popen[str], folder: Path) -> None:
    """End the run's processes: ranks and what they started are of the launcher's session."""
    launcher.kill()
    launcher.wait()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == launcher.pid:
                process.kill()
    machine.put_back(folder)
    network.remove(folder)


def _until(is_so: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)


def _launch(case: str, draw: Draw, folder: Path) -> None:
    """Be the launcher: fork the ranks, host the store, and reap."""
    import torch.distributed as dist

    from tests.hangs.rank import be_rank

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    fault = CASES[case].network
    link = network.Network.lay(fault, folder) if fault else None
    is_to_time_out = draw.end == "timeout" and not CASES[case].is_calm
    port = free_port()
    pids = []
    for rank in range(draw.ranks):
        child = os.fork()
        if not child:
            timeout_s = CASES[case].timeout_s if is_to_time_out else 600
            be_rank(draw, case, rank, folder, port, timeout_s)
        pids.append(child)
    if CASES[case].has_memory_limit:
        machine.limit_memory(pids, folder)
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    store: object = dist.TCPStore(
        host, port, draw.ranks, True, datetime.timedelta(seconds=60), wait_for_workers=False
    )
    (folder / "pids.new").write_text(" ".join(map(str, pids)))
    (folder / "pids.new").rename(folder / "pids")
    while _alive(pids):
        if (folder / "end-store").exists():
            store = None
            (folder / "end-store").rename(folder / "store-ended")
        if link and not link.has_fault and (folder / "stalled").exists():
            link.fail()
            (folder / "stalled").write_text(str(time.time_ns()))
        if (folder / "stop-store").exists():
            (folder / "stop-store").rename(folder / "store-ended")
            os.kill(os.getpid(), signal.SIGSTOP)
        if (folder / "stop-all").exists():
            (folder / "stop-all").unlink()
            _signal(pids, signal.SIGSTOP)
            time.sleep(LONG_S)
            _signal(pids, signal.SIGCONT)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.05)
    del store


if __name__ == "__main__":
    if words := sys.stdin.readline().split():
        name, seed, ranks, out = words
        _launch(name, Draw.of(name, int(seed), int(ranks)), Path(out))
