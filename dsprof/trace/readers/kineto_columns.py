"""From a profiler's events to columns, a chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dsprof.errors import TraceError
from dsprof.trace.device import COMMUNICATION, COMPUTE, COPY, DeviceActivity, HostStops
from dsprof.trace.format import Header, NoteArgs, StepArgs
from dsprof.trace.readers.calls import UNNAMED, Call, CallRows, GroupTable, message
from dsprof.trace.readers.kernels import is_usual, library_of, operation_of
from dsprof.trace.readers.kineto_events import (
    CPU_COLLECTIVES,
    DEVICE_CATEGORIES,
    KERNEL,
    OF_ASCEND,
    STEP_PREFIX,
    STOP_ENDINGS,
    Args,
    Metadata,
    TraceEvent,
    is_stop,
)
from dsprof.trace.readers.kineto_host import (
    ISSUED,
    Issues,
    in_only_group,
    is_issue,
    span_message,
)
from dsprof.trace.table import RankTrace, Vocabulary

_LONGEST_US = 1e13  # four months: later times are damage
_DAMAGED = -(2**62)
_HOST_SPANS = (STEP_PREFIX, ISSUED, *CPU_COLLECTIVES)
_NUMBER, _OLD_NUMBER = attrgetter("args.index"), attrgetter("args.old_index")
_START, _DURATION = attrgetter("ts"), attrgetter("dur")
_SAMPLED_FACTOR = 2
"""Torch numbers its events from 0: numbers twice as high as there are events were left out."""


class _Kind(NamedTuple):
    """What is the same of all kernels or copies of one name."""

    name: int
    library: int
    kind: int
    is_usual: bool


class _Kinds(dict[tuple[str, str, bool], int]):
    """Numbers what is seen by name, category and whether a collective is named; `rows` by number.

    A dictionary that fills itself, because it is asked for each event of a device.
    """

    def __init__(self, words: Vocabulary) -> None:
        super().__init__()
        self.rows: list[_Kind] = []
        self._words = words

    def __missing__(self, key: tuple[str, str, bool]) -> int:
        number = self[key] = len(self.rows)
        self.rows.append(self._describe(*key))
        return number

    def _describe(self, name: str, category: str, is_named: bool) -> _Kind:
        if DEVICE_CATEGORIES[category] != KERNEL:
            return _Kind(self._words[name], self._words[""], COPY, False)
        library = library_of(name) or ("named by the profiler" if is_named else "")
        kind = COMMUNICATION if library else COMPUTE
        usual = kind == COMMUNICATION and is_usual(name)
        return _Kind(self._words[name], self._words[library], kind, usual)


class Columns:
    """Collects what the events of one rank say; times in ns since `origin_us`."""

    def __init__(self, origin_us: float) -> None:
        self._origin_us = origin_us
        self._words = Vocabulary()
        self._parts: list[npt.NDArray[np.int64]] = []
        self._stops: list[npt.NDArray[np.int64]] = []
        self._kinds = _Kinds(self._words)
        self._calls: list[Call] = []
        self._cpu_calls: list[Call] = []
        self._issues = Issues()
        self._groups = GroupTable()
        self._steps: dict[int, StepArgs] = {}
        self._lanes: dict[int | str | None, int] = {}
        self._damaged = 0
        self._is_of_ascend = False
        self._numbered = 0
        self._highest = -1

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Take what is of use from a chunk."""
        self._count(events)
        on_device = [e for e in events if e.cat in DEVICE_CATEGORIES and e.ph == "X"]
        for event in [e for e in events if e.name.startswith(_HOST_SPANS) and e.ph == "X"]:
            if event.name.startswith(STEP_PREFIX):
                self._step(event)
            elif event.name != ISSUED or is_issue(event.args):
                self._host_call(event)
        if on_device:
            self._parts.append(self._device_rows(on_device))
        elif not self._is_of_ascend:
            self._is_of_ascend = any(event.cat == OF_ASCEND for event in events)
        stops = [e for e in events if e.name.endswith(STOP_ENDINGS) and e.ph == "X"]
        if stops := [event for event in stops if is_stop(event.name)]:
            self._stops.append(self._stop_rows(stops))

    def trace(self, path: str, header: Header, meta: Metadata) -> RankTrace:
        """Return the trace of all events added.

        Raises:
            TraceError: they are of a device that is not read: what it waited for is not known.
        """
        if self._is_of_ascend and not self._parts:
            raise TraceError(
                f"{path}: a profile of Ascend devices, of which dsprof reads no kernels; "
                "record the run with DSPROF=1"
            )
        table = np.concatenate(self._parts) if self._parts else np.zeros((0, 7), np.int64)
        steps = [self._steps[number] for number in sorted(self._steps)]
        for config in meta.distributed.pg_config if meta.distributed else ():
            self._groups.number(config.pg_name, config.pg_desc, config.ranks, config.pg_size)
        self._issues.name(self._calls)
        calls = self._calls if len(table) else self._of_host()
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
        """Count the events that torch numbered, in one of its schemas; keep the highest number."""
        for number in (_NUMBER, _OLD_NUMBER):
            numbers = np.fromiter(map(number, events), np.int64, len(events))
            highest = int(numbers.max(initial=-1))
            if highest >= 0:
                self._numbered += int(np.count_nonzero(numbers >= 0))
                self._highest = max(self._highest, highest)
                return

    def _activity(self, table: npt.NDArray[np.int64]) -> DeviceActivity:
        name, library, kind, stream, start, end, usual = table.T
        words, usual = list(self._words), usual.astype(np.bool_)
        stops = np.concatenate([np.zeros((3, 0), np.int64), *self._stops], axis=1)
        return DeviceActivity(
            words, name, library, kind, stream, start, end, usual, HostStops(words, *stops)
        )

    def _times(self, events: Sequence[TraceEvent]) -> npt.NDArray[np.int64]:
        """Return a row of starts and one of ends, shape (2, events); _DAMAGED where they are."""
        starts = np.fromiter(map(_START, events), np.float64, len(events))
        lasts = np.fromiter(map(_DURATION, events), np.float64, len(events))
        # Added first: on the coarse grid of absolute times an end meets the start that it touches.
        times = np.stack([starts, starts + np.fmax(lasts, 0.0)]) - self._origin_us
        is_sound = (np.abs(times) < _LONGEST_US).all(axis=0)
        return np.rint(np.where(is_sound, times * 1000, _DAMAGED)).astype(np.int64)

    def _device_rows(self, events: Sequence[TraceEvent]) -> npt.NDArray[np.int64]:
        """Return a row each: name, library, kind, stream, start, end, usual."""
        keys = [(e.name, e.cat, e.args.collective is not None) for e in events]
        kinds = np.fromiter(map(self._kinds.__getitem__, keys), np.int64, len(keys))
        name, library, kind, is_usual = np.array(self._kinds.rows, np.int64)[kinds].T
        streams: list[Any] = [event.args.stream for event in events]
        if set(map(type, streams)) != {int}:
            streams = [self._stream(event) for event in events]
        start, end = self._times(events)
        is_sound = start > _DAMAGED
        self._damaged += len(events) - int(np.count_nonzero(is_sound))
        for i in np.flatnonzero(is_sound & (kind == COMMUNICATION)).tolist():
            event = events[i]
            op = event.args.collective or operation_of(event.name) or UNNAMED
            if event.args.collective is None:
                self._issues.leave(event.args, len(self._calls))
            call = self._call(op, event.args, streams[i], int(start[i]), int(end[i]))
            self._calls.append(call)
        columns = [name, library, kind, np.array(streams, np.int64), start, end, is_usual]
        rows: npt.NDArray[np.int64] = np.stack(columns, axis=1)[is_sound]
        return rows

    def _stop_rows(self, events: Sequence[TraceEvent]) -> npt.NDArray[np.int64]:
        """Return rows of names, starts and ends, shape (3, sound events)."""
        names = np.array([self._words[event.name] for event in events], np.int64)
        times = self._times(events)
        is_sound = times[0] > _DAMAGED
        self._damaged += len(events) - int(np.count_nonzero(is_sound))
        rows: npt.NDArray[np.int64] = np.stack([names, *times])[:, is_sound]
        return rows

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
        (start,), (end,) = self._times([event]).tolist()
        args, lane = event.args, self._lane(event.tid)
        if start == _DAMAGED:
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
        (start,), (end,) = self._times([event]).tolist()
        if start > _DAMAGED:
            step = StepArgs(int(digits), start, end, source="torch.profiler")
            self._steps.setdefault(step.step, step)


def _ranks(text: str) -> list[int]:
    """Return the ranks that "[0, 1]" lists; none where the profiler shortened it."""
    try:
        return msgspec.json.decode(text, type=list[int])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return []
