"""The hook on DTensor's placements does no harm: to results, to graphs, when it breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from dsprof.hooks.torch import dtensor
from dsprof.hooks.torch.dtensor import DTensorHook
from dsprof.recording.recorder.contexts import NOBODY
from dsprof.recording.recorder.recorder import Recorder
from tests.hooks.conftest import IN_DISPATCHER


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_the_same_graphs_with_the_hook_and_without(
    install: Callable[..., Recorder], kind: type
) -> None:
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))
    sharded = DTensor.from_local(torch.ones(2, 8), mesh, [Shard(0)])

    def moves(x: DTensor) -> torch.Tensor:
        y = (x * 2).redistribute(placements=[Replicate()])
        return (y + 1).to_local()

    def graphs() -> tuple[int, int, torch.Size]:
        torch._dynamo.reset()
        found = torch._dynamo.explain(moves)(sharded)
        result = torch.compile(moves, backend="aot_eager")(sharded)
        return found.graph_count, found.graph_break_count, result.shape

    bare = graphs()
    recorder = install(kind, DTensorHook)
    assert graphs() == bare
    assert recorder.failures == {}


def test_a_hook_that_breaks_lets_the_collective_pass(
    install: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = install(DTensorHook)
    mesh = init_device_mesh("cpu", (8,))
    sharded = DTensor.from_local(torch.ones(2, 8), mesh, [Shard(0)])

    def broken(placement: object) -> str:
        raise AttributeError("a later release has no dim")

    monkeypatch.setattr(dtensor, "_spoken", broken)
    for _ in range(4):
        assert sharded.full_tensor().shape == (16, 8)
    assert recorder.failures == {"dtensor": "AttributeError: a later release has no dim"}
    assert recorder.contexts.current() is NOBODY


def test_nothing_is_asked_for_once_a_redistribution_has_ended(
    install: Callable[..., Recorder],
) -> None:
    recorder = install(DTensorHook)
    mesh = init_device_mesh("cpu", (8,))
    DTensor.from_local(torch.ones(2, 8), mesh, [Shard(0)]).full_tensor()
    assert recorder.failures == {}
    assert recorder.contexts.current() is NOBODY
