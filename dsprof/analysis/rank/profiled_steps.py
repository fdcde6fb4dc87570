"""Steps completed by a profiler beside a trace: computation, copies and idle of the device."""

from __future__ import annotations

from dsprof.analysis.rank.intervals import Array, Intervals
from dsprof.analysis.rank.kernel_time import DeviceParts, DeviceTime
from dsprof.trace.device_activity import Profile
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Step

_MISSED_SHARE = 0.02
"""A step of dsprof and one of the profiler may differ by this share: they end a few calls apart."""


def tied_profile(trace: RankTrace) -> Profile | None:
    """Return the profile on whose clock, and of whose every kernel, the trace can be sure."""
    profile = trace.profile
    return profile if profile is not None and profile.is_tied and not profile.is_sampled else None


def covered_steps(trace: RankTrace) -> set[int]:
    """Return the steps that a profile on the trace's clock saw whole."""
    profile = tied_profile(trace)
    return {s.step for s in trace.steps if _is_covered(s, profile)} if profile else set()


def _is_covered(step: Step, profile: Profile) -> bool:
    missed = max(profile.start_ns - step.start_ns, 0) + max(step.end_ns - profile.end_ns, 0)
    return missed <= _MISSED_SHARE * (step.end_ns - step.start_ns)


def parts_around(waits: Intervals, profile: Profile, starts: Array, ends: Array) -> DeviceParts:
    """Split windows as `DeviceTime.parts` does, with `waits` as their exposed communication.

    Communication that neither waits show nor another kernel hides is in no part.
    """
    time = DeviceTime.of(profile.device)
    exposed = waits.within(starts, ends)
    working = waits | time.compute
    worked = working.within(starts, ends)
    moved = (working | time.copies).within(starts, ends)
    busy = (working | time.copies | time.communication).within(starts, ends)
    return DeviceParts(worked - exposed, exposed, moved - worked, ends - starts - busy)
