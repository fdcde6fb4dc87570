"""Leaves out what a trace holds of other steps than those that are read."""

from __future__ import annotations

import re
from dataclasses import fields

from dsprof.trace.rank_trace import Collectives, RankTrace
from dsprof.trace.schema import KINDS

_LATE_STEPS = 2
"""Records of a step are written at most so many steps later."""
_TAIL_BYTES = 1 << 14

_TIMED = tuple(
    kind.cat for kind in KINDS if "step" in getattr(kind.record, "__struct_fields__", ())
)
_LINE_OF_STEP = re.compile(
    rb'(?m)^[\[ ]{0,4}\{"cat":"(?:'
    + "|".join(_TIMED).encode()
    + rb')","args":\{[^\n]*?"step":(\d{1,18})[,}]'
)
_STARTS = tuple(f'{{"cat":"{cat}"'.encode() for cat in _TIMED)


def needed_lines(lines: bytearray, steps: range) -> bytearray:
    """Return the lines of a part of a native trace that tell something of `steps`.

    A part far from these is not decoded; what describes groups, call sites and the like is kept.
    """
    first = _LINE_OF_STEP.search(lines)
    *_, last = [None, *_LINE_OF_STEP.finditer(lines[-_TAIL_BYTES:])]
    if first is None or last is None:
        return lines
    begin, end = steps.start - _LATE_STEPS, steps.stop + _LATE_STEPS
    if int(last[1]) >= begin and int(first[1]) < end:
        return lines
    kept = [line for line in lines.split(b"\n") if not line.lstrip(b"[ ").startswith(_STARTS)]
    return bytearray(b" ").join([b"", b"\n".join(kept), b""])


def cut_to_steps(trace: RankTrace, steps: range) -> None:
    """Drop what belongs to other steps, or to none."""
    rows = trace.collectives
    inside = (rows.step >= steps.start) & (rows.step < steps.stop)
    columns = {
        one.name: getattr(rows, one.name)[inside] for one in fields(rows) if one.name != "words"
    }
    trace.collectives = Collectives(words=rows.words, **columns)
    trace.rollups, trace.totals, trace.kept = {}, {}, {}  # they are of the whole run
    for part in fields(trace):
        held = getattr(trace, part.name)
        if isinstance(held, list) and held and hasattr(held[0], "step"):
            setattr(trace, part.name, [one for one in held if one.step in steps])
