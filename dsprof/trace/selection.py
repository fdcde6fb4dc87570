"""Which part of a run is read: some of its ranks, hosts and steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

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


@dataclass(frozen=True, slots=True)
class Selection:
    """The part that is read; by default all."""

    ranks: tuple[range, ...] = ()
    hosts: frozenset[str] = frozenset()
    steps: range | None = None

    def holds_rank(self, rank: int) -> bool:
        """Say whether a rank is read, as far as its number tells."""
        return not self.ranks or any(rank in some for some in self.ranks)

    def holds_host(self, host: str) -> bool:
        """Say whether the ranks of a host are read."""
        return not self.hosts or host in self.hosts

    @property
    def has_all_ranks(self) -> bool:
        """Whether no rank is left out."""
        return not (self.ranks or self.hosts)

    def __str__(self) -> str:
        """Say what is read; "" for all."""
        spans = [(some.start, some.stop - 1) for some in self.ranks]
        ranks = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans)
        told = {
            "ranks": ranks,
            "hosts": ", ".join(sorted(self.hosts)),
            "steps": f"{self.steps.start} to {self.steps.stop - 1}" if self.steps else "",
        }
        return "; ".join(f"{name} {text}" for name, text in told.items() if text)


EVERYTHING = Selection()


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


def ranks_in(text: str) -> tuple[range, ...]:
    """Read `0-63,128`.

    Raises:
        ValueError: it is something else.
    """
    parts = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part) for part in text.split(",")]
    found = tuple(range(int(p[1]), int(p[2] or p[1]) + 1) for p in parts if p is not None)
    if len(found) < len(parts) or not all(found):
        raise ValueError(f"invalid ranks '{text}': write 0-63 or 0-7,16")
    return found


def steps_in(text: str) -> range:
    """Read `1000:1200`: steps 1000 to 1199.

    Raises:
        ValueError: it is something else.
    """
    parts = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    found = range(int(parts[1]), int(parts[2])) if parts else range(0)
    if not found:
        raise ValueError(f"invalid steps '{text}': write 1000:1200 for steps 1000 to 1199")
    return found
