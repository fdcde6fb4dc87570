"""A collective captured into a CUDA graph, replayed in each step: OUT, which gets the result."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import dsprof
from tests.device.programs.steps import STEPS, Work


def main(out: Path) -> None:
    work = Work(1024)
    dist.init_process_group("nccl", device_id=work.device)
    given, gathered = torch.ones(1 << 20, device=work.device), torch.zeros(1 << 20, device="cuda")
    dsprof.enable(out=str(out / "trace"))
    dist.all_gather_into_tensor(gathered, given)
    dsprof.step()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        work.compute(1)
        dist.all_gather_into_tensor(gathered, given)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.compute(1)
        dist.all_gather_into_tensor(gathered, given)
        handle = dist.all_gather_into_tensor(gathered, given, async_op=True)
        handle.wait()
    for number in range(STEPS):
        given.fill_(number)
        graph.replay()
        dsprof.step()
    (out / "result").write_text(str(float(gathered[0])))
    dsprof.disable()
    dist.destroy_process_group()


main(Path(sys.argv[1]))
