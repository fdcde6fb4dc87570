"""States of ranks in one inquiry after the other, as long as nothing goes on.

That a rank is busy proves nothing: it may compute for an hour. But the longer it is busy at one
place, the less likely it is to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsprof.findings.wording import duration
from dsprof.trace.dumps.hang_dump import HangDump

LOOKS = 3
"""A rank is busy at a place if this many inquiries in a row found it there."""

THRESHOLDS = 10
"""And so many thresholds have to have passed since anything went on."""

_Place = tuple[str, ...]


@dataclass(slots=True)
class History:
    """The dumps of the last inquiry, and since when each rank is where it is."""

    last: Mapping[int, HangDump] = field(default_factory=dict)
    _stays: dict[int, tuple[_Place, int, int]] = field(default_factory=dict)

    def add(self, dumps: Mapping[int, HangDump]) -> None:
        """Take note of an inquiry."""
        for rank, dump in dumps.items():
            if place := _place(dump):  # one that spins may be too slow to say where it is
                before, looks, since_ns = self._stays.get(rank, ((), 0, 0))
                if place != before:
                    looks, since_ns = 0, dump.noticed_epoch_ns
                self._stays[rank] = place, looks + 1, since_ns
        self.last = dumps

    def busy(self, rank: int) -> str:
        """Say where a rank has been for long; "": it was not, or not looked at often enough."""
        place, looks, since_ns = self._stays.get(rank, ((), 0, 0))
        if looks < LOOKS:
            return ""
        dump = self.last[rank]
        frame = (*_frames(dump), place[0])[0]
        for_ns = dump.noticed_epoch_ns - since_ns
        return (
            f"rank {rank} has been busy at {frame} for {duration(for_ns)}: "
            f"{looks} looks found it at the same place"
        )


def _place(dump: HangDump) -> _Place:
    """Return the calls that a rank is in; of the innermost one the line may change, in a loop."""
    if not (frames := _frames(dump)):
        return ()
    place, _, function = frames[0].partition(" ")
    return f"{place.rpartition(':')[0]} {function}", *frames[1:]


def _frames(dump: HangDump) -> tuple[str, ...]:
    return dump.threads[0].frames if dump.threads else ()
