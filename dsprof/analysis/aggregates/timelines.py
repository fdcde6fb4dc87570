"""Steps in detail: what each rank did in the steps that may turn out worst or median.

The choice needs all ranks. In synchronous training they agree to within a hair on which steps are
slow, so each rank keeps the bars of a few candidates and the choice falls among those.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.steps import measured_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.analysis.timeline import Intervals, blocked, completion
from dsprof.trace.format import StepArgs
from dsprof.trace.table import RankTrace

CANDIDATES = 3  # of each kind, a rank
BARS_PER_LANE = 300


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle, in ns of the run's time line."""

    lane: str  # "phase", "communication" or "blocked"
    kind: str
    start_ns: int
    end_ns: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class StepDetail:
    """One step of one rank, in ns of the run's time line."""

    start_ns: int
    end_ns: int
    bars: tuple[Bar, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Timelines(Aggregate):
    """Detail by step and rank."""

    steps: dict[int, dict[int, StepDetail]]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Timelines:
        """Draw the candidate steps of one rank."""
        numbers = set(measured_steps(trace).tolist())
        steps = sorted(
            (step for step in trace.steps if step.step in numbers),
            key=lambda step: step.start_ns - step.end_ns,
        )
        middle = max(0, (len(steps) - CANDIDATES) // 2)
        chosen = {step.step: step for step in steps[:CANDIDATES]}
        chosen |= {step.step: step for step in steps[middle : middle + CANDIDATES]}
        artist = _Artist(trace, clock)
        return cls({number: {trace.rank: artist.draw(chosen[number])} for number in chosen})

    def merge(self, other: Timelines) -> Timelines:
        """Put the ranks of each step side by side."""
        steps: defaultdict[int, dict[int, StepDetail]] = defaultdict(dict)
        for part in (self, other):
            for number, ranks in part.steps.items():
                steps[number] = steps[number] | ranks
        return Timelines(dict(steps))

    def choose(self) -> list[tuple[str, int]]:
        """Return ("worst", step) and ("median", step), of the steps that most ranks drew."""
        most = max((len(ranks) for ranks in self.steps.values()), default=0)
        drawn = [number for number, ranks in self.steps.items() if len(ranks) == most]
        drawn.sort(key=lambda number: (-self.duration_ns(number), number))
        if not drawn:
            return []
        worst = ("worst", drawn[0])
        # The median steps are the shortest candidates: the others were drawn for being slow.
        middle = drawn[-((min(CANDIDATES, len(drawn)) + 1) // 2)]
        return [worst] if middle == drawn[0] else [worst, ("median", middle)]

    def duration_ns(self, number: int) -> int:
        """Return the length of a step on its slowest rank."""
        return max(detail.end_ns - detail.start_ns for detail in self.steps[number].values())


class _Artist:
    """Draws steps of one rank; what all steps need is worked out once."""

    def __init__(self, trace: RankTrace, clock: RankClock) -> None:
        self._trace = trace
        self._shift_ns = clock.offset_ns
        self._done_ns = completion(trace.collectives)[1]
        self._held = blocked(trace.collectives)

    def draw(self, step: StepArgs) -> StepDetail:
        shift = self._shift_ns
        bars: list[Bar] = []
        left_out = 0
        for lane in (self._phases(step), self._collectives(step), self._blocked(step)):
            longest = sorted(lane, key=lambda bar: bar.start_ns - bar.end_ns)[:BARS_PER_LANE]
            left_out += len(lane) - len(longest)
            bars += sorted(longest, key=lambda bar: bar.start_ns)
        moved = (Bar(b.lane, b.kind, b.start_ns + shift, b.end_ns + shift, b.label) for b in bars)
        return StepDetail(step.start_ns + shift, step.end_ns + shift, tuple(moved), left_out)

    def _phases(self, step: StepArgs) -> list[Bar]:
        spans = [span for span in self._trace.spans if span.step == step.step]
        return [Bar("phase", span.name, span.start_ns, span.end_ns) for span in spans]

    def _collectives(self, step: StepArgs) -> list[Bar]:
        rows = self._trace.collectives
        bars = []
        for i in np.flatnonzero((rows.step == step.step) & rows.on_wire):
            group = self._trace.groups.get(int(rows.group[i]))
            where = f" on {group.label}" if group is not None else ""
            manner = "async" if rows.is_async[i] else "sync"
            end = int(self._done_ns[i]) or int(max(rows.return_ns[i], rows.pending_ns[i]))
            kind = rows.words[rows.op[i]]
            label = f"{int(rows.nbytes[i])} bytes{where}, {manner}"
            bars.append(Bar("communication", kind, int(rows.issue_ns[i]), end, label))
        return bars

    def _blocked(self, step: StepArgs) -> list[Bar]:
        start, end = self._held
        chosen = (end > step.start_ns) & (start < step.end_ns)
        waits = Intervals.union(
            np.maximum(start[chosen], step.start_ns), np.minimum(end[chosen], step.end_ns)
        )
        pairs = zip(waits.starts.tolist(), waits.ends.tolist(), strict=True)
        return [Bar("blocked", "wait", begin, stop) for begin, stop in pairs]
