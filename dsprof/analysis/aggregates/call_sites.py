"""Which lines of the program issued the collectives of measured steps, and what these cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.blocked_time import BlockedTime, blocked_rows
from dsprof.analysis.rank.steps import detailed_steps, in_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace


class SiteUse(NamedTuple):
    """Collectives of one row have this in common."""

    site: str  # "file:line function", "" where no frame of the program was on the stack
    phase: str
    op: str


@dataclass(frozen=True, slots=True)
class CallSites(Aggregate):
    """Sums by line, phase and operation; a trace without any call site has none."""

    rows: dict[SiteUse, BlockedTime]
    rank_steps: int  # measured steps, summed over all ranks: lines differ between ranks

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> CallSites:
        table, steps = trace.collectives, detailed_steps(trace)
        if not trace.sites:
            return cls({}, 0)
        chosen = np.flatnonzero(in_steps(table.step, steps) & table.on_wire)

        def use_of(row: int) -> SiteUse:
            site = trace.sites.get(int(table.site[row]))
            return SiteUse(
                "" if site is None else f"{site.file}:{site.line} {site.function}".rstrip(),
                table.words[table.phase[row]],
                table.words[table.op[row]],
            )

        columns = [table.site, table.phase, table.op]
        return cls(blocked_rows(trace, chosen, columns, len(steps), use_of), len(steps))
