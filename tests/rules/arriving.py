"""Ranks that arrive at their collectives at given times."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import engine, group, rank_trace, span, step, sync

STEPS = 12


def rank(number: int, arrive: float, *, before: float = 0, world: int = 2, **fields) -> RankTrace:
    """Steps of 100 ms: forward from `before`, a reduction from `arrive` to 90 ms, nothing after."""
    comm, spans = [], []
    for n in range(STEPS):
        at = 100 * n
        comm.append(sync("all_reduce", at + arrive, 90 - arrive, seq=n + 1, step=n))
        spans.append(span("forward", at + before, at + 90, n))
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    given = {"groups": {1: group(world)}, "spans": spans, "steps": steps, **fields}
    return rank_trace(number, world, comm=comm, engine=engine(), **given)


def at(*arrivals: float) -> list[RankTrace]:
    return [rank(n, arrive, world=len(arrivals)) for n, arrive in enumerate(arrivals)]


def jittering(steps: int, *arrivals: Sequence[float], every: int = 1) -> list[RankTrace]:
    """Each rank arrives at its times in turn, in every so many of its steps of 100 ms."""

    def arriving(number: int, times: Sequence[float]) -> RankTrace:
        comm = [
            sync("all_reduce", 100 * n + ms, 90 - ms, seq=k + 1, step=n)
            for k, n in enumerate(range(every - 1, steps, every))
            for ms in (times[k % len(times)],)
        ]
        marks = [step(n, 100 * n, 100 * (n + 1)) for n in range(steps)]
        groups = {1: group(len(arrivals))}
        return rank_trace(number, len(arrivals), comm=comm, steps=marks, groups=groups)

    return [arriving(n, times) for n, times in enumerate(arrivals)]
