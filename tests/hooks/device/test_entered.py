"""In which collectives a device is, while it is asked."""

from __future__ import annotations

import pytest

from tests.hooks.machine import Machine, machines

machine = pytest.fixture(machines)


def entered(machine: Machine) -> list[int]:
    return [record.id for record in machine.hook.entered()]


def test_collectives_in_which_a_device_is_are_known_while_the_host_waits(machine) -> None:
    machine.warm()
    machine.nccl.all_reduce(5)
    machine.drain()
    machine.compute.run(100)
    one, work = machine.nccl.issue(10**6, is_async=True)  # a rank does not come
    machine.nccl.wait(work)
    with machine.host.stream(machine.side):
        machine.nccl.all_reduce(5)  # on an idle stream
    machine.nccl.all_reduce(5)  # behind it
    machine.host.spend(50)
    assert entered(machine) == []  # it computes
    machine.host.spend(100)
    assert entered(machine) == [one]
    machine.drain()
    assert entered(machine) == []


def test_a_stream_that_waits_for_one_that_computes_is_in_no_collective(machine) -> None:
    machine.warm()
    with machine.host.stream(machine.side):
        machine.nccl.all_reduce(5)
        machine.side.run(10**6)
    machine.compute.wait_stream(machine.side)
    machine.nccl.all_reduce(5)
    machine.host.spend(50)
    assert entered(machine) == []


def test_a_collective_whose_issuing_stream_computes_has_not_begun(machine) -> None:
    machine.warm()
    with machine.host.stream(machine.side):
        machine.side.run(100)
        first, work = machine.nccl.issue(10**6, is_async=True)
    machine.nccl.wait(work)  # on a stream that is idle
    machine.host.spend(50)
    assert entered(machine) == []
    machine.host.spend(100)
    assert entered(machine) == [first]


def test_a_collective_behind_one_that_waits_for_compute_has_not_begun(machine) -> None:
    machine.warm()
    with machine.host.stream(machine.side):
        machine.side.run(100)
        _, earlier = machine.nccl.issue(5, is_async=True)
    number, work = machine.nccl.issue(10**6, is_async=True)
    machine.nccl.wait(work)
    machine.host.spend(50)
    assert entered(machine) == []
    machine.host.spend(100)
    assert entered(machine) == [number]
    del earlier


def test_a_wait_of_the_host_counts_once_the_device_has_come_to_it(machine: Machine) -> None:
    machine.warm()
    machine.compute.run(100)
    number, work = machine.nccl.issue(5, is_async=True)

    def blocks() -> None:
        assert entered(machine) == []
        machine.host.spend(150)
        assert entered(machine) == [number]

    machine.recorder.in_flight.device.wait(work, blocks)
    assert machine.collectives()[-1].waits == 1
