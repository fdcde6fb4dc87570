"""Draws the steps of one rank as bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.bars import Bar, StepDetail, dumped
from dsprof.analysis.rank.intervals import (
    Array,
    Intervals,
    completed,
    copies,
    exposed,
    phases,
    without_size,
)
from dsprof.analysis.rank.kernel_time import DeviceTime
from dsprof.analysis.rank.profiled_steps import covered_steps, tied_profile
from dsprof.analysis.rank.record_columns import int_column
from dsprof.analysis.rank.steps import is_timed, on_host_clock
from dsprof.analysis.summary import RankClock
from dsprof.findings.wording import size
from dsprof.trace.device_activity import COMMUNICATION, COMPUTE, COPY
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import ROLES, Copy, Flush, Phase, Step

BARS_PER_LANE = 300
STREAMS = 4  # of a device, the busiest
_GAPS = 1000  # of a step: kernels that are closer are drawn as one
WHOLE = -1  # in place of a step: all that a rank without steps recorded
DUMP = -2  # in place of a step: what a flight recorder held
_NONE: Array = np.zeros(0, np.int64)
_KERNELS = {COMPUTE: "compute", COMMUNICATION: "communication kernels", COPY: "copies"}


def draw(trace: RankTrace, clock: RankClock, numbers: Set[int]) -> dict[int, StepDetail]:
    """Draw these steps of one rank, as far as it recorded them."""
    if not trace.steps:
        found = draw_without_steps(trace, clock)
        return {number: detail for number, detail in found.items() if number in numbers}
    artist = _Artist(trace, clock, numbers)
    steps = {step.step: step for step in trace.steps if step.step in numbers}
    return {number: artist.draw(step) for number, step in steps.items()}


def draw_without_steps(trace: RankTrace, clock: RankClock) -> dict[int, StepDetail]:
    """Draw all that a rank recorded, or what its flight recorder held."""
    if (whole := _recording(trace)) is not None:
        return {WHOLE: _Artist(trace, clock, {WHOLE}).draw(whole)}
    held = None if trace.flight is None else dumped(trace.flight)
    return {} if held is None else {DUMP: held}


def _recording(trace: RankTrace) -> Step | None:
    """Return what a trace without steps covers, as a step; None where it has no times."""
    rows, device = trace.collectives, trace.device
    starts, ends = [rows.issue_ns], [completed(rows)]
    if device is not None:
        starts, ends = [*starts, device.start_ns], [*ends, device.end_ns]
    first = min((int(column.min()) for column in starts if len(column)), default=0)
    last = max((int(column.max()) for column in ends if len(column)), default=0)
    return Step(step=WHOLE, start_ns=first, end_ns=last) if last > first else None


class _Artist:
    """Draws steps of one rank; what all steps need is worked out once."""

    def __init__(self, trace: RankTrace, clock: RankClock, numbers: Set[int]) -> None:
        self._trace = trace
        self._clock = clock
        self._done_ns = completed(trace.collectives)
        self._unsized = without_size(trace.collectives)
        self._flushes = {flush.id: _bucket(flush) for flush in trace.flushes}
        self._fetches = {fetch.id: fetch.module for fetch in trace.fetches}
        self._spans: dict[int, list[Phase]] = {}
        for span in trace.spans:
            if span.step in numbers:
                self._spans.setdefault(span.step, []).append(span)
        profile = tied_profile(trace)
        self._device = trace.device if profile is None else profile.device
        self._covered = covered_steps(trace)
        self._parts = self._split()

    def _split(self) -> dict[str, Intervals]:
        """Return what the rank did, each moment once, as `Steps` splits it."""
        trace = self._trace
        if trace.is_sampled or not (is_timed(trace) or self._device):
            return {}
        waits, moves = exposed(trace), copies(trace)
        if self._device is None:
            if not on_host_clock(trace):
                return {"blocked": waits}
            working = phases(trace) - waits - moves
            return {"compute": working, "blocked": waits, "copies": moves - waits}
        time = DeviceTime.of(self._device)
        if trace.device is not None:
            waits = time.communication - time.compute
        compute = time.compute - waits
        moves = time.copies - waits - compute
        return {"compute": compute, "blocked": waits, "copies": moves}

    def draw(self, step: Step) -> StepDetail:
        begun = np.array([step.start_ns], np.int64)
        shift = int(self._clock.on_run(begun)[0]) - step.start_ns
        lanes = [
            self._activity(step),
            self._phases(step),
            self._collectives(step),
            self._copies(step),
            *self._streams(step),
        ]
        bars = tuple(bar for lane in lanes for bar in lane.longest(shift))
        left_out = sum(map(len, lanes)) - len(bars)
        return StepDetail(step.start_ns + shift, step.end_ns + shift, bars, left_out)

    def _activity(self, step: Step) -> _Lane:
        """Draw the parts of the step; what is in none of them is idle only where kernels say so."""
        rest = Intervals(np.array([step.start_ns]), np.array([step.end_ns]))
        gap_ns = 0 if self._device is None else (step.end_ns - step.start_ns) // _GAPS
        parts = {}
        for kind, part in self._parts.items():
            near = part.near(step.start_ns - gap_ns, step.end_ns + gap_ns)
            parts[kind] = _joined(near, gap_ns) & rest
            rest = rest - parts[kind]
        if parts:
            shows_idle = self._trace.device is not None or step.step in self._covered
            parts["idle" if shows_idle else "other"] = rest
        return _Lane.of_kinds("activity", parts)

    def _phases(self, step: Step) -> _Lane:
        spans = self._spans.get(step.step, [])
        return _Lane.of_records(
            spans, lambda i, begin, end: Bar("phase", spans[i].name, begin, end)
        )

    def _collectives(self, step: Step) -> _Lane:
        rows = self._trace.collectives
        mine = np.flatnonzero((rows.step == step.step) & rows.on_wire)
        known = np.maximum(rows.return_ns[mine], rows.pending_ns[mine])
        ends = np.where(self._done_ns[mine], self._done_ns[mine], known)
        starts = rows.issue_ns[mine].astype(np.int64)
        return _Lane(starts, ends, lambda i, begin, end: self._collective(int(mine[i]), begin, end))

    def _collective(self, i: int, start_ns: int, end_ns: int) -> Bar:
        rows = self._trace.collectives
        group = self._trace.groups.get(int(rows.group[i]))
        return Bar(
            "communication",
            rows.words[rows.op[i]],
            start_ns,
            end_ns,
            self._label(i),
            "" if group is None else ROLES.get(group.role, group.label),
            self._flushes.get(int(rows.flush[i])) or self._fetches.get(int(rows.fetch[i]), ""),
        )

    def _label(self, i: int) -> str:
        """Say what is known of a collective: size, manner, calling line."""
        rows = self._trace.collectives
        site = self._trace.sites.get(int(rows.site[i]))
        nbytes = int(rows.nbytes[i])
        words = [
            "size not recorded" if self._unsized[i] else size(nbytes) if nbytes else "",
            "async" if rows.is_async[i] else "sync",
            "" if site is None else f"{site.file}:{site.line}",
        ]
        return ", ".join(filter(None, words))

    def _copies(self, step: Step) -> _Lane:
        mine = [copy for copy in self._trace.copies if copy.step == step.step]
        return _Lane.of_records(
            mine, lambda i, begin, end: Bar("copies", "copies", begin, end, _copy_label(mine[i]))
        )

    def _streams(self, step: Step) -> Iterator[_Lane]:
        """Draw the busiest streams of a device; kernels that follow each other at once are one."""
        device = self._device
        if device is None:
            return
        inside = (device.end_ns > step.start_ns) & (device.start_ns < step.end_ns)
        lengths = np.where(inside, device.end_ns - device.start_ns, 0)
        streams, place = np.unique(device.stream, return_inverse=True)
        busy_ns = np.bincount(place, lengths, len(streams))
        gap_ns = (step.end_ns - step.start_ns) // _GAPS
        for number in np.argsort(-busy_ns, kind="stable")[:STREAMS]:
            parts = {}
            for kind, name in _KERNELS.items():
                mine = inside & (place == number) & (device.kind == kind)
                busy = Intervals.union(device.start_ns[mine], device.end_ns[mine])
                parts[name] = _joined(busy, gap_ns)
            yield _Lane.of_kinds(f"stream {int(streams[number])}", parts)


@dataclass(frozen=True, slots=True)
class _Lane:
    """Bars before they are made: of a crowded lane most never are."""

    starts: Array
    ends: Array
    bar: Callable[[int, int, int], Bar]  # of a place, with this start and end

    @classmethod
    def of_kinds(cls, name: str, parts: Mapping[str, Intervals]) -> _Lane:
        """Put parts of several kinds into one lane."""
        kinds = [kind for kind, part in parts.items() for _ in range(len(part.starts))]
        return cls(
            np.concatenate([_NONE, *(part.starts for part in parts.values())]),
            np.concatenate([_NONE, *(part.ends for part in parts.values())]),
            lambda i, begin, end: Bar(name, kinds[i], begin, end),
        )

    @classmethod
    def of_records(
        cls, records: Sequence[Phase | Copy], bar: Callable[[int, int, int], Bar]
    ) -> _Lane:
        """Put records into a lane."""
        return cls(int_column(records, "start_ns"), int_column(records, "end_ns"), bar)

    def __len__(self) -> int:
        return len(self.starts)

    def longest(self, shift: int) -> Iterator[Bar]:
        """Make the longest bars, in order of time, and move them by `shift` ns."""
        chosen = np.argsort(self.starts - self.ends, kind="stable")[:BARS_PER_LANE]
        chosen = chosen[np.argsort(self.starts[chosen], kind="stable")]
        times = (self.starts[chosen] + shift, self.ends[chosen] + shift)
        return map(self.bar, chosen.tolist(), *(column.tolist() for column in times))


def _joined(part: Intervals, gap_ns: int) -> Intervals:
    """Return intervals that are closer than the gap as one."""
    wider = Intervals.union(part.starts, part.ends + gap_ns)
    return Intervals(wider.starts, wider.ends - gap_ns)


def _bucket(flush: Flush) -> str:
    return flush.module or (f"bucket {flush.bucket}" if flush.bucket >= 0 else "gradient bucket")


def _copy_label(copy: Copy) -> str:
    return f"{copy.what} {copy.direction}, {size(copy.nbytes)}"
