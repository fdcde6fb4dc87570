"""Each rank leaves its process group in good order, and is killed: at once, or a moment later."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

ROUNDS = 20


def main() -> None:
    dist.init_process_group("gloo")
    part = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    for _ in range(ROUNDS):
        dist.all_reduce(torch.ones(64))
    dist.barrier()
    dist.destroy_process_group(part)
    if sys.argv[1] != "stays":
        dist.destroy_process_group()
    if sys.argv[1] == "written":
        trace = Path(os.environ["DSPROF_OUT"], f"trace.rank{int(os.environ['RANK']):05d}.json")
        while b'"group_end"' not in trace.read_bytes():
            os.sched_yield()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
