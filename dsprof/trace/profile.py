"""A profiler's trace beside dsprof's own of the same rank: one has the device, one the meaning."""

from __future__ import annotations

from dataclasses import replace

from dsprof.trace.device import Profile
from dsprof.trace.schema import Header, Note
from dsprof.trace.table import RankTrace, operations

_FIRST_EPOCH_NS = 10**18
"""September 2001: a smaller start is no time of a wall clock."""
_CLOCK_ERROR_NS = 10**9
"""Two readings of one host's wall clock that a correction came between."""

_TIED = (
    "device times come from a profiler's trace, aligned with dsprof's timeline by the host's wall "
    "clock"
)
_UNTIED = (
    "device times come from a profiler's trace; its clock cannot be aligned with dsprof's, so "
    "steps are not split by them"
)
_APART = "a profiler's trace was recorded at another time than dsprof's of its rank: not used"
_EMPTY = "a profiler's trace has no kernels: dsprof's own trace of the rank is used"


def attach(trace: RankTrace, other: RankTrace) -> None:
    """Put the device that `other` saw beside `trace`, and say in a note on which clock."""
    profile, text = _profile(trace, other)
    if trace.profile is None:
        trace.profile = profile
        trace.notes.append(Note(text))


def knows_wall_clock(header: Header) -> bool:
    """Say whether the start of a file is a time of day."""
    return header.started_epoch_ns >= _FIRST_EPOCH_NS


def _profile(trace: RankTrace, other: RankTrace) -> tuple[Profile | None, str]:
    device = other.device
    if device is None or not len(device):
        return None, _EMPTY
    start_ns = min([int(device.start_ns.min()), *(step.start_ns for step in other.steps[:1])])
    end_ns = max([int(device.end_ns.max()), *(step.end_ns for step in other.steps[-1:])])
    counts = operations(other.collectives)
    profile = Profile(device, start_ns, end_ns, counts, False, other.is_sampled)
    if not (knows_wall_clock(trace.header) and knows_wall_clock(other.header)):
        return profile, _UNTIED
    shift_ns = other.header.started_epoch_ns - trace.header.started_epoch_ns
    begin, end = start_ns + shift_ns, end_ns + shift_ns
    if end < -_CLOCK_ERROR_NS or begin > _last_ns(trace) + _CLOCK_ERROR_NS:
        return None, _APART
    moved = device.moved(shift_ns)
    return replace(profile, device=moved, start_ns=begin, end_ns=end, is_tied=True), _TIED


def _last_ns(trace: RankTrace) -> int:
    """Return the last moment of a trace."""
    rows = trace.collectives
    columns = (rows.issue_ns, rows.return_ns, rows.done_ns, rows.waited_ns)
    ends = [step.end_ns for step in trace.steps] + [step.end_ns for step in trace.device_steps]
    return max([int(column.max(initial=0)) for column in columns] + ends)
