"""A whole run on a device that keeps its own time: from its hook over the file to the figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.overlap import Overlap
from dsprof.analysis.aggregates.steps import Steps
from dsprof.hooks.wire.coalescing import CoalescingHook
from dsprof.trace.lines import LINES
from dsprof.trace.reader import read_trace
from dsprof.trace.schema import Step
from dsprof.trace.writing.encode import Encoder
from tests.factories.fake_cuda import MS, START_MS, Work
from tests.factories.trace import header, summary
from tests.handed_over import handed_over
from tests.hooks.machine import Machine, machines

STEPS = 8

machine = pytest.fixture(machines)


def overlap_comm(machine: Machine, number: int) -> None:
    """ZeRO-2 with overlap_comm and two buckets; ms of the step, where the device is.

    compute   0-10 gradients of bucket 1, 10-18 of bucket 2, 18-22 held: bucket 1 is not reduced yet
              22-27 the rest of backward, 27-34 nothing to do: the host waits for bucket 2
              34-40 the optimizer
    side      10-22 bucket 1, 22-34 bucket 2
    """
    compute, side = machine.compute, machine.side
    compute.run(10)
    flush(machine)
    compute.run(8)
    compute.wait_stream(side)
    flush(machine)
    compute.run(5)
    side.synchronize()
    compute.run(6)
    start_ns = machine.recorder.hot.step_start_ns
    machine.recorder.hot.step_start_ns = machine.host.clock()
    machine.recorder.outbox.add(Step(number, start_ns, machine.host.clock(), 1, "deepspeed"))
    machine.nccl.step(number)


def flush(machine: Machine) -> None:
    machine.side.wait_stream(machine.compute)
    with machine.host.stream(machine.side):
        machine.nccl.all_reduce(12)


def test_the_figures_of_a_run_are_those_worked_out_by_hand(machine, tmp_path: Path) -> None:
    machine.recorder.hot.step_start_ns = machine.host.clock()
    for number in range(STEPS):
        overlap_comm(machine, number)
    machine.drain()
    machine.hook.uninstall()
    run = summary(read_trace(write(machine, tmp_path / "trace.rank00000.json")))
    steps = run[Steps]
    assert len(steps.measured) == STEPS - 2
    for number in steps.measured:
        part = steps.parts[number]
        assert part.total_ns / MS == pytest.approx(40, abs=0.05)
        assert part.exposed_ns / MS == pytest.approx(4 + 7, abs=0.05)
    assert run[Overlap].bounds == (pytest.approx(1 - 11 / 24, abs=1e-3),) * 2
    (row,) = run[Communication].rows.values()
    assert row.exposed_ns / MS == pytest.approx(11 * (STEPS - 2), abs=0.1)


def exchange(machine: Machine, number: int, *, is_async: bool) -> None:
    """Two sends that are launched together: 0-10 compute, 10-25 both sends, 25-40 compute."""
    hook, end_ms = CoalescingHook(machine.recorder), 15
    machine.compute.run(10)
    hook._start()
    for _ in range(2):
        machine.nccl.issue(0, is_async=is_async)
    if is_async:
        machine.nccl.own.free += end_ms
        work = Work(machine.host, machine.nccl.own.free)
        hook._end(work)
        machine.nccl.wait(work)
    else:
        machine.compute.run(end_ms)
        hook._end(None)
    machine.compute.run(15)
    start_ns = machine.recorder.hot.step_start_ns
    machine.recorder.hot.step_start_ns = machine.host.clock()
    machine.recorder.outbox.add(Step(number, start_ns, machine.host.clock(), 1, "deepspeed"))
    machine.nccl.step(number)


@pytest.mark.parametrize("is_async", [True, False], ids=["one Work", "no Work"])
def test_what_is_launched_together_is_exposed_as_one(machine, tmp_path: Path, is_async) -> None:
    machine.recorder.hot.step_start_ns = machine.host.clock()
    for number in range(STEPS):
        exchange(machine, number, is_async=is_async)
    machine.drain()
    machine.hook.uninstall()
    run = summary(read_trace(write(machine, tmp_path / "trace.rank00000.json")))
    steps = run[Steps]
    assert len(steps.measured) == STEPS - 2
    for number in steps.measured:
        assert steps.parts[number].total_ns / MS == pytest.approx(40, abs=0.05)
        assert steps.parts[number].exposed_ns / MS == pytest.approx(15, abs=0.05)


def write(machine: Machine, file: Path) -> Path:
    start_ns = round(START_MS * MS) - 1
    head = header(0, 1, device="cuda", backend="nccl", started_monotonic_ns=start_ns)
    encoder = Encoder(0, start_ns, str)
    lines = [event for record in handed_over(machine.recorder) for event in encoder.record(record)]
    encoded = map(msgspec.json.encode, [LINES["header"](args=head, ph="M"), *lines])
    file.write_bytes(b"[\n" + b",\n".join(encoded) + b",\n")
    return file
