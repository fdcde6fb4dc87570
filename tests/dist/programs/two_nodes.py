"""Two nodes of two ranks on one machine: each has memory, a name and a network of its own.

Arguments: a fault, and a folder for everything. The last rank does not come to a collective.
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.hangs import network

RANKS_OF_NODE, CULPRIT = 2, 3
STEPS = 6
_NODE = "mount -t tmpfs none /dev/shm && hostname node{node} && exec {command}"


def oversleep() -> None:
    """Not come, in a line that the verdict is to name."""
    time.sleep(10_000)


def be_rank(rank: int, fault: str, folder: Path) -> None:
    """Train for a while; then the culprit does not come."""
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    world = 2 * RANKS_OF_NODE
    os.environ |= {
        "DSPROF": "1",
        "DSPROF_OUT": str(folder / "trace"),
        "DSPROF_HANG_AFTER": "3",
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % RANKS_OF_NODE),
        "LOCAL_WORLD_SIZE": str(RANKS_OF_NODE),
    }
    from dsprof_autostart import autostart

    autostart()
    import dsprof

    dist.init_process_group(
        "gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=300)
    )
    second = dist.new_group([*range(world)], group_desc="second")
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(8))
        dist.all_reduce(torch.ones(8), group=second)
        dsprof.step()
    if rank == CULPRIT:
        if fault == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "store is dead":
            (folder / "end-store").touch()
        oversleep()
    dist.all_reduce(torch.ones(8), group=second)


def be_node(node: int, fault: str, folder: Path) -> None:
    """Fork the ranks of a node, and wait for them."""
    if node == 1:
        network.enter()
    ranks = range(node * RANKS_OF_NODE, (node + 1) * RANKS_OF_NODE)
    pids = []
    for rank in ranks:
        child = os.fork()
        if not child:
            be_rank(rank, fault, folder)
            os._exit(0)
        pids.append(child)
    for pid in pids:
        os.waitpid(pid, 0)


def launch(fault: str, folder: Path) -> None:
    """Lay a network, start two nodes, and host their store; whoever started this ends it."""
    network.Network.lay("cut", folder)
    store: dist.TCPStore | None = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        0,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=60),
    )
    os.environ |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = f"{sys.executable} -m tests.dist.programs.two_nodes"
    nodes = [
        subprocess.Popen(
            ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c"]
            + [_NODE.format(node=node, command=f"{command} '{fault}' {folder} {node}")]
        )
        for node in range(2)
    ]
    while any(node.poll() is None for node in nodes):
        if (folder / "end-store").exists():
            store = None
        time.sleep(0.1)
    del store


if __name__ == "__main__":
    if len(sys.argv) > 3:
        be_node(int(sys.argv[3]), sys.argv[1], Path(sys.argv[2]))
    else:
        launch(sys.argv[1], Path(sys.argv[2]))
