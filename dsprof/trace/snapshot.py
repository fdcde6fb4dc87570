"""The memory of a device as torch's caching allocator laid it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Sums over the segments of one `torch.cuda.memory._snapshot()`, in bytes.

    reserved = active + cached + stuck. Cached is what whole free segments hold, and what the
    allocator gives back when asked; stuck is what is free in segments that are partly used.
    """

    reserved_bytes: int
    active_bytes: int
    cached_bytes: int
    stuck_bytes: int
