"""A rank of a ZeRO run on a device whose streams were timed."""

from __future__ import annotations

from typing import Any

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import EngineConfig, Stall
from tests.factories.trace import (
    device_step,
    enqueued,
    flush,
    header,
    rank_trace,
    span,
    stall,
    step,
)


def device_rank(
    rank: int = 0,
    *,
    blocked_ms: float = 20,
    buckets: int = 1,
    mib: float = 64,
    gathered_ms: float | None = None,
    engine: EngineConfig | None = None,
    stalls: tuple[Stall, ...] = (),
    **fields: Any,
) -> RankTrace:
    """Six steps of 100 ms: backward from 30 to 60, then `buckets` on the stream that computes.

    They hold it `blocked_ms` together. `fields` are those of each flush. Parameters of as many
    bytes are all-gathered in backward if `gathered_ms` says how long they hold it.
    """
    comm, flushes, held = [], [], list(stalls)
    each, nbytes = blocked_ms / buckets, int(mib * (1 << 20))
    for number in range(6):
        for i in range(buckets):
            key, at = 1 + number * buckets + i, 100 * number + 60 + i * each
            told = {"step": number, "phase": "backward", "nbytes": nbytes}
            comm.append(enqueued("all_reduce", at, flush=key, **told))
            held.append(stall(comm[-1], "collective", at, at + each))
            flushes.append(flush(key, at, each, elements=nbytes // 2, **told, **fields))
        if gathered_ms is not None:
            told = {"step": number, "phase": "backward", "nbytes": nbytes * buckets}
            comm.append(enqueued("all_gather", 100 * number + 35, is_async=True, fetch=1, **told))
            held.append(stall(comm[-1], "wait", 100 * number + 35, 100 * number + 35 + gathered_ms))
    starts = [100 * number for number in range(6)]
    return rank_trace(
        rank,
        comm=comm,
        engine=engine,
        head=header(rank, device="cuda", backend="nccl"),
        steps=[step(n, start, start + 100) for n, start in enumerate(starts)],
        spans=[span("backward", start + 30, start + 60, n) for n, start in enumerate(starts)],
        flushes=flushes,
        device_steps=[device_step(n, start, start + 100) for n, start in enumerate(starts)],
        stalls=held,
    )


def synchronisations(count: int, idle_ms: float) -> tuple[Stall, ...]:
    """So many stops of the host in each of six steps, in which the stream is idle so long."""
    one = enqueued("all_reduce", 0)
    return tuple(
        stall(one, "synchronize", at, at + idle_ms, step=number, awaited=5)
        for number in range(6)
        for at in (100 * number + 2 * i for i in range(count))
    )
