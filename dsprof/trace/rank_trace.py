"""A rank's trace in memory: columns for collectives, small lists for everything rarer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from dsprof.environment import EnvSnapshot
from dsprof.trace.collectives import family
from dsprof.trace.columns import FLAGS, NUMBERS, WORDS, BoolArray, Columns, IntArray
from dsprof.trace.comm_rows import Rows
from dsprof.trace.device_activity import DeviceActivity, Profile
from dsprof.trace.dumps.flight_dump import FlightDump
from dsprof.trace.dumps.hang_dump import HangDump
from dsprof.trace.dumps.memory_snapshot import MemorySnapshot
from dsprof.trace.dumps.state_file import RankState
from dsprof.trace.lines import OPEN_LINE, Line
from dsprof.trace.rank_log import RankLog
from dsprof.trace.schema import (
    BucketLayout,
    Collective,
    Copy,
    DeviceStep,
    EngineConfig,
    Fetch,
    Flush,
    Group,
    GroupEnd,
    Header,
    Heartbeat,
    HookStatus,
    Kept,
    MemorySample,
    Model,
    Note,
    Phase,
    RollUp,
    Site,
    Stall,
    Step,
    StepCounters,
    StepTotals,
    Trailer,
)


class Vocabulary(dict[str, int]):
    """Strings of a trace as small integers: `vocabulary[word]` gives a new word the next code."""

    def __missing__(self, word: str) -> int:
        code = self[word] = len(self)
        return code


@dataclass(slots=True)
class Collectives(Columns):
    """One row per collective, in the order of the file; times in ns since the start of the trace.

    `op`, `requested`, `dtype`, `phase` and `reduce_op` are codes into `words`. A time of 0 means
    that it was not seen (`done_ns`, `wait_ns`, `waited_ns`, `pending_ns`).
    """

    is_open: BoolArray  # still in flight when the file ended
    is_untimed: BoolArray  # a device ran it, and how long that took is not known
    is_background: BoolArray  # of a thread beside the training: what it waits for holds no step up
    bound_ns: IntArray  # its times may be later by so much: a device's, on the host's clock

    def __len__(self) -> int:
        return len(self.op)

    def code(self, word: str) -> int:
        """Return the code of `word`, or -1 if no row uses it."""
        try:
            return self.words.index(word)
        except ValueError:
            return -1

    def of_families(self, names: Collection[str]) -> BoolArray:
        """Say which rows are of one of these families, whatever the spelling of their `op`."""
        return np.array([family(word) in names for word in self.words], np.bool_)[self.op]


COLUMN_NAMES = [one.name for one in fields(Collectives) if one.name != "words"]


def operations(rows: Collectives) -> dict[str, int]:
    """Count the rows by what they do."""
    counts = np.bincount(rows.op, minlength=len(rows.words)).tolist()
    return {word: count for word, count in zip(rows.words, counts, strict=True) if count}


def appended(rows: Collectives, more: Collectives) -> Collectives:
    """Return the rows of both tables."""
    codes = Vocabulary(zip(rows.words, range(len(rows.words)), strict=True))
    renumbered = np.array([codes[word] for word in more.words], np.int32)
    columns = {}
    for name in COLUMN_NAMES:
        added = getattr(more, name)
        if name in ("op", *WORDS):
            added = renumbered[added]
        columns[name] = np.concatenate([getattr(rows, name), added])
    return Collectives(words=list(codes), **columns)


def _getters(names: Iterable[str]) -> dict[str, attrgetter[Any]]:
    return {name: attrgetter(name) for name in names}


_NAME = attrgetter("name")
_WORDS, _FLAGS, _NUMBERS = _getters(WORDS), _getters(FLAGS), _getters(NUMBERS)
_COLUMNS = ("op", *WORDS, *NUMBERS, *FLAGS, "is_open")
_BOOLEANS = {*FLAGS, "is_open"}


_LEAST_HELD_ONCE = 1 << 14
"""Shorter columns are small as they are."""

_SMALL = int(np.iinfo(np.int32).max)
_UNTOLD = Collective(id=0, group=0, seq=0, nbytes=0, elements=0, issue_ns=0)


_GROWTH = 4
"""Memory of a column that nothing was written to is not taken from the system yet."""


class _Column:
    """A column that grows: one value while all are equal, 32 bits wide while all are small."""

    def __init__(self, name: str) -> None:
        self._dtype = np.dtype(np.bool_ if name in _BOOLEANS else np.int32)
        self._count = self._value = 0
        self._values: npt.NDArray[Any] | None = None  # the first `_count` of them are in use

    def extend(self, values: npt.NDArray[Any], low: int, high: int) -> None:
        """Append at least one value; all are from `low` to `high`, which both occur."""
        if not self._count:
            self._value = low
        count = self._count + len(values)
        if low < -_SMALL or high > _SMALL:
            self._dtype = np.dtype(np.int64)
        if self._values is not None or low != high or low != self._value:
            room = self._room(count)
            room[self._count : count] = values
        self._count = count

    def _room(self, count: int) -> npt.NDArray[Any]:
        """Return an array for so many values that begins with those there are."""
        held = self._values
        if held is not None and len(held) >= count and held.dtype == self._dtype:
            return held
        room = np.empty(_GROWTH * count, self._dtype)
        room[: self._count] = self._value if held is None else held[: self._count]
        self._values = room
        return room

    def built(self) -> npt.NDArray[Any]:
        """Return the values. A long column of equal ones is a view of one, which is read-only."""
        if self._values is not None:
            self._values.resize(self._count, refcheck=False)  # gives the rest back
            return self._values
        if self._count < _LEAST_HELD_ONCE:
            return np.full(self._count, self._value, self._dtype)
        return np.broadcast_to(np.array([self._value], self._dtype), self._count)


class CollectivesBuilder:
    """Turns chunks of events into columns, so that no more than a chunk of objects is alive."""

    def __init__(self) -> None:
        self._vocabulary = Vocabulary()
        self._columns = {name: _Column(name) for name in _COLUMNS}

    def add(self, events: Sequence[Line]) -> None:
        """Append the rows of `events`: all of them, or none if one is refused.

        Raises:
            OverflowError: a number is beyond 64 bits.
        """
        if not events:
            return
        count = len(events)
        rows = list(map(attrgetter("args"), events))
        code = self._vocabulary.__getitem__
        columns: dict[str, npt.NDArray[Any]] = {
            "op": np.fromiter(map(code, map(_NAME, events)), np.int32, count)
        }
        # fromiter over map(attrgetter) is 2.5 times faster than np.array over a list of getattr.
        for name, get in _WORDS.items():
            columns[name] = np.fromiter(map(code, map(get, rows)), np.int32, count)
        for name, get in _NUMBERS.items():
            columns[name] = np.fromiter(map(get, rows), np.int64, count)
        for name, get in _FLAGS.items():
            columns[name] = np.fromiter(map(get, rows), np.bool_, count)
        # A collective may end, and the run too, before the line that would say so.
        is_open = isinstance(events[0], OPEN_LINE)
        columns["is_open"] = (columns["done_ns"] == 0) & is_open
        self._append_all(columns)

    def add_rows(self, rows: Rows) -> None:
        """Append finished collectives that were parsed into a table."""
        if not len(rows):
            return
        columns = rows.bounded_columns()
        for name in ("op", *_WORDS):
            self._append(name, self._codes(*columns[name], rows.words))
        for name in (*_NUMBERS, *_FLAGS):
            self._columns[name].extend(*columns[name])
        self._append("is_open", np.zeros(len(rows), np.bool_))

    def _codes(
        self, places: IntArray, low: int, high: int, words: Sequence[str]
    ) -> npt.NDArray[np.int32]:
        """Return the codes of words, of which new ones are numbered as they occur."""
        if low == high:
            return np.full(len(places), self._vocabulary[words[low]], np.int32)
        codes = np.array([self._vocabulary.get(word, -1) for word in words], np.int32)
        if codes.min() < 0:
            for place in places[codes[places] < 0].tolist():
                codes[place] = self._vocabulary[words[place]]
        return codes[places]

    def add_columns(
        self, words: Mapping[str, Sequence[str]], numbers: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Append rows of which some columns are known; the others have their defaults.

        `words` holds at least `op`; all are as long as that.
        """
        count = len(words["op"])
        columns: dict[str, npt.NDArray[Any]] = {"is_open": np.zeros(count, np.bool_)}
        code = self._vocabulary.__getitem__
        for name in ("op", *_WORDS):
            told = words.get(name) or repeat(getattr(_UNTOLD, name))
            columns[name] = np.fromiter(map(code, told), np.int32, count)
        for name in (*_NUMBERS, *_FLAGS):
            untold: npt.NDArray[Any] = np.full(count, getattr(_UNTOLD, name))
            columns[name] = numbers.get(name, untold)
        self._append_all(columns)

    def _append_all(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        for name, values in columns.items():
            self._append(name, values)

    def _append(self, name: str, values: npt.NDArray[Any]) -> None:
        if len(values):
            self._columns[name].extend(values, int(values.min()), int(values.max()))

    def build(self) -> Collectives:
        """Return all rows added so far."""
        columns = {name: self._columns.pop(name).built() for name in _COLUMNS}
        _complete_batches(columns)
        count = len(columns["op"])
        columns |= {name: np.zeros(count, np.bool_) for name in ("is_untimed", "is_background")}
        columns["bound_ns"] = np.zeros(count, np.int64)
        return Collectives(words=list(self._vocabulary), **columns)


def _complete_batches(columns: dict[str, npt.NDArray[Any]]) -> None:
    """Take collectives that were launched together for complete when the last of them is."""
    (rows,) = np.nonzero(columns["coalesced"])
    if not len(rows):
        return
    done_ns = columns["done_ns"].astype(np.int64)  # where all are equal, it is read-only
    batches, batch = np.unique(columns["coalesced"][rows], return_inverse=True)
    last_ns = np.zeros(len(batches), np.int64)
    np.maximum.at(last_ns, batch, done_ns[rows])
    done_ns[rows] = np.where(done_ns[rows] == 0, last_ns[batch], done_ns[rows])
    columns["done_ns"] = done_ns


_NO_COLLECTIVES = CollectivesBuilder().build()


def _no_collectives() -> Collectives:
    return replace(_NO_COLLECTIVES, words=[])


@dataclass(slots=True)
class RankTrace:
    """Everything one rank wrote. `trailer` is None when this rank crashed or was killed."""

    path: str
    header: Header
    collectives: Collectives = field(default_factory=_no_collectives)
    trailer: Trailer | None = None
    hooks: list[HookStatus] = field(default_factory=list)
    environment: EnvSnapshot | None = None
    engines: dict[int, EngineConfig] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    sites: dict[int, Site] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    spans: list[Phase] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    layouts: list[BucketLayout] = field(default_factory=list)
    models: dict[int, Model] = field(default_factory=dict)
    fetches: list[Fetch] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    device_steps: list[DeviceStep] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    group_ends: list[GroupEnd] = field(default_factory=list)
    counters: list[StepCounters] = field(default_factory=list)
    kept: dict[int, Kept] = field(default_factory=dict)
    totals: dict[int, StepTotals] = field(default_factory=dict)
    rollups: dict[tuple[int, int], RollUp] = field(default_factory=dict)  # by length and begin
    newest_from: int = 0  # of a rolling recording: the first step since which none is left out
    lost_parts: list[str] = field(default_factory=list)  # of it: endings of files that are missing
    notes: list[Note] = field(default_factory=list)
    hang_dump: HangDump | None = None  # what it saw of itself when nothing went on
    state: RankState | None = None  # what the process was doing when it was killed
    broken_lines: int = 0  # lines that could not be read and were skipped
    unknown_records: int = 0  # whole lines of kinds that only a newer dsprof knows
    nbytes: int = 0  # size of the file
    is_device_timed: bool = False  # times of collectives and steps are the device's
    device: DeviceActivity | None = None  # what an accelerator did, where a profiler saw it
    profile: Profile | None = None  # the same, of a profiler beside this trace
    knows_durations: bool = False  # of its collectives: how long each took, not when it ran
    is_sampled: bool = False  # whoever wrote the file left events out
    is_foreign: bool = False  # another tool wrote the file
    plugin: str = ""  # the reader and package of it that read the file, if none of dsprof's own
    is_world_known: bool = True  # a file of the rank tells how many ranks there were
    flight: FlightDump | None = None  # what torch's flight recorder held
    snapshot: MemorySnapshot | None = None  # the memory of a device as its allocator sees it
    log: RankLog | None = None  # what libraries said of themselves in logs
    beside: list[str] = field(default_factory=list)  # further files whose facts are in here

    @property
    def rank(self) -> int:
        """The global rank that wrote the file."""
        return self.header.rank

    @property
    def activity(self) -> DeviceActivity | None:
        """Activity of an accelerator, as this trace or a profiler beside it tells."""
        return self.profile.device if self.profile is not None else self.device


_SPANS = ("steps", "spans", "flushes", "fetches", "stalls", "device_steps", "copies")


def refuse_reversed(trace: RankTrace) -> None:
    """Take records that end before they begin for damage, so that no length is negative."""
    for name in _SPANS:
        held = getattr(trace, name)
        sound = [one for one in held if one.end_ns >= one.start_ns]
        trace.broken_lines += len(held) - len(sound)
        setattr(trace, name, sound)
    for number in [n for n, one in trace.totals.items() if one.end_ns < one.start_ns]:
        del trace.totals[number]
        trace.broken_lines += 1
