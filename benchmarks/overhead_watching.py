"""Trains at 10 steps/s, first without and then with a process that follows the run.

Run by benchmarks/overhead.py. Rank 0 measures over a minute each which share of a core is taken by
its training thread, the writer's thread, the process beside, and the judgements that this starts.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

import dsprof
from dsprof.recording import session
from tests.dist.leaving import leave_group
from tests.ports import free_port

STEP_S = 0.1
WARM_STEPS, STEPS = 50, 600


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        until = time.perf_counter() + STEP_S
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(max(until - time.perf_counter(), 0))


def cpu_s() -> dict[str, float]:
    """Return the CPU time so far of the parts of a recording."""
    on = session.current()
    times = {"training thread": time.thread_time()}
    if on is not None and on.writer is not None:
        times["writer"] = on.writer.cpu_ns / 1e9
    for one in psutil.Process().children():
        if "dsprof.live.beside" in one.cmdline():
            spent = one.cpu_times()
            times["process beside"] = spent.user + spent.system
            times["judgements"] = spent.children_user + spent.children_system
    return times


def measured(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of a core that each part takes."""
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as out:
        dsprof.enable(out=out, **settings)
        train(model, optimizer, WARM_STEPS)
        before, began = cpu_s(), time.perf_counter()
        train(model, optimizer, STEPS)
        after, took_s = cpu_s(), time.perf_counter() - began
        dsprof.disable()
        dist.barrier()
    return {name: (after[name] - before[name]) / took_s for name in before}


def main(out: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found = {
        "recording": measured({}),
        "recording, metrics_port": measured({"metrics_port": free_port()}),
    }
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    leave_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
