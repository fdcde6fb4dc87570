"""Writes one rank's trace without end: all of it happens in the writer's thread.

Every line goes to the tails, as in any other trace. A step is judged three steps later, when what
is known late is known, or as soon as a device that is further behind has gone through these steps.
If its details are worth it they are copied, as they are, from the tails.
What comes still later counts in the span of time that is open then.

Until a step ends, what is recorded is summed up by time, in each turn of the writer.
"""

from __future__ import annotations

import os
import resource
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from dsprof.trace.lines import Line
from dsprof.trace.rolling.alarms import Alarms
from dsprof.trace.rolling.capture import Captured
from dsprof.trace.rolling.earlier import hold, put_away, put_away_moved
from dsprof.trace.rolling.interest import Interest
from dsprof.trace.rolling.packed import Batch, Packed
from dsprof.trace.rolling.parts import KEPT, SERIES, STEPS, files_of_rank, part_of
from dsprof.trace.rolling.rollups import SPANS_S, RollUps
from dsprof.trace.rolling.step_details import StepDetails
from dsprof.trace.rolling.step_sums import (
    Threads,
    add_sums,
    count_collective,
    count_phase,
    count_stall,
    count_sums,
    nothing_yet,
    take_memory,
)
from dsprof.trace.rolling.tails import Tails
from dsprof.trace.schema import (
    LATE_STEPS,
    MOST_BEHIND_STEPS,
    Collective,
    DeviceStep,
    Header,
    Kept,
    MemorySample,
    Phase,
    RollUp,
    Segment,
    Stall,
    Step,
    StepTotals,
)
from dsprof.trace.scope import clock
from dsprof.trace.window import EVERYTHING
from dsprof.trace.writing.disk import OwnFile, open_folder
from dsprof.trace.writing.outage import Outage
from dsprof.trace.writing.writer import TraceWriter
from dsprof.trace.writing.writer_input import WriterInput

_JUDGED_TOGETHER = 32
"""Steps: together they take half the CPU time; more could have left the tails of a small budget."""

_LOOK_BACK_STEPS = 256
"""A change of pace, or another rank, may ask for a step that is this old."""

_MOST_WANTED = 64
_PIECE_LINES = 100
_SERIES_BYTES = 20_000_000


