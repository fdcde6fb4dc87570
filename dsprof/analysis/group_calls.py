"""What one rank called in one process group, of its trace or of its flight recorder."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.trace.dumps.flight_dump import FlightEntry


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank called it; elements are over all its tensors.

    Every rank must give as much to an `is_even` one. Only traces tell what follows `is_of_zero3`;
    `until_ns` is the end, or the last moment at which the call is known to have been in flight.
    """

    op: str
    elements: tuple[int, int]  # of input and output
    dtype: str
    created_ns: int
    is_in_flight: bool
    frame: str
    is_even: bool = False
    is_of_zero3: bool = False
    step: int = -1
    nbytes: int | None = None
    until_ns: int = 0
    has_failed: bool = False  # its wait ended in an exception
    reduce_op: str = ""
    peer: int = -1  # root or other side, as a global rank
    is_completed: bool = False  # of dumps: its end was seen
    is_started: bool = False  # of dumps: the device was seen in it

    @property
    def in_flight_ns(self) -> int:
        """How long the call is known to have been in flight."""
        return max(self.until_ns - self.created_ns, 0)


@dataclass(frozen=True, slots=True)
class RankFlight:
    """The collectives of one group on one rank, by their number in the group.

    `enqueued` and `completed` are the numbers of the last ones, -1 where nothing tells them.
    """

    enqueued: int
    completed: int
    calls: dict[int, Call]
    p2p_in_flight: tuple[FlightEntry, ...]

    @property
    def in_flight(self) -> list[int]:
        """Numbers of the collectives that have not ended."""
        return sorted(seq for seq, call in self.calls.items() if call.is_in_flight)
