"""Follows the native traces of a run: of each file only what is new is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from math import inf
from pathlib import Path
from time import monotonic

from dsprof.files.inputs import open_input
from dsprof.files.ownership import foreign_link
from dsprof.trace.chunks import Chunk, add_collectives, read_lines, take_rare
from dsprof.trace.dumps.state_file import RankState, find_state
from dsprof.trace.host_folders import shared_folder
from dsprof.trace.life import Life, life_of
from dsprof.trace.lines import COMM_LINE, OPEN_LINE, Line, fits
from dsprof.trace.rank_trace import CollectivesBuilder, RankTrace, refuse_reversed
from dsprof.trace.rolling.parts import TAILS, is_rolling, part_of
from dsprof.trace.schema import Group, Header, MemorySample

_LOOK_BYTES = 1 << 22
"""Read of one file at once: a run that is long over is caught up with in several looks."""
_ALL_BYTES, _LEAST_BYTES = 1 << 27, 1 << 16
"""Read at once of all files of many ranks, and at least of each; memory takes twice as much."""

_START_BYTES = 64
"""The first line of a tail names its segment."""

_QUIET_S = 3.0
"""The live state of a process that runs is renewed every half second."""

_MOST_EVENTS = 100_000
"""Kept of a rank for its next window: more only come of runs without steps."""


_IN_TABLES = (COMM_LINE, OPEN_LINE)


class _GrowingFile:
    """Lines that are appended to a file; a rolling recording also begins it anew."""

    def __init__(self, path: Path, most_bytes: int, *, is_tail: bool = False) -> None:
        """A tail is followed from its last `most_bytes` on: it may hold thousands of steps."""
        self.is_behind = True
        self._path, self._offset, self._start = path, 0, b""
        self._most_bytes, self._is_tail = most_bytes, is_tail

    def read(self) -> Chunk:
        """Return the whole lines that are new; none of a file that cannot be read (any more)."""
        data = b""
        with suppress(OSError):
            if not foreign_link(self._path):  # as in a report
                with open_input(self._path) as file:
                    data = self._new(file)
        end = data.rfind(b"\n") + 1
        self.is_behind = len(data) == self._most_bytes
        if not end and not self.is_behind:
            return Chunk()
        self._offset += end or len(data)  # a line as long as a look is none of ours
        return read_lines(data[:end])

    def _new(self, file: BufferedReader) -> bytes:
        start = file.read(_START_BYTES)
        if not start.startswith(self._start):
            self._offset = 0
        elif self._is_tail and not self._start:
            self._offset = max(file.seek(0, os.SEEK_END) - self._most_bytes, 0)
        self._start = start
        file.seek(self._offset)
        return file.read(self._most_bytes)


class FollowedRank:
    """The trace of one rank as it grows, and what its last steps hold."""

    def __init__(self, path: Path, header: Header, ranks: int = 1) -> None:
        """`ranks` are followed together."""
        self.path, self.header = path, header
        self.life = Life(inf, is_gone=False)
        self._grown_at = -inf
        self.memory: MemorySample | None = None
        self.device: dict[str, int] = {}  # counters of its memory: samples of their own
        self._lasting = RankTrace(str(path), header)
        tails = [part_of(path, ending) for ending in TAILS] if is_rolling(header) else []
        most_bytes = min(max(_ALL_BYTES // (3 * ranks), _LEAST_BYTES), _LOOK_BYTES)
        self._files = [_GrowingFile(path, most_bytes)]
        self._files += (_GrowingFile(one, most_bytes, is_tail=True) for one in tails)
        self._fresh: list[Chunk] = []
        self._recent: list[Chunk] = []  # of the newest step, and of what has no step yet
        self._opened: dict[int, Line] = {}

    @property
    def is_behind(self) -> bool:
        """Whether its files hold more than was read."""
        return any(file.is_behind for file in self._files)

    @property
    def is_over(self) -> bool:
        """Whether the rank has written its last line, or left its group before it was killed."""
        ends = self._lasting.group_ends
        has_left = bool(ends and ends[-1].time_ns and self.life.is_gone)
        return self._lasting.trailer is not None or has_left

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended without a last line."""
        return not self.is_over and self.life.silent_s > _QUIET_S and self.life.is_gone

    @property
    def exception(self) -> str:
        """The type of the exception that ended the rank, if any."""
        trailer = self._lasting.trailer
        return trailer.exception if trailer is not None else ""

    @property
    def opened(self) -> list[Line]:
        """The collectives that the file knows to be in flight, the oldest first."""
        return sorted(self._opened.values(), key=lambda line: line.args.issue_ns)

    def state(self) -> RankState | None:
        """Return what the rank does at this moment, where its memory can be read from here."""
        return None if self.is_over else find_state(self.header, shared_folder(self.path))

    @property
    def groups(self) -> Mapping[int, Group]:
        """The process groups that the file has described by now."""
        return self._lasting.groups

    def look(self) -> list[Chunk]:
        """Read and return what is new, up to the last whole line; what is known stays."""
        was_behind = self.is_behind
        chunks = [file.read() for file in self._files]
        found = [chunk for chunk in chunks if len(chunk.rows) or chunk.events]
        if found and not was_behind:
            self._grown_at = monotonic()
        for chunk in found:
            self._note_opened(chunk)
        if not self.is_over:
            life = life_of(self.path, self.header)
            # The clock of a file server may differ from ours.
            self.life = life._replace(silent_s=min(life.silent_s, monotonic() - self._grown_at))
        self._fresh += found
        return found

    def _note_opened(self, chunk: Chunk) -> None:
        for event in chunk.events:
            if type(event) is OPEN_LINE and fits(event):
                self._opened[event.args.id] = event
        if self._opened:
            ended = (event.args.id for event in chunk.events if type(event) is COMM_LINE)
            for number in (*chunk.rows.column("id").tolist(), *ended):
                self._opened.pop(number, None)

    def window(self) -> RankTrace | None:
        """Return a trace of the steps that are complete since the last call; None without any.

        What a later step still adds to one, as a wait that outlasts it, is in the next window,
        which therefore begins with the last step of this one.
        """
        chunks, self._fresh = [*self._recent, *self._fresh], []
        trace = RankTrace(
            path=str(self.path),
            header=self.header,
            collectives=self._lasting.collectives,
            groups=self._lasting.groups,
            engines=self._lasting.engines,
            sites=self._lasting.sites,
            models=self._lasting.models,
        )
        builder = CollectivesBuilder()
        for chunk in chunks:
            builder.add_rows(chunk.rows)
            add_collectives(builder, [one for one in chunk.events if type(one) is COMM_LINE])
            take_rare(trace, [one for one in chunk.events if type(one) not in _IN_TABLES], {})
        trace.collectives = builder.build()
        refuse_reversed(trace)
        self._keep(trace)
        last = max((step.step for step in trace.steps), default=-1)
        self._recent = _newest([_since(chunk, last) for chunk in chunks])
        return trace if trace.steps else None

    def _keep(self, trace: RankTrace) -> None:
        """Keep what holds beyond a window."""
        lasting = self._lasting
        lasting.trailer = trace.trailer or lasting.trailer
        lasting.group_ends = trace.group_ends or lasting.group_ends
        for sample in trace.memory:
            self.memory = sample if sample.rss_bytes >= 0 else self.memory
            self.device = sample.device or self.device


def _since(chunk: Chunk, step: int) -> Chunk:
    """Return what belongs to this step, or to a later one."""
    events = [one for one in chunk.events if getattr(one.args, "step", -1) >= step]
    return Chunk(chunk.rows.where(chunk.rows.column("step") >= step), events)


def _newest(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return the last of some chunks, the newest however large it is, and no empty ones."""
    kept: list[Chunk] = []
    count = 0
    for chunk in reversed(chunks):
        count += len(chunk.rows) + len(chunk.events)
        if kept and count > _MOST_EVENTS:
            break
        if len(chunk.rows) or chunk.events:
            kept.append(chunk)
    return kept[::-1]
