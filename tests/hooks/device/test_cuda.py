"""Stalls of streams on a device that keeps its own time; what is expected is worked out by hand."""

from __future__ import annotations

import gc

import pytest

from dsprof.hooks.device.streams import Streams
from dsprof.trace.schema import Collective, DeviceStep, Note, Stall
from dsprof.trace.scope import Scope
from tests.factories.fake_cuda import MS, Event, Stream
from tests.handed_over import handed_over
from tests.hooks.machine import Machine, machines

machine = pytest.fixture(machines)


def spans(found: list[Stall]) -> list[tuple[str, int, float, float]]:
    """Kind, collective, start and end in ms of stalls."""
    return [(s.kind, s.collective, s.start_ns / MS, s.end_ns / MS) for s in found]


def test_a_synchronous_collective_holds_its_stream_from_start_to_end(machine: Machine) -> None:
    machine.warm()
    now = machine.host.now
    machine.compute.run(10)  # the host runs ahead: the collective starts when this is over
    number = machine.nccl.all_reduce(5)
    machine.compute.run(3)
    assert spans(machine.read_back()) == [("collective", number, now + 10, now + 15)]
    (stall,) = machine.stalls()
    assert stall.duration_ns == 5 * MS
    assert not stall.is_side


def test_an_async_collective_holds_the_stream_that_waits_for_what_is_left_of_it(machine) -> None:
    machine.warm()
    now = machine.host.now
    machine.compute.run(4)  # the collective can start at 4, and is over at 14
    number, work = machine.nccl.issue(10, is_async=True)
    machine.compute.run(7)  # hides it until 11
    machine.nccl.wait(work)
    machine.compute.run(2)
    (stall,) = machine.read_back()
    assert spans([stall]) == [("wait", number, now + 11, now + 14)]
    assert stall.issued_ns == (now + 4) * MS
    (record,) = [r for r in machine.collectives() if r.id == number]
    assert (record.waits, record.blocked_ns) == (1, 0)  # the host was not held at all


def test_a_wait_for_what_is_long_over_stalls_nothing(machine: Machine) -> None:
    machine.warm()
    _, work = machine.nccl.issue(3, is_async=True)
    machine.compute.run(20)
    machine.nccl.wait(work)
    (stall,) = machine.read_back()
    assert stall.duration_ns == 0


def test_a_wait_on_a_side_stream_holds_the_side_stream_only(machine: Machine) -> None:
    machine.warm()
    _, work = machine.nccl.issue(10, is_async=True)
    with machine.host.stream(machine.side):
        machine.nccl.wait(work)
    machine.compute.run(10)
    (stall,) = machine.read_back()
    assert (stall.stream, stall.is_side, stall.duration_ns) == (7, True, 10 * MS)


@pytest.mark.parametrize("how", ["wait_stream", "wait_event", "Event.wait"])
def test_a_stream_waits_for_the_collective_that_another_was_given(machine, how: str) -> None:
    """DeepSpeed's overlap_comm: the reduction on a stream of its own, then compute waits for it."""
    machine.warm()
    now = machine.host.now
    machine.compute.run(2)
    machine.side.wait_stream(machine.compute)
    with machine.host.stream(machine.side):
        number = machine.nccl.all_reduce(10)  # from 2 to 12
    machine.compute.run(4)  # until 6
    if how == "wait_stream":
        machine.compute.wait_stream(machine.side)
    else:
        event = machine.side.record_event()
        if how == "wait_event":
            machine.compute.wait_event(event)
        else:
            event.wait(machine.compute)
    on_side, on_compute = sorted(machine.read_back(), key=lambda s: s.start_ns)
    assert spans([on_side]) == [("collective", number, now + 2, now + 12)]
    assert spans([on_compute]) == [("event", number, now + 6, now + 12)]
    assert (on_side.is_side, on_compute.is_side, on_compute.awaited) == (True, False, 7)


def test_the_flush_of_a_bucket_waits_for_the_bucket_before(machine: Machine) -> None:
    """Bucket 2 is being flushed when compute stalls, but bucket 1 is what it waits for."""
    machine.warm()
    with machine.host.stream(machine.side):
        one = machine.nccl.all_reduce(10)
    machine.compute.run(1)
    machine.compute.wait_stream(machine.side)
    with machine.host.stream(machine.side):
        two = machine.nccl.all_reduce(10)
    waits = [s for s in machine.read_back() if s.kind == "event"]
    assert [(s.collective, s.duration_ns) for s in waits] == [(one, 9 * MS)]
    assert two > one


