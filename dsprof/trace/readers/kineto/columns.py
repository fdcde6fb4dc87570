"""From a profiler's events to columns, a chunk at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.device_activity import DeviceActivity
from dsprof.trace.rank_trace import RankTrace, Vocabulary
from dsprof.trace.readers.call_rows import UNNAMED, Call, CallRows, GroupTable, message
from dsprof.trace.readers.devices import busiest
from dsprof.trace.readers.host_calls import outer
from dsprof.trace.readers.kineto.events import (
    ANNOTATION,
    DAMAGED,
    DEVICE_CATEGORIES,
    MERGED,
    OF_TORCH,
    OF_XPU,
    ON_DEVICE,
    OPERATORS,
    OTHER_DEVICES,
    PYTHON,
    STEP_PREFIX,
    Args,
    Flow,
    Metadata,
    Numbers,
    TraceEvent,
    times_of,
)
from dsprof.trace.readers.kineto.host import (
    ISSUED,
    HostCalls,
    Issues,
    in_only_group,
    is_issue,
    span_message,
)
from dsprof.trace.readers.kineto.names import CALL, HOST_CALL, SPAN, STEP, DeviceKinds, use_of
from dsprof.trace.schema import Header, Note, Step

_MOST_CATEGORIES = 1 << 10
_OF_MPS = re.compile(r"aten::\w*_?mps(_|$)")  # torch records no work of such a device itself
_BATCH = 1000  # events that are turned into rows at once
_FOREIGN_SHARE = 0.01  # of operators: less is damage


class EventColumns:
    """Collects what the events of one rank say; times in ns since `origin_us`."""

    def __init__(self, origin_us: float) -> None:
        self._origin_us = origin_us
        self._words = Vocabulary({"": 0})
        self._on_device: list[TraceEvent] = []
        self._parts: list[IntArray] = []
        self._kinds = DeviceKinds(self._words)
        self._calls: list[Call] = []
        self._call_devices: list[int] = []
        self._cpu_calls: list[Call] = []
        self._issues = Issues()
        self._groups = GroupTable()
        self._group_numbers: dict[tuple[object, ...], int] = {}
        self._steps: dict[int, Step] = {}
        self._device_steps: dict[tuple[int, int], int] = {}  # device, number -> its first start
        self._lanes: dict[int | str | None, int] = {}
        self._damaged = 0
        self._categories: set[str] = set()  # seen before any work of a device
        self._numbers = Numbers()
        self._process: int | str | None = None  # of the first operator
        self._operators = self._foreign = 0
        self._host = HostCalls(origin_us, self._words, self._lane)

    def add(self, events: Sequence[object]) -> None:
        """Take what is of use from a chunk."""
        spans = [event for event in events if type(event) is TraceEvent]
        if not self._parts and len(self._categories) < _MOST_CATEGORIES:
            self._categories |= {e.cat for e in events if isinstance(e, TraceEvent | Flow)}
        operators = [event for event in spans if event.cat in OPERATORS]
        self._numbers.add(spans, operators)
        self._count_foreign([e.pid for e in operators if e.cat != ANNOTATION])
        used = [e for e in spans if e.cat in DEVICE_CATEGORIES or use_of(e.name)]
        on_device = [event for event in used if event.cat in DEVICE_CATEGORIES]
        self._on_device += on_device
        if len(self._on_device) >= _BATCH:
            self._take_device()
        self._host.add_operators(operators)
        if len(on_device) < len(used):
            self._host_events(event for event in used if event.cat not in DEVICE_CATEGORIES)

    def _count_foreign(self, processes: list[int | str | None]) -> None:
        """Count operators, and those of other processes than the first."""
        if processes and not self._operators:
            self._process = processes[0]
        self._operators += len(processes)
        self._foreign += len(processes) - processes.count(self._process)

    def _take_device(self) -> None:
        self._parts.append(self._device_rows(self._on_device))
        self._on_device = []

    def _host_events(self, events: Iterable[TraceEvent]) -> None:
        for event in events:
            use = use_of(event.name)
            if use == STEP:
                self._step(event)
            elif event.cat in ON_DEVICE:
                continue
            elif use >= HOST_CALL:
                self._host.add(event, use - HOST_CALL)
            elif use == SPAN or (use == CALL and is_issue(event.args)):
                self._host_call(event)

    def trace(self, path: str, header: Header, meta: Metadata) -> RankTrace:
        """Return the trace of all events added.

        Raises:
            TraceError: they are of a device that is not read, of another tool, or of several ranks.
        """
        if self._foreign > _FOREIGN_SHARE * self._operators:
            raise TraceError(f"{path}: {MERGED}")
        self._take_device()
        table = np.concatenate(self._parts, axis=1)
        if not table.size:
            self._refuse_others(path)
        main, left_out = busiest(table[0], table[4] - table[3])
        elsewhere = outer(table[3:, table[0] != main])
        table = table[1:, table[0] == main]
        steps = self._placed_steps(table, main)
        for config in meta.distributed.pg_config if meta.distributed else ():
            self._groups.number(config.pg_name, config.pg_desc, config.ranks, config.pg_size)
        self._issues.name(self._calls)
        of_device = zip(self._calls, self._call_devices, strict=True)
        on_device = [call for call, device in of_device if device == main]
        calls = on_device if table.size else self._of_host()
        rows = CallRows(steps)
        rows.add(sorted(calls, key=attrgetter("start_ns")))
        trace = RankTrace(path, header, rows.build())
        trace.steps, trace.broken_lines = steps, self._damaged
        trace.groups = self._groups.by_number()
        if table.size:
            device = "xpu" if self._categories & set(OF_XPU) else "cuda"
            trace.header = replace(header, device=device)
            trace.device = self._activity(table, elsewhere)
            trace.notes += map(Note, left_out)
        elif any(_OF_MPS.match(name) for name in self._words):
            trace.header = replace(header, device="mps")
        if left := self._numbers.left_out():
            trace.is_sampled = True
            text = f"events were left out of {path.rsplit('/', 1)[-1]}: it holds {left}"
            trace.notes.append(Note(text))
        return trace

    def _refuse_others(self, path: str) -> None:
        """Refuse a profile of which nothing would be known of the device."""
        if found := sorted(self._categories & OTHER_DEVICES.keys()):
            raise TraceError(
                f"{path}: a profile of {OTHER_DEVICES[found[0]]} devices, of which dsprof reads no "
                "kernels; record the run with DSPROF=1"
            )
        if self._categories and not self._categories & OF_TORCH:
            raise TraceError(
                f"{path}: a Chrome trace, but not of torch.profiler: no event has one of its "
                "categories; record the run with DSPROF=1 or torch.profiler"
            )

    def _activity(self, table: IntArray, elsewhere: IntArray) -> DeviceActivity:
        number, stream, start, end = table
        name, library, kind, usual = np.array(self._kinds.rows, np.int64)[number].T
        words, usual = list(self._words), usual.astype(np.bool_)
        host = self._host.work(self._words, shows_python=bool(self._categories & PYTHON))
        return DeviceActivity(
            words, name, library, kind, stream, start, end, usual, host, elsewhere
        )

    def _device_rows(self, events: Sequence[TraceEvent]) -> IntArray:
        """Return rows of devices, kinds, streams, starts and ends, shape (5, sound events)."""
        devices = [self._lane(event.pid) for event in events]
        kinds = [self._kinds[e.name, e.cat, e.args.collective is not None] for e in events]
        streams: list[Any] = [event.args.stream for event in events]
        if set(map(type, streams)) != {int}:
            streams = [self._stream(event) for event in events]
        times, is_sound = self._sound_times(events)
        rows = np.concatenate([np.array([devices, kinds, streams], np.int64), times])
        for i, kind in enumerate(kinds):
            if kind in self._kinds.operations and is_sound[i]:
                self._call_devices.append(devices[i])
                self._kernel_call(events[i], *rows[1:, i].tolist())
        return rows[:, is_sound]

    def _kernel_call(self, event: TraceEvent, kind: int, stream: int, start: int, end: int) -> None:
        op = event.args.collective
        if op is None:
            self._issues.leave(event.args, len(self._calls))
        op = op or self._kinds.operations[kind]
        self._calls.append(self._call(op, event.args, stream, start, end))

    def _sound_times(self, events: Sequence[TraceEvent]) -> tuple[IntArray, BoolArray]:
        """Return the times of events, and which are sound; count the others."""
        times = times_of(events, self._origin_us)
        is_sound = times[0] > DAMAGED
        self._damaged += len(events) - int(np.count_nonzero(is_sound))
        return times, is_sound

    def _stream(self, event: TraceEvent) -> int:
        stream = event.args.stream
        return stream if isinstance(stream, int) else self._lane(stream or event.tid)

    def _lane(self, tid: int | str | None) -> int:
        return tid if isinstance(tid, int) else self._lanes.setdefault(tid, -1 - len(self._lanes))

    def _call(self, op: str, args: Args, lane: int, start: int, end: int) -> Call:
        dtype = args.dtype or ""
        elements, nbytes = message(op, args.in_elements, args.out_elements, dtype)
        group = self._group_of(args)
        return Call(op, group, elements, nbytes, dtype, lane, start, end)

    def _host_call(self, event: TraceEvent) -> None:
        (start,), (end,) = times_of([event], self._origin_us).tolist()
        args, lane = event.args, self._lane(event.tid)
        if start == DAMAGED:
            self._damaged += 1
        elif event.name == ISSUED:
            self._issues.add(args, self._call(args.collective or UNNAMED, args, lane, start, end))
        else:
            elements, dtype = span_message(args)
            group, op = self._group_of(args), event.name.split(":", 1)[1]
            self._cpu_calls.append(Call(op, group, elements, 0, dtype, lane, start, end))

    def _of_host(self) -> list[Call]:
        """Return the collectives of a trace without a device."""
        groups = self._groups.by_number()
        spans = [in_only_group(call, groups) for call in self._cpu_calls]
        return spans + self._issues.calls

    def _group_of(self, args: Args) -> int:
        told = args.group_name, args.group_label, args.group_ranks, args.group_size
        if (number := self._group_numbers.get(told)) is None:
            number = self._group_numbers[told] = self._new_group(*told)
        return number

    def _new_group(
        self,
        name: int | str | None,
        label: str | None,
        ranks: str | tuple[int, ...] | None,
        size: int | None,
    ) -> int:
        if name is None:
            return self._groups.number("", "unknown", [], size or 0)
        return self._groups.number(str(name), label or "", _ranks(ranks or ""), size or 0)

    def _step(self, event: TraceEvent) -> None:
        digits = event.name.removeprefix(STEP_PREFIX)
        if not digits.isdecimal() or len(digits) > 9:
            return
        (start,), (end,) = times_of([event], self._origin_us).tolist()
        if start > DAMAGED and event.cat in ON_DEVICE:
            self._device_steps.setdefault((self._lane(event.pid), int(digits)), start)
        elif start > DAMAGED:
            step = Step(int(digits), start, end, source="torch.profiler")
            self._steps.setdefault(step.step, step)

    def _placed_steps(self, table: IntArray, device: int) -> list[Step]:
        """Return the steps where the device works on them, where it runs a step behind the host.

        The last, in which nothing ran, is what follows the last step until the profiler stops.
        """
        steps = [self._steps[number] for number in sorted(self._steps)]
        if len(steps) < 2 or not table.size:
            return steps
        starts, last_ns = table[2], int(table[3].max())
        if starts.max() < steps[-1].start_ns:
            del steps[-1]
        begun = [self._device_steps.get((device, step.step), -1) for step in steps]
        if begun[-1] < steps[-1].end_ns or begun != sorted(begun) or begun[0] < 0:
            return steps
        pairs = zip(steps, begun, [*begun[1:], last_ns], strict=True)
        return [replace(step, start_ns=start, end_ns=end) for step, start, end in pairs]


def _ranks(told: str | tuple[int, ...]) -> list[int]:
    """Return the ranks that "[0, 1]" lists; none where the profiler shortened it.

    Tools that edit a profile write the list itself.
    """
    if isinstance(told, tuple):
        return list(told)
    try:
        return msgspec.json.decode(told, type=list[int])
    except UNDECODABLE:
        return []
