"""Communicates step by step until rank 0 finds a number in a file: the last step.

Arguments: the file.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import dsprof
from tests.dist.leaving import leave_group

MOST_STEPS = 20_000


def main(last_step: Path) -> None:
    dist.init_process_group("gloo")
    step, goes_on = 0, torch.ones(1)
    while goes_on.item() and step < MOST_STEPS:
        dist.all_reduce(torch.ones(8))
        time.sleep(0.02)
        if dist.get_rank() == 0 and last_step.exists():
            goes_on.fill_(step < int(last_step.read_text()))
        dist.broadcast(goes_on, 0)
        dsprof.step()
        step += 1
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
