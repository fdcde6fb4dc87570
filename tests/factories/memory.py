"""Ranks whose memory was sampled at step ends; step 0 is the first sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import MemorySample
from tests.factories.trace import header, rank_trace

MIB = 1 << 20
GIB = 1 << 30


def on_device(
    *samples: Mapping[str, int] | None, rank: int = 0, world_size: int = 2, **fields: Any
) -> RankTrace:
    """A rank with counters of its device."""
    memory = [
        MemorySample("step", time, step=time, device=dict(counters) if counters else None)
        for time, counters in enumerate(samples)
    ]
    head = header(rank, world_size, device="cuda", backend="nccl")
    return rank_trace(rank, world_size, **{"head": head, "memory": memory, **fields})


def on_host(*samples: Mapping[str, int], rank: int = 0, **fields: Any) -> RankTrace:
    """A rank on a CPU with readings of its host: names of `MemorySample` and their values."""
    memory = [MemorySample("step", time, step=time, **one) for time, one in enumerate(samples)]
    return rank_trace(rank, **{"memory": memory, **fields})
