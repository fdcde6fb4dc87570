"""The epochs of a run: what its workers did from one start of the process group to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from dsprof.analysis.rank.ending import last_ns
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S

_BEGIN = attrgetter("begin_s")
_SECOND_NS = 1_000_000_000

End = Literal[
    "exited", "crashed", "stuck", "killed", "interrupted", "nodes joined", "new process group",
    "running",
]  # fmt: skip

FAILED: tuple[End, ...] = ("crashed", "stuck", "killed")
"""How an epoch ends that failed, or whose ranks an agent stopped."""


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """When an epoch was, and which steps it had; times are of the wall clock."""

    start_ns: int
    end_ns: int  # last record of any rank
    steps: tuple[int, int] | None = None  # first, and the last that any rank ended
    steps_ns: tuple[int, int] | None = None  # start of the first and end of the last
    ahead: int | None = None  # training's own step number minus the trace's; None: unknown
    ran: tuple[str, int, int] | None = None  # boot of one host, begin and end by its own clock

    def __add__(self, other: EpochSpan) -> EpochSpan:
        known = [one.ahead for one in (self, other) if one.ahead is not None]
        return EpochSpan(
            min(self.start_ns, other.start_ns),
            max(self.end_ns, other.end_ns),
            _span(self.steps, other.steps),
            _span(self.steps_ns, other.steps_ns),
            max(known, default=None),
            _on_one_host(self.ran, other.ran),
        )

    @property
    def trained(self) -> tuple[int, int] | None:
        """First and last step as training counts them over restarts; None: unknown."""
        if self.steps is None or self.ahead is None:
            return None
        return self.steps[0] + self.ahead, self.steps[1] + self.ahead

    def overlaps(self, other: EpochSpan) -> bool:
        """Say whether a host ran both at once, for half of the shorter one or longer."""
        if self.ran is None or other.ran is None or self.ran[0] != other.ran[0]:
            return False
        (_, begin, end), (_, start, stop) = self.ran, other.ran
        return 2 * (min(end, stop) - max(begin, start)) > min(end - begin, stop - start)

    @property
    def count(self) -> int:
        """How many steps it took."""
        return self.steps[1] - self.steps[0] + 1 if self.steps else 0

    @property
    def step_ns(self) -> float:
        """Mean time of a step."""
        return (self.steps_ns[1] - self.steps_ns[0]) / self.count if self.steps_ns else 0.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch, and the time between it and those before it."""

    number: int
    world_size: int
    hosts: tuple[str, ...]
    restarts: int  # starts of the workers before it, as the launcher counts; -1: unknown
    agents: Mapping[str, int]  # of torchrun: the same, as each counts
    span: EpochSpan
    end: End
    has_failed: bool  # by itself: no agent ended it
    ranks: tuple[int, ...] = ()  # to inspect, by how it ended
    where: frozenset[str] = frozenset()  # hosts of these
    why: str = ""
    gap_ns: int | None = None  # from the last step before it to its first; None: unknown or no step
    unrecorded: int = 0  # starts right before it that ended before the first collective
    repeated: int | None = None  # steps that an earlier epoch had already taken; None: unknown

    @property
    def begins_anew(self) -> bool:
        """Whether its first step is the first of a training."""
        return self.span.trained is not None and not self.span.trained[0]

    @property
    def repeated_ns(self) -> int:
        """Time of the steps that it repeated."""
        return round((self.repeated or 0) * self.span.step_ns)


@dataclass(frozen=True, slots=True)
class Epochs(Aggregate):
    """The epoch that is analysed, and where the run has several, all of them by their start.

    No trace knows of other epochs: `with_part` puts them in. Of very many the first are not read.
    """

    span: EpochSpan
    each: tuple[Epoch, ...] = ()
    unread: int = 0

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Epochs:
        header, steps, length_ns = trace.header, trace.steps, last_ns(trace)
        start_ns, begin_ns = header.started_epoch_ns, header.started_monotonic_ns
        end_ns = start_ns + length_ns
        ran = (header.boot_id, begin_ns, begin_ns + length_ns) if header.boot_id else None
        known = (step.taken_before - step.step for step in steps if step.taken_before >= 0)
        found = EpochSpan(start_ns, end_ns, ahead=next(known, None), ran=ran)
        if steps:
            moments = start_ns + steps[0].start_ns, start_ns + steps[-1].end_ns
            numbers = steps[0].step, steps[-1].step
            found = replace(found, steps=numbers, steps_ns=moments)
        return cls(found + _summed_up(trace))

    @property
    def restarts(self) -> int:
        """How often the job was started again."""
        return len(self.each) - 1 + self.unread + sum(one.unrecorded for one in self.each)

    @property
    def whole_ns(self) -> int:
        """Time from the first start to the last sign of life.

        Epochs are shorter than that, unless the clock was set back between them.
        """
        whole_ns = max(one.span.end_ns for one in self.each) - self.each[0].span.start_ns
        return max(whole_ns, sum(one.span.end_ns - one.span.start_ns for one in self.each))

    @property
    def gap_ns(self) -> int:
        """Time between the last step of an epoch and the first one after it, or the end."""
        ends = [one.span.steps_ns[1] for one in self.each if one.span.steps_ns]
        is_open = bool(ends) and self.each[-1].span.steps_ns is None
        left_ns = self.each[0].span.start_ns + self.whole_ns - max(ends) if is_open else 0
        return sum(one.gap_ns or 0 for one in self.each) + left_ns

    @property
    def repeated_ns(self) -> int:
        """Time of repeated steps."""
        return sum(one.repeated_ns for one in self.each)

    @property
    def lost_share(self) -> float:
        """Share of the whole time without a new step, as far as known."""
        return min((self.gap_ns + self.repeated_ns) / max(self.whole_ns, 1), 1.0)


def _summed_up(trace: RankTrace) -> EpochSpan:
    """Return the steps that are in sums over time: details of earlier starts may have made room.

    The end of the last one is known to 10 s.
    """
    start_ns = trace.header.started_epoch_ns
    spans = [one for one in trace.rollups.values() if one.length_s == SPANS_S[0] and one.steps]
    if not spans:
        until_ns = max((one.until_ns for one in trace.rollups.values()), default=0)
        return EpochSpan(start_ns, start_ns + until_ns)
    known = {one.step for one in trace.steps}
    ends: list[tuple[int, int]] = []  # number and time
    # The oldest short spans may have been dropped; the first step is in longer ones, too.
    first = min(trace.rollups.values(), key=lambda one: (one.first_step, -one.begin_s))
    last = max(spans, key=_BEGIN)
    if first.first_step not in known:
        ends.append((first.first_step, max(first.begin_s * _SECOND_NS, start_ns)))
    if (newest := last.end - 1) not in known:
        ended_ns = max(last.begin_s * _SECOND_NS, start_ns) + last.total_ns
        ends.append((newest, min(ended_ns, (last.begin_s + last.length_s) * _SECOND_NS)))
    if not ends:
        return EpochSpan(start_ns, start_ns)
    numbers, times_ns = zip(*ends, strict=True)
    span_ns = min(times_ns), max(times_ns)
    return EpochSpan(start_ns, span_ns[1], (min(numbers), max(numbers)), span_ns)


def _on_one_host(
    one: tuple[str, int, int] | None, other: tuple[str, int, int] | None
) -> tuple[str, int, int] | None:
    if one is None or other is None:
        return one or other
    if one[0] != other[0]:
        return min(one, other)
    return one[0], min(one[1], other[1]), max(one[2], other[2])


def _span(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
