"""Writes one rank's trace from a daemon thread, so that a killed process loses half a second.

Each chunk is one unbuffered write of whole lines. While the disk refuses data, steps are lost and
training goes on.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from dsprof.environment import EnvSnapshot
from dsprof.trace.collectives import POINT_TO_POINT
from dsprof.trace.latch import Latch
from dsprof.trace.lines import LINES, Line
from dsprof.trace.schema import (
    INDEX,
    Collective,
    DeviceStep,
    GroupEnd,
    Header,
    Heartbeat,
    MemorySample,
    Note,
    Record,
    Stall,
    Step,
    Trailer,
)
from dsprof.trace.window import EVERYTHING, Window
from dsprof.trace.writing.counters import Counters
from dsprof.trace.writing.disk import OwnFile, create_trace
from dsprof.trace.writing.encode import Encoder
from dsprof.trace.writing.heartbeat import Silence
from dsprof.trace.writing.outage import Outage
from dsprof.trace.writing.step_index import IndexBuilder
from dsprof.trace.writing.writer_input import NOTHING_WRITTEN, WriterInput, Written

INTERVAL_S = 0.4
CHUNK_RECORDS = 1000
OPEN_AFTER_NS = 100_000_000
"""A collective in flight for so long is written as open, in case the process gets killed."""

COUNTED_OPEN_AFTER_NS = 5_000_000_000
"""The same of one that would only be counted: it hangs."""

MEMORY_EVERY_NS = 1_000_000_000
"""Steps within so long share one look at memory: in between two it takes 0.2 ms of cold code."""

_SHORTEST_WAIT_S = 0.05
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
_MOST_NOTES = 20


class TraceWriter:
    """One file, one thread. `close` writes the trailer."""

    def __init__(
        self, folder: Path, header: Header, source: WriterInput, window: Window, budget_bytes: int
    ) -> None:
        self.path = folder
        self.error: Exception | None = None
        self.events = 0
        self.dropped = 0
        self.disk_error = ""  # why the disk refused data, the last time
        self.lost_steps = 0  # missing or incomplete because of that
        self.cpu_ns = 0
        self.counted_only_steps = 0
        self.budget_spent = False
        self.has_trailer = False
        self._folder = folder
        self._header = header
        self._source = source
        self._window, self._is_unlimited = window, window == EVERYTHING
        self._budget_bytes = budget_bytes
        self._written_bytes = 0
        self._undescribed: list[Line] = []  # to be written before the next records
        self._written_step = self._last_lost = -1
        self._taken_step = -1
        self._outage: Outage | None = None
        self._outages = 0  # that have ended
        self._turns = 1  # before the next one tries to write again
        self._index = IndexBuilder(header.started_monotonic_ns)
        self._first_number = 0
        self._file: OwnFile | None = None
        self._step = -1
        self._ended_ns = header.started_monotonic_ns
        self._memory: MemorySample | None = None
        self._counters = Counters()
        self._opened: set[int] = set()
        self._in_flight: set[int] = set()  # when last looked
        self._in_hand = 0  # records that were taken out and are not written yet
        self._json = msgspec.json.Encoder()
        self._lines = Encoder(
            header.rank,
            header.started_monotonic_ns,
            source.disclose,
            source.lines_in_c,
        )
        self._group_end = self._written_end = GroupEnd()
        self._wake = Latch()
        self._silence = Silence(time.perf_counter_ns())
        self._closing = False
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="dsprof-writer", daemon=True)

    def start(self) -> None:
        """Start the thread; everything else, opening the file included, happens there."""
        self._thread.start()

    def close(
        self,
        trailer: Callable[[], Trailer],
        unfinished: list[Collective],
        timeout_s: float = 10.0,
    ) -> None:
        """Write what is left and the trailer; give up after `timeout_s`."""
        self.end(trailer, unfinished)
        self.join(timeout_s)

    def end(self, trailer: Callable[[], Trailer], unfinished: list[Collective]) -> None:
        """Let the thread write what is left and the trailer, without waiting for it.

        All other records are in the queue by now: what is added later is lost.
        """
        self._source.unfinished = lambda: unfinished
        self._trailer = trailer
        self._closing = True
        self._wake.set()

    def leave(self, end: GroupEnd) -> None:
        """Write soon how the process group ended: the process may be killed next."""
        self._group_end = end
        self._wake.nudge()

    @property
    def is_done(self) -> bool:
        """Whether nothing more will be written."""
        return not self._thread.is_alive()

    @property
    def budget_left_bytes(self) -> int:
        """The room for further details."""
        return max(self._budget_bytes - self._written_bytes, 0)

    def wait(self, timeout_s: float = 10.0) -> None:
        """Wait until nothing more will be written, at most so long."""
        self._thread.join(timeout_s)

    def join(self, timeout_s: float = 10.0) -> None:
        """Wait for the ending thread; give up after `timeout_s`."""
        self.wait(timeout_s)
        if self._thread.is_alive():
            self._fail(TimeoutError(f"the writer was not done after {timeout_s:.0f} s"))
            self._given_up = True
            self._thread.join(1.0)

    def abandon(self) -> None:
        """Close the files in a forked child: open there, they look written and take room."""
        self._close_files()

    def _fail(self, error: Exception) -> None:
        self.error = error
        what = f"the trace in {self._folder} ends early"
        if self._file is None:
            what = f"rank {self._header.rank} records nothing in {self._folder}"
        self._source.warn(f"{what}: {_described(error)}")

    # -- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._begin_when_possible()
            self._take_turn()
            spent_s = 0.0
            while not self._closing:
                self._wake.wait(max(INTERVAL_S - spent_s, _SHORTEST_WAIT_S))
                begin_s = time.monotonic()
                self._source.show_life()
                self._take_turn()
                spent_s = time.monotonic() - begin_s
            self._end()
        except Exception as error:  # noqa: BLE001 - no traceback on the user's terminal
            self._fail(error)
            self._discard()
            with suppress(Exception):  # the disk may still be full
                self._end_early(error)
        finally:
            self._close_files()

    def _begin_when_possible(self) -> None:
        """Open the trace; if the disk is full, this starts an outage, which opens it at its end.

        Raises:
            OSError: it cannot be opened, and waiting will not help.
        """
        try:
            self._begin()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            self._suffer(error)

    def _take_turn(self) -> None:
        """Write all new records; while the disk refuses data, drop and count them."""
        try:
            if self._outage is None or self._resume(self._outage):
                end = self._group_end  # by now all records before it are there
                self._drain()
                self._write_group_end(end)
                self._turns = 1
            if self._outage is None or self._outage.has_room:
                self._write_open()
                self._show_life()
            else:
                self._source.unfinished()  # which forgets what is complete
        except OSError as error:
            self._suffer(error)

    def _end(self) -> None:
        """Write the rest. If the disk refuses it, write a trailer in place of the last lines."""
        try:
            if self._outage is None or self._resume(self._outage, is_last=True):
                self._finish()
                return
        except OSError as error:
            if self._file is None:
                raise
            self._suffer(error)
        if self._outage is not None and not self._given_up:
            self.dropped += self._outage.lose_lines(self._give_up_lines())
            self._undescribed = []  # of what is lost
            self._end_outage(self._outage)
            self._describe([])
            self._write_trailer()

    def _suffer(self, error: OSError) -> None:
        """Begin an outage or continue it: drop the records that wait."""
        if self._outage is None:
            written = max(self._last_written, self._last_lost)
            self._outage = Outage(error, written, self._step, self._whole_from, self._turns)
            if not self.disk_error:
                where = f"rank {self._header.rank} cannot write to {self._folder}"
                self._source.warn(f"{where}: {self._outage.why}. Steps are lost until it can")
            self.disk_error = self._outage.why
        self._outage.has_room = False
        self._lose_in_hand()
        self._lose(self._outage)

    def _lose_in_hand(self) -> None:
        self.dropped += self._in_hand
        self._in_hand = 0

    @property
    def _whole_from(self) -> int:
        """The first step of which nothing was taken out that may be lost."""
        return self._taken_step + 1

    @property
    def _last_written(self) -> int:
        """The last step that is on disk."""
        return self._written_step

    def _lose(self, outage: Outage) -> None:
        self.dropped += outage.lose(self._source.records, self._show)

    def _show(self, record: Record) -> None:
        """Add a lost record to the figures of the last step, for loggers that ask for them."""
        if not (last_step := self._source.last_step).is_asked:
            return
        last_step.take(record)
        if isinstance(record, Step):
            self._show_end(record)

    def _show_end(self, record: Step) -> MemorySample:
        """Show the figures of a step that has ended; return what memory was then."""
        sample = self._memory_at(record.end_ns, record.step)
        if self._source.last_step.is_asked:
            self._source.last_step.end(record, sample, self._header.device)
        return sample

    def _resume(self, outage: Outage, *, is_last: bool = False) -> bool:
        """End the outage if the disk has room and a whole step follows; say whether it has ended.

        Raises:
            OSError: the disk refuses data.
        """
        if not outage.has_room:
            if not is_last and not outage.is_due():
                self._lose(outage)
                return False
            self._try_room()
            outage.has_room = True
        records = self._source.records
        self.dropped += outage.skip(records, self._show)
        if not records and not is_last:
            return False
        self._end_outage(outage)
        return True

    def _try_room(self) -> None:
        if self._file is None:
            self._begin()
        self._own_file.check_room()

    def _end_outage(self, outage: Outage) -> None:
        self.lost_steps += len(outage.lost)
        self._last_lost = outage.lost.stop - 1
        self._turns = outage.turns
        self._outages += 1
        if self._outages <= _MOST_NOTES:
            self._undescribed += self._define([Note(outage.text())])
        self._outage = None

    def _give_up_lines(self) -> bytes:
        """Remove the newest lines to make room for the trailer; return them."""
        return self._own_file.give_up_lines(self._start_bytes)

    @property
    def _own_file(self) -> OwnFile:
        assert self._file is not None, "the trace is open"
        return self._file

    def _close_files(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin(self) -> None:
        self._open()
        self._undescribed = self._define(self._source.prepare())
        self._undescribed += self._lines.record(self._source.sample_memory("writer", -1))

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        line = self._json.encode(LINES["header"](self._header, ph="M", pid=self._header.rank))
        start = b"[\n" + line + b",\n"
        rank, first = self._header.rank, self._first_number
        self._file, self.path = create_trace(self._folder, rank, first, start)
        self._start_bytes = len(start)
        self._index.keep(0, self._start_bytes)

    def _drain(self) -> None:
        """Write all that is there, a chunk at a time so that the GIL is free in between."""
        definitions, records = self._source.definitions, self._source.records
        if records:
            self._silence.broken(time.perf_counter_ns())
        if self._undescribed:
            self._describe([])
        while (definitions or records) and not self._given_up:
            # Definitions first: a record is added only after what it refers to.
            if definitions:
                self._describe(self._define(definitions.popleft() for _ in range(len(definitions))))
            if records:
                step = self._write_chunk()
                self._index.mark(self._own_file.nbytes, step, self._ended_ns)
            if self._index.is_due(self._own_file.nbytes):
                self._write_index()
        if self._undescribed:
            self._describe([])
        self.cpu_ns = time.thread_time_ns()

    def _write_chunk(self) -> int:
        """Write the oldest records; return the step of the last one."""
        pieces: list[bytes] = []
        lines: list[Line] = []
        events, step, in_c = 0, -1, self._lines.in_c if self._is_all_written() else None
        for taken in self._take_out(in_c, CHUNK_RECORDS, self._source.last_step.is_asked):
            if isinstance(taken, tuple):
                data, count, step, _ = taken
                pieces += self._encode(lines), data
                events, lines = events + len(lines) + count, []
            else:
                step = taken.step
                lines += self._take(taken)
        self._append(b"".join((*pieces, self._encode(lines))), events + len(lines))
        self._in_hand = 0
        return step

    def _take_out(
        self, in_c: Any, most_at_once: int, is_of_one_step: bool
    ) -> Iterator[Written | Record]:
        """Take out at most CHUNK_RECORDS: yield what C wrote of several, or the next record.

        `is_of_one_step`: C writes records of only one step at once, and adds their sums.
        """
        records, last_step = self._source.records, self._source.last_step
        left, is_asked = min(len(records), CHUNK_RECORDS), last_step.is_asked and is_of_one_step
        while left > 0:
            written: Written = NOTHING_WRITTEN
            if in_c:
                written = in_c.take(records, min(left, most_at_once), is_of_one_step)
            _, count, step, sums = written
            self._taken_step = max(self._taken_step, step)
            self._in_hand += count or 1
            left -= count or 1
            if count:
                if is_asked:
                    last_step.add(step, sums)
                yield written
            else:
                record = records.popleft()
                self._taken_step = max(self._taken_step, record.step)
                if is_asked:
                    last_step.take(record)
                yield record

    def _is_all_written(self) -> bool:
        """Say whether each record becomes a line: none is only counted."""
        return self._is_unlimited and not self.budget_spent

    def _describe(self, lines: list[Line]) -> None:
        """Write what records of any step may refer to."""
        self._undescribed += lines
        begin = self._own_file.nbytes
        self._write(self._undescribed)
        self._undescribed = []
        if self._own_file.nbytes > begin:
            self._index.keep(begin, self._own_file.nbytes)

    def _define(self, definitions: Iterable[Any]) -> list[Line]:
        return [self._lines.definition(self._source.disclose(part)) for part in definitions]

    def _take(self, record: Record) -> list[Line]:
        """Return the lines for one record; outside the window collectives are only counted."""
        kind = type(record)  # isinstance takes ten times as long for a few Structs
        if kind is Step:
            return self._end_step(cast(Step, record))
        if kind is DeviceStep or kind is Stall:
            self._index.passed(self._taken_step - record.step)
        is_open = bool(self._opened) and self._is_open(record)
        if is_open or kind is DeviceStep or self._is_kept(record.step):
            return self._lines.record(record)
        if isinstance(record, Collective):
            self._counters.add(record)
        return []

    def _is_kept(self, step: int) -> bool:
        """Say whether records of a step are written in detail."""
        return self._window.holds(step) and not self.budget_spent

    def _is_open(self, record: Record) -> bool:
        """Tell whether a line says that this is in flight: it needs a line that says it is over."""
        if not isinstance(record, Collective) or record.id not in self._opened:
            return False
        self._opened.discard(record.id)
        return True

    def _end_step(self, record: Step) -> list[Line]:
        self.counted_only_steps += not self._is_kept(record.step)
        lines = [*self._lines.record(record), *self._memory_lines(record, self._reach(record))]
        return lines + self._counter_lines(record.step)

    def _reach(self, record: Step) -> MemorySample:
        """Take the end of a step; return what memory was then."""
        if self._step < 0:
            self._undescribed += self._define(self._source.prepare_late())
        self._step, self._ended_ns = record.step, record.end_ns
        return self._show_end(record)

    def _memory_lines(self, record: Step, sample: MemorySample) -> list[Line]:
        return self._lines.record(msgspec.structs.replace(sample, step=record.step))

    def _memory_at(self, at_ns: int, step: int) -> MemorySample:
        """Return what memory was at a moment, or within a second before it."""
        if self._memory is None or at_ns - self._memory.time_ns >= MEMORY_EVERY_NS:
            self._memory = self._source.sample_memory("step", step)
        return self._memory

    def _counter_lines(self, before: int) -> list[Line]:
        """Return the counters of finished steps: a late wait may still change the newest one."""
        taken, rank = self._counters.take(before), self._header.rank
        return [LINES["counters"](args, name="counters", ph="i", pid=rank) for args in taken]

    def _write_open(self) -> None:
        if self._given_up:
            return
        now, unfinished = time.perf_counter_ns(), self._source.unfinished()
        if not (unfinished or self._in_flight):
            self._opened.clear()
            return
        # What was in flight at the last look may have ended since, with its record still to come.
        before, self._in_flight = self._in_flight, {record.id for record in unfinished}
        self._opened &= before | self._in_flight
        late = [
            record
            for record in unfinished
            if now - record.issue_ns > self._open_after_ns(record) and record.id not in self._opened
        ]
        self._write([self._lines.open_collective(record) for record in late])
        self._opened.update(record.id for record in late)

    def _show_life(self) -> None:
        """Write every few seconds, while nothing else happens: so a hang shows in a killed run."""
        now_ns = time.perf_counter_ns()
        if self._silence.is_due(now_ns) and not self._given_up:
            begun_ns = [one.issue_ns for one in self._source.unfinished() if not one.done_ns]
            oldest_ns = now_ns - min(begun_ns, default=now_ns)
            beat = Heartbeat(now_ns, self._step, len(begun_ns), oldest_ns)
            self._write(self._lines.record(beat))

    def _write_group_end(self, end: GroupEnd) -> None:
        if end is not self._written_end and not self._given_up:
            self._describe(self._define([end]))
            self._written_end = end

    def _open_after_ns(self, record: Collective) -> int:
        return OPEN_AFTER_NS if self._is_kept(record.step) else COUNTED_OPEN_AFTER_NS

    def _write(self, lines: list[Line]) -> None:
        if not lines:
            return
        self._append(self._encode(lines), len(lines))

    def _append(self, data: bytes, events: int) -> None:
        self._own_file.append(data)
        self.events += events
        self._written_step = self._step
        self._written_bytes += len(data)
        self.budget_spent = self._written_bytes > self._budget_bytes

    def _encode(self, lines: list[Line]) -> bytes:
        """Encode lines; one that cannot be (a name that is no Unicode) is dropped and counted."""
        try:
            return self._json.encode_lines(lines).replace(b"\n", b",\n")  # JSON itself has none
        except (UnicodeEncodeError, TypeError, ValueError, OverflowError):
            if len(lines) == 1:
                self.dropped += 1
                self.events -= 1
                return b""
            return b"".join(self._encode([one]) for one in lines)

    def _finish(self) -> None:
        self._drain()
        self.dropped += len(self._source.records)  # none, unless this was given up
        self._write_rest()
        self.cpu_ns = time.thread_time_ns()
        self._write_trailer()

    def _write_rest(self) -> None:
        """Write what is known only at the end."""
        self._write(self._last_lines() + self._counter_lines(self._step + 2))
        self._write_index()

    def _write_index(self) -> None:
        index = self._index.built(self._own_file.nbytes, self._step, self._ended_ns)
        self._write([LINES[INDEX](index, ph="M", pid=self._header.rank)])

    def _last_lines(self) -> list[Line]:
        """Return what was in flight or not waited for at the end, and the last look at memory.

        Nothing once this was given up: torch is asked, and Python may shut down meanwhile.
        """
        if self._given_up:
            return []
        lines: list[Line] = []
        for record in self._source.unfinished():
            # The completion of a send or receive on the host is unknown without a wait.
            is_unknown = record.op in POINT_TO_POINT and record.pending_ns > 0
            finished = record.done_ns or record.waits or is_unknown
            encode = self._lines.collective if finished else self._lines.open_collective
            lines.append(encode(record))
        return lines + self._lines.record(self._source.sample_memory("writer", self._step))

    def _write_trailer(self) -> None:
        args = self._source.disclose(self._trailer())
        trailer = LINES["trailer"](args, ph="M", pid=self._header.rank)
        self._own_file.append(self._json.encode(trailer) + b"\n]\n")
        self.has_trailer = True

    def _discard(self) -> None:
        """After the writer has failed: keep the buffers empty, so that memory stays bounded."""
        self.dropped += self._in_hand  # a part may be in the file
        while not self._closing:
            self.dropped += len(self._source.records)
            self._source.records.clear()
            self._source.definitions.clear()
            self._source.show_life()
            self._wake.wait(INTERVAL_S)
        self.dropped += len(self._source.records)

    def _end_early(self, error: Exception) -> None:
        """Add a note about the error. A trailer would make the trace look complete."""
        if self._file is None or self._given_up:
            return
        what = f"the recording ended early, and {self.dropped:,} records were dropped"
        note = self._source.disclose(Note(f"{what}: {_described(error)}"))
        self._own_file.append(self._encode([self._lines.definition(note)]))


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def write_environment(folder: Path, header: Header, environment: EnvSnapshot) -> Path:
    """Write the trace of a rank that did nothing yet; return its path.

    Raises:
        OSError: the folder cannot be made or written.
    """
    rank = header.rank
    lines = (
        LINES["header"](header, ph="M", pid=rank),
        LINES["environment"](environment, ph="M", pid=rank),
        LINES["trailer"](Trailer(reason="dsprof env"), ph="M", pid=rank),
    )
    data = b"[\n" + b",\n".join(map(msgspec.json.encode, lines)) + b"\n]\n"
    folder.mkdir(parents=True, exist_ok=True)
    file, path = create_trace(folder, rank, 0, data)
    file.close()
    return path
