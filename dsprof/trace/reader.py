"""Reads native traces: a chunk at a time, and whatever a killed process left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.files.ownership import foreign_link
from dsprof.trace.background import mark_background
from dsprof.trace.chunks import (
    TO_THE_END,
    Chunk,
    add_collectives,
    chunk_of,
    read_lines,
    take_rare,
    whole_lines,
)
from dsprof.trace.lines import COMM_LINE, LINES, Line, fits
from dsprof.trace.rank_trace import CollectivesBuilder, RankTrace, refuse_reversed
from dsprof.trace.rolling.packed import places_of
from dsprof.trace.rolling.parts import (
    KEPT,
    STEPS,
    TAILS,
    is_part,
    is_rolling,
    lost_parts,
    part_of,
    parts_of,
)
from dsprof.trace.rolling.rollups import FULL_FROM_S, complete, end_of
from dsprof.trace.rolling.step_sums import sums_of
from dsprof.trace.schema import (
    LARGEST_WORLD,
    LATE_STEPS,
    MOST_BEHIND_STEPS,
    SCHEMA_VERSION,
    Header,
    Segment,
    StepIndex,
    StepTotals,
)
from dsprof.trace.selection.step_cutting import needed_lines, needed_parts, read_index
from dsprof.trace.sharing import shared
from dsprof.trace.source import Source, check_damage, is_readable, read_start, size_of
from dsprof.trace.unread import what_to_do

_HEADER_BYTES = 1 << 16
_SEGMENT_BYTES = 1 << 10
_ALIKE = ("run_key", "host", "boot_id", "backend", "device", "versions", "config", "pid_namespace")
"""Fields of headers that many ranks have in common."""
_READ_APART = (COMM_LINE, LINES["header"])
_SUMS = (LINES["totals"], LINES["kept"])
_STEP = b'"cat":"step"'
_UNKNOWN = (
    "not a dsprof trace (trace*.rank*.json), nor a file of another tool that is read: profiles, "
    "dumps, snapshots, logs (docs/reference/files.md in the dsprof repository)"
)


class _Version(msgspec.Struct):
    schema_version: int


class _VersionEvent(msgspec.Struct, tag_field="cat", tag="header"):
    args: _Version


def read_header(path: Path) -> Header:
    """Read only the first line of a native trace.

    Raises:
        TraceError: the file is missing, empty, or not a trace of this version.
    """
    start = read_start(path, _HEADER_BYTES)
    if not start.strip():
        raise TraceError(f"{path}: the file is empty: the run ended before anything was recorded")
    line = start.lstrip(b"[ \r\n\t").split(b"\n", 1)[0].rstrip(b",\r ]")
    try:
        version = msgspec.json.decode(line, type=_VersionEvent).args.schema_version
    except UNDECODABLE:
        known = what_to_do(start.decode(errors="replace"), path.suffix)
        raise TraceError(f"{path}: {known or _UNKNOWN}") from None
    if version != SCHEMA_VERSION:
        raise TraceError(
            f"{path}: written in trace version {version}, this dsprof reads version "
            f"{SCHEMA_VERSION}; use the dsprof that recorded it"
        )
    try:
        header: Header = msgspec.json.decode(line, type=LINES["header"]).args
    except UNDECODABLE as error:
        raise TraceError(f"{path}: line 1: damaged trace header: {error}") from None
    if not fits(header):
        raise TraceError(f"{path}: line 1: damaged trace header: a number is beyond 64 bits")
    if not 0 <= header.rank < header.world_size <= LARGEST_WORLD:
        raise TraceError(
            f"{path}: line 1: invalid rank {header.rank} for world size {header.world_size}: "
            "the header is damaged"
        )
    for name in _ALIKE:
        setattr(header, name, shared(getattr(header, name)))
    header.job_keys = [shared(key) for key in header.job_keys]
    return header


def read_trace(path: Path, steps: range | None = None) -> RankTrace:
    """Read one native trace, cut anywhere; with `steps`, not all of what belongs to others.

    Raises:
        TraceError: the file is missing, empty, or not a trace of this version.
    """
    trace = RankTrace(path=str(path), header=read_header(path))
    finished = CollectivesBuilder()
    opened: dict[int, Line] = {}
    whole = 0
    parts = parts_of(path) if is_rolling(trace.header) else []
    trace.lost_parts = lost_parts(path, parts) if is_rolling(trace.header) else []
    begun = _segments(parts)
    # The older tail first: what is in flight at its end is over in the newer one.
    parts.sort(key=lambda part: begun[part].number if part in begun else -1)
    trace.newest_from = _newest_from(begun)
    read_from = trace.newest_from - _is_in_first_step(begun)
    chunks = chain(
        _chunks(path, steps),
        *(
            _part_chunks(part, read_from, steps)
            for part in parts
            if steps is None or _may_hold(part, begun, steps)
        ),
    )
    for rows, events, broken, unknown, is_bounded in chunks:
        whole += len(events) + len(rows) + unknown
        trace.unknown_records += unknown
        finished.add_rows(rows)
        # By type: these have no subclasses, and isinstance takes two to five times as long.
        comm = [event for event in events if type(event) is COMM_LINE]
        trace.broken_lines += broken + add_collectives(finished, comm)
        if len(comm) < len(events):
            rare = [event for event in events if type(event) not in _READ_APART]
            trace.broken_lines += take_rare(trace, rare, opened, is_bounded=is_bounded)
        if opened:
            for number in [*rows.column("id").tolist(), *(event.args.id for event in comm)]:
                opened.pop(number, None)
        check_damage(str(path), trace.broken_lines, whole)
    trace.broken_lines += add_collectives(finished, list(opened.values()))
    trace.collectives = finished.build()
    refuse_reversed(trace)
    if parts:
        trace.steps.sort(key=attrgetter("step"))  # those around a change are kept late
    if trace.steps or trace.totals or any(one.steps for one in trace.rollups.values()):
        # Sums until the first step ended are no sums of steps.
        trace.rollups = {at: one for at, one in trace.rollups.items() if one.steps}
    if parts and trace.trailer is None and steps is None:
        _complete_rollups(trace, path)
    trace.nbytes = sum(map(size_of, (path, *parts)))
    return trace


def step_totals(path: Path, header: Header, steps: range | None) -> Iterator[StepTotals]:
    """Yield the sums of single steps of a rolling recording that are still there, some twice.

    With `steps`, not all of others.

    Raises:
        TraceError: a file has become unreadable.
    """
    if is_rolling(header):
        for ending in (STEPS, *TAILS):
            yield from _sums_in(part_of(path, ending), steps)


def _sums_in(part: Path, steps: range | None) -> Iterator[StepTotals]:
    if is_readable(part) and not foreign_link(part):
        for chunk in _chunks(part, steps):
            fitting = (event.args for event in chunk.events if fits(event))
            sums = (args for args in fitting if type(args) is StepTotals)
            yield from (one for one in sums if one.end_ns >= one.start_ns)


def _complete_rollups(trace: RankTrace, path: Path) -> None:
    """Sum up the spans that were not over when the process was killed."""
    since = range(end_of(trace.rollups.values(), FULL_FROM_S), TO_THE_END)
    packed = _sums_in(part_of(path, STEPS), since)
    totals = {one.step: one for one in packed} | trace.totals
    mark_background(trace)
    last = sums_of(trace, max(totals, default=-1) + 1)
    trace.totals |= last
    totals |= last
    trace.rollups = complete(trace.rollups, totals, trace.header.started_epoch_ns)


def first_whole_step(path: Path) -> int:
    """Return since which step a rolling recording has all details; 0 if it left none out.

    Raises:
        TraceError: a file has become unreadable.
    """
    return _newest_from(_segments(parts_of(path)))


def _segments(parts: Iterable[Path]) -> dict[Path, Segment]:
    """Return how the tails begin."""
    found: dict[Path, Segment] = {}
    for path in parts:
        if path.name.endswith(TAILS):
            start = read_lines(read_start(path, _SEGMENT_BYTES).partition(b"\n")[0])
            for event in start.events:
                if isinstance(event.args, Segment):
                    found[path] = event.args
    return found


def _newest_from(begun: Mapping[Path, Segment]) -> int:
    """Return the first step of which, and of all later ones, the tails hold all lines."""
    oldest = min(begun.values(), key=attrgetter("number"), default=Segment(0))
    return oldest.step + LATE_STEPS if oldest.number else 0


def _is_in_first_step(begun: Mapping[Path, Segment]) -> bool:
    """Say whether the step has not ended in which the tails begin.

    It is not whole, but nothing newer is there: it may hang, or have no end.
    """
    if not _newest_from(begun) or len({one.step for one in begun.values()}) > 1:
        return False
    return not any(map(_has_step, begun))


def _has_step(part: Path) -> bool:
    """Say whether a step has ended in a part; to decode its lines would take longer."""
    with Source(part) as source:
        spans = _parts(source)
        return any(_STEP in lines for span in spans for lines in whole_lines(source, *span))


def _may_hold(part: Path, begun: Mapping[Path, Segment], steps: range) -> bool:
    """Say whether details of steps can be in a part; roll-ups are of no step."""
    newest_from = _newest_from(begun)
    if not part.name.endswith(TAILS):
        return part.name.endswith(KEPT) and steps.start < newest_from
    if (mine := begun.get(part)) is None:
        return True
    later = [one.step for one in begun.values() if one.number > mine.number]
    is_before = later and steps.start > later[0] + LATE_STEPS
    return not is_before and steps.stop > max(newest_from, mine.step - MOST_BEHIND_STEPS)


def _part_chunks(path: Path, read_from: int, steps: range | None) -> Iterator[Chunk]:
    """Yield a part as `_chunks` does: of kept steps those that the tails no longer hold.

    `read_from` is the first step of which the tails are read.
    """
    is_tail, is_kept = path.name.endswith(TAILS), path.name.endswith(KEPT)

    def is_wanted(step: Any) -> Any:
        if is_tail:
            return (step < 0) | (step >= read_from)
        return (step < read_from) | (not is_kept)

    for chunk in _chunks(path, steps):
        events = [event for event in chunk.events if is_wanted(_step_of(event))]
        rows = chunk.rows.where(is_wanted(chunk.rows.column("step")))
        yield chunk._replace(rows=rows, events=events)


def _step_of(event: Line) -> int:
    """Return the step whose detail a line is; -1 for what is no detail."""
    return -1 if type(event) in _SUMS else getattr(event.args, "step", -1)


def _chunks(path: Path, steps: range | None) -> Iterator[Chunk]:
    """Yield a megabyte of the file at a time."""
    pieces = None if steps is None else partial(places_of, steps=steps)
    with Source(path, pieces) as source:
        index = None if steps is None or is_part(path) else read_index(source)
        late = MOST_BEHIND_STEPS if index is None else index.late_steps
        written = steps and range(steps.start - late, steps.stop + late)
        for begin, end in _parts(source, index, written):
            for lines in whole_lines(source, begin, end):
                yield chunk_of(lines if written is None else needed_lines(lines, written))


def _parts(
    source: Source, index: StepIndex | None = None, written: range | None = None
) -> list[tuple[int, int]]:
    """Return what is to be read: all, or the parts that an index names."""
    if index is not None and written is not None:
        return needed_parts(index, written)
    if source.is_plain:
        source.seek(0)
    return [(0, TO_THE_END)]
