"""How often the host waited for a device, and how long the device was idle around these waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.rank.host_stops import is_stop
from dsprof.analysis.rank.intervals import Array, Intervals
from dsprof.analysis.rank.kernel_time import DeviceTime
from dsprof.analysis.rank.steps import detailed_steps, device_steps, device_windows, kernels
from dsprof.analysis.summary import Aggregate, RankClock, Sums
from dsprof.trace.device_activity import (
    ALLOCATION,
    DATA_LOADER,
    LOADING,
    DeviceActivity,
    HostWork,
)
from dsprof.trace.rank_trace import RankTrace


class Stop(NamedTuple):
    """Calls of one name, with the operator and the user's annotation around them."""

    call: str
    operator: str = ""
    annotation: str = ""


RECORDED = Stop("synchronize()")
"""Any synchronize() of a device, a stream or an event that dsprof's own hooks recorded."""


@dataclass(frozen=True, slots=True)
class StopSums(Sums):
    """Sums over ranks and measured steps."""

    calls: int
    held_ns: int  # time of the host in these calls


@dataclass(frozen=True, slots=True)
class HostWaits(Aggregate):
    """Sums by call; only a device that is timed or profiled shows them."""

    rows: dict[Stop, StopSums]
    rank_steps: int = 0  # of ranks whose device is timed or profiled
    record_ns: int = 0  # what was recorded of ranks that marked no step
    idle_ns: int = 0  # of the current stream meanwhile; at most, of kernels in a profile

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> HostWaits:
        device, steps = kernels(trace), detailed_steps(trace)
        if device is not None and device.host is not None:
            return cls._of_profile(trace, device, device.host)
        if not trace.is_device_timed:
            return cls({})
        wanted = set(steps.tolist())
        waits = [s for s in trace.stalls if s.kind == "synchronize" and s.step in wanted]
        held_ns = sum(stall.duration_ns for stall in waits)
        rows = {RECORDED: StopSums(len(waits), held_ns)} if waits else {}
        return cls(rows, len(steps), idle_ns=held_ns)

    @classmethod
    def _of_profile(cls, trace: RankTrace, device: DeviceActivity, host: HostWork) -> HostWaits:
        if not len(device):
            return cls({})
        steps = len(device_steps(trace))
        window = Intervals.union(*device_windows(trace, device))
        record_ns = 0 if steps else window.length_ns
        chosen = np.flatnonzero(
            is_stop(host) & (window.within(host.start_ns, host.start_ns + 1) > 0)
        )
        keys = [column[chosen] for column in (host.name, host.operator, host.annotation)]
        groups = group_rows(keys)
        held, counts = groups.sums((host.end_ns - host.start_ns)[chosen]), groups.counts()
        rows = {
            Stop(*(host.words[int(key[first])] for key in keys)): StopSums(int(calls), int(ns))
            for first, calls, ns in zip(groups.first, counts, held, strict=True)
        }
        return cls(rows, steps, record_ns, _lost_ns(device, host, chosen, window))

    @property
    def calls(self) -> int:
        """Calls of all ranks."""
        return sum(sums.calls for sums in self.rows.values())

    @property
    def calls_per_step(self) -> float:
        """Calls of one rank and step."""
        return self.calls / self.rank_steps if self.rank_steps else 0.0

    @property
    def blocked_ms_per_step(self) -> float:
        """Time of the host in these calls, mean over ranks and steps."""
        held_ns = sum(sums.held_ns for sums in self.rows.values())
        return held_ns / self.rank_steps / 1e6 if self.rank_steps else 0.0

    @property
    def idle_ms_per_step(self) -> float:
        """Mean over ranks and steps."""
        return self.idle_ns / self.rank_steps / 1e6 if self.rank_steps else 0.0


def _lost_ns(device: DeviceActivity, host: HostWork, chosen: Array, window: Intervals) -> int:
    """Return how long no kernel ran while the host was blocked, or until work came again.

    What the host did in between beside launching, such as loading data, is not the stop's. Nor is
    more than the host waited: without waiting it would be ahead by that much.
    """
    time = DeviceTime.of(device)
    kernels = time.compute | time.communication
    starts, ends = host.start_ns[chosen], host.end_ns[chosen]
    others = np.isin(host.kind, (LOADING, ALLOCATION, DATA_LOADER))
    busy_host = Intervals.union(host.start_ns[others], host.end_ns[others])
    record = Intervals.union(device.start_ns.min(keepdims=True), device.end_ns.max(keepdims=True))
    dry = (record - (kernels | time.copies)).holding(ends) - busy_host
    waits = Intervals.union(starts, ends)
    without_kernel = ((window - kernels) & waits) | (dry & window)
    return min(without_kernel.length_ns, waits.length_ns)
