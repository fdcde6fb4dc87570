"""What takes long on one rank or on all, and is lawful: the run goes on and ends."""

from __future__ import annotations

import ctypes
import io
import os
import pdb
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Thread, Timer
from typing import Any

import torch
import torch.distributed as dist

from tests.hangs.faults import Program
from tests.hangs.rank import LONG_S, Rank

_ATTACH = """
import ctypes, os, sys, time
pid, libc = int(sys.argv[1]), ctypes.CDLL(None)
libc.ptrace(16, pid, 0, 0)
os.waitpid(pid, 0x40000000)
time.sleep(float(sys.argv[2]))
libc.ptrace(17, pid, 0, 0)
"""


def calm(slow: Program, *, on_all: bool = False, call: str = "all_reduce") -> Program:
    """A rank, or all of them, does what takes long before it joins a call."""

    def program(rank: Rank) -> None:
        if rank.is_culprit or on_all:
            rank.stalls()
            slow(rank)
        if call == "barrier":
            dist.barrier()
        for _ in range(20):
            rank.call("all_reduce", "world", elements=8)

    return program


def save_slowly(rank: Rank) -> None:
    class SlowDisk(io.FileIO):
        def write(self, data: Any) -> int:
            time.sleep(LONG_S / 8)
            return super().write(data)

    with SlowDisk(rank.folder / "checkpoint.pt", "wb") as disk:
        torch.save({"weights": torch.ones(10)}, disk)


def upload_slowly(_: Rank) -> None:
    """Save to an object store: another thread sends, and takes little of a CPU."""

    def send() -> None:
        here, there = socket.socketpair()
        with here, there:
            for _ in range(int(LONG_S / 0.05)):
                there.recv(here.send(bytes(1 << 16)))
                time.sleep(0.05)

    class Upload(io.BytesIO):
        def write(self, data: Any) -> int:
            if not self.tell():
                sender = Thread(target=send)
                sender.start()
                sender.join()
            return super().write(data)

    torch.save({"weights": torch.ones(10)}, Upload())


def compute(_: Rank) -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        torch.ones(256, 256) @ torch.ones(256, 256)


def compile_model(_: Rank) -> None:
    """Compile as torch does: a compiler in a process of its own computes."""

    def slowly(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        compiler = f"import time\nwhile time.process_time() < {LONG_S / 2}: pass"
        subprocess.run([sys.executable, "-c", compiler], check=True)
        return graph.forward

    torch.compile(torch.nn.Linear(4, 4), backend=slowly)(torch.ones(4, 4))


def stop_at_prompt(_: Rank) -> None:
    """Stop at a prompt of pdb, whose user thinks for a while."""
    mine, theirs = os.pipe()
    Timer(LONG_S, os.write, (theirs, b"continue\n")).start()
    with open(mine) as typed:
        pdb.Pdb(stdin=typed, stdout=io.StringIO()).set_trace()


def stop_by_debugger(_: Rank) -> None:
    """Be stopped by a debugger that attaches from outside, as gdb does."""
    ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0)  # let any process attach
    subprocess.run([sys.executable, "-c", _ATTACH, str(os.getpid()), str(LONG_S)], check=True)


def straggle(rank: Rank) -> None:
    rank.stalls()
    for _ in range(20):
        time.sleep(0.5 * rank.is_culprit)
        rank.call("all_reduce", "world", elements=8)


def sleep_a_step(_: Rank) -> None:
    time.sleep(LONG_S)


def sleep_as_a_laptop(rank: Rank) -> None:
    """All ranks are stopped and go on together; the launcher sees to it."""
    (rank.folder / "stop-all").touch()
    time.sleep(1)