def test_an_event_is_waited_for_as_it_was_recorded(machine: Machine) -> None:
    """A collective that the other stream is given after the record does not hold the waiter."""
    machine.warm()
    with machine.host.stream(machine.side):
        one = machine.nccl.all_reduce(4)
        event = machine.side.record_event()
        machine.nccl.all_reduce(50)
    machine.compute.wait_event(event)
    (wait,) = [s for s in machine.read_back() if s.kind == "event"]
    assert (wait.collective, wait.duration_ns) == (one, 4 * MS)


def test_a_wait_for_a_stream_that_waits_for_a_collective_is_for_that(machine: Machine) -> None:
    machine.warm()
    far = Stream(machine.host, 8)
    with machine.host.stream(far):
        number = machine.nccl.all_reduce(10)
    machine.side.wait_stream(far)
    machine.compute.run(3)
    machine.compute.wait_stream(machine.side)
    waits = [s for s in machine.read_back() if s.kind == "event"]
    found = {(s.stream, s.awaited): (s.collective, s.duration_ns / MS) for s in waits}
    assert found == {(7, 8): (number, 10), (0, 7): (number, 7)}


def test_a_second_wait_for_the_same_collective_is_no_news(machine: Machine) -> None:
    machine.warm()
    with machine.host.stream(machine.side):
        machine.nccl.all_reduce(4)
    machine.compute.wait_stream(machine.side)
    machine.side.run(30)  # a copy, no communication
    machine.compute.wait_stream(machine.side)
    assert len([s for s in machine.read_back() if s.kind == "event"]) == 1


def test_a_stream_does_not_wait_for_what_it_ran_itself(machine: Machine) -> None:
    """overlap_comm: compute waits for the side stream, which then waits for the gradients."""
    machine.warm()
    for _ in range(3):
        with machine.host.stream(machine.side):
            machine.nccl.all_reduce(4)
        machine.compute.wait_stream(machine.side)
        machine.compute.run(2)
        machine.side.wait_stream(machine.compute)
    waits = [s for s in machine.read_back() if s.kind == "event"]
    assert [(s.stream, s.duration_ns) for s in waits] == 3 * [(0, 4 * MS)]


def test_streams_that_wait_for_no_communication_are_left_alone(machine: Machine) -> None:
    machine.warm()
    made = machine.device.made
    machine.side.run(5)
    machine.compute.wait_stream(machine.side)
    machine.side.synchronize()
    assert machine.device.made == made
    assert machine.read_back() == []


@pytest.mark.parametrize("how", ["Stream.synchronize", "Event.synchronize", "cuda.synchronize"])
def test_a_host_that_waits_for_a_collective_lets_the_current_stream_run_dry(machine, how) -> None:
    machine.warm()
    now = machine.host.now
    machine.module.streams = [machine.compute, machine.side]
    with machine.host.stream(machine.side):
        number = machine.nccl.all_reduce(10)
        event = machine.side.record_event()
    machine.compute.run(6)  # after that the compute stream has nothing to do until 10
    if how == "Stream.synchronize":
        machine.side.synchronize()
    elif how == "Event.synchronize":
        event.synchronize()
    else:
        machine.module.synchronize()
    (stall,) = [s for s in machine.read_back() if s.kind == "synchronize"]
    assert spans([stall]) == [("synchronize", number, now + 6, now + 10)]
    assert stall.awaited == (-1 if how == "cuda.synchronize" else 7)


def test_a_host_that_waits_for_the_stream_it_computes_on_is_no_stall(machine: Machine) -> None:
    machine.warm()
    machine.nccl.all_reduce(10)
    machine.compute.synchronize()
    assert [s.kind for s in machine.read_back()] == ["collective"]


def test_events_are_used_again(machine: Machine) -> None:
    machine.warm()
    for number in range(1, 50):
        _, work = machine.nccl.issue(1, is_async=True)
        machine.nccl.wait(work)
        machine.nccl.all_reduce(1)
        machine.drain()
        machine.nccl.step(number)
    assert machine.device.made < 12


def test_nothing_is_asked_or_enqueued_while_a_graph_is_captured(machine: Machine) -> None:
    machine.warm()
    machine.nccl.all_reduce(1)
    machine.drain()
    made = machine.device.made
    machine.graph.capture_begin()
    machine.nccl.all_reduce(5)
    _, work = machine.nccl.issue(5, is_async=True)
    machine.nccl.wait(work)
    machine.compute.wait_stream(machine.side)
    machine.nccl.step(1)
    machine.graph.capture_end()
    assert (machine.device.made, machine.host.asked_while_capturing) == (made, 0)
    assert [r.captured for r in machine.collectives()[-2:]] == [True, True]
    assert machine.recorder.in_flight.unmatched_waits == 0
    notes = [d for d in machine.recorder.outbox.definitions if isinstance(d, Note)]
    assert len(notes) == 1
    assert machine.recorder.failures == {}


