"""Trains pipelines of torch.distributed.pipelining on 2 ranks, recorded.

Arguments: a folder. Writes a folder of traces for each schedule.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

import dsprof
from tests.dist.leaving import leave_group

MICRO_BATCHES = 4
STAGES = {ScheduleGPipe: 1, Schedule1F1B: 1, ScheduleInterleaved1F1B: 2}  # of each rank
WIDTHS = (16, 24, 32, 40, 16)  # an activation, and its gradient, are told by their sizes


def train(kind: type, stages: int) -> None:
    rank, count = dist.get_rank(), 2 * stages
    mine = [
        PipelineStage(
            nn.Linear(WIDTHS[number], WIDTHS[number + 1]), number, count, torch.device("cpu")
        )
        for number in range(rank, count, 2)
    ]
    schedule = kind(mine[0] if stages == 1 else mine, MICRO_BATCHES, loss_fn=loss)
    inputs = [torch.ones(8, WIDTHS[0])] if rank == 0 else []
    schedule.step(*inputs, target=torch.ones(8, WIDTHS[count]) if rank == 1 else None)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    for kind, stages in STAGES.items():
        dsprof.enable(out=str(folder / kind.__name__))
        dist.barrier()
        train(kind, stages)
        dsprof.step()
        dsprof.disable()
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
