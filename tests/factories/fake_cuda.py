"""A device that keeps its own time, by CUDA's rules.

A stream is a FIFO queue: what is enqueued starts when all before it on the stream is over, and not
before the host has enqueued it. An event that is recorded is passed when all before it is over;
recording it anew makes it another moment. A stream that waits for an event starts nothing later
before that moment, as it was recorded last. `query` never blocks, `synchronize` does, and
`elapsed_time` needs both events passed. All this is known at the time of enqueueing, so the whole
future of a stream is one number: when it will have done all it was given.

`Nccl` issues collectives as torch 2.8 and later do: synchronous ones run on the current stream and
have no Work, asynchronous ones run on a stream of their own, after what the current stream was
given before; their wait lets the current stream wait, and the host go on.

Times are in ms; the host's clock moves only when it is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dsprof.trace.schema import Collective
from dsprof.trace.scope import Scope

MS = 1_000_000
START_MS = 1000.0


class Host:
    """The host's clock, and the current stream of its only thread."""

    def __init__(self) -> None:
        self.now = START_MS
        self.drift = 0.0  # of the device's clock against the host's
        self.latency = 0.0  # from enqueueing to the start on an idle stream
        self.default = Stream(self, 0)
        self.current = self.default
        self.capturing = False
        self.asked_while_capturing = 0
        self.initialized = True

    def clock(self) -> int:
        return round(self.now * MS)

    def spend(self, ms: float) -> None:
        self.now += ms

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Stream:
    """Like torch.cuda.Stream, whose waits all end in Event.wait."""

    def __init__(self, host: Host, stream_id: int, device_index: int = 0) -> None:
        self.host = host
        self.stream_id = stream_id
        self.device_index = device_index
        self.free = 0.0  # when all that it was given is over

    def run(self, ms: float) -> None:
        """Enqueue a kernel."""
        self.free = max(self.free, self.host.now + self.host.latency) + ms

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.host)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        self.host.now = max(self.host.now, self.free)


class Event:
    """Like torch.cuda.Event(enable_timing=True)."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.at: float | None = None
        self.device_index: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.host.current
        assert self.device_index in (None, stream.device_index), "an event is of one device"
        self.device_index = stream.device_index
        self.at = max(stream.free, self.host.now + self.host.latency)

    def wait(self, stream: Stream | None = None) -> None:
        stream = stream or self.host.current
        if self.at is not None:
            stream.free = max(stream.free, self.at)

    def query(self) -> bool:
        if self.host.capturing:
            self.host.asked_while_capturing += 1
            raise RuntimeError("operation not permitted when stream is capturing")
        return self.at is None or self.at <= self.host.now

    def synchronize(self) -> None:
        if self.at is not None:
            self.host.now = max(self.host.now, self.at)

    def elapsed_time(self, end: Event) -> float:
        if self.at is None or end.at is None or not (self.query() and end.query()):
            raise RuntimeError("device not ready")
        assert self.device_index == end.device_index
        return (end.at - self.at) * (1 + self.host.drift)


_record = Event.record


class FakeCuda:
    """A `dsprof.hooks.device.device.Device` over a host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.made = 0

    def is_built(self) -> bool:
        return True

    def in_use(self) -> bool:
        return self.host.initialized

    def is_capturing(self) -> bool:
        return self.host.capturing

    def current_stream(self) -> Stream:
        assert self.host.initialized, "this would begin to use the device"
        return self.host.current

    def timed_event(self) -> Event:
        self.made += 1
        return Event(self.host)

    def record(self, event: Any, stream: Any) -> None:
        assert not self.host.capturing
        _record(event, stream)

    def find_driver(self) -> None:
        pass

    def asks_apart(self) -> Callable[[Any], bool]:
        return lambda event: event.at <= self.host.now


class Work:
    """Of an asynchronous collective."""

    def __init__(self, host: Host, done: float) -> None:
        self.host = host
        self.done = done

    def wait(self) -> bool:
        self.host.current.free = max(self.host.current.free, self.done)
        return True


class Nccl:
    """Issues collectives through a `CudaHook` as the wire hook does."""

    def __init__(self, host: Host, hook: Any) -> None:
        self.host = host
        self.hook = hook
        self.own = Stream(host, 777)  # that of the backend
        self.count = 0

    def issue(self, ms: float, *, is_async: bool = False) -> tuple[int, Work | None]:
        """Return the id of a collective that takes `ms`, and its Work."""
        recorder, host = self.hook.recorder, self.host
        if recorder.in_flight.device is not None:
            recorder.in_flight.device.begin()
        issue_ns = host.clock()
        work = None
        if is_async:
            self.own.free = max(self.own.free, host.current.free, host.now) + ms
            work = Work(host, self.own.free)
        else:
            host.current.run(ms)
        self.count += 1
        record = Collective(
            *(self.count, 1, self.count, 4, 1, issue_ns, "all_reduce", 1, "float32"),
            is_async=is_async,
            step=recorder.progress.scope.step,
            phase=recorder.progress.scope.phase,
            coalesced=recorder.contexts.current().coalesced,
            thread=1,
            return_ns=host.clock(),
        )
        recorder.in_flight.on_device(record, work)
        return self.count, work

    def all_reduce(self, ms: float) -> int:
        """A synchronous one."""
        return self.issue(ms)[0]

    def wait(self, work: Work | None) -> None:
        """What `WorkHook` does with a wait."""
        assert work is not None
        device = self.hook.recorder.in_flight.device
        call: Callable[[], bool] = work.wait
        if device is not None and device.holds(work):
            device.wait(work, call)
        else:
            call()
            self.hook.recorder.in_flight.unmatched_waits += 1

    def step(self, number: int) -> None:
        """End a step: what `Recorder.end_step` does for a device."""
        recorder = self.hook.recorder
        recorder.progress.scope = Scope(number + 1, 0, "")
        recorder.progress.step_listeners.tell(number)