def _within_limit(budget_bytes: int) -> int:
    """Return a budget of which an eighth, as a file takes, is below what `ulimit -f` allows."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return budget_bytes if limit == resource.RLIM_INFINITY else min(budget_bytes, limit * 6)


class RollingWriter(TraceWriter):
    """Its `path` is the book; with all that is beside it, it stays within the budget."""

    def __init__(
        self,
        folder: Path,
        header: Header,
        source: WriterInput,
        budget_bytes: int,
        before: TraceWriter | None = None,
    ) -> None:
        """`before` is ending in this process: its files make room, too."""
        super().__init__(folder, header, source, EVERYTHING, _within_limit(budget_bytes))
        self._before = before
        self.interest = Interest()
        self.alarms = Alarms()
        # What ranks agreed to keep, also past steps. If the writer fails, nothing takes it.
        self.wanted: deque[Captured] = deque(maxlen=_MOST_WANTED)
        self._open_folder: OwnFile | None = None
        self._tails: Tails | None = None
        self._packed: list[Packed] = []
        self._unjudged: dict[int, StepDetails] = {}
        self._judged: OrderedDict[int, StepDetails] = OrderedDict()  # while they are in the tails
        self._sums: list[StepTotals] = []  # not written yet
        self._outside = StepDetails()
        self._rollups = RollUps()
        self._threads = Threads()
        self._late = nothing_yet()  # of steps that have been judged
        self._device_step = -1  # the last that a device has ended
        self._over: list[RollUp] = []  # not written yet
        self._is_lost = False  # the trace, while it is written
        self._by_time_ns = header.started_monotonic_ns  # so far sums are by time, without steps

    @property
    def budget_left_bytes(self) -> int:
        """What all recordings of the rank may take together; each measures the others."""
        return self._budget_bytes

    # -- files --------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._before is not None:
            self._before.wait()
            self._before = None
        earlier = put_away(self._folder, self._header.rank, self._budget_bytes)
        self._first_number = earlier.number
        least_bytes = self._budget_bytes // 8
        moved_bytes = put_away_moved(self._folder, self._header, least_bytes)
        room_bytes = max(self._budget_bytes - earlier.nbytes - moved_bytes, least_bytes)
        self._book_left_bytes = part = room_bytes // 8
        super()._open()
        try:
            self._open_parts(part)
        except OSError:
            self._remove()
            raise

    def _open_parts(self, part: int) -> None:
        hold(self._own_file.fileno())
        self._open_folder = open_folder(self.path.parent)
        self._kept = self._pack(KEPT, part, is_sample=True)
        self._step_lines = Batch(self._pack(STEPS, part))
        series = self._pack(SERIES, min(part, _SERIES_BYTES))
        self._series = {length_s: Batch(series, length_s) for length_s in SPANS_S}
        self._tails = Tails(self.path, part, self._begin_segment)

    def _remove(self) -> None:
        """Leave no recording of which parts are missing: it would look like that of a killed rank.

        What is not empty is not of this recording.
        """
        self._close_files()
        self._file = None
        self._packed.clear()
        for path in files_of_rank(self.path):
            with suppress(OSError):
                if path == self.path or not path.stat().st_size:
                    path.unlink()

    def _pack(self, ending: str, most_bytes: int, *, is_sample: bool = False) -> Packed:
        name = part_of(self.path, ending).name
        assert self._open_folder is not None
        packed = Packed(self._open_folder, name, most_bytes, is_sample=is_sample)
        self._packed.append(packed)
        return packed

    def _close_files(self) -> None:
        super()._close_files()
        if self._open_folder is not None:
            self._open_folder.close()
        for packed in self._packed:
            packed.close()
        if self._tails is not None:
            self._tails.close()

    def _begin_segment(self, number: int) -> bytes:
        """Begin a file of details; what was in it is from now on only in packed files."""
        if number:
            self._step_lines.pack()
            self._pack_series()
            self._flush_packed()
        for details in (*self._unjudged.values(), *self._judged.values()):
            details.forget(number - 1)
        # The sums of its first steps may be gone before a span is over.
        parts = (Segment(number, self._step), *self._over, *self._rollups.open())
        return self._encode([*map(self._lines.definition, parts)])

    # -- lines --------------------------------------------------------------------------------

    def _write(self, lines: list[Line]) -> None:
        """Write lines that are of no step: to the book until there are tails."""
        if self._tails is None:
            self._describe(lines)
        else:
            self._write_piece(self._outside, lines)
            self._flush()

    def _describe(self, lines: list[Line]) -> None:
        """Write to the book, which is never shortened."""
        self._undescribed += lines
        if not self._undescribed:
            return
        data, count = self._encode(self._undescribed), len(self._undescribed)
        if len(data) > self._book_left_bytes:
            self._book_left_bytes = 0
            self.dropped += count
        else:
            self._own_file.append(data)
            self._book_left_bytes -= len(data)
            self.events += count
        self._undescribed = []

    def _write_piece(self, details: StepDetails, lines: list[Line]) -> None:
        """Write lines of one step to the tails, and remember where they are."""
        if lines:
            self._write_lines(details, self._encode(lines), len(lines))

    def _write_lines(self, details: StepDetails, data: bytes, events: int) -> None:
        assert self._tails is not None
        extent = self._tails.write(data)
        self.events += events
        if details is not self._outside:
            details.add(extent)

    def _flush(self) -> None:
        if self._tails is not None:
            self._tails.flush()
            self._flush_packed()

    def _flush_packed(self) -> None:
        for packed in self._packed:
            packed.flush()

    @property
    def _last_written(self) -> int:
        return self._step  # lines that the disk refuses are kept in memory

    @property
    def _whole_from(self) -> int:
        return 0  # only what waits in the queue is lost

    def _lose_in_hand(self) -> None:
        self._in_hand = 0

    def _try_room(self) -> None:
        super()._try_room()
        if self._tails is not None:
            self._tails.try_room()

    def _give_up_lines(self) -> bytes:
        if self._tails is None:
            return b""
        lines = self._tails.give_up_lines()
        with suppress(OSError):  # spans need little room
            self._end_spans()
            self._flush_packed()
        return lines

    def _of(self, step: int) -> StepDetails:
        if step < 0:
            return self._outside
        if (known := self._unjudged.get(step) or self._judged.get(step)) is None:
            known = self._unjudged[step] = StepDetails()
        return known

    def _end_outage(self, outage: Outage) -> None:
        super()._end_outage(outage)
        self._by_time_ns = clock()

    def _drain(self) -> None:
        definitions, records = self._source.definitions, self._source.records
        if records:
            self._silence.broken(time.perf_counter_ns())
        self._describe([])
        while (definitions or records or self.wanted) and not self._given_up:
            if self.wanted:
                self._look_back(self.wanted.popleft())
            self._describe(self._define(definitions.popleft() for _ in range(len(definitions))))
            self._write_records()
            self._in_hand = 0
            self._flush()
        self._describe([])
        if self._step < 0 and not self._given_up:
            self._sum_up_time()
        self.cpu_ns = time.thread_time_ns()

    def _write_records(self) -> None:
        """Write the oldest records, neighbours of one step together."""
        lines: list[Line] = []
        at, details, encode = -1, self._outside, self._lines.record
        for record in self._take_out(self._lines.in_c, _PIECE_LINES, is_of_one_step=True):
            if isinstance(record, tuple):
                self._write_piece(details, lines)
                data, count, at, sums = record
                lines, details = [], self._of(at)
                self._write_lines(details, data, count)
                count_sums(details.sums, sums, self._threads)
                continue
            if record.step != at or len(lines) >= _PIECE_LINES:
                self._write_piece(details, lines)
                lines, at, details = [], record.step, self._of(record.step)
            lines += encode(record)
            kind = type(record)
            if kind is Collective:
                count_collective(details.sums, cast(Collective, record), self._threads)
            elif kind is Phase:
                count_phase(details.sums, cast(Phase, record), self._threads)
            elif kind is Stall:
                count_stall(details.sums, cast(Stall, record))
            elif kind is Step:
                step = cast(Step, record)
                sample = self._reach(step)
                details.end(step, sample)
                lines += self._memory_lines(step, sample)
                if len(self._unjudged) > _JUDGED_TOGETHER:
                    self._write_piece(details, lines)
                    lines = []
                    self._judge_complete()
            elif kind is MemorySample:
                self._take_sample(details, cast(MemorySample, record))
            elif kind is DeviceStep:
                self._device_step = record.step
        self._write_piece(details, lines)
        self._judge_complete()

    def _take_sample(self, details: StepDetails, sample: MemorySample) -> None:
        """Take what a hook found in use on the device at the end of a step."""
        if sample.at == "step" and sample.step in self._unjudged:
            take_memory(details.sums, sample)

    # -- steps that are over ------------------------------------------------------------------

    def _judge_complete(self) -> None:
        """Judge the steps of which all is known: a device may be behind with its part."""
        last = self._step if self._device_step < 0 else self._device_step
        self._judge_before(max(last - LATE_STEPS, self._step - MOST_BEHIND_STEPS))

    def _judge_before(self, before: int) -> None:
        """Sum up steps, and keep the details of those that are worth it."""
        for step in sorted([step for step in self._unjudged if step < before]):
            details = self._judged[step] = self._unjudged.pop(step)
            totals, details.sums = details.sums, self._late
            if details.step is None:  # it was judged too long ago, or its end was lost
                add_sums(self._late, totals)
            else:
                self._sum_up(totals)
                self.alarms.judge(totals, self.interest.usual_ns)
                for kept in self.interest.judge(step, totals.end_ns - totals.start_ns):
                    self._keep(kept)
        while len(self._judged) > _LOOK_BACK_STEPS:
            self._judged.popitem(last=False)
        self._write_sums()

    def _sum_up(self, totals: StepTotals) -> None:
        self._sums.append(totals)
        self._over += self._rollups.add(totals, self._second(totals.end_ns))
        self._rollups.add_late(self._late)

    def _sum_up_time(self) -> None:
        """Sum up what was recorded since the last call; no step has ended yet."""
        begin_ns, self._by_time_ns = self._by_time_ns, clock()
        sums = nothing_yet()
        for details in (self._outside, *self._unjudged.values()):
            add_sums(sums, details.take_sums())
        take_memory(sums, self._memory_at(self._by_time_ns, -1))
        recorded_ns, second = self._by_time_ns - begin_ns, self._second(self._by_time_ns)
        self._over += self._rollups.add_time(sums, recorded_ns, self._by_time_ns, second)
        self._write_spans()

    def _second(self, at_ns: int) -> int:
        """Return a moment by the wall clock, in s since 1970."""
        since_ns = at_ns - self._header.started_monotonic_ns
        return (self._header.started_epoch_ns + since_ns) // 1_000_000_000

    def _write_sums(self) -> None:
        """Write the sums of spans and of steps, together."""
        self._write_spans()
        if sums := self._sums:
            self._sums = []
            steps = range(sums[0].step, sums[-1].step + 1)
            self._write_batch(self._step_lines, steps, sums)

    def _write_spans(self) -> None:
        over, self._over = self._over, []
        if any(span.length_s == SPANS_S[-1] for span in over):
            self._touch()
        if over and not self._is_lost:
            self._look_for_loss()
        for span in over:
            self._write_batch(self._series[span.length_s], range(span.first_step, span.end), [span])

    def _look_for_loss(self) -> None:
        """Say so if other programs have removed the trace, or cut it."""
        status = os.fstat(self._own_file.fileno())
        self._is_lost = not status.st_nlink or status.st_size < self._own_file.nbytes
        if self._is_lost:
            how = "cut by another program" if status.st_nlink else "removed"
            lost = f"{self.path} was {how}, so the recording of rank {self._header.rank} is lost"
            self._source.warn(f"{lost}. Leave its folder in place until the job ends")

    def _touch(self) -> None:
        """Show that all files are in use: what tidies up removes those not written for days."""
        assert self._tails is not None
        with suppress(OSError):
            self._own_file.touch()
            self._tails.touch()
            for packed in self._packed:
                packed.touch()

    def _write_batch(self, batch: Batch, steps: range, sums: Sequence[RollUp | StepTotals]) -> None:
        """Write sums to the tails, and batch them: they are packed before the tails drop them."""
        lines = self._encode([*map(self._lines.definition, sums)])
        batch.add(steps, lines)
        self._write_lines(self._outside, lines, len(sums))

    def _keep(self, kept: Kept) -> None:
        """Copy the details of a step; not of one that the tails no longer hold whole."""
        details = self._judged.get(kept.step)
        if self._tails is None or details is None:
            return
        worth = self.interest.worth(kept)
        lines = [self._encode([self._lines.definition(kept)])]
        if self._kept.has(kept.step):
            if not self._kept.promote(kept.step, worth):
                return
        elif details.extents:
            lines += map(self._tails.read, details.extents)
        else:
            return
        self._kept.add(range(kept.step, kept.step + 1), worth, b"".join(lines))

    def _look_back(self, wanted: Captured) -> None:
        self.interest.capture(wanted)
        for number in wanted.range:
            details = self._judged.get(number)
            if details is not None and (step := details.step) is not None:
                self._keep(wanted.kept(number, self.interest.times(step.end_ns - step.start_ns)))

    def _end_spans(self) -> None:
        self._rollups.add_late(self._late)
        self._over += self._rollups.end()
        self._write_spans()
        self._pack_series()

    def _pack_series(self) -> None:
        for batch in self._series.values():
            batch.pack()

    def _write_rest(self) -> None:
        self._write(self._last_lines())
        self._judge_before(self._step + 1)
        self._end_spans()
        self._step_lines.pack()
        self._flush()
