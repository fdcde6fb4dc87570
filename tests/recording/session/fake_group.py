"""A rank of a process group of torch's fake backend."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.schema import FILE_PATTERN


def communicate(times: int = 1) -> None:
    for _ in range(times):
        dist.all_reduce(torch.zeros(4))


def read(folder: Path) -> RankTrace:
    (file,) = folder.glob(FILE_PATTERN)
    return read_trace(file)


def become(rank: int, world_size: int) -> None:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
