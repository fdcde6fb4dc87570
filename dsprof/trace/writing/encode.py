"""Turns records into the lines of a native trace: relative times, lanes that Perfetto can nest."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from operator import attrgetter
from typing import Any

from dsprof.trace.lines import COMM_LINE, LINES, OPEN_LINE, Line
from dsprof.trace.schema import (
    HOOKS,
    KINDS,
    METADATA,
    PHASE,
    USER,
    Collective,
    Kind,
    Lane,
    Phase,
    Record,
)
from dsprof.trace.writing.file_records import in_file

LONGEST_NAME = 200
"""Characters that are written of a name that the program gives."""

READ_OF_NAME = 5 * LONGEST_NAME
"""Characters that are looked at: it holds up all threads for seconds to redact a megabyte."""

_FIRST_COLLECTIVE_LANE = 1000
_COLLECTIVE_LANES = 100
_FIRST_STREAM_LANE = 2000
_STEP_LANE = 1


def _nothing(record: Any) -> None:
    """Some lanes are there once."""


class Encoder:
    """Encodes records of one rank, whose trace started at `start_ns`."""

    def __init__(
        self,
        rank: int,
        start_ns: int,
        disclose: Callable[[str], str] = str,
        lines_in_c: Callable[[int, int], Any] | None = None,
    ) -> None:
        """`lines_in_c` makes the writer of lines in C; without it Python writes all."""
        self.in_c = lines_in_c and lines_in_c(rank, start_ns)
        self._rank = rank
        # Spans of every step, by name.
        self._disclose = lru_cache(maxsize=1024)(lambda name: disclose(name)[:LONGEST_NAME])
        self._start_ns = start_ns
        self._lane_ends: list[tuple[int, int]] = []  # a heap of (end, lane); unused if C has one
        self._place = self.in_c.collective_lane if self.in_c else self._lane_between
        self._lanes: dict[int, int] = {}  # thread -> lane
        self._streams: dict[int | None, int] = {}  # stream of a device -> lane
        self._new_lanes: list[Line] = [self._name_lane(_STEP_LANE, "steps")]
        makers = {kind.record: self._maker(kind) for kind in KINDS if isinstance(kind.record, type)}
        by_hand: dict[Any, Any] = {Collective: self.collective, Phase: self._phase}
        self._lines: dict[Any, Callable[[Any], Line]] = makers | by_hand

    def record(self, record: Record) -> list[Line]:
        """Return the line of a record, after the names of lanes that it is first to use."""
        line = self._lines[type(record)](record)
        if not self._new_lanes:
            return [line]
        lines = [*self._new_lanes, line]
        self._new_lanes = []
        return lines

    def collective(self, record: Collective) -> Line:
        """Return the line of a finished collective, on a lane where it overlaps no other."""
        args = self._collective_args(record)
        issue_ns = args.issue_ns
        end_ns = args.done_ns or args.waited_ns or args.return_ns
        line: Line = COMM_LINE(
            args,
            record.op,
            "X",
            self._rank,
            self._collective_lane(issue_ns, end_ns),
            issue_ns / 1000,
            (end_ns - issue_ns) / 1000,
        )
        return line

    def open_collective(self, record: Collective) -> Line:
        """Return the line of a collective that is still in flight."""
        args = self._collective_args(record)
        ts = args.issue_ns / 1000
        line: Line = OPEN_LINE(args, name=record.op, ph="i", pid=self._rank, ts=ts)
        return line

    def definition(self, definition: Any) -> Line:
        """Return the line of a description that hooks or the session gave."""
        if isinstance(definition, list):
            hooks: Line = LINES[HOOKS]({"hooks": definition}, ph="M", pid=self._rank)
            return hooks
        return self._lines[type(definition)](definition)

    def _collective_args(self, record: Collective) -> Collective:
        # C keeps calls in flight in a form of its own, of which a copy is the record.
        known = record if type(record) is Collective else copy(record)
        args: Collective = in_file(Collective)(known, self._start_ns)
        lane = self._lanes.get(record.thread)
        args.thread = self._thread_lane(record.thread) if lane is None else lane
        args.is_async = bool(record.is_async)
        return args

    def _phase(self, record: Phase) -> Line:
        args = in_file(Phase)(record, self._start_ns)
        line: Line = LINES[USER if record.is_annotation else PHASE](
            args,
            name=self._disclose(record.name) if record.is_annotation else record.name,
            pid=self._rank,
            tid=self._thread_lane(record.thread),
            ts=args.start_ns / 1000,
            dur=(args.end_ns - args.start_ns) / 1000,
        )
        return line

    def _maker(self, kind: Kind) -> Callable[[Any], Line]:
        """Return what makes the lines of a kind, as `Kind.lane` says."""
        make, label, rank, start_ns = LINES[kind.cat], kind.label, self._rank, self._start_ns
        of = kind.record
        key_of, known, add = self._lanes_of(kind.lane)

        def metadata(record: Any) -> Any:
            return make(in_file(of)(record, start_ns), name=label(record), ph="M", pid=rank)

        def moment(record: Any) -> Any:
            args = in_file(of)(record, start_ns)
            return make(args, name=label(record), ph="i", pid=rank, ts=args.time_ns / 1000)

        def span(record: Any) -> Any:
            if not record.end_ns:
                return metadata(record)
            args = in_file(of)(record, start_ns)
            key, begin_ns = key_of(record), args.start_ns
            tid, dur = known.get(key) or add(key), (args.end_ns - begin_ns) / 1000
            return make(args, label(record), "X", rank, tid, begin_ns / 1000, dur)

        return {Lane.NONE: metadata, Lane.MOMENT: moment}.get(kind.lane, span)

    def _lanes_of(self, lane: Lane) -> tuple[Callable[[Any], Any], dict[Any, int], Any]:
        """Return by what the lanes of records are known, those known by now, and how to add one."""
        return {
            Lane.THREAD: (attrgetter("thread"), self._lanes, self._thread_lane),
            Lane.STREAM: (attrgetter("stream"), self._streams, self._stream_lane),
            Lane.DEVICE: (_nothing, self._streams, self._stream_lane),
        }.get(lane, (_nothing, {None: _STEP_LANE}, self._stream_lane))

    def _collective_lane(self, start_ns: int, end_ns: int) -> int:
        """Return the lane that is free for longest; with all lanes taken, that one all the same."""
        lane: int
        lane, is_new = self._place(start_ns, end_ns)
        if is_new:
            number = lane - _FIRST_COLLECTIVE_LANE + 1
            self._new_lanes.append(self._name_lane(lane, f"collectives {number}"))
        return lane

    def _lane_between(self, start_ns: int, end_ns: int) -> tuple[int, bool]:
        """Take a lane; return it, and whether it is new."""
        ends = self._lane_ends
        if ends and (ends[0][0] <= start_ns or len(ends) == _COLLECTIVE_LANES):
            lane = ends[0][1]
            heapq.heapreplace(ends, (end_ns, lane))
            return lane, False
        lane = _FIRST_COLLECTIVE_LANE + len(ends)
        heapq.heappush(ends, (end_ns, lane))
        return lane, True

    def _thread_lane(self, thread: int) -> int:
        lane = self._lanes.get(thread)
        if lane is None:
            lane = self._lanes[thread] = _STEP_LANE + 1 + len(self._lanes)
            if self.in_c:
                self.in_c.know_thread(thread, lane)
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

    def _name_lane(self, tid: int, name: str) -> Line:
        args = {"name": name}
        line: Line = LINES[METADATA](args, name="thread_name", ph="M", pid=self._rank, tid=tid)
        return line
