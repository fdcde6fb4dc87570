"""Annotated spans as evidence: where a rank loses time, what fills a step."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median
from typing import NamedTuple

from dsprof.analysis.aggregates.phases import Phases
from dsprof.findings.wording import duration, shortened


class Span(NamedTuple):
    """A span by its name, as it may be shown, with its time in ns of a step."""

    name: str
    ns: float
    others_ns: float = 0.0  # on the ranks that it is compared with

    @property
    def on_both(self) -> str:
        """Say how long it takes, here and on the others."""
        return f"{duration(self.ns)} per step, the others {duration(self.others_ns)}"


def span_behind(phases: Phases, rank: int, others: Collection[int], least_ns: float) -> Span | None:
    """Return the span that is longest beyond that of the others; None if under `least_ns`.

    Waits are left out. Of spans in each other, which are as long, the inner one is named.
    """
    found = []
    for name, ranks in phases.annotated.items():
        if rank in ranks:
            busy = {one: sums.busy_ms_per_step * 1e6 for one, sums in ranks.items()}
            usual = median([busy.get(one, 0.0) for one in others] or [0.0])
            found.append(Span(f'"{shortened(name)}"', busy[rank], usual))
    late = [one for one in found if one.ns - one.others_ns >= least_ns]
    return min(late, key=lambda one: one.ns, default=None)


def span_outside(phases: Phases, least_ns: float) -> Span | None:
    """Return the span that is longest outside all phases; None if under `least_ns` of a step."""
    found = []
    for name in phases.annotated:
        sums = phases.of_all_ranks(name)
        found.append(Span(f'"{shortened(name)}"', sums.outside_ns / sums.rank_steps))
    longest = max(found, key=lambda one: one.ns, default=None)
    return longest if longest is not None and longest.ns >= least_ns else None
