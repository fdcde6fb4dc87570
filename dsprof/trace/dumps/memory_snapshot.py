"""The memory of a device as torch's caching allocator laid it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """When most memory was requested in the history of a snapshot, and by whom.

    `holders` are callers and the bytes that they held then, the largest first; what was allocated
    before the history began has no caller.
    """

    requested_bytes: int
    holders: tuple[tuple[str, int], ...]
    before_bytes: int  # held at the peak since before the history began
    events: int  # in the history


@dataclass(frozen=True, slots=True)
class ReturnedSegments:
    """Segments that went back to the device in the history of a snapshot."""

    segments: int = 0
    nbytes: int = 0
    flushes: int = 0  # runs of returns with no other event between
    requested: int = 0  # segments: empty_cache() is in the recorded call stack
    traced: int = 0  # segments with a recorded call stack


ROUNDED_BYTES = 20 << 20
"""The allocator asks the device for a request in units of up to so much."""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Sums over the segments of one device, in bytes.

    reserved = active + cached + stuck. Cached is what the allocator gives back when asked: whole
    free segments, and free pages of expandable ones. Stuck is the rest of what is free. `stacks`
    are calls of Python, the outermost first, and what they hold of what is in use.
    """

    device: int
    reserved_bytes: int
    active_bytes: int
    cached_bytes: int
    stuck_bytes: int
    largest_free_bytes: int
    expandable_bytes: int  # reserved in expandable segments
    private_bytes: int  # reserved in pools of their own, as CUDA graphs have them
    segments: int
    partly_used: int  # segments
    peak: Peak | None = None  # None without a history
    oom_bytes: int = 0  # size of the last request that failed, 0 if none did
    oom_device_free_bytes: int | None = None  # free on the device at that moment
    changed_since_oom: bool = False  # memory was taken or freed before the snapshot was made
    returned: ReturnedSegments = ReturnedSegments()
    stacks: tuple[tuple[tuple[str, ...], int], ...] = ()  # in use

    @property
    def was_limited(self) -> bool:
        """Whether the device had room for the request that failed, with all that is rounded up."""
        free = self.oom_device_free_bytes
        return free is not None and 0 < self.oom_bytes <= free - ROUNDED_BYTES

    @property
    def was_fragmentation(self) -> bool:
        """Whether the request that failed would have fit into what was stuck and free together."""
        free = 0 if self.was_limited else self.oom_device_free_bytes or 0
        return 0 < self.oom_bytes <= self.stuck_bytes + free

    @property
    def is_clear(self) -> bool:
        """Whether the snapshot leaves no doubt why the request failed."""
        if self.changed_since_oom or self.oom_device_free_bytes is None or self.was_limited:
            return False
        return self.oom_bytes <= self.stuck_bytes or not self.was_fragmentation
