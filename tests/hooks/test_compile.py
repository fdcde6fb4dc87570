"""torch.compile makes the same graphs with hooks as without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
import torch.distributed as dist

from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.recording.recorder.recorder import Recorder
from tests.hooks.conftest import COMPLETE


def waits_later(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x + 1
    work.wait()
    return y + z


def waits_at_once(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    dist.all_reduce(x)
    return x + 1


def graphs(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[int, int]:
    torch._dynamo.reset()
    found = torch._dynamo.explain(function)(torch.ones(4))
    return found.graph_count, found.graph_break_count


@pytest.mark.filterwarnings("error:Dynamo does not know")
@pytest.mark.parametrize("kind", [*COMPLETE, ProcessGroupHook])
@pytest.mark.parametrize("function", [waits_later, waits_at_once])
def test_the_same_graphs_with_hooks_and_without(
    install: Callable[..., Recorder], kind: type, function: Callable[..., torch.Tensor]
) -> None:
    bare = graphs(function)
    recorder = install(kind)
    assert graphs(function) == bare
    assert recorder.failures == {}
