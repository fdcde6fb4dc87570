"""Time on a CUDA (or ROCm) device: how long collectives block streams.

A collective that runs on the current stream is put between two events. One that runs on a stream
of its own holds whichever stream waits for it: the events go around the wait. Nothing here waits
for the device, begins to use it, or touches it while a graph is captured.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from types import FunctionType
from typing import Any

import torch

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.hooks.device.clock import DeviceClock, Mark, elapsed_ns
from dsprof.hooks.device.device import Device, Stream, TorchCuda, key_of
from dsprof.hooks.device.stalls import Held, Stalls, has_come
from dsprof.hooks.device.stream_waits import TARGETS, StreamWaits
from dsprof.hooks.device.streams import Streams
from dsprof.recording.recorder.in_flight import FOREIGN_AFTER_NS
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.dumps.state_file import UNFOLLOWED
from dsprof.trace.schema import Collective, Note
from dsprof.trace.scope import clock

_WAIT = "lets the current stream wait for the collective"


@dataclass(slots=True, eq=False)
class Flight:
    """A collective that has a Work, as long as that lives."""

    record: Collective
    work: Any  # until its caller has it
    issue: Mark | None
    ref: weakref.ref[Any] | None = None


class CudaHook(Hook):
    """Times collectives by events of the device."""

    name = "cuda"
    targets = (
        Target("torch.distributed", "Work", "synchronize", _WAIT, "waits by Work.synchronize"),
        Target(
            *("torch.distributed", "Work", "block_current_stream", _WAIT),
            carries="waits by Work.block_current_stream",
            since="2.9",
        ),
        *TARGETS,
    )

    def __init__(self, recorder: Recorder, device: Device | None = None) -> None:
        super().__init__(recorder)
        self._in_flight = recorder.in_flight
        self.device = device or TorchCuda()
        self.streams = Streams()
        self.stalls = Stalls(self.device, recorder)
        self._stream_waits = StreamWaits(self, self.device, self.stalls, self.streams)
        self._begun: dict[int, Mark] = {}  # thread -> the mark before its next collective
        # record -> the marks before its wait, and where it was issued
        self._wait_marks: dict[int, tuple[Mark, Mark | None]] = {}
        self._handing: dict[int, Flight] = {}  # thread -> the flight whose Work it holds
        self._flights: dict[int, Flight] = {}  # id of a Work, which is alive
        # record -> its issue mark, while only C++ holds its Work
        self._unheld: dict[int, Mark | None] = {}
        # number of a batch -> its last collective without a Work, and the mark before its first
        self._batches: dict[int, tuple[Collective, Mark]] = {}
        self._said_captured = False

    def patches(self, module: str) -> list[Any]:
        return super().patches(module) if self.device.is_built() else []

    def losses(self, module: str) -> list[str]:
        return super().losses(module) if self.device.is_built() else []

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.owner == "Work":
            return self._wrap_wait(original)
        return self._stream_waits.wrap(target, original)

    def install(self, module: str) -> None:
        """Take over the collectives that run on a device."""
        if module == "torch.distributed" and self.device.is_built():
            _hide()
            self._in_flight.on_device = self.issued
            self.recorder.progress.step_listeners.append(self.step_ended)

    def uninstall(self) -> None:
        """Drop everything; what the device has not passed by now stays unknown."""
        recorder = self.recorder
        self._in_flight.device = None
        self._handing.clear()
        for key in list(self._in_flight.enqueued):
            if (record := self._in_flight.enqueued.pop(key, None)) is not None:
                recorder.outbox.add(record)
        if self.device.in_use() and not self.stalls.is_capturing():
            self.stalls.settle(key_of(self.device.current_stream()), is_end=True)

    # -- collectives --------------------------------------------------------------------------

    def begin(self) -> None:
        """Mark where the issuing stream comes to the collective that is issued next."""
        thread = get_ident()
        try:
            if (last := self._handing.pop(thread, None)) is not None:
                self._let_go(last)
            # What was marked for something that was no collective of a device.
            self.stalls.give_back(self._begun.pop(thread, None))
            if (mark := self._mark()) is not None:
                self._begun[thread] = mark
        except Exception as error:
            self.fail(error)

    def issued(self, record: Collective, work: Any) -> None:
        """Follow a collective that was issued on a device; `work` None: on the current stream."""
        recorder = self.recorder
        try:
            if not self.broken and self.device.in_use():
                self._follow(record, work)
        except Exception as error:
            self.fail(error)
        if self._in_flight.enqueued.get(id(work)) is not record:
            recorder.outbox.add(record)

    def _follow(self, record: Collective, work: Any) -> None:
        begun = self._begun.pop(get_ident(), None)
        stream = self.device.current_stream()
        record.stream = stream.stream_id
        if begun is None and self.stalls.is_capturing():
            record.captured = True
            self._in_flight.captured += 1
            self._say_captured()
            return
        if self._in_flight.device is None:
            self.device.find_driver()
            self._in_flight.device = self
            self.stalls.mark_step(-1, stream)
        if work is not None:
            self._keep(record, work, begun)
        elif begun is not None and not record.is_async:
            if record.coalesced:
                self._collect(record, begun)
            else:
                self._ran(record, begun, stream)

    def _ran(self, record: Collective, begun: Mark, stream: Stream) -> None:
        """A stream was given a collective, and nothing else since `begun`."""
        end = self.stalls.mark(stream)
        self.streams.give(end.key, record.id)
        self.stalls.put(Held("collective", record.id, record.step, begun, end, record=record))

    def _collect(self, record: Collective, begun: Mark) -> None:
        """Nothing is launched before the batch ends; then its last collective has all the time."""
        number = record.coalesced
        first = self._batches[number][1] if number in self._batches else begun
        if first is not begun:
            self.stalls.give_back(begun)
        self._batches[number] = record, first

    def _keep(self, record: Collective, work: Any, issue: Mark | None) -> None:
        self._flights[id(work)] = self._handing[get_ident()] = Flight(record, work, issue)
        self._in_flight.enqueued[id(work)] = record

    def join(self, coalesced: int, work: Any) -> None:
        """`work` is that of a batch: its last collective keeps it, and the others are dropped."""
        if coalesced in self._batches:
            record, begun = self._batches.pop(coalesced)
            if self.stalls.is_capturing():
                self.stalls.give_back(begun)
            else:
                self._ran(record, begun, self.device.current_stream())
        if work is None:
            return
        enqueued = self._in_flight.enqueued
        batch = [
            (key, record) for key, record in list(enqueued.items()) if record.coalesced == coalesced
        ]
        for key, record in batch:
            enqueued.pop(key, None)
            flight = self._flights.pop(key)
            if record is batch[-1][1]:
                self._keep(record, work, flight.issue)
            else:
                self.stalls.give_back(flight.issue)
                self.recorder.outbox.add(record)

    def _let_go(self, flight: Flight) -> None:
        """Drop a Work that its caller has, and recognise it as long as the caller holds it."""
        work, flight.work = flight.work, None
        if work is not None:
            flight.ref = weakref.ref(work, functools.partial(self._gone, id(work)))

    def _gone(self, key: int, _: object) -> None:
        """A Work is gone; if its record is still here, only C++ may yet wait for it."""
        flight = self._flights.pop(key, None)
        if flight is not None and self._in_flight.enqueued.pop(key, None) is not None:
            self._unheld[flight.record.id] = flight.issue
            self._in_flight.cpp_waits.put(flight.record)

    # -- waits for a Work ---------------------------------------------------------------------

    def holds(self, work: Any) -> bool:
        """Tell whether `work` is of a collective on the device."""
        try:
            return id(work) in self._flights or self.stalls.is_capturing()
        except Exception as error:
            self.fail(error)
            return False

    def wait(self, work: Any, call: Callable[[], Any]) -> Any:
        """Return what `call` does, which waits for `work`; time it on the waiting stream."""
        record = self._in_flight.enqueued.pop(id(work), None)
        if record is None:  # waited for before, or captured
            return call()
        try:
            flight = self._flights[id(work)]
            self._let_go(flight)
            start = self._mark()
        except Exception as error:
            self.fail(error)
            self.recorder.outbox.add(record)
            return call()
        # Some backends block the host here: gloo, NCCL with TORCH_NCCL_BLOCKING_WAIT.
        waits, live, thread = self._in_flight.device_waits, self._in_flight.state, get_ident()
        if start is not None:
            self._wait_marks[record.id] = start, flight.issue
        waits[thread] = record
        live.done(record.id, 0)
        record.wait_ns = clock()
        is_done = False
        try:
            result = call()
            is_done = True
            return result
        finally:
            record.waits, record.waited_ns = 1, clock()
            record.blocked_ns = record.waited_ns - record.wait_ns
            live.done(record.id, UNFOLLOWED if is_done else -record.waited_ns)
            if not is_done:
                record.pending_ns = record.wait_ns
            self._wait_marks.pop(record.id, None)
            is_of_trace = waits.pop(thread, None) is record  # else a new one has begun
            if is_of_trace:
                self.recorder.outbox.add(record)
            try:
                self._waited(flight, start, is_done and is_of_trace)
            except Exception as error:
                self.fail(error)

    def _waited(self, flight: Flight, start: Mark | None, is_done: bool) -> None:
        end = self._mark() if start is not None and is_done else None
        if start is None or end is None:
            self.stalls.give_back(start)
            return
        record = flight.record
        issue, flight.issue = flight.issue, None
        self.streams.give(end.key, record.id)
        held = Held("wait", record.id, record.step, start, end, issue=issue, record=record)
        self.stalls.put(held)

    def entered(self) -> list[Collective]:
        """Return the collectives that streams have entered and not left, in the order of issue.

        For the watchdog.

        Raises:
            OSError: the device has failed, or its driver cannot be asked.
        """
        is_passed = self.device.asks_apart()
        found = self.stalls.entered(is_passed)
        for record in list(self._in_flight.device_waits.values()):
            marks = self._wait_marks.get(record.id)
            if marks is not None and has_come(record, *marks, is_passed):
                found.append(record)
        # A backend's own stream is behind those issued before, also where they wait for compute.
        flights = [(one.record.id, one.issue) for one in list(self._flights.values())]
        behind = [number for number, mark in flights if mark and not is_passed(mark.event)]
        found = [record for record in found if record.id <= min(behind, default=record.id)]
        return sorted(found, key=lambda record: record.id)

    def open(self) -> Mark | None:
        """C++ is about to wait on the current stream: mark it, if it can be for one of ours."""
        try:
            if (last := self._handing.pop(get_ident(), None)) is not None:
                self._let_go(last)
            return self._mark() if self._unheld else None
        except Exception as error:
            self.fail(error)
            return None

    def close(self, opened: Mark | None, records: list[Collective]) -> None:
        """C++ has waited for `records`: the last one owns the time, the others ended within it."""
        if opened is None:
            return
        mine = [record for record in records if record.id in self._unheld]
        end = self._mark() if mine else None
        if end is None:
            self.stalls.give_back(opened)
            return
        for record in mine:
            start = opened if record is mine[-1] else end
            issue = self._unheld.pop(record.id)
            held = Held("wait", record.id, record.step, start, end, issue=issue, record=record)
            self.stalls.put(held)
        self.streams.give(end.key, mine[-1].id)

    def _wrap_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._in_flight.device is None or not self.holds(work):
                return original(work, *args, **kwargs)
            return self.wait(work, functools.partial(original, work, *args, **kwargs))

        hide_from_dynamo(wait)
        return wait

    def _mark(self) -> Mark | None:
        """Mark the current stream; None where that must not or cannot be done."""
        try:
            if not self.broken and not self.stalls.is_capturing():
                return self.stalls.mark(self.device.current_stream())
        except Exception as error:
            self.fail(error)
        return None

    # -- steps --------------------------------------------------------------------------------

    def step_ended(self, step: int) -> None:
        """Mark the end of a step, and read back what the device has passed."""
        if self._in_flight.device is None or self.broken:
            return
        now = clock()
        for thread, flight in list(self._handing.items()):
            if thread == get_ident() or now - flight.record.issue_ns > FOREIGN_AFTER_NS:
                self._handing.pop(thread, None)
                self._let_go(flight)
        while self._batches:  # an exception kept them from being launched
            self.stalls.give_back(self._batches.popitem()[1][1])
        kept = {record.id for record in self._in_flight.cpp_waits.records()}
        for number in [number for number in list(self._unheld) if number not in kept]:
            self.stalls.give_back(self._unheld.pop(number, None))
        try:
            if not self.stalls.is_capturing():
                stream = self.device.current_stream()
                self.stalls.mark_step(step, stream)
                self.stalls.settle(key_of(stream))
        except Exception as error:
            self.fail(error)

    def end_trace(self) -> None:
        """Hand over what the device has passed by now, and forget the rest, for a new trace."""
        try:
            if not self.stalls.is_capturing():
                self.stalls.settle(key_of(self.device.current_stream()), is_end=True)
            self.stalls.forget()
        except Exception as error:
            self.fail(error)

    def _say_captured(self) -> None:
        if not self._said_captured:
            self._said_captured = True
            text = "collectives were captured into CUDA graphs: what replays send is not recorded"
            self.recorder.outbox.define(Note(text))


def _hide() -> None:
    """Keep torch.compile out of what the kernels and the waits call."""
    for kind in (CudaHook, DeviceClock, Held, Mark, Stalls, Streams, TorchCuda):
        hide_from_dynamo(*(f for f in vars(kind).values() if isinstance(f, FunctionType)))
    hide_from_dynamo(elapsed_ns, key_of)
