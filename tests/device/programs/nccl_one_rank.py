"""NCCL with one rank, which copies from buffer to buffer: OUT HOW.

sync: on the current stream. async: on NCCL's own, waited for after some computation. side: on a
stream of the program's own that compute waits for, as DeepSpeed's overlap_comm does.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.device.programs.steps import Work, watched

GIB = 1 << 30


def main(out: Path, how: str) -> None:
    work = Work()
    dist.init_process_group("nccl", device_id=work.device)
    given = torch.ones(4 * GIB, dtype=torch.uint8, device=work.device)
    gathered = torch.empty_like(given)
    side = torch.cuda.Stream()

    def sync() -> None:
        work.compute(2)
        dist.all_gather_into_tensor(gathered, given)
        work.compute(1)

    def asynchronous() -> None:
        work.compute(1)
        handles = [dist.all_gather_into_tensor(gathered, given, async_op=True) for _ in range(3)]
        work.compute(1)
        for handle in handles:
            handle.wait()
        work.compute(1)

    def overlapped() -> None:
        work.compute(1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                dist.all_gather_into_tensor(gathered, given)
        work.compute(1)
        torch.cuda.current_stream().wait_stream(side)
        work.compute(1)

    watched(out, {"sync": sync, "async": asynchronous, "side": overlapped}[how])
    dist.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2])
