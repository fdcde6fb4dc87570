"""Ranks whose steps take longer at times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import RollUp
from tests.factories.trace import engine, rank_trace, span, step, summary, sync

NOISE = np.random.default_rng(3).normal(0, 1, 1000)

Extra = Callable[[int], float]


def nothing(number: int) -> float:
    return 0


def rank(
    number: int = 0,
    steps: int = 60,
    computing: Extra = nothing,
    between: Extra = nothing,
    waiting: Extra = nothing,
    calls: Extra = nothing,
    **fields: Any,
) -> RankTrace:
    """Steps of 100 ms: `between` ms, forward of 80 ms and more, a wait of 20 ms and more."""
    at, made = 0.0, {"steps": [], "spans": [], "comm": []}
    for n in range(steps):
        begin = at + between(n)
        end = begin + 80 + NOISE[n] + computing(n)
        held = 20 + waiting(n)
        made["spans"].append(span("forward", begin, end + held, n))
        made["comm"].append(sync("all_reduce", end, held, seq=10 * n, step=n))
        made["comm"] += [sync("all_reduce", end, 0, seq=10 * n + k, step=n)
                         for k in range(1, 1 + round(calls(n)))]  # fmt: skip
        made["steps"].append(step(n, at, end + held))
        at = end + held
    return rank_trace(number, engine=engine(), **made, **fields)


def ranks(steps: int = 60, **extra: Extra) -> list[RankTrace]:
    return [rank(n, steps, **extra) for n in range(2)]


def columns_of(*traces: RankTrace) -> StepColumns:
    steps = summary(*traces)[Steps]
    return step_columns(steps, steps.even, ())


def rolling(trace: RankTrace, kept: Callable[[int], bool]) -> RankTrace:
    """Keep the newest 100 steps, every eighth, and others, as a rolling recording does."""
    trace.newest_from = len(trace.steps) - 100
    trace.steps = [
        one
        for one in trace.steps
        if one.step >= trace.newest_from or one.step % 8 == 0 or kept(one.step)
    ]
    return trace


def summed(ranks: int, working: Callable[[int, int], float], late: float = 0) -> list[RankTrace]:
    """Sums of 60 spans of 10 steps, and details of the newest: `working` ms of a rank in a span.

    The others wait for the rank that works longest, and all for `late` ms more in spans 20 to 39.
    """
    traces = [partial(rank(number, 600), range(560, 600)) for number in range(ranks)]
    for number, trace in enumerate(traces):
        trace.newest_from = 560
        for at in range(60):
            longest = max(working(other, at) for other in range(ranks))
            step_ns = round((100 + longest + late * (20 <= at < 40)) * 1e6)
            span = RollUp(
                begin_s=10 * at,
                length_s=10,
                first_step=10 * at,
                steps=10,
                total_ns=10 * step_ns,
                fastest_ns=step_ns - 10**6,
                slowest_ns=step_ns + 10**6,
                slowest_step=10 * at + 5,
                blocked_ns=10 * (step_ns - round((80 + working(number, at)) * 1e6)),
                nbytes=100 << 20,
            )
            trace.rollups[span.span] = span
    return traces


def from_step(first: int, ms: float) -> Extra:
    return lambda n: ms * (n >= first)


def every(period: int, ms: float) -> Extra:
    return lambda n: ms * (n % period == period - 1)


def partial(trace: RankTrace, kept: range) -> RankTrace:
    """A rank whose record holds only some steps."""
    trace.steps = [one for one in trace.steps if one.step in kept]
    return trace


def in_spells(*spells: range) -> Extra:
    return lambda n: 40 * any(n in spell for spell in spells)
