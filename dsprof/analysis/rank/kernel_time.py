"""Device time, split into computation, exposed communication, copies and idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.intervals import Array, Intervals
from dsprof.trace.columns import BoolArray
from dsprof.trace.device_activity import COMMUNICATION, COMPUTE, COPY, DeviceActivity


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Unions over all streams of one rank."""

    compute: Intervals
    communication: Intervals
    copies: Intervals

    @classmethod
    def of(cls, device: DeviceActivity, communicates: BoolArray | None = None) -> DeviceTime:
        """Join the rows of each kind; `communicates` says which kernels do, where given."""
        kernels = device.kind != COPY
        chosen = device.kind == COMMUNICATION if communicates is None else communicates & kernels
        return cls(
            _union(device, kernels & ~chosen), _union(device, chosen), _union(device, ~kernels)
        )

    def parts(self, starts: Array, ends: Array) -> DeviceParts:
        """Split each window `[starts[i], ends[i])` into parts that sum to its length."""
        working = self.compute | self.communication
        compute = self.compute.within(starts, ends)
        worked = working.within(starts, ends)
        busy = (working | self.copies).within(starts, ends)
        return DeviceParts(compute, worked - compute, busy - worked, ends - starts - busy)


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """Columns, one row a window, in ns.

    Communication is exposed where no other kernel runs, a copy where no kernel runs at all.
    """

    compute_ns: Array
    exposed_ns: Array
    copies_ns: Array
    idle_ns: Array


def unrecognised(device: DeviceActivity, longest_ns: int) -> BoolArray:
    """Say which kernels run on a stream for communication, take long, and are in no family.

    Such a stream carries communication and is not the one on which most kernels compute.
    """
    computes = device.kind == COMPUTE
    streams = np.unique(device.stream[device.kind == COMMUNICATION])
    owned, counts = np.unique(device.stream[computes], return_counts=True)
    main = owned[np.argmax(counts)] if len(owned) else None
    lengths = device.end_ns - device.start_ns
    on_stream = np.isin(device.stream, streams[streams != main])
    return np.asarray(computes & on_stream & (lengths >= longest_ns), np.bool_)


def _union(device: DeviceActivity, rows: BoolArray) -> Intervals:
    return Intervals.union(device.start_ns[rows], device.end_ns[rows])
