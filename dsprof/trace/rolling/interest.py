"""Which steps are worth their details for good: decided when a step is over, and a few later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from dsprof.trace.rolling.alarms import SLOW_TIMES
from dsprof.trace.rolling.capture import Captured
from dsprof.trace.schema import Kept

FIRST_STEPS = 12
"""Two of warm-up, and ten more."""

SAMPLES = 256
"""When there are so many, half of them lose their worth: first every step, then every second..."""

WORTH = ("sample", "slow", "alarm", "change", "capture", "first")
"""The order of eviction when there is no more room."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Unusual steps."""

    usual_steps: int = 64  # before a step, whose median is usual
    least_steps: int = 16  # of them, to compare at all
    slow_times: float = 1.2  # the usual time
    change_share: float = 0.15  # of the usual time, by which the pace changed for good
    change_steps: int = 16  # whose median is the new pace
    around_steps: int = 4  # kept before and after a change


class Interest:
    """Says of each step in turn whether it, or an earlier one, is kept."""

    def __init__(self) -> None:
        self._limits = limits = Thresholds()
        self._newest: deque[tuple[int, int]] = deque(maxlen=limits.usual_steps)  # step, its ns
        self._usual_ns = 0.0
        self._least_ns = self._most_ns = 0.0  # between them a step is usual
        self._watched_until = 0  # a change of pace may show until this step
        self._stride = 1
        self._samples = 0
        self._windows: deque[Captured] = deque(maxlen=64)

    @property
    def usual_ns(self) -> float:
        """The usual time of a step; 0 as long as there are too few."""
        return self._usual_ns

    def times(self, duration_ns: int) -> float:
        """Return a time as a multiple of the usual one; 0 as long as there is none."""
        return round(duration_ns / self._usual_ns, 2) if self._usual_ns else 0.0

    def capture(self, wanted: Captured) -> None:
        """Keep steps that ranks agreed on."""
        self._windows.append(wanted)

    def judge(self, step: int, duration_ns: int) -> Sequence[Kept]:
        """Take a step that is over; return what is kept on account of it."""
        self._newest.append((step, duration_ns))
        is_usual = self._least_ns < duration_ns < self._most_ns
        if not is_usual:
            self._watched_until = step + self._limits.change_steps
        is_plain = is_usual and step >= FIRST_STEPS and step % self._stride and not self._windows
        kept = () if is_plain else self._of(step, self.times(duration_ns))
        # A median of a few dozen costs as much as a line; usual steps change no pace.
        often = 8 if step <= self._watched_until else 32
        if step % often == 0 or not self._usual_ns:
            kept = [*kept, *self._follow_pace(step)]
            share = min(self._limits.change_share, self._limits.slow_times - 1)
            self._least_ns, self._most_ns = ((1 + way * share) * self._usual_ns for way in (-1, 1))
        return kept

    def worth(self, kept: Kept) -> tuple[float, ...]:
        """Return what decides who leaves first.

        A step so slow that it raises an alarm outlasts the usual steps around alarms and changes.
        """
        why = "change" if kept.why in ("slow", "alarm") and kept.times >= SLOW_TIMES else kept.why
        within = kept.times if kept.why != "sample" else float(kept.step & -kept.step or 1 << 62)
        return float(WORTH.index(why)), within

    def _of(self, step: int, times: float) -> Sequence[Kept]:
        """Return the step itself, if it is kept."""
        while self._windows and step >= self._windows[0].range.stop:
            self._windows.popleft()
        windows = [one for one in self._windows if step in one.range]
        if windows:
            worthiest = max(windows, key=lambda wanted: WORTH.index(wanted.why))
            return (worthiest.kept(step, times),)
        why = self._why(step, times)
        return (Kept(step, why, times),) if why else ()

    def _why(self, step: int, times: float) -> str:
        if step < FIRST_STEPS:
            return "first"
        if times >= self._limits.slow_times:
            return "slow"
        return "sample" if self._is_sample(step) else ""

    def _is_sample(self, step: int) -> bool:
        """Choose by number, as all ranks do, ever more seldom."""
        if step % self._stride:
            return False
        self._samples += 1
        if self._samples >= SAMPLES:
            self._samples //= 2
            self._stride *= 2
        return True

    def _follow_pace(self, step: int) -> Iterator[Kept]:
        """Renew the usual time; keep the steps around a change of it."""
        limits, newest = self._limits, self._newest
        if len(newest) < limits.least_steps:
            return
        times = [duration_ns for _, duration_ns in newest]
        now_ns = median(times[-limits.change_steps :])
        # Without older steps there is no pace from which it changed.
        is_known = self._usual_ns and len(times) > limits.change_steps
        if not is_known or abs(now_ns / self._usual_ns - 1) < limits.change_share:
            self._usual_ns = median(times)
            return
        at = step - limits.change_steps // 2  # the new pace has the median since then
        around = range(at - limits.around_steps, at + limits.around_steps)
        yield from (Kept(one, "change", self.times(ns)) for one, ns in newest if one in around)
        while newest[0][0] <= at:
            newest.popleft()
        self._usual_ns = median(duration_ns for _, duration_ns in newest)
