"""Where the time went: steps, devices, and the numbers behind a timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import NamedTuple

from dsprof.diagnosis.parts.history import (
    History,
    HistorySpan,
    KeptStep,
    TimeOp,
    TimeSpan,
    TimeSpans,
)
from dsprof.diagnosis.parts.steps import AnnotationRow, DeviceRow
from dsprof.diagnosis.parts.timelines import Timeline
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.reports.content import PARTS, StepBar
from dsprof.reports.tables.communication import per_step
from dsprof.reports.tables.listing import MAX_ROWS, Shown, listing, told


def _part(place: int, label: str) -> Shown[StepBar]:
    return Shown(label.capitalize(), lambda bar: bar.parts[place].ns, "ns")


_STEP: tuple[Shown[StepBar], ...] = (
    Shown("Step", lambda bar: bar.label),
    Shown("Began (UTC)", lambda bar: bar.began_s and moment(bar.began_s)),
    Shown("Total", lambda bar: bar.total_ns, "ns"),
    *(_part(place, label) for place, label in enumerate(PARTS.values())),
    Shown("Fastest rank takes", lambda bar: bar.fastest_ns, "ns"),
    Shown("Slowest rank takes", lambda bar: bar.slowest_ns, "ns"),
    Shown("Slowest rank", lambda bar: bar.slowest_rank, "count"),
)


def steps(bars: Sequence[StepBar]) -> Table:
    """Steps and their parts, as far as any could be measured: mean over the ranks."""
    return listing("Steps, mean over the ranks", told(_STEP, bars), bars)


def moment(epoch_s: int) -> str:
    """Return a time of day, UTC; a number that no calendar has as it is."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(epoch_s, tz=timezone.utc).strftime("%m-%d %H:%M:%S")
    return str(epoch_s)


_HISTORY: tuple[Shown[HistorySpan], ...] = (
    Shown("From (UTC)", lambda span: moment(span.begin_s)),
    Shown("Ranks", lambda span: span.ranks, "count"),
    Shown("Steps", lambda span: span.steps, "count"),
    Shown("Mean step", lambda span: span.mean_ns, "ns"),
    Shown("Fastest", lambda span: span.fastest_ns, "ns"),
    Shown("Slowest", lambda span: span.slowest_ns, "ns"),
    Shown("Slowest step", lambda span: span.slowest_step, "count"),
    Shown("Blocked", lambda span: span.blocked_ns, "ns"),
    Shown("Bytes", lambda span: span.bytes, "bytes"),
    Shown("Peak memory", lambda span: span.rss_bytes, "bytes"),
    Shown("Peak device memory", lambda span: span.device_bytes, "bytes"),
)


def history(found: History) -> Table:
    """Spans of a recording without end, the slowest first."""
    slowest = sorted(found.spans, key=lambda span: -span.mean_ns)
    return listing("Spans, the slowest first; per rank and step", _HISTORY, slowest)


_KEPT: tuple[Shown[KeptStep], ...] = (
    Shown("First step", lambda one: one.step, "count"),
    Shown("Steps", lambda one: one.steps, "count"),
    Shown("Reason", lambda one: one.cause or one.why),
    Shown("Time / usual time", lambda one: one.times and fmt.count(one.times)),
    Shown("Ranks", lambda one: one.ranks, "count"),
    Shown("Ranks too late", lambda one: fmt.ranks(one.late_ranks) if one.late_ranks else None),
)


def kept_steps(found: History) -> Table:
    """Steps whose details were kept because they tell something."""
    left = f" ({fmt.plural(found.kept_left_out, 'more row')} left out)" * bool(found.kept_left_out)
    caption = f"Unusual steps, kept in detail: captured ones first, then the slowest{left}"
    return listing(caption, _KEPT, found.kept)


_TIME_SPAN: tuple[Shown[TimeSpan], ...] = (
    Shown("From (UTC)", lambda span: moment(span.begin_s)),
    Shown("Ranks", lambda span: span.ranks, "count"),
    Shown("Recorded", lambda span: span.recorded_ns, "ns"),
    Shown("Calls", lambda span: span.calls, "count"),
    Shown("Bytes", lambda span: span.bytes, "bytes"),
    Shown("Blocked", lambda span: span.waited_ns, "ns"),
    Shown("Peak memory", lambda span: span.rss_bytes, "bytes"),
)


