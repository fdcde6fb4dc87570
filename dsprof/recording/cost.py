"""What hooks take of the training threads, estimated from a sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

SAMPLE = 31
"""Every so many collectives the hook times itself. A prime: else often the same one of a step."""

FIRST_SAMPLE = 7
"""The collective that is timed first: those before it find all of the hook cold."""


class Cost:
    """Says which collectives are timed, and adds up what they took.

    Any thread that communicates adds to it without a lock: a sample that is lost to another thread
    changes an estimate by little. The session reads it when a trace ends.
    """

    def __init__(self, ids: Iterator[int]) -> None:
        # Of each collective, whether its hook times itself.
        self.are_timed = itertools.cycle([n == FIRST_SAMPLE for n in range(1, SAMPLE + 1)])
        self.samples = self.sampled_ns = 0
        self._ids = ids
        self._first_id = 1  # of this trace

    def begin_again(self) -> None:
        """Count anew, for a new trace."""
        self.samples = self.sampled_ns = 0
        self._first_id = next(self._ids)

    def total_ns(self) -> int:
        """Estimate what hooks have taken in this trace.

        A collective's record is timed occasionally; whatever else hooks number costs about as
        much. Phases and waits are left out: in `benchmarks/overhead_hooks.py` it is 50 to 90 % of
        what all hooks take.
        """
        numbered = next(self._ids) - self._first_id
        return self.sampled_ns * numbered // self.samples if self.samples else 0
