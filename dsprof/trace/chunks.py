"""From lines of a native trace to its rows and events, and of these into a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.comm_rows import NO_ROWS, Rows, split
from dsprof.trace.lines import COMM_LINE, LINES, OPEN_LINE, AnyLine, Line, fits
from dsprof.trace.rank_trace import CollectivesBuilder, RankTrace
from dsprof.trace.schema import HOOKS, KINDS, PHASE, USER, Kind, Phase, RollUp
from dsprof.trace.source import Source

_CHUNK_BYTES = 1 << 20
TO_THE_END = 1 << 62  # as the end of what is read
_LONGEST_LINE_BYTES = 1 << 24
"""The longest true line names the ranks of a group: a million of them take half of this."""
_UNREADABLE = b"\xff"  # no JSON begins with it
_AROUND = b"[],\r\n "  # what is before, between and behind the events of a file
_EDGE_BYTES = 16  # looked at for where the first event begins and the last one ends; else it is all
_DIGITS = bytes(48 if 48 <= code < 58 else 32 for code in range(256))
_MANY_DIGITS = b"0" * 19
"""`_DIGITS` makes zeros of digits and blanks of all else; 18 digits are less than 2**62."""

_line: msgspec.json.Decoder[Line] = msgspec.json.Decoder(AnyLine)
_lines: msgspec.json.Decoder[list[Line]] = msgspec.json.Decoder(list[AnyLine])


class Chunk(NamedTuple):
    """A part of a file: its events, and how many of its lines are none.

    These are broken, or whole and of a kind that a newer dsprof has: counted apart.
    """

    rows: Rows = NO_ROWS  # finished collectives: all that are no events
    events: Sequence[Line] = ()
    broken: int = 0
    unknown: int = 0
    is_bounded: bool = False  # no number of the events has so many digits that it may not fit


class _Kind(msgspec.Struct):
    cat: str


def chunk_of(lines: bytearray) -> Chunk:
    """Return what whole lines with a blank around them hold; `lines` is overwritten."""
    if (found := split(lines)) is not None:
        rows, others, count = found
        is_bounded = _MANY_DIGITS not in others.translate(_DIGITS)
        events, broken, unknown = _decode(others)
        # Else some lines were none by themselves, or not as our writer begins them.
        if len(events) + broken + unknown == count and COMM_LINE not in map(type, events):
            return Chunk(rows, events, broken, unknown, is_bounded)
    return Chunk(NO_ROWS, *_decode(lines))


def whole_lines(source: Source, begin: int, end: int) -> Iterator[bytearray]:
    """Yield a part of the file in pieces that end where a line ends, with a blank around each.

    Of a line that is too long only `_UNREADABLE` and its end are kept, so that it counts as broken.
    """
    rest: list[bytes] = []
    size = 0
    if begin or end < TO_THE_END:
        source.seek(begin)
    while block := source.read(min(_CHUNK_BYTES, end - begin)):
        begin += len(block)
        last = block.rfind(b"\n")
        if last >= 0:
            yield _padded([*rest, memoryview(block)[:last]])
            rest, size = [], 0
        tail = block[last + 1 :]
        rest.append(tail)
        size += len(tail)
        if size > _LONGEST_LINE_BYTES:
            rest = [_UNREADABLE]
    yield _padded(rest)


def _padded(parts: Iterable[bytes | memoryview]) -> bytearray:
    return bytearray().join([b" ", *parts, b" "])


def read_lines(lines: bytes) -> Chunk:
    """Return what whole lines hold."""
    return chunk_of(_padded([lines]))


def _decode(lines: bytearray) -> tuple[list[Line], int, int]:
    """Decode lines as one list.

    Its brackets overwrite what is before the first event and behind the last: `whole_lines` puts a
    blank there. A copy would cost a tenth of what reading does, for its memory is new each time.
    """
    head, tail = lines[:_EDGE_BYTES], lines[-_EDGE_BYTES:]
    if not (head.strip(_AROUND) and tail.strip(_AROUND)):
        head = tail = lines
    first = len(head) - len(head.lstrip(_AROUND))
    end = len(lines) - len(tail) + len(tail.rstrip(_AROUND))
    if first > end:
        return [], 0, 0
    lines[first - 1], lines[end] = b"[]"
    try:
        return _lines.decode(memoryview(lines)[first - 1 : end + 1]), 0, 0
    except UNDECODABLE:
        return _decode_one_by_one(bytes(lines))


def _decode_one_by_one(lines: bytes) -> tuple[list[Line], int, int]:
    events: list[Line] = []
    broken = unknown = 0
    for line in lines.strip(_AROUND).split(b"\n"):
        text = line.strip(_AROUND)
        if not text:
            continue
        try:
            events.append(_line.decode(text))
        except UNDECODABLE:
            if _is_of_unknown_kind(text):
                unknown += 1
            else:
                broken += 1
    return events, broken, unknown


def _is_of_unknown_kind(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Kind).cat not in LINES
    except UNDECODABLE:
        return False


def add_collectives(builder: CollectivesBuilder, events: Sequence[Line]) -> int:
    """Add rows; return the number of those left out because a number is beyond 64 bits."""
    try:
        builder.add(events)
    except OverflowError:
        fitting = [event for event in events if fits(event)]
        builder.add(fitting)
        return len(events) - len(fitting)
    return 0


def take_rare(
    trace: RankTrace, rare: list[Line], opened: dict[int, Line], *, is_bounded: bool = False
) -> int:
    """Put the rarer events where they belong; return the number of those that do not fit."""
    fitting = rare if is_bounded else [event for event in rare if fits(event)]
    for event in fitting:
        if type(event) is OPEN_LINE:
            opened[event.args.id] = event
        else:
            _PUT[type(event)](trace, event)
    return len(rare) - len(fitting)


def _putter(kind: Kind) -> Callable[[RankTrace, Line], None]:
    """Return what puts a line of this kind into the attribute of a trace that holds them."""
    held, key = kind.held, kind.key

    def put_one(trace: RankTrace, line: Line) -> None:
        setattr(trace, held, line.args)

    def put_by_key(trace: RankTrace, line: Line) -> None:
        getattr(trace, held)[getattr(line.args, key)] = line.args

    def append(trace: RankTrace, line: Line) -> None:
        getattr(trace, held).append(line.args)

    if key:
        return put_by_key
    return append if held in _LISTS else put_one


def _put_phase(trace: RankTrace, line: Line) -> None:
    phase: Phase = line.args
    phase.name, phase.thread = line.name, line.tid
    phase.is_annotation = type(line) is LINES[USER]
    trace.spans.append(phase)


def _put_rollup(trace: RankTrace, line: Line) -> None:
    """Keep the version that was written last; segments are read in any order."""
    span: RollUp = line.args
    known = trace.rollups.get(span.span)
    if known is None or (span.steps, span.until_ns) >= (known.steps, known.until_ns):
        trace.rollups[span.span] = span


def _put_hooks(trace: RankTrace, line: Line) -> None:
    trace.hooks = line.args.get("hooks", [])


def _pass_over(trace: RankTrace, line: Line) -> None:
    """Names of lanes are for Perfetto."""


_LISTS = {part.name for part in dataclasses.fields(RankTrace) if part.default_factory is list}
_BY_HAND = {PHASE: _put_phase, USER: _put_phase, HOOKS: _put_hooks, "rollup": _put_rollup}
_PUT: dict[Any, Callable[[RankTrace, Line], None]] = {
    LINES[kind.cat]: _BY_HAND.get(kind.cat) or (_putter(kind) if kind.held else _pass_over)
    for kind in KINDS
}
