"""On which streams of an accelerator communication runs: on its own, or on those that compute."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.rank.intervals import Intervals
from dsprof.analysis.rank.steps import device_windows
from dsprof.analysis.summary import LARGEST, Aggregate, RankClock
from dsprof.trace.device_activity import COMMUNICATION, COMPUTE
from dsprof.trace.rank_trace import RankTrace

COMPUTES_SHARE = 0.05
"""A stream computes if it has at least this share of the time of computing kernels."""


@dataclass(frozen=True, slots=True)
class Streams(Aggregate):
    """Sums over the ranks of which a profiler saw the whole device, in the judged window.

    Kernels of a stream never overlap.
    """

    communication_ns: int = 0
    shared_ns: int = 0  # of it, on streams that also compute
    most_streams: int = field(default=0, metadata=LARGEST)  # with communication, on any rank

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Streams:
        """Add up the kernels of one rank by stream and kind."""
        device, profile = trace.activity, trace.profile
        is_sampled = profile.is_sampled if profile else trace.is_sampled
        if device is None or not len(device) or is_sampled:
            return cls()
        groups = group_rows([device.stream, device.kind])
        window = Intervals.union(*device_windows(trace, device))
        sums = groups.sums(window.within(device.start_ns, device.end_ns))
        stream, kind = device.stream[groups.first], device.kind[groups.first]
        computing, sending = kind == COMPUTE, kind == COMMUNICATION
        computes = computing & (sums >= COMPUTES_SHARE * sums[computing].sum()) & (sums > 0)
        shared = sending & np.isin(stream, stream[computes])
        return cls(int(sums[sending].sum()), int(sums[shared].sum()), int(sending.sum()))

    @property
    def shared_share(self) -> float:
        """Share of communication on streams that also compute."""
        return self.shared_ns / self.communication_ns if self.communication_ns else 0.0
