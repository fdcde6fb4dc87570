"""A rolling recording in sums."""

from __future__ import annotations

import msgspec

from dsprof.diagnosis.parts.steps import StepMap


class HistorySpan(msgspec.Struct):
    """The steps that ended in one span of a rolling recording, over the ranks."""

    begin_s: int  # on the wall clock, since 1970
    ranks: int
    steps: int  # of the rank with most
    mean_ns: int
    fastest_ns: int
    slowest_ns: int
    slowest_step: int
    slowest_rank: int
    blocked_ns: int  # mean of a step: the host's time in collectives
    stalled_ns: int  # mean of a step: waits of a device's streams for communication
    bytes: int  # mean of a step and rank
    rss_bytes: int | None = None  # of the rank with most
    device_bytes: int | None = None


class KeptStep(msgspec.Struct):
    """A step whose details a rolling recording kept, or several that were captured together."""

    step: int
    why: str
    times: float | None  # its time over the usual time then; of several the longest
    ranks: int  # that kept it
    late_ranks: list[int] = []  # of a captured step: those that did not
    cause: str = ""  # of a captured step: what happened, and on which rank
    steps: int = 1


class History(msgspec.Struct):
    """The whole of a rolling recording in sums; empty for other recordings.

    Of selected steps: only how many there were and how many are kept, if some are not.
    Without steps: only how long the time lasts of which something is kept.
    """

    length_s: int = 0  # of a span
    spans: list[HistorySpan] = []
    steps: int = 0  # recorded, of the rank with most
    lost_steps: int = 0  # in between, not recorded, of the rank with most
    detailed_steps: int = 0  # of the rank that lacks most
    newest_from: int = 0  # the first step since which none is left out, on any rank
    newest_ns: int = 0  # without steps, where older records are overwritten
    kept: list[KeptStep] = []  # those that were not taken as samples, most telling first
    kept_left_out: int = 0  # more of them
    map: StepMap = msgspec.field(default_factory=StepMap)  # columns are spans of time


class TimeSpan(msgspec.Struct):
    """What ranks without steps recorded in one span of a rolling recording; means of a rank."""

    begin_s: int  # on the wall clock, since 1970
    ranks: int
    recorded_ns: int  # time of the span that was recorded
    waited_ns: int  # of this: host blocked in collectives or, where they wait instead, streams
    calls: int
    bytes: int
    rss_bytes: int | None = None  # of the rank with most


class TimeOp(msgspec.Struct):
    """An operation over all of these spans; sums over the ranks."""

    op: str
    calls: int
    bytes: int
    blocked_ns: int


class TimeSpans(msgspec.Struct):
    """Ranks without steps over the whole of a rolling recording in sums; empty for others."""

    length_s: int = 0  # of a span
    ranks: int = 0
    spans: list[TimeSpan] = []
    ops: list[TimeOp] = []  # that with most bytes first