def time_spans(found: TimeSpans) -> Table:
    """Spans of ranks without steps, in order of time; of very many those with most bytes."""
    most = sorted(found.spans, key=lambda span: -span.bytes)[:MAX_ROWS]
    spans = sorted(most, key=lambda span: span.begin_s)
    left = len(found.spans) - len(spans)
    which = f"Spans with most bytes ({fmt.plural(left, 'other')} left out)" if left else "Spans"
    return listing(f"{which}; mean of a rank", _TIME_SPAN, spans)


_TIME_OP: tuple[Shown[TimeOp], ...] = (
    Shown("Operation", lambda row: row.op),
    Shown("Calls", lambda row: row.calls, "count"),
    Shown("Bytes", lambda row: row.bytes, "bytes"),
    Shown("Blocked", lambda row: row.blocked_ns, "ns"),
)
time_ops = partial(listing, "Operations, sums over these ranks", _TIME_OP)
"""Operations of ranks without steps."""


_ANNOTATION: tuple[Shown[AnnotationRow], ...] = (
    Shown("Name", lambda row: row.name),
    Shown("Spans", lambda row: row.calls_per_step, "count"),
    Shown("Time", lambda row: per_step(row, row.duration_ns), "ns"),
    Shown("Exposed", lambda row: per_step(row, row.exposed_ns), "ns"),
    Shown("Longest on rank", lambda row: next(iter(row.rank_ns), None)),
    Shown("Time there", lambda row: next(iter(row.rank_ns.values()), None), "ns"),
)
annotated = partial(listing, "Annotated spans per rank and step, on average", _ANNOTATION)


_DEVICE: tuple[Shown[DeviceRow], ...] = (
    Shown("Rank", lambda row: row.rank, "count"),
    Shown("Span", lambda row: row.span_ns, "ns"),
    Shown("Compute", lambda row: row.compute_ns, "ns"),
    Shown("Communication", lambda row: row.communication_ns, "ns"),
    Shown("Exposed", lambda row: row.exposed_comm_ns, "ns"),
    Shown("Copies", lambda row: row.copies_ns, "ns"),
    Shown("Idle", lambda row: row.idle_ns, "ns"),
    Shown("Overlap", lambda row: row.overlap, "share"),
    Shown("By nccl/rccl in the name", lambda row: row.named_comm_ns, "ns"),
    Shown("Exposed of these", lambda row: row.named_exposed_ns, "ns"),
    Shown("Kernels", lambda row: row.kernels, "count"),
    Shown("For communication", lambda row: row.communication_kernels, "count"),
)
devices = partial(listing, "Compute + exposed + copies + idle = span", _DEVICE)
"""Time of the accelerator of each rank, over all that the profiler saw."""


class _Lane(NamedTuple):
    """Like bars in one lane of a timeline."""

    rank: int
    lane: str
    kind: str
    lengths_ns: list[int]


_LANE: tuple[Shown[_Lane], ...] = (
    Shown("Rank", lambda lane: lane.rank, "count"),
    Shown("Lane", lambda lane: lane.lane.removeprefix("group ")),
    Shown("Kind", lambda lane: lane.kind),
    Shown("Bars", lambda lane: len(lane.lengths_ns), "count"),
    Shown("Sum", lambda lane: sum(lane.lengths_ns), "ns"),
    Shown("Longest", lambda lane: max(lane.lengths_ns), "ns"),
)


def timeline(step: Timeline) -> Table:
    """The numbers behind a timeline: time by rank, lane and kind."""
    lengths_ns: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for bar in step.bars:
        lengths_ns[bar.rank, bar.lane, bar.kind].append(bar.end_ns - bar.start_ns)
    lanes = [_Lane(*key, spans) for key, spans in sorted(lengths_ns.items())]
    return listing(f"Step {step.step} by rank, lane and kind", _LANE, lanes)
