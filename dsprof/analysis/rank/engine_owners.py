"""Which DeepSpeed engine communication belongs to, where several of them are in one process.

What is sent within a phase belongs to the engine whose phase it is, and to the next step that this
engine takes: while one accumulates, others may take steps. What is sent between phases belongs to
the engine that takes the step. Where steps are the program's own (`dsprof.step()`), the engine of a
call is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import RankTrace

NO_ENGINE = -1


class Record(Protocol):
    """A flush, a fetch or a phase."""

    step: int
    engine: int


@dataclass(frozen=True)
class Part:
    """Work of one engine in whole steps of its own; all where there is one engine, or none."""

    number: int
    steps: Array  # that it took, ascending
    spans: Array  # all steps that lie in these, ascending: others may have taken them
    takers: dict[int, int]  # step -> engine; empty with a single engine
    trains: bool = True  # False: it took no step, and `steps` are those of the others

    def holds(self, record: Record) -> bool:
        """Say whether a record is of this part."""
        owner = record.engine if record.engine >= 0 else self.takers.get(record.step, NO_ENGINE)
        return record.step in self.held and (not self.takers or owner == self.number)

    @cached_property
    def held(self) -> frozenset[int]:
        """`spans` as a set."""
        return frozenset(self.spans.tolist())

    def rows(self, trace: RankTrace) -> BoolArray:
        """Say which collectives are of this part."""
        return self.holding(trace.collectives.step, trace.collectives.engine)

    def holding(self, step: IntArray, engine: IntArray) -> BoolArray:
        """Say which records are of this part, given their columns."""
        mine = np.isin(step, self.spans)
        if self.takers:
            mine &= _owners(engine, step, self.takers) == self.number
        return np.asarray(mine, np.bool_)


def parts(trace: RankTrace, steps: Array) -> Iterator[Part]:
    """Split whole `steps` (ascending) between engines."""
    if len(trace.engines) < 2:
        yield Part(next(iter(trace.engines), NO_ENGINE), steps, steps, {})
        return
    takers = {step.step: step.engine for step in trace.steps}
    trained = sorted(set(takers.values()))
    if trained == [NO_ENGINE]:
        yield Part(NO_ENGINE, steps, steps, {})
        return
    for number in trained:
        yield _part(number, takers, steps)
    for number in sorted({span.engine for span in trace.spans} & trace.engines.keys()):
        if number not in trained:
            yield Part(number, steps, steps, takers, trains=False)


def owners(trace: RankTrace, found: Iterable[Part]) -> Array:
    """Return of which part each collective is, by its number; -1 where there are not several."""
    owner = np.full(len(trace.collectives), NO_ENGINE, np.int64)
    for part in found:
        if part.takers:
            owner[part.rows(trace)] = part.number
    return owner


def _owners(engine: IntArray, step: IntArray, takers: dict[int, int]) -> Array:
    numbers, place = np.unique(step, return_inverse=True)
    found = [takers.get(number, NO_ENGINE) for number in numbers.tolist()]
    of_step = np.array(found, np.int64)[place.reshape(-1)]
    return np.where(engine >= 0, engine, of_step).astype(np.int64)


def _part(number: int, takers: dict[int, int], steps: Array) -> Part:
    """Take those steps of an engine that lie in `steps` from where they begin."""
    whole, mine, spans = set(steps.tolist()), list[int](), list[int]()
    begin = min(takers)
    for step in sorted(step for step, taker in takers.items() if taker == number):
        span = range(begin, step + 1)
        begin = step + 1
        if whole.issuperset(span):
            mine.append(step)
            spans += span
    return Part(number, np.array(mine, np.int64), np.array(spans, np.int64), takers)
