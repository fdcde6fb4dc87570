"""Says who is stuck, by the same analysis as afterwards; loaded only then."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang.model import HEALTHY, HangVerdict
from dsprof.analysis.hang.verdict import hang_of, judged
from dsprof.analysis.summary import RankClock
from dsprof.findings.frames import shown_frames
from dsprof.trace.dumps.hang_dump import HangDump
from dsprof.trace.rank_trace import CollectivesBuilder, RankTrace

_FRAMES = 6


def verdict_of(dumps: Mapping[int, HangDump], least_wait_ns: int) -> HangVerdict | None:
    """Return the root of what is wrong; None where the analysis finds nothing."""
    known = [dump for dump in dumps.values() if dump.state is not None]
    if not known:
        return None
    endings = reduce(Endings.merge, [_ending(dump, known) for dump in known])
    first = judged(hang_of(endings, least_wait_ns=least_wait_ns), endings)[0]
    return None if first.kind in HEALTHY else first


def _ending(dump: HangDump, all_dumps: list[HangDump]) -> Endings:
    state, header = dump.state, dump.header
    assert state is not None
    trace = RankTrace(
        path="",
        header=header,
        collectives=CollectivesBuilder().build(),
        groups=state.groups,
        sites=state.sites,
        state=state,
        hang_dump=dump,
    )
    if len({one.header.boot_id for one in all_dumps}) == 1:
        clock = RankClock(header.started_monotonic_ns, bound_ns=0)
    else:
        first_ns = min(one.header.started_epoch_ns for one in all_dumps)
        clock = RankClock(header.started_epoch_ns - first_ns, bound_ns=None)
    return Endings.collect(trace, clock)


def paragraph(verdict: HangVerdict) -> str:
    """Say who, what, where and since when, with the stacks where ranks part."""
    lines = [f"{verdict.sentence} {verdict.cause.text}".strip()]
    for rank, stack in list(verdict.stacks.items())[:2]:
        lines += [f"  rank {rank}:", *(f"    {frame}" for frame in shown_frames(stack, _FRAMES))]
    return "\n".join(lines)
