"""How full the buckets of a typical step were when they were reduced, in order of time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Flush, Step

MOST_FLUSHES = 200
"""This many flushes of a step are kept: more cannot be distinguished in a drawing."""


@dataclass(frozen=True, slots=True)
class StepFills:
    """Reductions of buckets in one step of one rank, each with the moment from which it filled."""

    rank: int
    step: Step
    flushes: tuple[tuple[int, Flush], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class BucketFills(Aggregate):
    """The step of the lowest rank that has one; None where no bucket has a capacity."""

    found: StepFills | None

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> BucketFills:
        """Choose a rank's step of median length among those that reduce buckets."""
        wanted = set(detailed_steps(trace).tolist()) if trace.flushes else set()
        flushes: defaultdict[int, list[Flush]] = defaultdict(list)
        for flush in trace.flushes:
            if flush.capacity > 0 and flush.step in wanted:
                flushes[flush.step].append(flush)
        steps = [step for step in trace.steps if step.step in flushes]
        if not steps:
            return cls(None)
        step = sorted(steps, key=lambda one: one.end_ns - one.start_ns)[len(steps) // 2]
        ordered = sorted(flushes[step.step], key=lambda flush: flush.start_ns)
        filled = tuple(zip(_since(trace, step, ordered), ordered, strict=True))
        left_out = max(len(filled) - MOST_FLUSHES, 0)
        return cls(StepFills(trace.rank, step, filled[:MOST_FLUSHES], left_out))

    def merge(self, other: BucketFills) -> BucketFills:
        """Keep the lowest rank."""
        both = [one for one in (self.found, other.found) if one is not None]
        return BucketFills(min(both, key=lambda one: one.rank, default=None))


def _since(trace: RankTrace, step: Step, flushes: list[Flush]) -> list[int]:
    """Return when each bucket began to fill: after the one before, or as its backward began."""
    begun = sorted(s.start_ns for s in trace.spans if s.step == step.step and s.name == "backward")
    found, free = [], step.start_ns
    for flush in flushes:
        found.append(max([free, *(ns for ns in begun if ns <= flush.start_ns)]))
        free = flush.end_ns
    return found
