"""Activity of the accelerator of each rank, in the measured steps and over the whole record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.rank.kernel_time import DeviceTime, unrecognised
from dsprof.analysis.rank.steps import device_steps, device_windows
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.columns import BoolArray
from dsprof.trace.device_activity import COMMUNICATION, COPY, DeviceActivity
from dsprof.trace.rank_trace import RankTrace, operations

LONG_NS = 100_000
"""A kernel on a stream for communication that takes longer is worth a question."""
_NAMES_KEPT = 20


@dataclass(frozen=True, slots=True)
class KernelSum:
    """Kernels of one name or family, on one rank."""

    name: str
    calls: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class WindowTime:
    """Time of a device in the window that verdicts are about; the parts sum to the span."""

    steps: int  # measured steps; 0: from the first kernel or copy to the last
    span_ns: int
    compute_ns: int
    exposed_ns: int
    copies_ns: int
    idle_ns: int
    before_ns: int  # from the first kernel or step to the window: start-up and warm-up
    before_idle_ns: int


@dataclass(frozen=True, slots=True)
class RankDevice:
    """One rank, from the start of its first kernel or copy to the end of its last.

    compute + exposed + copies + idle = span. `usual_*` are the same by the common test, by which
    only kernels with "nccl" or "rccl" in their names communicate.
    """

    span_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    copies_ns: int
    idle_ns: int
    usual_ns: int
    usual_exposed_ns: int
    kernels: int
    communication_kernels: int
    operations: dict[str, int]  # collective -> communication kernels
    beyond: tuple[KernelSum, ...]  # communication that the common test does not see, by library
    unrecognised: tuple[KernelSum, ...]  # long, on streams for communication, of no known family
    is_sampled: bool
    judged: WindowTime
    is_beside: bool  # from a profiler trace beside the rank's own trace

    @property
    def overlap(self) -> float | None:
        """Share of communication during which another kernel ran; None without communication."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_ns / self.communication_ns


@dataclass(frozen=True, slots=True)
class Device(Aggregate):
    """The ranks whose traces have device times."""

    ranks: PerRank[RankDevice]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Device:
        device = trace.activity
        if device is None or not len(device):
            return cls(PerRank())
        return cls(PerRank({trace.rank: _measure(trace, device)}))

    @property
    def complete(self) -> dict[int, RankDevice]:
        """The ranks of whose files no events were left out."""
        return {rank: row for rank, row in self.ranks.items() if not row.is_sampled}

    @property
    def is_beside(self) -> bool:
        """Whether every rank also has a trace of dsprof."""
        return all(rank.is_beside for rank in self.ranks.values())

    def share(self, part: str) -> float:
        """Return the share of a part (`idle_ns`, ...) in the windows of all complete ranks."""
        windows = [rank.judged for rank in self.complete.values()]
        spans = sum(window.span_ns for window in windows)
        return float(sum(getattr(window, part) for window in windows) / max(spans, 1))

    def idle_shares(self) -> dict[int, float]:
        """Return by complete rank what share of its window its device is idle."""
        windows = {rank: row.judged for rank, row in self.complete.items()}
        return {rank: row.idle_ns / max(row.span_ns, 1) for rank, row in windows.items()}

    @property
    def window(self) -> str:
        """The whole of which the shares are, in words."""
        steps = {rank.judged.steps for rank in self.complete.values()}
        return "the measured steps" if all(steps) else "the time recorded"

    @property
    def recurs(self) -> bool:
        """Whether shares are of several steps; else start-up may be part of them."""
        return all(rank.judged.steps > 1 for rank in self.complete.values())


def _measure(trace: RankTrace, device: DeviceActivity) -> RankDevice:
    time, usual = DeviceTime.of(device), DeviceTime.of(device, device.is_usual)
    start = np.array([device.start_ns.min()], np.int64)
    end = np.array([device.end_ns.max()], np.int64)
    parts, by_name = time.parts(start, end), usual.parts(start, end)
    communicates = device.kind == COMMUNICATION
    profile = trace.profile
    judged = _judged(trace, device, time)
    return RankDevice(
        span_ns=int(end[0] - start[0]),
        compute_ns=int(parts.compute_ns[0]),
        communication_ns=time.communication.length_ns,
        exposed_ns=int(parts.exposed_ns[0]),
        copies_ns=int(parts.copies_ns[0]),
        idle_ns=int(parts.idle_ns[0]),
        usual_ns=usual.communication.length_ns,
        usual_exposed_ns=int(by_name.exposed_ns[0]),
        kernels=int(np.count_nonzero(device.kind != COPY)),
        communication_kernels=int(np.count_nonzero(communicates)),
        operations=profile.operations if profile else operations(trace.collectives),
        beyond=_sums(device, device.library, communicates & ~device.is_usual),
        unrecognised=_sums(device, device.name, unrecognised(device, LONG_NS)),
        is_sampled=profile.is_sampled if profile else trace.is_sampled,
        judged=judged,
        is_beside=profile is not None,
    )


def _judged(trace: RankTrace, device: DeviceActivity, time: DeviceTime) -> WindowTime:
    """Measure the window of the verdicts, and what came before it."""
    starts, ends = device_windows(trace, device)
    parts = time.parts(starts, ends)
    first = np.array([min([device.start_ns.min(), *(s.start_ns for s in trace.steps)])], np.int64)
    before = time.parts(first, starts[:1])
    return WindowTime(
        steps=len(device_steps(trace)),
        span_ns=int((ends - starts).sum()),
        compute_ns=int(parts.compute_ns.sum()),
        exposed_ns=int(parts.exposed_ns.sum()),
        copies_ns=int(parts.copies_ns.sum()),
        idle_ns=int(parts.idle_ns.sum()),
        before_ns=int(starts[0] - first[0]),
        before_idle_ns=int(before.idle_ns[0]),
    )


def _sums(device: DeviceActivity, column: np.ndarray, rows: BoolArray) -> tuple[KernelSum, ...]:
    """Add up the chosen rows by the words that `column` codes, the longest first."""
    chosen = np.flatnonzero(rows)
    groups = group_rows([column[chosen]])
    totals = groups.sums((device.end_ns - device.start_ns)[chosen])
    found = [
        KernelSum(device.words[int(column[chosen[first]])], int(calls), int(total))
        for first, calls, total in zip(groups.first, groups.counts(), totals, strict=True)
    ]
    return tuple(sorted(found, key=lambda sums: -sums.total_ns)[:_NAMES_KEPT])
