"""Parameter fetches of measured steps, by ZeRO-3 or FSDP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock, Sums, summed
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Fetch


class FetchKind(NamedTuple):
    """Fetches of one row have this in common."""

    library: str  # "" for ZeRO-3
    kind: str
    phase: str
    module: str  # "" for ZeRO-3, which fetches by parameters


@dataclass(frozen=True, slots=True)
class FetchSums(Sums):
    """Sums over ranks and measured steps."""

    calls: int
    rank_steps: int  # measured steps, summed over the ranks that had such a fetch
    elements: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class Fetches(Aggregate):
    """Sums by kind ("fetch", "prefetch", "release"), phase and module.

    What a forward fetches that is repeated within backward has the phase "recomputation".
    """

    rows: dict[FetchKind, FetchSums]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Fetches:
        steps = detailed_steps(trace)
        wanted = set(steps.tolist())
        fetches = [fetch for fetch in trace.fetches if fetch.step in wanted]
        held_ns = _held_ns(trace, fetches)
        rows = summed(
            (_kind(one), FetchSums(1, 0, one.elements, one.wait_ns + held_ns.get(one.id, 0)))
            for one in fetches
        )
        return cls({kind: replace(row, rank_steps=len(steps)) for kind, row in rows.items()})


def _held_ns(trace: RankTrace, fetches: Iterable[Fetch]) -> dict[int, int]:
    """Return how long prefetches held the program: by synchronous calls, as of FSDP2 on CPUs."""
    rows, prefetches = trace.collectives, [one.id for one in fetches if one.kind == "prefetch"]
    held = np.flatnonzero(~rows.is_async & np.isin(rows.fetch, prefetches))
    sums: Counter[int] = Counter()
    for number, ns in zip(rows.fetch[held].tolist(), rows.blocked_ns[held].tolist(), strict=True):
        sums[number] += ns
    return sums


def _kind(fetch: Fetch) -> FetchKind:
    phase = "recomputation" if fetch.is_recomputation else fetch.phase
    return FetchKind(fetch.library, fetch.kind, phase, fetch.module)
