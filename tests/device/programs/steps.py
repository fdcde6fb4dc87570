"""What the programs on a GPU share: steps of matrix products, watched by torch.profiler too.

The profiler sees the steps that dsprof measures: all but the first two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

import dsprof

STEPS, WARMUP = 12, 2


class Work:
    """Matrix products of some milliseconds each."""

    def __init__(self, size: int = 8192) -> None:
        self.device = torch.device(
            "cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        )
        torch.cuda.set_device(self.device)
        self.a = torch.randn(size, size, device=self.device)
        self.out = torch.empty_like(self.a)

    def compute(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self.a, self.a, out=self.out)


def watched(out: Path, step: Callable[[], None]) -> None:
    """Run the steps under dsprof and the profiler, and leave both records in `out`."""
    from torch.profiler import ProfilerActivity, profile

    dsprof.enable(out=str(out / "trace"))
    profiler = profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU])
    for number in range(STEPS):
        if number == WARMUP:
            torch.cuda.synchronize()
            profiler.start()
        step()
        dsprof.step()
    torch.cuda.synchronize()
    profiler.stop()
    profiler.export_chrome_trace(str(out / f"kineto.rank{os.environ['RANK']}.json"))
    dsprof.disable()
