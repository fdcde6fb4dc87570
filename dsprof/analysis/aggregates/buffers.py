"""Memory that a rank holds for communication, as far as the trace shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.steps import detailed_steps, in_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace


class Gathered(NamedTuple):
    """Parameters that were there at once."""

    elements: int = 0
    nbytes: int = 0


def most_gathered(trace: RankTrace, steps: Array) -> Gathered:
    """Return the most parameters that were there at once in `steps` (ascending)."""
    rows = trace.collectives
    gathers = np.flatnonzero((rows.fetch > 0) & rows.on_wire & in_steps(rows.step, steps))
    elements = int(rows.elements[gathers].sum())
    if not elements:
        return Gathered()
    wanted = set(steps.tolist())
    releases = [f for f in trace.fetches if f.kind == "release" and f.step in wanted]
    step = np.concatenate([rows.step[gathers], [f.step for f in releases]])
    time_ns = np.concatenate([rows.issue_ns[gathers], [f.end_ns for f in releases]])
    change = np.concatenate([rows.elements[gathers], [-f.elements for f in releases]])
    order = np.lexsort((time_ns, step))
    cuts = np.flatnonzero(np.diff(step[order])) + 1
    most = max(map(_highest, np.split(change[order].astype(np.int64), cuts)))
    item_bytes = int(rows.nbytes[gathers].sum()) / elements
    return Gathered(most, round(most * item_bytes))


def _highest(changes: Array) -> int:
    """Return the highest level, which never falls below nothing."""
    level = np.cumsum(changes)
    return int((level - np.minimum(np.minimum.accumulate(level), 0)).max())


@dataclass(frozen=True, slots=True)
class RankBuffers:
    """What one rank holds; None where no step is in full detail."""

    gathered: Gathered | None  # the most parameters that were there at once
    units: int  # elements of all units of FSDP together; 0 where ZeRO-3 all-gathers
    reduced_bytes: int  # the largest reduction of a unit of FSDP
    ddp_bytes: int  # buckets of DDP beside the gradients: none where gradients lie in them


@dataclass(frozen=True, slots=True)
class Buffers(Aggregate):
    """Buffers by rank; those of ZeRO's gradients follow from the configuration."""

    ranks: dict[int, RankBuffers]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Buffers:
        """Read the records of one rank."""
        steps = detailed_steps(trace)
        units = {
            (fetch.module, fetch.elements)
            for fetch in trace.fetches
            if fetch.library and fetch.kind != "release"
        }
        reductions = trace.collectives.nbytes[trace.collectives.flush > 0]
        buckets = {layout.model: layout for layout in trace.layouts}  # the latest of each model
        found = RankBuffers(
            gathered=most_gathered(trace, steps) if len(steps) else None,
            units=sum(elements for _, elements in units),
            reduced_bytes=int(reductions.max(initial=0)) if units else 0,
            ddp_bytes=sum(
                sum(layout.nbytes)
                for layout in buckets.values()
                if not layout.gradient_as_bucket_view
            ),
        )
        return cls({trace.rank: found})


AGGREGATE = Buffers
