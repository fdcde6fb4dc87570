"""Memory that a rank holds for communication, as far as the trace shows."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.buffer_levels import Gathered, gathered_by_step
from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class RankBuffers:
    """Buffers of one rank; None where no step is in full detail."""

    gathered: Gathered | None  # the most parameters that were there at once
    units: int  # elements of all units of FSDP together; 0 where ZeRO-3 all-gathers
    reduced_bytes: int  # the largest reduction of a unit of FSDP
    ddp_bytes: int  # buckets of DDP beside the gradients: none where gradients lie in them


@dataclass(frozen=True, slots=True)
class Buffers(Aggregate):
    """Buffers by rank; those of ZeRO's gradients follow from the configuration."""

    ranks: PerRank[RankBuffers]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Buffers:
        steps = detailed_steps(trace)
        units = {
            (fetch.module, fetch.elements)
            for fetch in trace.fetches
            if fetch.library and fetch.kind != "release"
        }
        reductions = trace.collectives.nbytes[trace.collectives.flush > 0]
        buckets = {layout.model: layout for layout in trace.layouts}  # the latest of each model
        found = RankBuffers(
            gathered=max(gathered_by_step(trace, steps).values(), default=Gathered())
            if len(steps)
            else None,
            units=sum(elements for _, elements in units),
            reduced_bytes=int(reductions.max(initial=0)) if units else 0,
            ddp_bytes=sum(
                sum(layout.nbytes)
                for layout in buckets.values()
                if not layout.gradient_as_bucket_view
            ),
        )
        return cls(PerRank({trace.rank: found}))
