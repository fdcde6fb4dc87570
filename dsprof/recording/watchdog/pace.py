"""When silence is too long: by the run's own pace. No thread, no clock: the caller has both."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

SECOND_NS = 1_000_000_000
LEAST_NS = 60 * SECOND_NS
FIRST_STEP_NS = 300 * SECOND_NS
"""Until two steps have ended: compilation, loading and the first contact take minutes."""

STEPS, SILENCES = 20, 3
"""Silence of so many usual steps, and of so many times the longest one so far, is too long."""

_REMEMBERED = 50
_JUMP = 3


class Pace:
    """Follows what `tick` gets, and knows since when nothing went on.

    A tick that comes far too late means that this process itself was stopped, with the clock going
    on: what was silent meanwhile is excused.
    """

    def __init__(self, now_ns: int, tick_ns: int, after_ns: int | None = None) -> None:
        self._after_ns, self._tick_ns = after_ns, tick_ns
        self._last_ns = self.since_ns = now_ns
        self._mark: Hashable = None
        self._step, self._step_ns = -1, now_ns
        self._steps_ns: deque[int] = deque(maxlen=_REMEMBERED)
        self._silences_ns: deque[int] = deque(maxlen=_REMEMBERED)

    def tick(self, now_ns: int, mark: Hashable, step: int) -> None:
        """Take note: `mark` differs from the last one where anything went on meanwhile."""
        if now_ns - self._last_ns > max(_JUMP * self._tick_ns, 2 * SECOND_NS):
            self.since_ns = self._step_ns = now_ns
        elif mark != self._mark:
            self._silences_ns.append(now_ns - self.since_ns)
            self.since_ns = now_ns
        self._mark, self._last_ns = mark, now_ns
        if step != self._step:
            if self._step >= 0 and step > self._step:
                self._steps_ns.append((now_ns - self._step_ns) // (step - self._step))
            self._step, self._step_ns = step, now_ns

    def forgive(self, now_ns: int) -> None:
        """Expect the next tick a tick from now: the watchdog itself was busy."""
        self._last_ns = now_ns

    @property
    def threshold_ns(self) -> int:
        """How long nothing may go on."""
        if self._after_ns is not None:
            return self._after_ns
        if not self._steps_ns:
            return FIRST_STEP_NS
        usual_ns = STEPS * sorted(self._steps_ns)[len(self._steps_ns) // 2]
        return max(LEAST_NS, usual_ns, SILENCES * max(self._silences_ns, default=0))

    def quiet_ns(self, now_ns: int) -> int:
        """Return for how long nothing has gone on."""
        return now_ns - self.since_ns
