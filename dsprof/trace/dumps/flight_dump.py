"""One rank's dump of torch's flight recorder: its last collectives and their states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as the rank knows it; numbers are -1 where the dump does not tell them."""

    name: str
    label: str
    ranks: tuple[int, ...]
    last_enqueued: int = -1
    last_completed: int = -1


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One collective, or one send or recv, that the recorder still held.

    `seq` counts the collectives of the group, or its point-to-point calls where `is_p2p`.
    """

    group: str
    seq: int
    op: str  # without the backend: "all_reduce", "send"
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtype: str
    state: str  # "scheduled", "started" or "completed", as the recorder says
    created_ns: int
    completed_ns: int = 0  # when the watchdog saw it; 0: it did not
    is_retired: bool = False  # the watchdog has stopped to look after it
    is_p2p: bool = False
    source: int = -1  # ranks in the group, of a send or recv
    target: int = -1
    frame: str = ""  # the first frame of the caller
    is_of_zero3: bool = False  # False where the dump holds no stacks


@dataclass(frozen=True, slots=True)
class FlightDump:
    """A dump of one rank."""

    backend: str
    knows_completion: bool  # gloo's recorder never learns what has ended
    groups: dict[str, FlightGroup]
    entries: list[FlightEntry]

    def is_in_flight(self, entry: FlightEntry) -> bool:
        """Whether a call had not ended when the recorder was dumped."""
        is_open = entry.state != "completed" and not entry.is_retired
        return self.knows_completion and is_open
