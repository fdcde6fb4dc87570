"""Rank 1 dies at once after it has entered a collective, in the way that the argument names."""

import os
import signal
import sys

import torch
import torch.distributed as dist

ROUNDS = 300
ENDS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exits": lambda: os._exit(3),
    "aborts": os.abort,
}


def main() -> None:
    dist.init_process_group("gloo")
    data = torch.ones(64)
    for _ in range(ROUNDS):
        dist.all_reduce(data)
    if dist.get_rank() == 1:
        in_flight = dist.broadcast(torch.ones(8), 0, async_op=True)
        ENDS[sys.argv[1]]()
        in_flight.wait()
    dist.barrier()


if __name__ == "__main__":
    main()
