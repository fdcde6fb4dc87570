"""Activity of the host while a device was idle."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsprof.analysis.rank.host_stops import is_stop
from dsprof.analysis.rank.intervals import Array, Intervals
from dsprof.analysis.rank.kernel_time import DeviceTime
from dsprof.analysis.rank.steps import device_windows
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.device_activity import (
    ALLOCATION,
    DATA_LOADER,
    LAUNCH,
    LOADING,
    SYNCHRONISATION,
    TRANSFER,
    HostWork,
)
from dsprof.trace.rank_trace import RankTrace

SHORT_GAP_NS = 20_000
"""Between two kernels. Nothing but launches fits in."""
LOADS_FROM_NS = 1_000_000
"""A launch takes microseconds; one that takes so long while the device is idle loads a module."""

ELSEWHERE = "keeping other devices busy"
LAUNCHING = "launching kernels"
PYTHON = "Python between operators"
UNRECORDED = "nothing recorded"
NO_HOST = "not recorded"
NAMES = {
    LOADING: "compiling and loading kernels",
    ALLOCATION: "allocating and freeing memory",
    TRANSFER: "blocked in copies",
    DATA_LOADER: "waiting for the data loader",
    SYNCHRONISATION: "synchronising with the device",
    LAUNCH: LAUNCHING,
}
"""In the order in which they claim idle time: what a data loader allocates is an allocation."""


@dataclass(frozen=True, slots=True)
class IdleCauses(Aggregate):
    """Idle time of all devices in the judged windows, by what their hosts did meanwhile."""

    idle_ns: dict[str, int]
    longest_ns: dict[str, int] = field(default_factory=dict)
    """Idle time in the longest call of each rank, of causes that are calls."""

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> IdleCauses:
        """Attribute the idle time of one rank; of a sample, none."""
        device, profile = trace.activity, trace.profile
        is_sampled = profile.is_sampled if profile else trace.is_sampled
        if device is None or not len(device) or is_sampled:
            return cls({})
        time = DeviceTime.of(device)
        window = Intervals.union(*device_windows(trace, device))
        idle = window - (time.compute | time.communication | time.copies)
        elsewhere = idle & Intervals.union(*device.elsewhere)
        left = idle - elsewhere
        causes = {ELSEWHERE: elsewhere.length_ns} | _of_host(device.host, left)
        longest = _longest(device.host, left) if device.host else {}
        return cls(*({name: ns for name, ns in part.items() if ns} for part in (causes, longest)))

    @property
    def order(self) -> list[tuple[str, int]]:
        """The causes, that of most idle time first."""
        return sorted(self.idle_ns.items(), key=lambda item: (-item[1], item[0]))


def _of_host(host: HostWork | None, idle: Intervals) -> dict[str, int]:
    if host is None:
        return {NO_HOST: idle.length_ns}
    is_long = idle.ends - idle.starts >= SHORT_GAP_NS
    left = Intervals(idle.starts[is_long], idle.ends[is_long])
    found = {LAUNCHING: idle.length_ns - left.length_ns}
    # A device runs dry while its host waits: until work comes again, that is the price of the wait,
    # but no more than it lasted: without it the host would be ahead by that much.
    stops = is_stop(host)
    waits = Intervals.union(host.start_ns[stops], host.end_ns[stops])
    restart = left.holding(host.end_ns[stops])
    for kind, name in NAMES.items():
        doing = Intervals.union(*(host.operators if kind == LAUNCH else _calls(host, kind)))
        if kind == LAUNCH:
            after = (left & doing & restart).length_ns
            of_waits = min(after, max(waits.length_ns - found[NAMES[SYNCHRONISATION]], 0))
            found[NAMES[SYNCHRONISATION]] += of_waits
            found[LAUNCHING] += after - of_waits
            left = left - (doing & restart)
        found[name] = found.get(name, 0) + (left & doing).length_ns
        left = left - doing
    rest = PYTHON if host.shows_python else UNRECORDED
    return found | {rest: left.length_ns}


def _longest(host: HostWork, idle: Intervals) -> dict[str, int]:
    found = {}
    for kind, name in NAMES.items():
        starts, ends = _calls(host, kind)
        if kind != LAUNCH and len(starts):
            one = np.argmax(ends - starts, keepdims=True)
            found[name] = (idle & Intervals(starts[one], ends[one])).length_ns
    return found


def _calls(host: HostWork, kind: int) -> tuple[Array, Array]:
    """Return starts and ends of calls of a kind; a launch that takes long loads its kernel."""
    chosen = host.kind == kind
    if kind == LOADING:
        chosen |= (host.kind == LAUNCH) & (host.end_ns - host.start_ns >= LOADS_FROM_NS)
    chosen &= host.launches  # what other threads do keeps no device waiting
    return host.start_ns[chosen], host.end_ns[chosen]
