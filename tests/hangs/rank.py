"""One rank of a run that goes wrong. Forked from a launcher that has torch, and no dsprof."""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.hangs.draw import Draw

FOREVER_S = 10_000
_ELEMENTS = 64


class Rank:
    """What a case's program sees of its rank: who it is, and the run's process groups."""

    def __init__(self, draw: Draw, rank: int, folder: Path, timeout: datetime.timedelta) -> None:
        self.draw, self.rank, self.folder = draw, rank, folder
        self.is_culprit = rank == draw.culprit
        everyone = list(range(draw.ranks))
        self.groups = {"world": dist.group.WORLD} | {
            name: dist.new_group(ranks, timeout=timeout, group_desc=name)
            for name, ranks in (("second", everyone), ("third", everyone), ("part", draw.part))
        }

    def call(
        self,
        op: str = "",
        group: str = "",
        elements: int = _ELEMENTS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Communicate as was drawn, unless told otherwise; those outside the group do not."""
        group = group or self.draw.group
        members = self.groups[group]
        if members == dist.GroupMember.NON_GROUP_MEMBER:
            return
        mine = torch.ones(elements, dtype=dtype)
        match op or self.draw.op:
            case "all_reduce":
                dist.all_reduce(mine, group=members)
            case "all_gather_into_tensor":
                whole = torch.ones(elements * dist.get_world_size(members), dtype=dtype)
                dist.all_gather_into_tensor(whole, mine, group=members)
            case "reduce_scatter_tensor":
                whole = torch.ones(elements * dist.get_world_size(members), dtype=dtype)
                dist.reduce_scatter_tensor(mine, whole, group=members)
            case "all_to_all_single":
                size = dist.get_world_size(members)
                whole = torch.ones(elements * size, dtype=dtype)
                dist.all_to_all_single(torch.empty_like(whole), whole, group=members)
            case name:
                raise ValueError(name)

    def healthy_steps(self) -> None:
        """Train for a while, as every rank does."""
        import dsprof

        for _ in range(self.draw.calls):
            self.call("all_reduce", "world")
            self.call()
            self.call("all_gather_into_tensor", "second")
            time.sleep(0.02)
            dsprof.step()

    def stalls(self) -> None:
        """Note the moment from which on the run cannot go on."""
        (self.folder / "stalled").write_text(str(time.time_ns()))


def be_rank(draw: Draw, case: str, rank: int, folder: Path, port: int, timeout_s: float) -> None:
    """Run one rank from the start to its end; returns only where the program does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(
        {
            "DSPROF": "1",
            "DSPROF_OUT": str(folder / "trace"),
            "DSPROF_HANG_AFTER": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(draw.ranks),
            "LOCAL_WORLD_SIZE": str(draw.ranks),
            "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
            "MASTER_PORT": str(port),
        }
    )
    from dsprof_autostart import autostart
    from tests.hangs.cases import CASES

    autostart()
    enter_network(rank, draw.culprit)
    timeout = datetime.timedelta(seconds=timeout_s)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], port, draw.ranks, False, datetime.timedelta(seconds=60)
    )
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=draw.ranks,
        timeout=timeout,
    )
    this = Rank(draw, rank, folder, timeout)
    this.healthy_steps()
    CASES[case].program(this)
    dist.destroy_process_group()
    sys.exit()


def enter_network(rank: int, culprit: int) -> None:
    """Move the culprit of a run with a network of its own behind the cable that will be cut."""
    if (name := os.environ.get("HANGS_NAMESPACE")) and rank == culprit:
        with open(f"/run/netns/{name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["GLOO_SOCKET_IFNAME"] = f"{name}c"


def sleep_forever() -> None:
    """Sleep in Python, as a retry loop does."""
    time.sleep(FOREVER_S)


def wait_for_lock() -> None:
    """Wait for a lock that another thread holds and never gives back."""
    lock = threading.Lock()
    is_held = threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    lock.acquire()


def hold_interpreter() -> None:
    """Sleep in C without giving the interpreter lock back."""
    ctypes.PyDLL(None).sleep(FOREVER_S)