def test_a_capture_in_another_thread_holds_questions_back(machine: Machine) -> None:
    machine.warm()
    machine.nccl.all_reduce(1)
    machine.drain()
    machine.graph.capture_begin()
    machine.host.capturing = False  # in this thread
    machine.nccl.step(1)
    assert machine.stalls() == []
    machine.graph.capture_end()
    assert len(machine.read_back()) == 1


def test_a_capture_that_began_before_the_recording_hides_no_later_one(machine: Machine) -> None:
    machine.warm()
    machine.nccl.all_reduce(1)
    machine.drain()
    machine.graph.capture_end()
    machine.graph.capture_begin()
    machine.host.capturing = False  # in this thread
    machine.nccl.step(1)
    assert machine.stalls() == []
    machine.graph.capture_end()
    assert len(machine.read_back()) == 1


def test_a_work_is_let_go_of_once_its_caller_has_it(machine: Machine) -> None:
    machine.warm()
    number, work = machine.nccl.issue(5, is_async=True)
    assert [r.id for r in machine.recorder.in_flight.unfinished()] == [number]
    work = None  # the caller drops it, and never waits
    machine.nccl.all_reduce(1)
    gc.collect()
    assert work is None
    assert machine.recorder.in_flight.enqueued == {}
    (record,) = machine.recorder.in_flight.cpp_waits.records()  # until the end of the next step
    assert (record.id, record.waits) == (number, 0)
    machine.recorder.in_flight.cpp_waits.end_step(99)
    assert machine.collectives()[-1] is record


def wait_in_cpp(machine: Machine, done: float) -> None:
    """What the hooks of functional collectives and of DDP do around a wait in C++."""
    recorder, host = machine.recorder, machine.host
    opened = recorder.in_flight.device.open()
    start_ns = host.clock()
    host.current.free = max(host.current.free, done)
    records = recorder.in_flight.cpp_waits.take(lambda record: True)
    recorder.in_flight.waited_in_cpp(records, start_ns, host.clock(), opened=opened)


def test_a_wait_in_cpp_is_for_what_nobody_in_python_holds(machine: Machine) -> None:
    """DDP: two buckets of 10 ms each, issued at 2 and at 5; all gradients are there at 8."""
    machine.warm()
    now = machine.host.now
    machine.compute.run(2)
    one = machine.nccl.issue(10, is_async=True)[0]
    machine.compute.run(3)
    two = machine.nccl.issue(10, is_async=True)[0]
    machine.compute.run(3)
    wait_in_cpp(machine, machine.nccl.own.free)
    first, last = machine.read_back()
    assert spans([first]) == [("wait", one, now + 22, now + 22)]
    assert spans([last]) == [("wait", two, now + 8, now + 22)]
    assert [s.issued_ns for s in (first, last)] == [(now + 2) * MS, (now + 5) * MS]
    assert [(r.waits, r.done_ns) for r in machine.collectives()[-2:]] == [(1, 0), (1, 0)]


def test_a_wait_in_cpp_for_nothing_costs_no_event(machine: Machine) -> None:
    machine.warm()
    machine.nccl.all_reduce(1)
    made = machine.device.made
    wait_in_cpp(machine, 0)
    assert machine.device.made == made


def test_marks_of_waits_in_cpp_are_used_again(machine: Machine) -> None:
    machine.warm()
    for number in range(1, 50):
        for _ in range(3):
            machine.nccl.issue(1, is_async=True)
        if number % 2:  # else they are never waited for
            wait_in_cpp(machine, machine.nccl.own.free)
        machine.drain()
        machine.recorder.in_flight.cpp_waits.end_step(number + 1)
        machine.nccl.step(number)
    assert machine.device.made < 20
    before = len(machine.stalls())
    for _ in range(10):  # a mark that two had at once would be in both ends
        machine.nccl.all_reduce(5)
    assert {s.duration_ns for s in machine.read_back()[before:]} == {5 * MS}


