"""Steps and stalls of a device, placed on the clock of the host."""

from __future__ import annotations

import pytest

from dsprof.hooks.device import clock, stalls
from dsprof.trace.schema import DeviceStep
from tests.factories.fake_cuda import MS, Stream
from tests.handed_over import handed_over
from tests.hooks.machine import Machine, machines

machine = pytest.fixture(machines)


def test_steps_are_those_of_the_device(machine: Machine) -> None:
    """The host ends steps 1 and 2 at once; the device takes 20 and 30 ms for them."""
    machine.warm()
    now = machine.host.now
    machine.compute.run(20)
    machine.nccl.step(1)
    machine.compute.run(30)
    machine.nccl.step(2)
    machine.drain()
    machine.nccl.step(3)
    steps = handed_over(machine.recorder, DeviceStep)
    assert [s.step for s in steps] == [1, 2, 3]
    assert [s.end_ns / MS - now for s in steps] == pytest.approx([20, 50, 50], abs=0.01)
    assert steps[1].start_ns == steps[0].end_ns


def test_placement_is_within_its_bound_of_a_host_that_runs_ahead(machine: Machine) -> None:
    """No event is ever enqueued on an idle stream: the device is 100 ms behind the host."""
    machine.host.drift = 2e-5
    machine.compute.run(100)
    truth = []
    for number in range(12):
        truth.append(machine.compute.free)
        machine.nccl.all_reduce(5)
        machine.compute.run(40)
        machine.host.spend(45)
        machine.nccl.step(number)
    found = machine.stalls()
    assert len(found) > 6
    drift_ns = 45 * MS * clock.DRIFT
    for stall in found:
        late_ns = truth[stall.collective - 1] * MS - stall.start_ns
        assert -drift_ns <= late_ns <= stall.bound_ns + drift_ns
        assert stall.duration_ns == pytest.approx(5 * MS, rel=1e-4)
    assert found[-1].bound_ns < 160 * MS


def test_what_ties_the_clocks_late_leaves_a_stall_in_its_step(machine: Machine) -> None:
    """Steps 1 to 3 are enqueued at once, 100 ms ahead, and read back when the host knows more."""
    machine.warm()
    machine.compute.run(100)
    for step in (1, 2, 3):
        machine.compute.run(20)
        machine.nccl.all_reduce(5)
        machine.nccl.step(step)
    machine.drain()
    machine.host.spend(50)
    machine.side.run(1)
    with machine.host.stream(machine.side):
        machine.nccl.all_reduce(1)  # on an idle stream: when that began is known exactly
    machine.drain()
    machine.nccl.step(4)
    machine.read_back()
    steps = {r.step: r for r in handed_over(machine.recorder, DeviceStep)}
    for stall in (one for one in machine.stalls() if one.step in (2, 3)):
        step = steps[stall.step]
        assert step.end_ns - step.start_ns == 25 * MS
        assert (stall.start_ns - step.start_ns, step.end_ns - stall.end_ns) == (20 * MS, 0)


def test_a_host_that_waits_ties_the_clocks(machine: Machine) -> None:
    """All was enqueued at once, 16 ms ahead; but the host learns when the device was done."""
    machine.host.latency = 0.005
    machine.module.streams = [machine.compute]
    machine.compute.run(10)
    machine.nccl.all_reduce(1)
    machine.nccl.step(0)
    machine.nccl.all_reduce(5)
    machine.nccl.step(1)
    machine.host.spend(0.01)
    machine.module.synchronize()
    machine.host.spend(500)
    machine.nccl.step(2)
    (stall,) = machine.stalls()
    assert stall.bound_ns < 17 * MS


def test_a_host_that_waits_for_one_device_knows_nothing_of_another(machine: Machine) -> None:
    machine.host.latency = 0.005
    machine.compute.run(10)
    machine.nccl.all_reduce(1)
    machine.nccl.step(0)
    machine.nccl.all_reduce(5)
    machine.nccl.step(1)
    machine.host.spend(0.01)
    with machine.host.stream(Stream(machine.host, 0, device_index=1)):
        machine.module.synchronize()
    machine.host.spend(500)
    machine.nccl.step(2)
    (stall,) = machine.stalls()
    assert stall.bound_ns > 490 * MS  # seen 500 ms after it was enqueued; it takes 5


def test_what_is_not_passed_is_asked_again_and_given_up_in_the_end(machine: Machine) -> None:
    machine.warm()
    machine.compute.run(1e6)
    machine.nccl.all_reduce(5)
    before = machine.host.now
    for number in range(1, stalls.MOST_STEP_ENDS + 1):
        machine.nccl.step(number)
    assert (machine.stalls(), machine.recorder.in_flight.lost_stalls) == ([], 0)
    machine.nccl.step(stalls.MOST_STEP_ENDS + 1)
    assert (machine.stalls(), machine.recorder.in_flight.lost_stalls) == ([], 1)
    assert machine.host.now == before  # nothing waited
