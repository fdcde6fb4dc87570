"""The tracks of one rank, as every format of timelines shows them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from dsprof.analysis.alignment.clocks import Alignment
from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.summary import RankClock
from dsprof.api.rank_steps import knows_blocked
from dsprof.errors import DsprofError
from dsprof.files.redaction import RedactedWords, redact_text
from dsprof.trace.collectives import POINT_TO_POINT, family
from dsprof.trace.columns import IntArray
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import RunFiles, read_run
from dsprof.trace.schema import Group

_ID_MASK = (1 << 63) - 1


class Flow(NamedTuple):
    """The name of one collective on all ranks, and which of its ends this is."""

    id: int
    place: int  # among the members of the group; 0 for a sender, 1 for a receiver
    last: int  # place of the last end


class Slice(NamedTuple):
    """A span on a track; times are ns on the clock of the run."""

    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]
    flow: Flow | None = None


class Track(NamedTuple):
    """Spans of one rank, ascending by start; where they overlap, they need several lanes."""

    name: str
    slices: Iterable[Slice]


class RankTracks(NamedTuple):
    """All of one rank."""

    rank: int
    name: str
    tracks: Sequence[Track]


class Edge(NamedTuple):
    """Where a slice begins on a lane, or, without one, where the innermost there ends."""

    lane: int
    time_ns: int
    begins: Slice | None = None


def edges(slices: Iterable[Slice]) -> Iterator[Edge]:
    """Put slices on lanes so that those of a lane are nested or apart; ends come before begins."""
    lanes: list[list[int]] = []  # ends of what is open there, the innermost last
    busy: list[tuple[int, int]] = []  # ends of the innermost, and their lanes; ascending
    free: list[int] = []  # lanes on which nothing is open; a heap
    for one in slices:
        while busy and busy[0][0] <= one.start_ns:
            _, lane = busy.pop(0)
            yield Edge(lane, lanes[lane].pop())
            if lanes[lane]:
                insort(busy, (lanes[lane][-1], lane))
            else:
                heappush(free, lane)
        around = bisect_left(busy, (one.end_ns, -1))
        if around < len(busy) and not (free and free[0] < busy[around][1]):
            _, lane = busy.pop(around)
        elif free:
            lane = heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(one.end_ns)
        insort(busy, (one.end_ns, lane))
        yield Edge(lane, one.start_ns, one)
    for lane, ends in enumerate(lanes):
        while ends:
            yield Edge(lane, ends.pop())


def each_rank(run: RunFiles, alignment: Alignment) -> Iterator[RankTracks]:
    """Yield the tracks of each rank; no time in them is negative.

    Raises:
        DsprofError: no file holds times, or one has become unreadable.
    """
    clocks = alignment.clocks
    if not any(header.started_monotonic_ns for header in run.headers):
        raise DsprofError(
            f"{run.files[0]}: these files contain no times, so there is no timeline to export; "
            "use --to csv for collectives, if they contain any"
        )
    origin_ns = min(int(clock.on_run(np.zeros(1, np.int64))[0]) for clock in clocks.values())
    boot_ns = next(filter(None, (header.started_monotonic_ns for header in run.headers)))
    base_ns = max(boot_ns, -origin_ns)  # what a profiler saw may lie before the traces began
    for trace in read_run(run):
        yield _rank_tracks(on_device_clock(trace), clocks[trace.rank], base_ns)


def _rank_tracks(trace: RankTrace, clock: RankClock, base_ns: int) -> RankTracks:
    def on_run(times_ns: Any) -> IntArray:
        placed: IntArray = clock.on_run(np.asarray(times_ns, np.int64)) + base_ns
        return placed

    tracks = [
        Track("steps", _listed(on_run, ((f"step {one.step}", one, {}) for one in trace.steps))),
        *_threads(trace, on_run),
        *_groups(trace, on_run),
        *_streams(trace, on_run),
    ]
    host = f" ({trace.header.host})" if trace.header.host else ""
    name = redact_text(f"rank {trace.rank}{host}")
    redacted = RedactedWords()
    return RankTracks(trace.rank, name, [_redacted(track, redacted) for track in tracks])


def _redacted(track: Track, redacted: RedactedWords) -> Track:
    """Hide secrets in all that a track shows: the program that wrote the file may not have."""
    slices = (
        one._replace(
            name=redacted[one.name],
            args={
                name: redacted[value] if isinstance(value, str) else value
                for name, value in one.args.items()
            },
        )
        for one in track.slices
    )
    return Track(redact_text(track.name), slices)


def _threads(trace: RankTrace, on_run: Callable[[Any], IntArray]) -> Iterator[Track]:
    """Phases, flushes, fetches and copies by the thread that made them."""
    threads: defaultdict[int, list[tuple[str, Any, dict[str, Any]]]] = defaultdict(list)
    for span in trace.spans:
        threads[span.thread].append((span.name, span, _known(span)))
    for flush in trace.flushes:
        args = _known(flush, size_bytes=flush.nbytes, dtype=flush.dtype)
        threads[flush.thread].append((f"flush: {flush.cause}", flush, args))
    for fetch in trace.fetches:
        threads[fetch.thread].append((fetch.kind, fetch, _known(fetch)))
    for copy in trace.copies:
        args = _known(copy, size_bytes=copy.nbytes)
        threads[copy.thread].append((f"copy {copy.what} {copy.direction}", copy, args))
    for number, records in enumerate(threads.values(), 1):
        yield Track(f"thread {number}", _listed(on_run, records))


def _known(record: Any, **args: Any) -> dict[str, Any]:
    """Return the step of a record, where it is in one, and what else is said of it."""
    return {"step": record.step, **args} if record.step >= 0 else args


def _listed(
    on_run: Callable[[Any], IntArray], records: Iterable[tuple[str, Any, dict[str, Any]]]
) -> Iterator[Slice]:
    ordered = sorted(records, key=lambda one: (one[1].start_ns, -one[1].end_ns))
    starts = on_run([record.start_ns for _, record, _ in ordered]).tolist()
    ends = on_run([record.end_ns for _, record, _ in ordered]).tolist()
    for (name, _, args), start, end in zip(ordered, starts, ends, strict=True):
        yield Slice(name, start, max(start, end), args)


def _groups(trace: RankTrace, on_run: Callable[[Any], IntArray]) -> Iterator[Track]:
    """Collectives by process group; what is unfinished lasts until the end of the trace."""
    rows = trace.collectives
    drawn = rows.on_wire
    if trace.knows_durations or not drawn.any():
        return
    seen = np.maximum.reduce([rows.return_ns, rows.done_ns, rows.waited_ns])
    last = max(int(seen.max()), *(one.end_ns for one in trace.steps), 0)
    ended = np.where(rows.done_ns > 0, rows.done_ns, np.maximum(rows.return_ns, rows.waited_ns))
    end = np.maximum(np.where(rows.is_open, last, ended), rows.issue_ns)
    for number in np.unique(rows.group[drawn]).tolist():
        group = trace.groups.get(number)
        mine = np.flatnonzero(drawn & (rows.group == number))
        mine = mine[np.lexsort((-end[mine], rows.issue_ns[mine]))]
        label = group.label if group else str(number)
        times = on_run(rows.issue_ns[mine]), on_run(end[mine])
        yield Track(f"group {label}", _collectives(trace, group, mine, *times))


def _collectives(
    trace: RankTrace, group: Group | None, mine: IntArray, start_ns: IntArray, end_ns: IntArray
) -> Iterator[Slice]:
    rows = trace.collectives
    words = rows.words
    flow_of, is_blocked = _flows(trace, group), knows_blocked(trace)
    for row, start, end in zip(mine.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True):
        args: dict[str, Any] = {"seq": int(rows.seq[row])}
        if rows.step[row] >= 0:
            args["step"] = int(rows.step[row])
        if phase := words[rows.phase[row]]:
            args["phase"] = phase
        if rows.tensors[row]:
            args |= {"size_bytes": int(rows.nbytes[row]), "dtype": words[rows.dtype[row]]}
        if rows.is_open[row]:
            args["unfinished"] = True
        elif is_blocked:
            args["blocked_ns"] = int(rows.blocked_ns[row])
        op, seq, peer = words[rows.op[row]], int(rows.seq[row]), int(rows.peer[row])
        yield Slice(op, start, max(start, end), args, flow_of(op, seq, peer))


def _flows(trace: RankTrace, group: Group | None) -> Callable[[str, int, int], Flow | None]:
    """Return what names a collective alike on all its ranks.

    Profilers count from where their windows begin: their numbers name nothing.
    """
    if group is None or trace.rank not in group.ranks or trace.device is not None:
        return lambda op, seq, peer: None
    bases: dict[tuple[int, int], int] = {}
    place, last = group.ranks.index(trace.rank), len(group.ranks) - 1

    def flow(op: str, seq: int, peer: int) -> Flow | None:
        kind = family(op)
        if kind not in POINT_TO_POINT:
            ends, here = (-1, -1), Flow(0, place, last)
        elif peer < 0:
            return None
        elif kind == "send":
            ends, here = (trace.rank, peer), Flow(0, 0, 1)
        else:
            ends, here = (peer, trace.rank), Flow(0, 1, 1)
        if ends not in bases:
            name = f"{group.key} {ends}".encode()
            bases[ends] = int.from_bytes(blake2b(name, digest_size=8).digest(), "big")
        return here._replace(id=(bases[ends] + seq) & _ID_MASK) if here.last else None

    return flow


def _streams(trace: RankTrace, on_run: Callable[[Any], IntArray]) -> Iterator[Track]:
    """Kernels and copies of a device by stream, where their times are those of the trace."""
    activity = trace.activity
    if activity is None or (trace.profile is not None and not trace.profile.is_tied):
        return
    words = activity.words
    for stream in np.unique(activity.stream).tolist():
        mine = np.flatnonzero(activity.stream == stream)
        mine = mine[np.lexsort((-activity.end_ns[mine], activity.start_ns[mine]))]
        names = (words[code] for code in activity.name[mine])
        starts, ends = on_run(activity.start_ns[mine]), on_run(activity.end_ns[mine])
        columns = zip(names, starts.tolist(), ends.tolist(), strict=True)
        yield Track(
            f"stream {stream}", (Slice(name, at, max(at, end), {}) for name, at, end in columns)
        )
