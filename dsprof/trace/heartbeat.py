"""When a process in which nothing happens writes that it is alive."""

from __future__ import annotations

FIRST_NS = 1_000_000_000
"""The first beat comes after so long a silence, each later one when that has grown by a quarter.

A day of silence takes fifty lines, and how long it lasted is known to a quarter.
"""


class Heartbeat:
    """Tells a rank that hangs from one that died: only the first goes on writing."""

    def __init__(self, now_ns: int) -> None:
        self.busy(now_ns)

    def busy(self, now_ns: int) -> None:
        """Something happened."""
        self._since_ns, self._due_ns = now_ns, FIRST_NS

    def is_due(self, now_ns: int) -> bool:
        """Say whether to write that the process is alive; true once for each beat."""
        silence_ns = now_ns - self._since_ns
        if silence_ns < self._due_ns:
            return False
        self._due_ns = silence_ns * 5 // 4
        return True
