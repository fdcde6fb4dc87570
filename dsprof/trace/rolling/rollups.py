"""Sums over time: each step goes into a span of 10 s, these into 5 minutes, these into hours.

Until a step ends, spans have the sums of all that was recorded: many programs have no steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from msgspec import structs

from dsprof.trace.rolling.step_sums import add_sums
from dsprof.trace.schema import RollUp, StepTotals

SPANS_S = (10, 300, 3600)
FULL_FROM_S = 300
"""Shorter spans of steps lack phases, operations and bins: there are 260,000 in a month."""

_BIN = math.log(1.02)


def bin_of(duration_ns: int) -> int:
    """Return the bin of a time, 2 % wide."""
    return int(math.log(max(duration_ns, 1)) / _BIN)


class RollUps:
    """Spans that are not over yet, the shortest first."""

    def __init__(self) -> None:
        self._open: list[RollUp | None] = [None] * len(SPANS_S)
        self._is_in_full = False  # whether the shortest span is returned in full when it ends

    def add(self, step: StepTotals, ended_s: int) -> list[RollUp]:
        """Take a step that ended at a time of the wall clock; return the spans that are over."""
        if (span := self._open[0]) is not None and not span.steps:
            self._open = [None] * len(SPANS_S)  # sums of a step would be added to all before it
        span, over = self._current(ended_s, step.step)
        add_step(span, step)
        return over

    def add_time(
        self, sums: StepTotals, recorded_ns: int, until_ns: int, until_s: int
    ) -> list[RollUp]:
        """Take what was recorded without steps until a time; return the spans that are over."""
        span, over = self._current(until_s, first_step=0)
        span.total_ns += recorded_ns
        span.until_ns = until_ns
        _add_sums(span, sums)
        return over

    def _current(self, now_s: int, first_step: int) -> tuple[RollUp, list[RollUp]]:
        """Return the shortest span of a time, and the spans that are over."""
        span, over = self._open[0], []
        if span is None or now_s >= span.begin_s + SPANS_S[0]:
            over = [*self._close(now_s)]
            at = now_s // SPANS_S[0] * SPANS_S[0]
            span = self._open[0] = RollUp(at, SPANS_S[0], first_step)
        return span, over

    def add_late(self, sums: StepTotals) -> None:
        """Move sums of steps that were taken before into the span that is not over yet."""
        if (span := self._open[0]) is not None:
            _add_sums(span, sums)
            sums.phase_ns, sums.stalled_ns, sums.ops = {}, 0, {}

    def open(self) -> Iterator[RollUp]:
        """Return the spans that are not over, in full. The shortest one also ends in full."""
        self._is_in_full = True
        return filter(None, self._open)

    def end(self) -> Iterator[RollUp]:
        """Yield all spans, over or not."""
        yield from self._close(1 << 62)

    def _close(self, now_s: int) -> Iterator[RollUp]:
        """Yield the spans that are over, each after it went into the longer one."""
        for level, length_s in enumerate(SPANS_S):
            span = self._open[level]
            if span is None:
                continue
            if now_s < span.begin_s + length_s:
                return
            self._open[level] = None
            if level + 1 < len(SPANS_S):
                self._add_span(level + 1, span)
            is_full = length_s >= FULL_FROM_S or self._is_in_full or not span.steps
            yield span if is_full else short(span)
            self._is_in_full = False

    def _add_span(self, level: int, span: RollUp) -> None:
        length_s, longer = SPANS_S[level], self._open[level]
        if longer is None:
            begin_s = span.begin_s // length_s * length_s
            longer = self._open[level] = RollUp(begin_s, length_s, span.first_step)
        merge(longer, span)


def short(span: RollUp) -> RollUp:
    """Return a span without what only longer ones have."""
    return structs.replace(span, phase_ns={}, ops={}, bins={})


def add_step(span: RollUp, step: StepTotals) -> None:
    """Add one step."""
    duration_ns = step.end_ns - step.start_ns
    if not duration_ns >= span.fastest_ns > 0:
        span.fastest_ns = duration_ns
    if duration_ns > span.slowest_ns:
        span.slowest_ns, span.slowest_step = duration_ns, step.step
    span.lost += max(step.step - span.end, 0)
    span.steps += 1
    span.total_ns += duration_ns
    _add_sums(span, step)
    number = bin_of(duration_ns)
    span.bins[number] = span.bins.get(number, 0) + 1


def _add_sums(span: RollUp, step: StepTotals) -> None:
    """Add what may become known after the step."""
    for op in step.ops.values():
        span.blocked_ns += op.blocked_ns
        span.calls += op.calls
        span.nbytes += op.nbytes
    _add_parts(span, step)


def merge(span: RollUp, other: RollUp) -> None:
    """Add the steps of another span."""
    span.fastest_ns = min(span.fastest_ns or other.fastest_ns, other.fastest_ns)
    if other.slowest_ns > span.slowest_ns:
        span.slowest_ns, span.slowest_step = other.slowest_ns, other.slowest_step
    span.lost += other.lost + max(other.first_step - span.end, 0)
    span.steps += other.steps
    span.total_ns += other.total_ns
    span.until_ns = max(span.until_ns, other.until_ns)
    span.blocked_ns += other.blocked_ns
    span.calls += other.calls
    span.nbytes += other.nbytes
    _add_parts(span, other)
    for number, count in other.bins.items():
        span.bins[number] = span.bins.get(number, 0) + count


def _add_parts(span: RollUp, other: RollUp | StepTotals) -> None:
    """Add what a span and a step both have."""
    if other.rss_bytes > span.rss_bytes:
        span.rss_bytes = other.rss_bytes
    if other.device_bytes > span.device_bytes:
        span.device_bytes = other.device_bytes
    add_sums(span, other)


def complete(
    spans: Mapping[tuple[int, int], RollUp], totals: Mapping[int, StepTotals], started_ns: int
) -> dict[tuple[int, int], RollUp]:
    """Return all spans, those included that were not over when a process was killed.

    `spans` holds each span as it was written last. `totals` holds sums of single steps, with all
    steps since then; `started_ns` is the start of the trace on the wall clock.
    """
    shortest = SPANS_S[0]
    found = dict(spans)
    last = end_of(spans.values(), shortest)
    for number in sorted(number for number in totals if number >= last):
        step = totals[number]
        at_s = (started_ns + step.end_ns) // 1_000_000_000 // shortest * shortest
        add_step(found.setdefault((shortest, at_s), RollUp(at_s, shortest, number)), step)
    for of_s, length_s in pairwise(SPANS_S):
        for (known_s, at_s), span in sorted(found.items()):
            whole = (length_s, at_s // length_s * length_s)
            if known_s == of_s:
                longer = found.setdefault(whole, RollUp(whole[1], length_s, span.first_step))
                if not span.steps and span.until_ns > longer.until_ns:
                    merge(longer, span)
                elif span.steps and span.first_step >= longer.end:
                    merge(longer, _in_full(span, totals))
    return found


def end_of(spans: Iterable[RollUp], length_s: int) -> int:
    """Return the first step after all spans of a length."""
    return max((one.end for one in spans if one.length_s == length_s), default=0)


def _in_full(span: RollUp, totals: Mapping[int, StepTotals]) -> RollUp:
    """Return a span with what short ones lack, if the sums of all its steps are known."""
    if max(span.steps, span.lost) > len(totals):
        return span
    steps = [totals[step] for step in range(span.first_step, span.end) if step in totals]
    if len(steps) < span.steps:
        return span
    full = RollUp(span.begin_s, span.length_s, span.first_step)
    for one in steps:
        add_step(full, one)
    return full
