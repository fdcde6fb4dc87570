"""How many stages a pipeline has, and how many micro-batches go through it in a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from dsprof.analysis.rank.steps import detailed_steps, in_steps
from dsprof.analysis.summary import LARGEST, Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class Pipelines(Aggregate):
    """The largest pipeline that any rank took part in; 0: none, or not known.

    Each rank knows its own stages.
    """

    stages: int = field(default=0, metadata=LARGEST)
    micro_batches: int = field(default=0, metadata=LARGEST)
    # more than one where stages are interleaved
    stages_of_a_rank: int = field(default=0, metadata=LARGEST)
    # of a schedule that the formula does not describe: zero-bubble, V-shaped
    is_of_other_kind: bool = field(default=False, metadata=LARGEST)

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Pipelines:
        """Read stages from DeepSpeed's engines or torch's pipelining, else from what they send."""
        wanted = set(detailed_steps(trace).tolist())
        spans = [s for s in trace.spans if s.name == "forward" and s.step in wanted]
        here = {span.stage for span in spans if span.stage >= 0}
        of_engines = max((one.pipeline_stages for one in trace.engines.values()), default=0)
        batches = {span.micro_step for span in spans}
        if not here and of_engines < 2:
            found = cls(*_of_sends(trace))
            backwards = sum(s.name == "backward" and s.step in wanted for s in trace.spans)
            passes = found.micro_batches * found.stages_of_a_rank * len(wanted)
            return replace(found, is_of_other_kind=0 < passes < backwards)
        groups = [len(one.ranks) for one in trace.groups.values() if one.role == "pipeline"]
        # The last stage may have left no trace.
        stages = max(of_engines, max(here, default=-1) + 1, len(here) * max(groups, default=0))
        backwards = sum(
            s.name == "backward" and s.stage >= 0 and s.step in wanted for s in trace.spans
        )
        # Zero-bubble schedules compute gradients of weights apart. In a V a rank has a stage from
        # the beginning and one from the end.
        is_split = backwards > len(spans)
        is_v = len(here) == 2 and bool(groups) and max(here) - min(here) != max(groups)
        is_v |= any(one.kind.startswith("DualPipeV") for one in trace.engines.values())
        return cls(stages, len(batches), max(len(here), 1), is_split or is_v)

    @property
    def bubble(self) -> float | None:
        """Share of the schedule in which a stage is idle; None where it is not known.

        (p-1)/(m+p-1) for p ranks in line and m micro-batches; with v stages on each rank the
        bubble is v times shorter, (p-1)/(vm+p-1) (Narayanan et al. 2021, arXiv:2104.04473).
        """
        if self.is_of_other_kind or (filling := self.filling) is None:
            return None
        return filling / (1 + filling)

    @property
    def filling(self) -> float | None:
        """Passes that fill the pipeline, as a share of those of a rank; None where not known."""
        if self.stages < 2 or not self.micro_batches:
            return None
        return self._later_ranks / (self.stages_of_a_rank * self.micro_batches)

    def bubble_of_step(self, exposed_share: float) -> float:
        """Return how much of a step the bubble explains, of which the rest is not exposed."""
        bubble = self.bubble or 0.0
        return (1 - exposed_share) * bubble / (1 - bubble)

    def micro_batches_for(self, bubble: float) -> int:
        """Return the least number of micro-batches that leaves no larger `bubble`, in (0, 1]."""
        needed = self._later_ranks * (1 / bubble - 1) / max(self.stages_of_a_rank, 1)
        return ceil(needed - 1e-9)  # 0.2 is no binary fraction

    @property
    def _later_ranks(self) -> int:
        return self.stages // max(self.stages_of_a_rank, 1) - 1


def _of_sends(trace: RankTrace) -> tuple[int, int, int]:
    """Return the same of a rank at either end of a pipeline; 0 of others, as in Megatron.

    For m micro-batches and v stages per rank it sends m v times to its neighbour, and m (v - 1)
    times round to the other end. Smaller messages are of shapes.
    """
    groups = {number: one for number, one in trace.groups.items() if one.role == "pipeline"}
    table = trace.collectives
    mine = table.of_families({"send"}) & np.isin(table.group, [*groups]) & table.on_wire
    mine &= in_steps(table.step, detailed_steps(trace))
    if not mine.any():
        return 0, 0, 0
    mine &= table.nbytes == table.nbytes[mine].max()
    ranks = groups[int(table.group[mine][0])].ranks
    if len(ranks) < 2 or trace.rank not in (ranks[0], ranks[-1]):
        return 0, 0, 0
    near, far = (ranks[1], ranks[-1]) if trace.rank == ranks[0] else (ranks[-2], ranks[0])
    steps, peers = table.step[mine], table.peer[mine]
    of_step = [np.unique(steps[peers == peer], return_counts=True)[1] for peer in (near, far)]
    to_near, to_far = (int(np.median(counts)) if len(counts) else 0 for counts in of_step)
    batches = to_near - (to_far if near != far else 0)
    if batches < 1 or to_near % batches:
        return len(ranks), 0, 1
    stages_of_a_rank = to_near // batches
    return len(ranks) * stages_of_a_rank, batches, stages_of_a_rank
