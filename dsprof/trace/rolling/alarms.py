"""Events of one rank for which all ranks keep details: a slow step, a slower pace, memory."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from dsprof.findings.wording import count
from dsprof.trace.schema import StepTotals

SLOW_TIMES = 3.0
"""The usual time of a step."""

BEHIND_TIMES = 1.3
"""The best time that this rank took outside communication."""

BEHIND_STEPS = 16
"""Steps of which the median counts."""

GROWN_TIMES = 1.1
"""The most memory that was in use before."""

SETTLED_STEPS = 64
"""Memory grows in the first steps of every run."""


class Alarm(NamedTuple):
    """What other ranks learn of a step."""

    step: int
    kind: str  # `slow`, `behind` or `memory`
    cause: str

    @property
    def is_over(self) -> bool:
        """Whether the step itself shows it, not those that follow."""
        return self.kind == "slow"


class Alarms:
    """Takes each step in turn. The first alarm of each kind waits for the thread that tells."""

    def __init__(self) -> None:
        self._waiting: dict[str, Alarm] = {}
        self._own_ns: list[int] = []
        self._best_ns = 0.0
        self._most_bytes: dict[str, int] = {}

    def add(self, alarm: Alarm) -> None:
        """Have an alarm wait, unless one of its kind does."""
        self._waiting.setdefault(alarm.kind, alarm)

    def take(self) -> list[Alarm]:
        """Return the alarms since the last call, in any thread."""
        return [self._waiting.pop(kind) for kind in [*self._waiting]]

    def judge(self, step: StepTotals, usual_ns: float) -> None:
        """Take a step that is over; `usual_ns` is the usual time, 0 if unknown."""
        duration_ns = step.end_ns - step.start_ns
        if usual_ns and duration_ns >= SLOW_TIMES * usual_ns:
            cause = f"took {count(duration_ns / usual_ns)} times the usual time"
            self.add(Alarm(step.step, "slow", cause))
        self._judge_pace(step, duration_ns)
        if step.step >= SETTLED_STEPS:
            self._judge_memory(step, "host memory", step.rss_bytes)
            self._judge_memory(step, "device memory", step.device_bytes)

    def _judge_pace(self, step: StepTotals, duration_ns: int) -> None:
        """Compare what this rank takes outside communication: others wait for it then."""
        blocked_ns = 0
        for op in step.ops.values():
            blocked_ns += op.blocked_ns
        self._own_ns.append(max(duration_ns - max(blocked_ns, step.stalled_ns), 0))
        if len(self._own_ns) < BEHIND_STEPS:
            return
        now_ns, best_ns = median(self._own_ns), self._best_ns
        self._own_ns.clear()
        is_behind = best_ns and now_ns >= BEHIND_TIMES * best_ns
        if is_behind:
            cause = f"own time rose to {count(now_ns / best_ns)} times its minimum"
            self.add(Alarm(step.step, "behind", cause))
        self._best_ns = now_ns if is_behind else min(best_ns or now_ns, now_ns)

    def _judge_memory(self, step: StepTotals, name: str, nbytes: int) -> None:
        most_bytes = self._most_bytes.setdefault(name, nbytes)
        if nbytes < most_bytes * GROWN_TIMES:
            return
        self._most_bytes[name] = nbytes
        if most_bytes > 0:
            cause = f"{name} grew to {count(nbytes / most_bytes)} times what it was"
            self.add(Alarm(step.step, "memory", cause))
