"""A functional collective is waited for where `wait_tensor` waits, and nowhere else."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dsprof.events import Collective
from dsprof.hooks.functional import FunctionalHook
from dsprof.recorder import Recorder
from tests.factories.foreign_kernel import foreign_kernel
from tests.hooks.conftest import COMPLETE

Install = Callable[..., Recorder]


def records(recorder: Recorder) -> list[Collective]:
    return [record for record in recorder.buffer if isinstance(record, Collective)]


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_wait_finds_its_collective(install: Install, kind: type) -> None:
    recorder = install(kind, FunctionalHook)
    output = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    [pending] = recorder.in_flight.unfinished()
    assert pending.waits == 0
    torch.ops._c10d_functional.wait_tensor(output.elem[2:])
    assert records(recorder) == [pending]
    assert pending.waits == 1
    assert pending.wait_ns <= pending.waited_ns == pending.done_ns
    assert recorder.failures == {}


@pytest.mark.parametrize("kind", COMPLETE)
def test_waiting_for_nothing_is_no_unmatched_wait(install: Install, kind: type) -> None:
    recorder = install(kind, FunctionalHook)
    torch.ops._c10d_functional.wait_tensor(torch.ones(4))
    assert records(recorder) == []
    assert recorder.in_flight.unmatched_waits == 0


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_slow_wait_is_unmatched_unless_its_collective_was_waited_for(
    install: Install, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr("dsprof.hooks.functional.NOTICEABLE_NS", -1)
    recorder = install(kind, FunctionalHook)
    wait = torch.ops._c10d_functional.wait_tensor
    both = functional.all_reduce_coalesced([torch.ones(4), torch.ones(2)], "sum", dist.group.WORLD)
    for output in [*both, both[0]]:
        wait(output.elem)
    assert recorder.in_flight.unmatched_waits == 0
    wait(torch.ones(4))
    assert recorder.in_flight.unmatched_waits == 1


@pytest.mark.parametrize("kind", COMPLETE)
def test_sparse_tensors_have_no_storage(install: Install, kind: type) -> None:
    recorder = install(kind, FunctionalHook)
    dist.all_reduce(torch.ones(4).to_sparse(), async_op=True).wait()
    assert len(records(recorder)) == 1
    assert recorder.failures == {}


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_tensor_is_not_kept_alive(install: Install, kind: type) -> None:
    recorder = install(kind, FunctionalHook)
    output = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).elem
    alive = weakref.ref(output)
    torch.ops._c10d_functional.wait_tensor(output)
    del output
    assert alive() is None
    assert recorder.failures == {}


def test_the_kernel_of_another_tool_is_left_alone(install: Install) -> None:
    with (
        foreign_kernel("_c10d_functional", "wait_tensor"),
        pytest.raises(RuntimeError, match="another tool"),
    ):
        FunctionalHook(install()).install("torch.distributed")


@pytest.mark.parametrize("kind", COMPLETE)
def test_tracing_records_no_wait(install: Install, kind: type) -> None:
    recorder = install(kind, FunctionalHook)

    def reduced(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    compiled = torch.compile(reduced, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(4))
    assert [record.waits for record in records(recorder)] == [1, 1]
    assert recorder.in_flight.unfinished() == []
