"""Turns records into the lines of a native trace: relative times, lanes that Perfetto can nest."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from dsprof.environment import EnvSnapshot
from dsprof.events import (
    Collective,
    Copy,
    DeviceStep,
    Fetch,
    Flush,
    MemorySample,
    Phase,
    Record,
    Stall,
    Step,
)
from dsprof.trace.format import (
    AnnotationEvent,
    BucketLayout,
    BucketLayoutEvent,
    CollectiveArgs,
    CollectiveEvent,
    CopyArgs,
    CopyEvent,
    DeviceStepArgs,
    DeviceStepEvent,
    EngineConfig,
    EngineEvent,
    EnvironmentEvent,
    Event,
    FetchArgs,
    FetchEvent,
    FlushArgs,
    FlushEvent,
    GroupArgs,
    GroupEvent,
    HooksEvent,
    HookStatus,
    LaneEvent,
    MemoryArgs,
    MemoryEvent,
    ModelArgs,
    ModelEvent,
    NoteArgs,
    NoteEvent,
    OpenCollectiveEvent,
    PhaseEvent,
    SiteArgs,
    SiteEvent,
    SpanArgs,
    StallArgs,
    StallEvent,
    StepArgs,
    StepEvent,
)

_FIRST_COLLECTIVE_LANE = 1000
_COLLECTIVE_LANES = 100
_FIRST_STREAM_LANE = 2000
_STEP_LANE = 1


class Encoder:
    """Encodes records of one rank, whose trace started at `start_ns`."""

    def __init__(
        self,
        rank: int,
        start_ns: int,
        reduce_op_name: Callable[[Any], str],
        disclose: Callable[[str], str] = str,
    ) -> None:
        self._rank = rank
        self._disclose = lru_cache(maxsize=1024)(disclose)  # spans of every step, by name
        self._start_ns = start_ns
        self._reduce_op_name = reduce_op_name
        self._lane_ends: list[tuple[int, int]] = []  # a heap of (end, lane)
        self._lanes: dict[int, int] = {}  # thread -> lane
        self._streams: dict[int | None, int] = {}  # stream of a device -> lane
        self._new_lanes: list[Event] = [self._name_lane(_STEP_LANE, "steps")]
        self._lines: dict[type[Record], Callable[[Any], Event]] = {
            Collective: self.collective,
            Phase: self._phase,
            Step: self._step,
            Flush: self._flush,
            Fetch: self._fetch,
            Copy: self._copy,
            MemorySample: self._memory,
            Stall: self._stall,
            DeviceStep: self._device_step,
        }

    def record(self, record: Record) -> list[Event]:
        """Return the line of a record, after the names of lanes that it is first to use."""
        line = self._lines[type(record)](record)
        if not self._new_lanes:
            return [line]
        lines = [*self._new_lanes, line]
        self._new_lanes = []
        return lines

    def collective(self, record: Collective) -> CollectiveEvent:
        """Return the line of a finished collective, on a lane where it overlaps no other."""
        args = self._collective_args(record)
        end_ns = args.done_ns or args.waited_ns or args.return_ns
        return CollectiveEvent(
            args=args,
            name=record.op,
            pid=self._rank,
            tid=self._collective_lane(args.issue_ns, end_ns),
            ts=args.issue_ns / 1000,
            dur=(end_ns - args.issue_ns) / 1000,
        )

    def open_collective(self, record: Collective) -> OpenCollectiveEvent:
        """Return the line of a collective that is still in flight."""
        args = self._collective_args(record)
        ts = args.issue_ns / 1000
        return OpenCollectiveEvent(args=args, name=record.op, ph="i", pid=self._rank, ts=ts)

    def definition(self, definition: Any) -> Event:
        """Return the line of a description that hooks or the session gave."""
        rank = self._rank
        match definition:
            case GroupArgs():
                return GroupEvent(args=definition, ph="M", name=definition.label, pid=rank)
            case BucketLayout():
                since_ns = self._at(definition.since_ns)
                layout = msgspec.structs.replace(definition, since_ns=since_ns)
                return BucketLayoutEvent(args=layout, ph="M", pid=rank)
            case ModelArgs():
                return ModelEvent(args=definition, ph="M", pid=rank)
            case SiteArgs():
                return SiteEvent(args=definition, ph="M", pid=rank)
            case EngineConfig():
                return EngineEvent(args=definition, ph="M", pid=rank)
            case EnvSnapshot():
                return EnvironmentEvent(args=definition, ph="M", pid=rank)
            case NoteArgs():
                return NoteEvent(args=definition, ph="M", pid=rank)
            case [HookStatus(), *_]:
                return HooksEvent(args={"hooks": definition}, ph="M", pid=rank)
        raise TypeError(f"no line for {type(definition).__name__}")

    def _at(self, time_ns: int) -> int:
        return time_ns - self._start_ns if time_ns else 0

    def _collective_args(self, record: Collective) -> CollectiveArgs:
        start_ns, context, scope = self._start_ns, record.context, record.scope
        reduce_op, lane = record.reduce_op, self._lanes.get(record.thread)
        # By position and without calls, for it is the most frequent record: a third of the time.
        return CollectiveArgs(
            record.id,
            record.group.id,
            record.seq,
            record.nbytes,
            record.elements,
            record.issue_ns - start_ns,
            record.tensors,
            record.dtype,
            context.requested,
            context.request,
            bool(record.is_async),
            "" if reduce_op is None else self._reduce_op_name(reduce_op),
            record.peer,
            record.site,
            scope.step,
            scope.micro_step,
            scope.phase,
            context.flush,
            context.fetch,
            self._thread_lane(record.thread) if lane is None else lane,
            record.stream,
            record.return_ns and record.return_ns - start_ns,
            record.pending_ns and record.pending_ns - start_ns,
            record.done_ns and record.done_ns - start_ns,
            record.wait_ns and record.wait_ns - start_ns,
            record.waited_ns and record.waited_ns - start_ns,
            record.blocked_ns,
            record.waits,
            record.on_wire,
            record.captured,
            record.is_estimated,
            context.coalesced,
            scope.engine,
        )

    def _span(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return what Chrome wants of a span."""
        ts = (start_ns - self._start_ns) / 1000
        return {"pid": self._rank, "ts": ts, "dur": (end_ns - start_ns) / 1000}

    def _phase(self, record: Phase) -> Event:
        kind = AnnotationEvent if record.is_annotation else PhaseEvent
        args = SpanArgs(
            start_ns=self._at(record.start_ns),
            end_ns=self._at(record.end_ns),
            step=record.scope.step,
            micro_step=record.scope.micro_step,
            engine=record.scope.engine,
            stage=record.stage,
        )
        span = self._span(record.start_ns, record.end_ns)
        name = self._disclose(record.name) if record.is_annotation else record.name
        return kind(args=args, name=name, tid=self._thread_lane(record.thread), **span)

    def _step(self, record: Step) -> Event:
        args = StepArgs(
            step=record.step,
            start_ns=self._at(record.start_ns),
            end_ns=self._at(record.end_ns),
            micro_steps=record.micro_steps,
            source=record.source,
            engine=record.engine,
        )
        span = self._span(record.start_ns, record.end_ns)
        return StepEvent(args=args, name=f"step {record.step}", tid=_STEP_LANE, **span)

    def _flush(self, record: Flush) -> Event:
        scope, start_ns = record.scope, self._start_ns
        args = FlushArgs(
            record.id,
            record.stage,
            record.elements,
            record.start_ns - start_ns,
            record.end_ns - start_ns,
            record.capacity,
            record.nbytes,
            record.dtype,
            record.parameters,
            record.cause,
            record.slot,
            scope.step,
            scope.micro_step,
            scope.phase,
            record.library,
            record.module,
            record.bucket,
            scope.engine,
        )
        span = self._span(record.start_ns, record.end_ns)
        lane = self._thread_lane(record.thread)
        return FlushEvent(args=args, name=f"flush: {record.cause}", tid=lane, **span)

    def _fetch(self, record: Fetch) -> Event:
        scope, start_ns, end_ns = record.scope, record.start_ns, record.end_ns
        args = FetchArgs(  # by position, as collectives: the most frequent record of ZeRO-3
            record.id,
            record.kind,
            record.elements,
            start_ns - self._start_ns,
            end_ns - self._start_ns,
            record.wait_ns,
            record.is_recomputation,
            scope.step,
            scope.micro_step,
            scope.phase,
            record.library,
            record.module,
            scope.engine,
        )
        return FetchEvent(
            args=args,
            name=record.kind,
            pid=self._rank,
            tid=self._thread_lane(record.thread),
            ts=args.start_ns / 1000,
            dur=(end_ns - start_ns) / 1000,
        )

    def _copy(self, record: Copy) -> Event:
        scope = record.scope
        args = CopyArgs(
            record.what,
            record.direction,
            record.nbytes,
            self._at(record.start_ns),
            self._at(record.end_ns),
            scope.step,
            scope.micro_step,
            scope.phase,
        )
        span = self._span(record.start_ns, record.end_ns)
        name = f"copy {record.what} {record.direction}"
        return CopyEvent(args=args, name=name, tid=self._thread_lane(record.thread), **span)

    def _memory(self, record: MemorySample) -> Event:
        fields = msgspec.structs.asdict(record)
        fields["time_ns"] = self._at(record.time_ns)
        ts = fields["time_ns"] / 1000
        return MemoryEvent(args=MemoryArgs(**fields), name="memory", ph="i", pid=self._rank, ts=ts)

    def _stall(self, record: Stall) -> Event:
        args = StallArgs(
            kind=record.kind,
            stream=record.stream,
            collective=record.collective,
            duration_ns=record.duration_ns,
            awaited=record.awaited,
            step=record.scope.step,
            start_ns=self._at(record.start_ns),
            end_ns=self._at(record.end_ns),
            issued_ns=self._at(record.issued_ns),
            bound_ns=record.bound_ns,
            is_side=record.is_side,
        )
        if not record.end_ns:
            return StallEvent(args=args, name=record.kind, ph="M", pid=self._rank)
        lane = self._stream_lane(record.stream)
        span = self._span(record.start_ns, record.end_ns)
        return StallEvent(args=args, name=record.kind, tid=lane, **span)

    def _device_step(self, record: DeviceStep) -> Event:
        start_ns, end_ns = self._at(record.start_ns), self._at(record.end_ns)
        args = DeviceStepArgs(record.step, start_ns, end_ns, record.bound_ns)
        span = self._span(record.start_ns, record.end_ns)
        return DeviceStepEvent(
            args=args, name=f"step {record.step}", tid=self._stream_lane(None), **span
        )

    def _collective_lane(self, start_ns: int, end_ns: int) -> int:
        """Return the lane that is free for longest; with all lanes taken, that one all the same."""
        ends = self._lane_ends
        if ends and (ends[0][0] <= start_ns or len(ends) == _COLLECTIVE_LANES):
            lane = ends[0][1]
            heapq.heapreplace(ends, (end_ns, lane))
            return lane
        lane = _FIRST_COLLECTIVE_LANE + len(ends)
        heapq.heappush(ends, (end_ns, lane))
        self._new_lanes.append(self._name_lane(lane, f"collectives {len(ends)}"))
        return lane

    def _thread_lane(self, thread: int) -> int:
        lane = self._lanes.get(thread)
        if lane is None:
            lane = self._lanes[thread] = _STEP_LANE + 1 + len(self._lanes)
            self._new_lanes.append(self._name_lane(lane, f"thread {len(self._lanes)}"))
        return lane

    def _stream_lane(self, stream: int | None) -> int:
        """Return the lane of a stream, or the one of steps on the device."""
        lane = self._streams.get(stream)
        if lane is None:
            lane = self._streams[stream] = _FIRST_STREAM_LANE + len(self._streams)
            name = "steps on the device" if stream is None else f"stream {stream}"
            self._new_lanes.append(self._name_lane(lane, name))
        return lane

    def _name_lane(self, tid: int, name: str) -> LaneEvent:
        return LaneEvent(args={"name": name}, name="thread_name", ph="M", pid=self._rank, tid=tid)
