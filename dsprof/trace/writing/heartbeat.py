"""When a process in which nothing happens writes that it is alive."""

from __future__ import annotations

FIRST_NS = 1_000_000_000
"""The first heartbeat comes after so long a silence; none follows another sooner."""

LONGEST_NS = 5_000_000_000
"""Intervals grow with the silence, a quarter of it each, up to this: a day takes 2 MB."""


class Silence:
    """How long nothing was recorded: a rank that hangs goes on writing, one that died does not."""

    def __init__(self, now_ns: int) -> None:
        self.broken(now_ns)

    def broken(self, now_ns: int) -> None:
        """Something happened."""
        self._since_ns, self._due_ns = now_ns, now_ns + FIRST_NS

    def is_due(self, now_ns: int) -> bool:
        """Say whether to write that the process is alive; true once for each heartbeat."""
        if now_ns < self._due_ns:
            return False
        grown_ns = (now_ns - self._since_ns) // 4
        self._due_ns = now_ns + min(max(grown_ns, FIRST_NS), LONGEST_NS)
        return True
