"""Issues many collectives in one process of a world of 1,024; prints how much memory grew.

Every second one is asynchronous, and is "waited" for or "dropped": then nobody learns when it is
complete, as torch's fake backend says so of no Work. {"collectives": issued, "peak_mib": the most
that was in use above the start}
"""

import json
import sys

import psutil
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof

WARMUP, SAMPLE_EVERY = 1000, 10_000


def communicate(times: int, tensor: torch.Tensor, waits: bool) -> None:
    for _ in range(times // 2):
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        if waits:
            work.wait()


def main() -> None:
    waits, count, out = sys.argv[1:]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1024)
    dsprof.enable(out=out)
    process, tensor = psutil.Process(), torch.ones(4)
    communicate(WARMUP, tensor, waits == "waited")
    start = peak = process.memory_info().rss
    for _ in range(int(count) // SAMPLE_EVERY):
        communicate(SAMPLE_EVERY, tensor, waits == "waited")
        peak = max(peak, process.memory_info().rss)
    dsprof.disable()
    print(json.dumps({"collectives": WARMUP + int(count), "peak_mib": (peak - start) / 2**20}))


if __name__ == "__main__":
    main()
