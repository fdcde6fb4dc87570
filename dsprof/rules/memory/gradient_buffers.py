"""The buffers in which ZeRO collects gradients before it reduces them."""

from __future__ import annotations

from typing import NamedTuple

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.rank.intent import communication_dtype
from dsprof.trace.dtypes import item_bytes

_ONLY_PARAMETERS = "DeepSpeedZeRoOffload"
"""ZeRO-3's stand-in where no optimizer is given: it reduces no gradients."""


class GradientBuffers(NamedTuple):
    """Buffers that one rank allocates."""

    capacity: int  # elements of one
    slots: int
    item_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.bytes_beyond(0)

    def bytes_beyond(self, elements: int) -> int:
        """Return how many bytes fewer buffers of so many elements would have."""
        return (self.capacity - elements) * self.slots * self.item_bytes


def gradient_buffers(engines: Engines) -> GradientBuffers | None:
    """Return the buffers of one engine; None where it has none.

    That is without ZeRO, contiguous gradients, or an optimizer.
    """
    capacity = engines.zero("reduce_bucket_size")
    if not engines.stage or engines.main is None or not engines.zero("contiguous_gradients", True):
        return None
    if engines.main.optimizer == _ONLY_PARAMETERS:
        return None
    if not isinstance(capacity, (int, float)) or capacity <= 0:
        return None
    count = 2 if engines.stage < 3 and engines.zero("overlap_comm") else 1
    size = item_bytes(communication_dtype(engines.main))
    return GradientBuffers(int(capacity), count, size)
