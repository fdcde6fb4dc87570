"""Runs of several DeepSpeed engines in one process, and what an engine sends in whole steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsprof.trace.lines import Line
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import ParameterLayout
from tests.factories.trace import engine, flush, rank_trace, span, step, sync

ELEMENTS = 262144  # of the model that factories train, in bfloat16
WHOLE = 2 * ELEMENTS
LAYOUT = ParameterLayout(flat=(ELEMENTS,))
LAYOUT_3 = ParameterLayout(padded=ELEMENTS, gathered=ELEMENTS)


def interleaved(
    stages: Sequence[int] = (2, 2), *, accumulating: int = 1, reference: int | None = None
) -> RankTrace:
    """A rank of engines 1 and 2: one takes a step after each of two micro-steps of the other.

    Both reduce in each micro-step. Engine 3, of stage `reference`, does nothing but forwards.
    """
    stepping = 3 - accumulating
    parts: dict[str, list[Any]] = {"steps": [], "flushes": [], "spans": []}
    comm: list[Line] = []

    def micro_step(number: int, at: float, owner: int, micro: int = 0) -> None:
        shared = {"step": number, "engine": owner}
        one = flush(len(parts["flushes"]) + 1, at + 20, 1, **shared)
        one.elements, one.micro_step = ELEMENTS, micro
        parts["flushes"].append(one)
        backward = {"phase": "backward", "flush": one.id, "micro_step": micro, **shared}
        comm.append(sync("all_reduce", at + 20, 1, nbytes=WHOLE, **backward))
        parts["spans"].append(span("forward", at, at + 10, number, engine=owner))

    def end(number: int, at: float, owner: int) -> None:
        asked = {"requested": "all_gather_into_tensor", "phase": "step", "engine": owner}
        comm.append(sync("all_gather_into_tensor", at + 40, 1, nbytes=WHOLE, step=number, **asked))
        taken = step(number, at, at + 50, micro_steps=2 if owner == accumulating else 1)
        taken.engine = owner
        parts["steps"].append(taken)

    for turn in range(4):
        first = 3 * turn
        for number, micro in ((first, 0), (first + 1, 1)):
            micro_step(number, 100 * number, owner=accumulating, micro=micro)
        end(first + 1, 100 * first + 100, owner=accumulating)
        for number in (first, first + 2):
            micro_step(number, 100 * number + 50, owner=stepping)
            end(number, 100 * number + 50, owner=stepping)
        if reference is not None:
            asked = {"requested": "all_gather_into_tensor", "phase": "forward", "fetch": 99}
            asked |= {"step": first, "engine": 3}
            comm.append(sync("all_gather_into_tensor", 300 * turn, 1, nbytes=WHOLE, **asked))
            parts["spans"].append(span("forward", 300 * turn, 300 * turn + 5, first, engine=3))
    parts["steps"].sort(key=lambda one: one.step)
    configured = {
        number: engine(stage, 2 if number == accumulating else 1)
        for number, stage in enumerate(stages, 1)
    }
    if reference is not None:
        configured[3] = engine(reference)
    for number, one in configured.items():
        one.engine, one.layout = number, LAYOUT_3 if number == 3 else LAYOUT
    trace = rank_trace(comm=comm, engines=configured, **parts)
    as_bfloat16(trace)
    return trace


def as_bfloat16(trace: RankTrace) -> None:
    """Halve the elements' size: those of factories are of float32."""
    table = trace.collectives
    table.words[table.words.index("float32")] = "bfloat16"
    table.elements = table.nbytes // 2
    for one in trace.flushes:
        one.elements = one.nbytes // 2
