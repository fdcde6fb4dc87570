"""Leaves out what a trace holds of other steps than those that are read."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import accumulate, pairwise

import msgspec

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.lines import LINES
from dsprof.trace.rank_trace import COLUMN_NAMES, Collectives, RankTrace
from dsprof.trace.schema import INDEX, KINDS, DeviceStep, Step, StepIndex
from dsprof.trace.source import Source
from dsprof.trace.writing.step_index import WRITTEN_EVERY_BYTES

_TAIL_BYTES = 1 << 14
_INDEX_BYTES = 1 << 16
"""The index and the trailer are shorter."""
_LOOKS_BACK_BYTES = (_INDEX_BYTES, WRITTEN_EVERY_BYTES + (1 << 20), 2 * WRITTEN_EVERY_BYTES)
"""A killed process may have written so much since its last index, or since the one before."""
_NEAR_BYTES = 1 << 16  # reading so much more costs less than another request

_TIMED = tuple(
    kind.cat for kind in KINDS if "step" in getattr(kind.record, "__struct_fields__", ())
)
_LINE_OF_STEP = re.compile(
    rb'(?m)^[\[ ]{0,4}\{"cat":"(?:'
    + "|".join(_TIMED).encode()
    + rb')","args":\{[^\n]*?"step":(\d{1,18})[,}]'
)
_INDEX_START = b'\n{"cat":"%s"' % INDEX.encode()
_index = msgspec.json.Decoder(LINES[INDEX])
_STARTS = tuple(f'{{"cat":"{cat}"'.encode() for cat in _TIMED)


def read_index(source: Source) -> StepIndex | None:
    """Return the last index of an uncompressed native trace, with all after it as its last place.

    It is at the end, or far before it if the process was killed. None without one, or with one that
    does not fit the file.
    """
    if not source.is_plain:
        return None
    for size in _LOOKS_BACK_BYTES:
        end = source.end(size)
        begin = len(end)
        for _ in range(2):  # the last one may be cut
            if (begin := end.rfind(_INDEX_START, 0, begin)) < 0:
                break
            index = _decoded(end[begin + 1 :].partition(b"\n")[0])
            if index is not None:
                index.others.append((source.nbytes - len(end) + begin + 1, source.nbytes))
                return index if _fits(index, source.nbytes) else None
        if size >= source.nbytes:
            break
    return None


def _decoded(line: bytes) -> StepIndex | None:
    try:
        index: StepIndex = _index.decode(line.rstrip(b",\r")).args
    except UNDECODABLE:
        return None
    return index


def _fits(index: StepIndex, nbytes: int) -> bool:
    counts = {len(index.at_bytes), len(index.steps), len(index.ended_ns)}
    places = [0, *index.at_bytes, nbytes]
    return (
        len(counts) == 1
        and bool(index.steps)
        and all(one <= other for one, other in pairwise(places))
        and all(0 <= begin <= end <= nbytes for begin, end in index.others)
    )


def needed_parts(index: StepIndex, steps: range) -> list[tuple[int, int]]:
    """Return the parts of a file in which `steps` were written, with what all steps need."""
    newest = list(accumulate(index.steps, max))
    first = bisect_left(newest, steps.start)
    last = bisect_left(newest, steps.stop)
    begin = index.at_bytes[first - 1] if first else 0
    end = index.at_bytes[min(last, len(index.at_bytes) - 1)]
    return _joined([(begin, max(begin, end)), *index.others])


def _joined(parts: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Join parts that overlap, or between which little is left out."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted((part[0], part[1]) for part in parts):
        if joined and begin <= joined[-1][1] + _NEAR_BYTES:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def needed_lines(lines: bytearray, steps: range) -> bytearray:
    """Return the lines of a part of a native trace that tell something of `steps`.

    A part far from these is not decoded; what describes groups, call sites and the like is kept.
    """
    first = _LINE_OF_STEP.search(lines)
    *_, last = [None, *_LINE_OF_STEP.finditer(lines[-_TAIL_BYTES:])]
    if first is None or last is None:
        return lines
    if int(last[1]) >= steps.start and int(first[1]) < steps.stop:
        return lines
    kept = [line for line in lines.split(b"\n") if not line.lstrip(b"[ ").startswith(_STARTS)]
    return bytearray(b" ").join([b"", b"\n".join(kept), b""])


def cut_to_steps(trace: RankTrace, steps: range) -> None:
    """Drop what belongs to other steps, or to none."""
    rows = trace.collectives
    inside = (rows.step >= steps.start) & (rows.step < steps.stop)
    columns = {name: getattr(rows, name)[inside] for name in COLUMN_NAMES}
    trace.collectives = Collectives(words=rows.words, **columns)
    trace.rollups, trace.totals, trace.kept = {}, {}, {}  # they are of the whole run
    for part in fields(trace):
        held = getattr(trace, part.name)
        if isinstance(held, list) and held and hasattr(held[0], "step"):
            setattr(trace, part.name, [one for one in held if one.step in steps])
    _cut_devices(trace)


def _cut_devices(trace: RankTrace) -> None:
    """Drop what devices did outside the steps that are left, and what is on another clock."""
    left: list[Step | DeviceStep] = [*trace.steps, *trace.device_steps]
    begin_ns = min((step.start_ns for step in left), default=0)
    end_ns = max((step.end_ns for step in left), default=0)
    if trace.device is not None:
        trace.device = trace.device.within(begin_ns, end_ns)
    if trace.profile is not None:
        begin_ns = max(trace.profile.start_ns, begin_ns)
        end_ns = min(trace.profile.end_ns, end_ns)
        device = trace.profile.device.within(begin_ns, end_ns)
        cut = replace(trace.profile, device=device, start_ns=begin_ns, end_ns=end_ns, operations={})
        trace.profile = cut if cut.is_tied and len(device) else None
