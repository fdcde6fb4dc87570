"""How much asynchronous communication overlaps with other work."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import and_

import numpy as np

from dsprof.analysis.rank.intervals import Array, Intervals, blocked, completion, unseen
from dsprof.analysis.rank.kernel_time import DeviceTime
from dsprof.analysis.rank.steps import detailed_steps, in_steps, is_timed, kernels
from dsprof.analysis.summary import Aggregate, RankClock, joined_by
from dsprof.trace.device_activity import DeviceActivity
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class Overlap(Aggregate):
    """Sums over ranks and measured steps; times are unions, so parallel collectives count once.

    Completion is known to an interval, and so is the time in flight. Barriers are left out, which
    cannot be hidden, and threads beside the training, which hide all of theirs.
    """

    sync_calls: int
    async_calls: int
    unwaited_calls: int  # asynchronous, and no wait was seen; or not timed on the device
    exposed_ns: int  # waits for asynchronous collectives
    least_in_flight_ns: int
    most_in_flight_ns: int
    rank_steps: int
    is_timed: bool = field(metadata=joined_by(and_))
    # times of kernels, of all ranks
    on_device: bool = field(default=False, metadata=joined_by(and_))

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Overlap:
        rows, steps = trace.collectives, detailed_steps(trace)
        if (device := kernels(trace)) is not None:
            return cls._of_device(trace, device, steps)
        mine = in_steps(rows.step, steps) & rows.on_wire & ~rows.of_families({"barrier"})
        mine &= ~rows.is_background
        chosen = np.flatnonzero(mine & rows.is_async)
        start, end = blocked(rows)
        earliest, latest = completion(rows)
        return cls(
            sync_calls=int(np.count_nonzero(mine)) - len(chosen),
            async_calls=len(chosen),
            unwaited_calls=int(np.count_nonzero(unseen(rows) & mine)),
            exposed_ns=_length(start[chosen], end[chosen]),
            least_in_flight_ns=_length(rows.issue_ns[chosen], earliest[chosen]),
            most_in_flight_ns=_length(rows.issue_ns[chosen], latest[chosen]),
            rank_steps=len(steps),
            is_timed=is_timed(trace),
        )

    @classmethod
    def _of_device(cls, trace: RankTrace, device: DeviceActivity, steps: Array) -> Overlap:
        """Measure kernels: communication is exposed where no other kernel runs."""
        detailed = set(steps.tolist())
        spans = [step for step in trace.steps if step.step in detailed]
        starts = np.array([step.start_ns for step in spans], np.int64)
        ends = np.array([step.end_ns for step in spans], np.int64)
        time = DeviceTime.of(device)
        in_flight_ns = int(time.communication.within(starts, ends).sum())
        return cls(
            sync_calls=0,
            async_calls=int(np.count_nonzero(in_steps(trace.collectives.step, steps))),
            unwaited_calls=0,
            exposed_ns=int(time.parts(starts, ends).exposed_ns.sum()),
            least_in_flight_ns=in_flight_ns,
            most_in_flight_ns=in_flight_ns,
            rank_steps=len(steps),
            is_timed=False,
            on_device=True,
        )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Least and greatest overlap, 1 - exposed / in flight; None where nothing was in flight."""
        if not self.most_in_flight_ns:
            return None
        return (
            _overlap(self.exposed_ns, self.least_in_flight_ns),
            _overlap(self.exposed_ns, self.most_in_flight_ns),
        )


def _length(starts: Array, ends: Array) -> int:
    return Intervals.union(starts, ends).length_ns


def _overlap(exposed_ns: int, in_flight_ns: int) -> float:
    return max(0.0, 1 - exposed_ns / in_flight_ns) if in_flight_ns else 0.0
