"""Nothing of the user's is kept alive: no tensor, group, Work, model or optimizer."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dsprof
from dsprof.recording import session

Owned = list[Any]


@pytest.fixture(autouse=True)
def _group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dsprof.disable()
    dist.destroy_process_group()


def waited_for() -> Owned:
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return [tensor, work]


def dropped() -> Owned:
    """The caller never looks at the Work that he got."""
    tensor = torch.ones(1000)
    dist.all_reduce(tensor, async_op=True)
    return [tensor]


def in_lists() -> Owned:
    tensors = [torch.ones(8), torch.ones(8), torch.ones(8)]
    dist.all_gather([tensors[0]], tensors[1])
    dist.reduce_scatter(tensors[2], [tensors[0]])
    return tensors


def in_a_group() -> Owned:
    group, tensor = dist.new_group([0]), torch.ones(8)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    return [group, tensor]


def in_a_model() -> Owned:
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return [model, optimizer, *model.parameters()]


@pytest.mark.parametrize("interception", ["dispatcher", "native", "process_group"])
@pytest.mark.parametrize("use", [waited_for, dropped, in_lists, in_a_group, in_a_model])
def test_nothing_outlives_its_owner(
    tmp_path: Path, interception: str, use: Callable[[], Owned]
) -> None:
    dsprof.enable(out=str(tmp_path), interception=interception)
    dist.barrier()  # DDP's reducer is not seen by way of the class
    alive = [weakref.ref(owned) for owned in use()]
    recorder = session.current().recorder  # type: ignore[union-attr]
    settled = time.monotonic() + 30
    # The writer lets go after a second, a thread of gloo when it gets round to it.
    while any(reference() is not None for reference in alive) and time.monotonic() < settled:
        time.sleep(0.05)
        gc.collect()
    assert [type(reference()) for reference in alive] == [type(None)] * len(alive)
    assert recorder.recording
