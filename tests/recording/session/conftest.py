"""Each test is in a process group of torch's fake backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dsprof.disable()
    if dist.is_initialized():
        dist.destroy_process_group()
