"""How often the host stopped to wait for a device, and how long that stood idle around it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.grouping import group_rows
from dsprof.analysis.kernel_time import DeviceTime
from dsprof.analysis.steps import detailed_steps, kernels
from dsprof.analysis.summary import Aggregate, RankClock, add_rows
from dsprof.analysis.timeline import Array, Intervals
from dsprof.trace.device import ITEM, DeviceActivity, HostStops
from dsprof.trace.table import BoolArray, RankTrace

RECORDED = "synchronize()"
"""Of a device, a stream or an event, as dsprof's own hooks saw them."""


@dataclass(frozen=True, slots=True)
class StopSums:
    """Sums over ranks and measured steps."""

    calls: int
    held_ns: int  # time of the host in these calls

    def __add__(self, other: StopSums) -> StopSums:
        return StopSums(self.calls + other.calls, self.held_ns + other.held_ns)


@dataclass(frozen=True, slots=True)
class HostWaits(Aggregate):
    """Sums by the name of the call; only a device that is timed or profiled shows them."""

    rows: dict[str, StopSums]
    rank_steps: int = 0  # of ranks whose device is timed or profiled
    idle_ns: int = 0  # of the current stream meanwhile; of the device around stops in a profile

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> HostWaits:
        """Count the synchronising calls of one rank."""
        device, steps = kernels(trace), detailed_steps(trace)
        if device is not None and device.stops is not None:
            return cls._of_profile(trace, device, device.stops, steps)
        if not trace.is_device_timed:
            return cls({})
        wanted = set(steps.tolist())
        waits = [s for s in trace.stalls if s.kind == "synchronize" and s.step in wanted]
        held_ns = sum(stall.duration_ns for stall in waits)
        rows = {RECORDED: StopSums(len(waits), held_ns)} if waits else {}
        return cls(rows, len(steps), held_ns)

    @classmethod
    def _of_profile(
        cls, trace: RankTrace, device: DeviceActivity, stops: HostStops, steps: Array
    ) -> HostWaits:
        wanted = set(steps.tolist())
        spans = [step for step in trace.steps if step.step in wanted]
        inside = np.zeros(len(stops.name), np.bool_)
        for span in spans:
            inside |= (stops.start_ns >= span.start_ns) & (stops.start_ns < span.end_ns)
        chosen = np.flatnonzero(inside & ~_within_items(stops))
        if not len(chosen):
            return cls({}, len(spans))
        groups = group_rows([stops.name[chosen]])
        held, counts = groups.sums((stops.end_ns - stops.start_ns)[chosen]), groups.counts()
        names = [stops.words[code] for code in stops.name[chosen[groups.first]].tolist()]
        rows = {name: StopSums(int(counts[g]), int(held[g])) for g, name in enumerate(names)}
        time = DeviceTime.of(device)
        busy = time.compute | time.communication | time.copies
        return cls(rows, len(spans), _idle_at(stops.end_ns[chosen], busy))

    def merge(self, other: HostWaits) -> HostWaits:
        """Add up two sets of ranks."""
        return HostWaits(
            add_rows(self.rows, other.rows),
            self.rank_steps + other.rank_steps,
            self.idle_ns + other.idle_ns,
        )

    @property
    def calls_per_step(self) -> float:
        """Calls of one rank and step."""
        calls = sum(sums.calls for sums in self.rows.values())
        return calls / self.rank_steps if self.rank_steps else 0.0

    @property
    def idle_ms_per_step(self) -> float:
        """Mean over ranks and steps."""
        return self.idle_ns / self.rank_steps / 1e6 if self.rank_steps else 0.0


def _within_items(stops: HostStops) -> BoolArray:
    """Say which calls are inside an `.item()`, and would be counted twice."""
    code = stops.words.index(ITEM) if ITEM in stops.words else -1
    is_item = stops.name == code
    items = Intervals.union(stops.start_ns[is_item], stops.end_ns[is_item])
    inside = items.within(stops.start_ns, stops.start_ns + 1) > 0
    return np.asarray(inside & ~is_item, np.bool_)


def _idle_at(moments: Array, busy: Intervals) -> int:
    """Return how long the device was idle around `moments`: each gap in its work once."""
    after = np.searchsorted(busy.starts, moments, side="right")
    between = (after > 0) & (after < len(busy.starts))
    moments, after = moments[between], after[between]
    gaps = np.unique(after[moments >= busy.ends[after - 1]])
    return int((busy.starts[gaps] - busy.ends[gaps - 1]).sum())
