"""One rank of a run that goes wrong. Forked from a launcher that has torch, and no dsprof."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.hangs import network
from tests.hangs.draw import Draw

LONG_S = 8.0
"""What takes long, takes that: several times as long as dsprof waits here."""

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
    if rank == draw.culprit:
        network.enter()
    timeout = datetime.timedelta(seconds=timeout_s)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], port, draw.ranks, False, datetime.timedelta(seconds=60)
    )
    # Gloo connects them within the timeout, and on a busy machine imports take longer: meet first.
    store.set(f"here{rank}", "")
    store.wait([f"here{one}" for one in range(draw.ranks)])
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
