"""gloo with tensors on the device, two ranks on one GPU: OUT."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.device.programs.steps import Work, watched
from tests.dist.leaving import leave_group


def main(out: Path) -> None:
    work = Work()
    dist.init_process_group("gloo")
    gradients = torch.ones(1 << 26, device=work.device)

    def step() -> None:
        work.compute(2)
        dist.all_reduce(gradients)
        handle = dist.all_reduce(gradients, async_op=True)
        work.compute(1)
        handle.wait()
        work.compute(1)

    watched(out, step)
    leave_group()


main(Path(sys.argv[1]))
