"""From a profiler's events to columns, a chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dsprof.trace.device import COMMUNICATION, COMPUTE, COPY, DeviceActivity
from dsprof.trace.format import (
    CollectiveArgs,
    CollectiveEvent,
    GroupArgs,
    Header,
    NoteArgs,
    StepArgs,
)
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
from dsprof.trace.table import CollectivesBuilder, RankTrace, Vocabulary

_LONGEST_US = 1e13  # four months: later times are damage
_UNNAMED = "not named"
_HOST_SPANS = (STEP_PREFIX, *CPU_COLLECTIVES)
_NUMBER, _OLD_NUMBER = attrgetter("args.index"), attrgetter("args.old_index")
_SAMPLED_FACTOR = 2
"""Torch numbers its events from 0: numbers twice as high as there are events were left out."""
_ELEMENT_BYTES = {
    "double": 8, "long": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4,
    "half": 2, "bfloat16": 2, "short": 2, "byte": 1, "char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


class _Row(NamedTuple):
    """A kernel or copy."""

    name: int
    library: int
    kind: int
    stream: int
    start_ns: int
    end_ns: int
    is_usual: bool


class _Call(NamedTuple):
    """A collective, on a stream or a thread."""

    op: str
    group: int
    elements: int
    nbytes: int
    dtype: str
    lane: int
    start_ns: int
    end_ns: int


class Columns:
    """Collects what the events of one rank say; times in ns since `origin_us`."""

    def __init__(self, origin_us: float) -> None:
        self._origin_us = origin_us
        self._words = Vocabulary()
        self._parts: list[npt.NDArray[np.int64]] = []
        self._libraries: dict[str, str] = {}
        self._calls: list[_Call] = []
        self._cpu_calls: list[_Call] = []
        self._groups: dict[tuple[str, str], GroupArgs] = {}
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
            self._group(config.pg_name, config.pg_desc, config.ranks, config.pg_size)
        trace = RankTrace(path, header, _collectives(calls, steps).build())
        trace.steps, trace.broken_lines = steps, self._damaged
        trace.groups = {group.id: group for group in self._groups.values()}
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
            op = args.collective or operation_of(name) or _UNNAMED
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

    def _call(self, op: str, args: Args, lane: int, start: int, end: int) -> _Call:
        gathers = "gather" in op.lower()
        elements = max((args.out_elements if gathers else args.in_elements) or 0, 0)
        dtype = args.dtype or ""
        nbytes = min(elements, 2**58) * _ELEMENT_BYTES.get(dtype.lower(), 0)
        group = self._group_of(args)
        return _Call(op, group, elements, nbytes, dtype, lane, start, end)

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
            return self._group("", "unknown", [], args.group_size or 0)
        ranks = _ranks(args.group_ranks or "")
        return self._group(args.group_name, args.group_label or "", ranks, args.group_size or 0)

    def _group(self, name: str, label: str, ranks: list[int], size: int) -> int:
        key = name, ",".join(map(str, ranks))
        if (group := self._groups.get(key)) is None:
            group = GroupArgs(
                id=len(self._groups) + 1,
                key=f"{name}:{key[1]}",
                label="world" if label == "default_pg" else label or name,
                name=name,
                ranks=ranks,
                size=size or len(ranks),
            )
            self._groups[key] = group
        return group.id

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


def _collectives(calls: Sequence[_Call], steps: Sequence[StepArgs]) -> CollectivesBuilder:
    """Return the rows of the collectives, numbered in each group in the order of their starts."""
    builder = CollectivesBuilder()
    numbers: dict[int, int] = {}
    starts = [step.start_ns for step in steps]
    ends = [step.end_ns for step in steps]
    events = []
    for i, call in enumerate(sorted(calls, key=lambda call: call.start_ns)):
        place = int(np.searchsorted(starts, call.start_ns, "right")) - 1
        inside = place >= 0 and call.start_ns < ends[place]
        seq = numbers[call.group] = numbers.get(call.group, -1) + 1
        args = CollectiveArgs(
            id=i,
            group=call.group,
            seq=seq,
            nbytes=call.nbytes,
            elements=call.elements,
            tensors=1 if call.nbytes else 0,
            issue_ns=call.start_ns,
            return_ns=call.start_ns,
            done_ns=call.end_ns,
            pending_ns=call.end_ns,
            dtype=call.dtype,
            is_async=True,
            step=steps[place].step if inside else -1,
            stream=call.lane,
        )
        events.append(CollectiveEvent(name=call.op, args=args))
    builder.add(events)
    return builder
