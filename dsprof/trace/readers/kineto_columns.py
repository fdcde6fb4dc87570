"""From a profiler's events to columns, a chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dsprof.trace.device import COMMUNICATION, COMPUTE, COPY, DeviceActivity
from dsprof.trace.format import Header, NoteArgs, StepArgs
from dsprof.trace.readers.calls import UNNAMED, Call, CallRows, GroupTable, message
from dsprof.trace.readers.kernels import is_usual, library_of, operation_of
from dsprof.trace.readers.kineto_events import (
    CPU_COLLECTIVES,
    DEVICE_CATEGORIES,
    KERNEL,
    STEP_PREFIX,
    Args,
    Metadata,
    TraceEvent,
)
from dsprof.trace.table import RankTrace, Vocabulary

_LONGEST_US = 1e13  # four months: later times are damage
_HOST_SPANS = (STEP_PREFIX, *CPU_COLLECTIVES)
_NUMBER, _OLD_NUMBER = attrgetter("args.index"), attrgetter("args.old_index")
_SAMPLED_FACTOR = 2
"""Torch numbers its events from 0: numbers twice as high as there are events were left out."""


class _Row(NamedTuple):
    """A kernel or copy."""

    name: int
    library: int
    kind: int
    stream: int
    start_ns: int
    end_ns: int
    is_usual: bool


class Columns:
    """Collects what the events of one rank say; times in ns since `origin_us`."""

    def __init__(self, origin_us: float) -> None:
        self._origin_us = origin_us
        self._words = Vocabulary()
        self._parts: list[npt.NDArray[np.int64]] = []
        self._libraries: dict[str, str] = {}
        self._calls: list[Call] = []
        self._cpu_calls: list[Call] = []
        self._groups = GroupTable()
        self._steps: dict[int, StepArgs] = {}
        self._lanes: dict[int | str | None, int] = {}
        self._damaged = 0
        self._numbered = 0
        self._highest = -1

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Take what is of use from a chunk."""
        self._count(events)
        rows = [self._device_row(e) for e in events if e.cat in DEVICE_CATEGORIES and e.ph == "X"]
        for event in [e for e in events if e.name.startswith(_HOST_SPANS) and e.ph == "X"]:
            if event.name.startswith(STEP_PREFIX):
                self._step(event)
            else:
                self._cpu_call(event)
        sound = [row for row in rows if row.end_ns >= row.start_ns]
        self._damaged += len(rows) - len(sound)
        if sound:
            self._parts.append(np.array(sound, np.int64))

    def trace(self, path: str, header: Header, meta: Metadata) -> RankTrace:
        """Return the trace of all events added."""
        table = np.concatenate(self._parts) if self._parts else np.zeros((0, 7), np.int64)
        steps = [self._steps[number] for number in sorted(self._steps)]
        calls = self._calls if len(table) else self._cpu_calls
        for config in meta.distributed.pg_config if meta.distributed else ():
            self._groups.number(config.pg_name, config.pg_desc, config.ranks, config.pg_size)
        rows = CallRows(steps)
        rows.add(sorted(calls, key=attrgetter("start_ns")))
        trace = RankTrace(path, header, rows.build())
        trace.steps, trace.broken_lines = steps, self._damaged
        trace.groups = self._groups.by_number()
        if len(table):
            trace.header = msgspec.structs.replace(header, device="cuda")
            trace.device = self._activity(table)
        if self._highest + 1 > _SAMPLED_FACTOR * self._numbered:
            trace.is_sampled = True
            left = f"{self._numbered:,} of at least {self._highest + 1:,}"
            text = f"events were left out of {path.rsplit('/', 1)[-1]}: it holds {left}"
            trace.notes.append(NoteArgs(text))
        return trace

    def _count(self, events: Sequence[TraceEvent]) -> None:
        """Count the events that torch numbered, and keep the highest number."""
        for number in (_NUMBER, _OLD_NUMBER):
            numbers = np.fromiter(map(number, events), np.int64, len(events))
            self._numbered += int(np.count_nonzero(numbers >= 0))
            self._highest = max(self._highest, int(numbers.max(initial=-1)))

    def _activity(self, table: npt.NDArray[np.int64]) -> DeviceActivity:
        name, library, kind, stream, start, end, usual = table.T
        words = list(self._words)
        return DeviceActivity(
            words, name, library, kind, stream, start, end, usual.astype(np.bool_)
        )

    def _ns(self, time_us: float) -> int:
        since = time_us - self._origin_us
        return round(since * 1000) if -_LONGEST_US < since < _LONGEST_US else -(2**62)

    def _times(self, event: TraceEvent) -> tuple[int, int]:
        """Return start and end; the end is before the start where a number is damaged."""
        start = self._ns(event.ts)
        end = self._ns(event.ts + max(event.dur, 0.0))
        return (start, end) if start > -(2**62) else (0, -1)

    def _device_row(self, event: TraceEvent) -> _Row:
        name, args = event.name, event.args
        start, end = self._times(event)
        stream = self._lane(event.tid if args.stream is None else args.stream)
        kind, library = COPY, ""
        if DEVICE_CATEGORIES[event.cat] == KERNEL:
            library = self._library(name, args)
            kind = COMMUNICATION if library else COMPUTE
        if kind == COMMUNICATION and end >= start:
            op = args.collective or operation_of(name) or UNNAMED
            self._calls.append(self._call(op, args, stream, start, end))
        usual = kind == COMMUNICATION and is_usual(name)
        return _Row(self._words[name], self._words[library], kind, stream, start, end, usual)

    def _library(self, name: str, args: Args) -> str:
        library = self._libraries.get(name)
        if library is None:
            library = self._libraries[name] = library_of(name)
        return library or ("named by the profiler" if args.collective else "")

    def _lane(self, tid: int | str | None) -> int:
        return tid if isinstance(tid, int) else self._lanes.setdefault(tid, -1 - len(self._lanes))

    def _call(self, op: str, args: Args, lane: int, start: int, end: int) -> Call:
        dtype = args.dtype or ""
        elements, nbytes = message(op, args.in_elements, args.out_elements, dtype)
        group = self._group_of(args)
        return Call(op, group, elements, nbytes, dtype, lane, start, end)

    def _cpu_call(self, event: TraceEvent) -> None:
        start, end = self._times(event)
        if end < start:
            self._damaged += 1
            return
        op = event.name.split(":", 1)[1]
        call = self._call(op, event.args, self._lane(event.tid), start, end)
        self._cpu_calls.append(call)

    def _group_of(self, args: Args) -> int:
        if args.group_name is None:
            return self._groups.number("", "unknown", [], args.group_size or 0)
        ranks = _ranks(args.group_ranks or "")
        return self._groups.number(
            args.group_name, args.group_label or "", ranks, args.group_size or 0
        )

    def _step(self, event: TraceEvent) -> None:
        digits = event.name.removeprefix(STEP_PREFIX)
        # The same step stands on the device's time line, too; the host's comes to every trace.
        if not digits.isdecimal() or len(digits) > 9 or event.cat.startswith("gpu_"):
            return
        start, end = self._times(event)
        if end >= start:
            step = StepArgs(int(digits), start, end, source="torch.profiler")
            self._steps.setdefault(step.step, step)


def _ranks(text: str) -> list[int]:
    """Return the ranks that "[0, 1]" lists; none where the profiler shortened it."""
    try:
        return msgspec.json.decode(text, type=list[int])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return []
