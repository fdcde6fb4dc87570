"""Parameter fetches of measured steps, by ZeRO-3 or FSDP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock, add_rows
from dsprof.trace.table import RankTrace


class FetchKind(NamedTuple):
    """What fetches of one row have in common."""

    library: str  # "" for ZeRO-3
    kind: str
    phase: str
    module: str  # "" for ZeRO-3, which fetches by parameters


@dataclass(frozen=True, slots=True)
class FetchSums:
    """Sums over ranks and measured steps."""

    calls: int
    rank_steps: int  # measured steps, summed over the ranks that had such a fetch
    elements: int
    wait_ns: int

    def __add__(self, other: FetchSums) -> FetchSums:
        return FetchSums(
            self.calls + other.calls,
            self.rank_steps + other.rank_steps,
            self.elements + other.elements,
            self.wait_ns + other.wait_ns,
        )


@dataclass(frozen=True, slots=True)
class Fetches(Aggregate):
    """Sums by kind ("fetch", "prefetch", "release"), phase and module.

    What a forward fetches that is repeated within backward has the phase "recomputation".
    """

    rows: dict[FetchKind, FetchSums]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Fetches:
        """Group the fetches of one rank."""
        steps = detailed_steps(trace)
        wanted = set(steps.tolist())
        rows: dict[FetchKind, FetchSums] = {}
        for fetch in trace.fetches:
            if fetch.step not in wanted:
                continue
            phase = "recomputation" if fetch.is_recomputation else fetch.phase
            kind = FetchKind(fetch.library, fetch.kind, phase, fetch.module)
            taking_part = 0 if kind in rows else len(steps)
            one = FetchSums(1, taking_part, fetch.elements, fetch.wait_ns)
            rows[kind] = rows[kind] + one if kind in rows else one
        return cls(rows)

    def merge(self, other: Fetches) -> Fetches:
        """Add up rows of the same kind."""
        return Fetches(add_rows(self.rows, other.rows))


AGGREGATE = Fetches
