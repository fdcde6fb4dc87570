"""How the facts of several files about one rank are joined.

A profiler's trace beside dsprof's own has the device: it is moved onto the same clock.
"""

from __future__ import annotations

from dataclasses import replace

from dsprof.trace.device_activity import Profile
from dsprof.trace.rank_log import joined as joined_logs
from dsprof.trace.rank_trace import RankTrace, operations
from dsprof.trace.run_choice import knows_wall_clock
from dsprof.trace.schema import Note

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


def join(trace: RankTrace, other: RankTrace) -> None:
    """Add to `trace` what another file has of the same rank; nothing in it is replaced."""
    if other.device is not None or other.steps or len(other.collectives):
        attach(trace, other)
    for part in ("environment", "flight", "snapshot"):
        if getattr(trace, part) is None:
            setattr(trace, part, getattr(other, part))
    trace.plugin = trace.plugin or other.plugin
    trace.log = joined_logs(trace.log, other.log)
    trace.notes += other.notes
    trace.broken_lines += other.broken_lines
    trace.nbytes += other.nbytes
    trace.beside += [other.path, *other.beside]
    trace.header.versions = other.header.versions | trace.header.versions
    trace.engines = trace.engines or other.engines


def attach(trace: RankTrace, other: RankTrace) -> None:
    """Put the device that `other` saw beside `trace`, and say in a note on which clock."""
    profile, text = _profile(trace, other)
    if trace.profile is None:
        trace.profile = profile
        trace.notes.append(Note(text))


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