def test_a_work_is_waited_for_twice(machine: Machine) -> None:
    machine.warm()
    number, work = machine.nccl.issue(5, is_async=True)
    machine.nccl.wait(work)
    machine.nccl.wait(work)
    assert [r.id for r in machine.collectives()].count(number) == 1
    assert machine.recorder.in_flight.unmatched_waits == 0
    assert len(machine.read_back()) == 1


def test_a_wait_that_raises_has_failed(machine: Machine) -> None:
    """As gloo's does, which blocks the host until its peer is gone."""
    machine.warm()
    number, work = machine.nccl.issue(5, is_async=True)
    in_flight = machine.recorder.in_flight

    def fails() -> None:
        assert [record.id for record in in_flight.device_waits.values()] == [number]
        assert [(r.id, r.waits) for r in in_flight.unfinished()] == [(number, 0)]
        raise RuntimeError("aborted")

    with pytest.raises(RuntimeError, match="aborted"):
        in_flight.device.wait(work, fails)
    assert in_flight.device_waits == {}
    record = machine.collectives()[-1]
    assert (record.id, record.waits, record.done_ns) == (number, 1, 0)
    assert record.pending_ns == record.wait_ns
    assert machine.read_back() == []


def test_a_device_that_is_not_in_use_is_not_touched(machine: Machine) -> None:
    machine.host.initialized = False
    machine.nccl.all_reduce(1)
    machine.nccl.step(0)
    assert len(machine.collectives()) == 1
    assert machine.recorder.in_flight.device is None
    machine.hook.uninstall()
    assert machine.recorder.failures == {}


def test_a_device_that_fails_makes_the_hook_inert_and_loses_no_record(machine, monkeypatch) -> None:
    machine.warm()

    def fails(*_: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(machine.device, "record", fails)
    for _ in range(3):
        machine.nccl.all_reduce(1)
        _, work = machine.nccl.issue(1, is_async=True)
        machine.nccl.wait(work)
    machine.nccl.step(1)
    assert len(machine.collectives()) == 7
    assert machine.hook.broken
    assert "illegal memory access" in machine.recorder.failures["cuda"]


def test_the_end_reads_back_what_is_passed_and_hands_over_what_flies(machine: Machine) -> None:
    machine.warm()
    machine.nccl.all_reduce(5)
    flying, work = machine.nccl.issue(5, is_async=True)
    machine.drain()
    machine.hook.uninstall()
    assert len(machine.stalls()) == 1
    assert machine.collectives()[-1].id == flying
    assert machine.recorder.in_flight.device is None
    del work


def test_a_new_trace_has_its_own_steps_and_stalls(machine: Machine) -> None:
    machine.warm()
    for step in range(1, 6):
        machine.nccl.all_reduce(5)
        machine.drain()
        machine.nccl.step(step)
    old = machine.nccl.all_reduce(5)
    machine.drain()
    late = machine.nccl.all_reduce(5)  # not over when the trace ends
    machine.recorder.in_flight.device.end_trace()
    found = machine.stalls()
    assert found[-1].collective == old
    assert late not in [stall.collective for stall in found]
    machine.drain()
    for step in range(3):
        machine.recorder.progress.scope = Scope(step, 0, "")
        before = len(handed_over(machine.recorder))
        number = machine.nccl.all_reduce(5)
        machine.drain()
        machine.nccl.step(step)
        records = handed_over(machine.recorder)[before:]
        assert [r.collective for r in records if isinstance(r, Stall)] == [number]
        assert [r.step for r in records if isinstance(r, DeviceStep)] == [step] * (step > 0)


def test_a_wait_that_outlasts_its_trace_is_handed_over_once(machine: Machine) -> None:
    machine.warm()
    number, work = machine.nccl.issue(5, is_async=True)
    left: list[Collective] = []
    machine.recorder.in_flight.device.wait(
        work, lambda: left.extend(machine.recorder.begin_again())
    )
    assert [record.id for record in left] == [number]
    assert machine.collectives() == []


def test_an_event_that_is_gone_is_forgotten_and_taken_for_no_other(machine) -> None:
    streams = Streams()
    streams.give((0, 7), collective=1)
    event = Event(machine.host)
    streams.record(event, (0, 7), now=5)
    assert streams.before(event) == (streams.tail((0, 7)), 5)
    before = id(event)
    del event
    other = next(one for _ in range(100) if id(one := Event(machine.host)) == before)
    assert streams.before(other) is None
    for _ in range(5000):
        streams.record(Event(machine.host), (0, 7), now=5)
    kept = [Event(machine.host) for _ in range(5000)]
    for one in kept:
        streams.record(one, (0, 7), now=6)
    assert all(streams.before(one) for one in kept)
