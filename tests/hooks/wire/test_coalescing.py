"""What is launched together is marked so, and the one Work for it is known.

The fake backend coalesces, gloo does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from dsprof.hooks.base import Hook
from dsprof.hooks.wire.coalescing import CoalescingHook
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.rank_trace import CollectivesBuilder
from dsprof.trace.schema import Collective
from dsprof.trace.writing.encode import Encoder
from tests.factories.fake_cuda import MS, Work
from tests.handed_over import handed_over
from tests.hooks.conftest import IN_DISPATCHER
from tests.hooks.machine import Machine, machines

CPU = torch.device("cpu")
Install = Callable[..., Recorder]
both_ways = pytest.mark.parametrize("kind", [*IN_DISPATCHER, ProcessGroupHook])


def collectives(recorder: Recorder) -> list[Collective]:
    return handed_over(recorder, Collective)


def exchange() -> list[Any]:
    operations = [dist.P2POp(op, torch.zeros(4), 1) for op in (dist.isend, dist.irecv)]
    with _coalescing_manager(dist.group.WORLD, CPU, async_ops=True) as manager:
        for operation in operations:
            operation.op(operation.tensor, operation.peer)
    return manager.works


@both_ways
def test_operations_of_a_batch_are_marked_and_one_has_the_wait(
    install: Install, kind: type[Hook]
) -> None:
    recorder = install(kind, CoalescingHook)
    for _ in range(2):
        (work,) = exchange()
        work.wait()
    dist.all_reduce(torch.zeros(4))
    found = sorted(collectives(recorder), key=lambda record: record.id)
    assert [r.op for r in found] == ["send", "recv", "send", "recv", "all_reduce"]
    numbers = [record.coalesced for record in found]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert numbers[0]
    assert numbers[4] == 0
    assert [record.waits for record in found] == [0, 1, 0, 1, 1]
    assert (recorder.in_flight.works, recorder.in_flight.unmatched_waits) == ({}, 0)
    assert recorder.failures == {}


@both_ways
def test_a_wait_that_takes_its_time_is_matched(
    install: Install, kind: type[Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = install(kind, CoalescingHook)
    (work,) = exchange()
    recorder.in_flight.waited(work, 0, 10**9, True)
    assert recorder.in_flight.unmatched_waits == 0
    assert [record.blocked_ns for record in collectives(recorder)][-1] == 10**9


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_a_batch_that_raises_ends_with_the_step(install: Install, kind: type) -> None:
    recorder = install(kind, CoalescingHook)
    with (
        pytest.raises(ValueError, match="no"),
        _coalescing_manager(dist.group.WORLD, CPU, async_ops=True),
    ):
        raise ValueError("no")
    recorder.progress.end_step("user")
    dist.distributed_c10d._world.pg_coalesce_state.clear()
    dist.all_reduce(torch.zeros(4))
    assert collectives(recorder)[-1].coalesced == 0


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_readers_take_a_batch_for_complete_when_its_last_is(install: Install, kind: type) -> None:
    recorder = install(kind, CoalescingHook)
    (work,) = exchange()
    work.wait()
    first, last = collectives(recorder)
    first.done_ns = 0
    encoder, builder = Encoder(0, 0, str), CollectivesBuilder()
    builder.add([encoder.collective(first), encoder.collective(last)])
    rows = builder.build()
    assert list(rows.done_ns) == [last.done_ns, last.done_ns]
    assert rows.coalesced[0] == rows.coalesced[1] != 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield from machines(monkeypatch)


def test_on_a_device_the_wait_for_a_batch_holds_the_stream(machine: Machine) -> None:
    machine.warm()
    recorder = machine.recorder
    hook = CoalescingHook(recorder)
    hook._start()
    kept = [machine.nccl.issue(5, is_async=True) for _ in range(2)]
    work = Work(machine.host, machine.nccl.own.free)
    hook._end(work)
    machine.nccl.wait(work)
    (stall,) = [stall for stall in machine.read_back() if stall.kind == "wait"]
    assert stall.collective == kept[-1][0]
    assert recorder.in_flight.enqueued == {}
    assert recorder.failures == {}


def test_on_a_device_a_batch_without_a_work_holds_the_stream_that_runs_it(machine: Machine) -> None:
    """Synchronous, torch 2.8 and later: the current stream runs it when it ends, from 3 to 13."""
    machine.warm()
    now, hook = machine.host.now, CoalescingHook(machine.recorder)
    machine.compute.run(3)
    hook._start()
    collected = [machine.nccl.all_reduce(0) for _ in range(3)]
    machine.compute.run(10)
    hook._end(None)
    machine.compute.run(4)
    (stall,) = machine.read_back()
    assert (stall.kind, stall.collective) == ("collective", collected[-1])
    assert (stall.start_ns / MS, stall.end_ns / MS) == (now + 3, now + 13)
    assert machine.recorder.failures == {}


def test_marks_of_a_batch_that_raises_are_used_again(machine: Machine) -> None:
    machine.warm()
    hook = CoalescingHook(machine.recorder)
    for number in range(1, 30):
        hook._start()
        machine.nccl.all_reduce(0)
        machine.drain()
        machine.nccl.step(number)
    assert machine.device.made < 8
    assert machine.stalls() == []
