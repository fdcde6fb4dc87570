"""A functional collective is waited for where `wait_tensor` waits, and nowhere else."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dsprof.hooks.base import Hook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective
from tests.factories.foreign_kernel import foreign_kernel
from tests.handed_over import handed_over
from tests.hooks.conftest import WITH_WAITS

Install = Callable[..., Recorder]
Kinds = tuple[type[Hook], ...]

both = pytest.mark.parametrize("kinds", WITH_WAITS)


def records(recorder: Recorder) -> list[Collective]:
    return handed_over(recorder, Collective)


@both
def test_a_wait_finds_its_collective(install: Install, kinds: Kinds) -> None:
    recorder = install(*kinds)
    output = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    [pending] = recorder.in_flight.unfinished()
    assert pending.waits == 0
    torch.ops._c10d_functional.wait_tensor(output.elem[2:])
    assert records(recorder) == [pending]
    assert pending.waits == 1
    assert pending.wait_ns <= pending.waited_ns == pending.done_ns
    assert recorder.failures == {}


@both
def test_the_first_collective_of_a_run_may_be_functional(install: Install, kinds: Kinds) -> None:
    recorder = install(*kinds)
    recorder.recording = False  # as before it
    output = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    torch.ops._c10d_functional.wait_tensor(output.elem)
    assert [record.waits for record in records(recorder)] == [1]


@both
def test_waiting_for_no_tensor_is_torchs_error(install: Install, kinds: Kinds) -> None:
    def wait() -> tuple[type, str]:
        with pytest.raises(Exception, match="Undefined") as raised:
            torch.ops._c10d_functional.wait_tensor(None)
        return raised.type, str(raised.value).partition("\n")[0]

    bare = wait()
    recorder = install(*kinds)
    assert wait() == bare
    assert recorder.failures == {}


@both
def test_waiting_for_nothing_is_no_unmatched_wait(install: Install, kinds: Kinds) -> None:
    recorder = install(*kinds)
    torch.ops._c10d_functional.wait_tensor(torch.ones(4))
    assert records(recorder) == []
    assert recorder.in_flight.unmatched_waits == 0


@both
def test_a_slow_wait_is_unmatched_unless_its_collective_was_waited_for(
    install: Install, monkeypatch: pytest.MonkeyPatch, kinds: Kinds
) -> None:
    monkeypatch.setattr("dsprof.hooks.wire.functional.NOTICEABLE_NS", -1)
    recorder = install(*kinds)
    wait = torch.ops._c10d_functional.wait_tensor
    both = functional.all_reduce_coalesced([torch.ones(4), torch.ones(2)], "sum", dist.group.WORLD)
    for output in [*both, both[0]]:
        wait(output.elem)
    assert recorder.in_flight.unmatched_waits == 0
    wait(torch.ones(4))
    assert recorder.in_flight.unmatched_waits == 1


@both
def test_sparse_tensors_have_no_storage(install: Install, kinds: Kinds) -> None:
    recorder = install(*kinds)
    dist.all_reduce(torch.ones(4).to_sparse(), async_op=True).wait()
    assert len(records(recorder)) == 1
    assert recorder.failures == {}


@both
def test_a_tensor_is_not_kept_alive(install: Install, kinds: Kinds) -> None:
    recorder = install(*kinds)
    output = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).elem
    alive = weakref.ref(output)
    torch.ops._c10d_functional.wait_tensor(output)
    del output
    assert alive() is None
    assert recorder.failures == {}


@both
def test_the_kernel_of_another_tool_is_left_alone(install: Install, kinds: Kinds) -> None:
    with (
        foreign_kernel("_c10d_functional", "wait_tensor"),
        pytest.raises(RuntimeError, match="another tool"),
    ):
        kinds[1](install()).install("torch.distributed")


@both
def test_a_wait_that_raises_tells_nothing_of_the_end(install: Install, kinds: Kinds) -> None:
    def fail(tensor: torch.Tensor) -> None:
        raise TimeoutError("on purpose")

    recorder = install(*kinds)
    output = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).elem
    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("wait_tensor", fail, "CPU")
    with pytest.raises(TimeoutError, match="on purpose"):
        torch.ops._c10d_functional.wait_tensor(output)
    library._destroy()
    [record] = records(recorder)
    assert (record.waits, record.done_ns) == (1, 0)
    assert record.issue_ns < record.wait_ns < record.waited_ns


@both
def test_tracing_records_no_wait(install: Install, kinds: Kinds) -> None:
    recorder = install(*kinds)

    def reduced(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    compiled = torch.compile(reduced, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(4))
    assert [record.waits for record in records(recorder)] == [1, 1]
    assert recorder.in_flight.unfinished() == []
