"""Notes while a trace is written where its steps are: a line says it every 16 MiB and at the end.

This runs in the training process; `dsprof.trace.selection.step_cutting` reads the line.
"""

from __future__ import annotations

from dsprof.trace.schema import StepIndex

_SPACING_BYTES = 1 << 20
_MOST_MARKS, _MOST_OTHERS = 1024, 256
WRITTEN_EVERY_BYTES = 1 << 24
"""What a killed process wrote after its last index has to be read by any reader."""


class IndexBuilder:
    """The index of one file; it stays shorter than its reader looks back for it."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._spacing_bytes = _SPACING_BYTES
        self._due_bytes = 0
        self._written_bytes = 0
        self._index = StepIndex()

    def mark(self, at_bytes: int, step: int, ended_ns: int) -> None:
        """Note of which step the last record before a place is, if the last mark is far.

        `ended_ns` is when the newest step ended.
        """
        if at_bytes < self._due_bytes:
            return
        index = self._index
        index.at_bytes.append(at_bytes)
        index.steps.append(step)
        index.ended_ns.append(ended_ns - self._start_ns)
        if len(index.steps) > _MOST_MARKS:
            index.at_bytes, index.steps = index.at_bytes[1::2], index.steps[1::2]
            index.ended_ns = index.ended_ns[1::2]
            self._spacing_bytes *= 2
        self._due_bytes = at_bytes + self._spacing_bytes

    def passed(self, steps: int) -> None:
        """Note that a device is so many steps behind."""
        self._index.late_steps = max(self._index.late_steps, steps)

    def keep(self, begin: int, end: int) -> None:
        """Note where lines are that readers of any step need."""
        others = self._index.others
        others.append((begin, end))
        if len(others) > _MOST_OTHERS:
            pairs = zip(others[::2], others[1::2], strict=False)
            self._index.others = [(one[0], other[1]) for one, other in pairs] + others[-1:]

    def is_due(self, at_bytes: int) -> bool:
        """Say whether the last index is far, in a file that ends here."""
        return at_bytes - self._written_bytes >= WRITTEN_EVERY_BYTES

    def built(self, at_bytes: int, step: int, ended_ns: int) -> StepIndex:
        """Return the index of a file that ends here."""
        self._due_bytes, self._written_bytes = 0, at_bytes
        self.mark(at_bytes, step, ended_ns)
        return self._index
