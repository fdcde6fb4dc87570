"""Trains until old steps have made room, then rank 1 ends as the argument says.

Started by a launcher, or alone with a port and a start method of `torch.multiprocessing`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import dsprof
from dsprof.trace.dumps.state_file import find_state
from dsprof.trace.reader import read_header

STEPS = 1500


def fail() -> None:
    """Fail as a program of the user does."""
    raise ValueError("the learning rate is not a number")


def hang() -> None:
    """Come no more until the other rank has said why it waits."""
    while not Path(os.environ["DSPROF_OUT"], "hang-rank00000.json").exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


ENDS = {
    "raises": fail,
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "is terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "hangs": hang,
}


def train(end: str) -> None:
    """Take steps; rank 1 ends once the last is on disk, and rank 0 waits for it."""
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(64))
        dsprof.step()
    while not is_written():
        time.sleep(0.05)
    if dist.get_rank() == 1:
        while not is_waited_for():
            time.sleep(0.05)
        ENDS[end]()
    # A launcher terminates it once rank 1 has gone: it has to fail by itself.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.all_reduce(torch.ones(64))


def is_written() -> bool:
    """Say whether the last step of this rank is on disk."""
    tails = Path(os.environ["DSPROF_OUT"]).glob(f"trace*.rank{dist.get_rank():05d}.tail*")
    last = b'"cat":"step","args":{"step":%d,' % (STEPS - 1)
    return any(last in tail.read_bytes() for tail in tails)


def is_waited_for() -> bool:
    """Say whether rank 0 has called the last collective, after its last step was on disk."""
    [trace] = Path(os.environ["DSPROF_OUT"]).glob("trace*.rank00000.json")
    state = find_state(read_header(trace), trace.parent)
    return state is not None and any(call.seq > STEPS for call in state.in_flight)


def child(rank: int, end: str, port: str) -> None:
    """Train as one of two ranks that a process started."""
    dsprof.enable()
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    train(end)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        end, port, how = sys.argv[1:]
        mp.start_processes(child, (end, port), nprocs=2, start_method=how)
    else:
        dsprof.enable()
        dist.init_process_group("gloo")
        train(sys.argv[1])
