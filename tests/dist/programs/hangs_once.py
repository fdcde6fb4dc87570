"""Rank 1 does not come: in the first attempt under a launcher, or until there is a dump.

Or all ranks come, and the store does not: the launcher is stopped until they have gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

import dsprof
from tests.dist.leaving import leave_group

STEPS = 6


def main(until: str) -> None:
    """Train for a while; `until` is "dumped", "restarted" to wait for ever, or "store"."""
    dist.init_process_group("gloo")
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(8))
        dsprof.step()
    if until == "store":
        if dist.get_rank() == 0:
            stop_launcher()
        dist.new_group([0, 1])
    if dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        while until == "restarted" or not dumped():
            time.sleep(0.1)
    dist.all_reduce(torch.ones(8))
    leave_group()


def stop_launcher() -> None:
    """Stop the launcher, which hosts the store, until this rank is gone."""
    launcher = os.getppid()
    is_there = f"ls /proc/{os.getpid()}/fd | grep -q ."  # not of a zombie
    goes_on = f"while {is_there}; do sleep 0.1; done; kill -CONT {launcher}"
    subprocess.Popen(["sh", "-c", goes_on], stderr=subprocess.DEVNULL, start_new_session=True)
    os.kill(launcher, signal.SIGSTOP)
    # Its threads run on for 20 ms where the cores are busy: enough to answer every question.
    while not all(state == "T" for state in states_of_threads(launcher)):
        time.sleep(0.001)


def states_of_threads(pid: int) -> list[str]:
    """Return the state of each thread of a process, as /proc gives it."""
    lines = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            lines.append(path.read_text())
    return [line.rpartition(")")[2].split()[0] for line in lines]


def dumped() -> bool:
    """Say whether there are stacks in C++ of the rank that waits."""
    path = Path(os.environ["DSPROF_OUT"], "hang-rank00000.json")
    return path.exists() and "native_stacks" in path.read_text()


if __name__ == "__main__":
    main(sys.argv[1])
