"""Says who is stuck, by the same analysis as afterwards; loaded only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.alignment.clocks import shared_clock
from dsprof.analysis.hang.model import HEALTHY, HangVerdict
from dsprof.analysis.hang.verdict import hang_of, judged
from dsprof.analysis.summary import RankClock
from dsprof.findings.frames import shown_frames
from dsprof.trace.dumps.hang_dump import HangDump
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Header

_FRAMES = 6


def verdict_of(dumps: Mapping[int, HangDump], least_wait_ns: int) -> HangVerdict | None:
    """Return the root of what is wrong; None where the analysis finds nothing."""
    known = [dump for dump in dumps.values() if dump.state is not None]
    if not known:
        return None
    clocks = _clocks([dump.header for dump in known])
    endings = reduce(Endings.merge, [_ending(dump, clocks[dump.header.rank]) for dump in known])
    first = judged(hang_of(endings, least_wait_ns=least_wait_ns), endings)[0]
    return None if first.kind in HEALTHY else first


def _clocks(headers: Sequence[Header]) -> Mapping[int, RankClock]:
    """Return the clocks of ranks: the one that a host shares, else wall clocks, off by anything."""
    if (shared := shared_clock(headers)) is not None:
        return shared.clocks
    first_ns = min(header.started_epoch_ns for header in headers)
    return {h.rank: RankClock(h.started_epoch_ns - first_ns, bound_ns=None) for h in headers}


def _ending(dump: HangDump, clock: RankClock) -> Endings:
    state = dump.state
    assert state is not None
    trace = RankTrace(
        path="",
        header=dump.header,
        groups=state.groups,
        sites=state.sites,
        state=state,
        hang_dump=dump,
    )
    return Endings.collect(trace, clock)


def paragraph(verdict: HangVerdict) -> str:
    """Say who, what, where and since when, with the stacks where ranks part."""
    lines = [f"{verdict.sentence} {verdict.cause.text}".strip()]
    for rank, stack in list(verdict.where.items())[:2]:
        lines += [f"  rank {rank}:", *(f"    {frame}" for frame in shown_frames(stack, _FRAMES))]
    return "\n".join(lines)
