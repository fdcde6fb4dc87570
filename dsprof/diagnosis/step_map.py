"""Ranks by steps: the time of each rank in each step, and the cells that stand out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.lateness import causes
from dsprof.analysis.run.series import slow_places
from dsprof.analysis.step_rows import RankSteps
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts.steps import StepMap, StepMark
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import duration

ROWS = 64
COLUMNS = 120
_LATE_SHARE = 0.05
"""A known straggler is marked if the others wait for it for at least this share of the step."""
_LONG_SHARE = 0.25
"""The same for a rank that is no straggler: ranks that take turns wait briefly for each other."""
_SLOW_SHARE = 0.25
NO_DATA = -1
_CHANGE, _LATE, _SLOW = "step-time-change", "late-rank", "periodic-slow-step"

Cells = npt.NDArray[np.int64]


class Times(NamedTuple):
    """Ranks x steps in ns, -1 without data."""

    total: Cells
    exposed: Cells
    compute: Cells


class Layout(NamedTuple):
    """Each rank in each step or span of steps, before neighbours are joined."""

    ranks: Sequence[int]
    steps: Sequence[tuple[int, int]]  # first and last of each column
    times: Callable[[Sequence[int]], Times]  # of some ranks: those of all take much memory

    def blocks(self, columns: Sequence[slice]) -> list[tuple[int, int]]:
        """Return the first and the last step of columns that are joined."""
        joined = (self.steps[one] for one in columns)
        return [(min(a for a, _ in steps), max(b for _, b in steps)) for steps in joined]


class _Found(NamedTuple):
    kind: Literal["straggler", "outlier", "change"]
    step: int
    text: str
    rank: int | None = None  # None: all of them


def step_map(summary: RunSummary, findings: Sequence[Finding], settled_from: int | None) -> StepMap:
    """Lay out the steps after warm-up, neighbours together beyond 64 ranks and 120 steps.

    Rows of several ranks are whole hosts where all hosts have as many ranks, side by side.
    A cell of several ranks shows the one with most time outside communication waits,
    mean over the cell's steps.
    """
    steps = summary[Steps]
    laid = step_layout(steps)
    if laid is None:
        return StepMap()
    ranks, numbers = laid.ranks, [first for first, _ in laid.steps]
    made, rows, columns = map_of(laid, summary[Run])
    blocks = [numbers[one] for one in columns]
    late = [*_stragglers(summary, blocks, _late(findings))]
    found = [
        *late,
        *_delayed(findings, blocks, {one.step for one in late}),
        *_outliers(steps, blocks),
        *_changes(findings, settled_from),
    ]
    made.marks = [
        StepMark(
            kind=one.kind,
            step=one.step,
            rank=one.rank,
            column=_place(one.step, numbers, columns),
            row=None if one.rank is None else _place(one.rank, ranks, rows),
            text=one.text,
        )
        for one in found
        if numbers[0] <= one.step and (one.rank is None or one.rank in ranks)
    ]
    return made


def map_of(laid: Layout, run: Run) -> tuple[StepMap, Sequence[slice], Sequence[slice]]:
    """Return a map without marks, and which ranks are its rows and which steps its columns."""
    ranks = laid.ranks
    unit = host_ranks(run, ranks)
    rows, columns = blocks_of(len(ranks), ROWS, unit), blocks_of(len(laid.steps), COLUMNS)
    cells = aggregated(laid, rows, columns)
    made = StepMap(
        ranks=[(ranks[one.start], ranks[one.stop - 1]) for one in rows],
        steps=laid.blocks(columns),
        row_hosts=rows[0].stop // unit if rows[0].stop > 1 and unit > 1 else 0,
        total_ns=cells.total.tolist(),
        exposed_ns=cells.exposed.tolist(),
        compute_ns=cells.compute.tolist(),
    )
    return made, rows, columns


def _place(value: int, values: Sequence[int], blocks: Sequence[slice]) -> int:
    """Return the block that holds a value, or the next value before it."""
    width: int = blocks[0].stop
    return (bisect_right(values, value) - 1) // width


def host_ranks(run: Run, ranks: Sequence[int]) -> int:
    """Return how many neighbours each host has; 1 where hosts differ or their ranks are spread."""
    hosts = [run.hosts[rank] for rank in ranks]
    counts = [len([*same]) for _, same in groupby(hosts)]
    return counts[0] if len(set(counts)) == 1 and len(counts) == len(set(hosts)) else 1


def blocks_of(count: int, at_most: int, unit: int = 1) -> list[slice]:
    """Split into blocks; large ones are whole units."""
    width = -(-count // at_most)
    width = -(-width // unit) * unit if width > unit else width
    return [slice(i, min(i + width, count)) for i in range(0, count, width)]


def step_layout(steps: Steps) -> Layout | None:
    """Lay out the steps after warm-up; None without any."""
    ranks, numbers = sorted(steps.ranks), steps.after_warmup
    if not ranks or not numbers:
        return None
    times = partial(_laid_out, steps.ranks, np.array(numbers, np.int64))
    return Layout(ranks, [(number, number) for number in numbers], times)


def _laid_out(rows: Mapping[int, RankSteps], numbers: Cells, ranks: Sequence[int]) -> Times:
    cells = Times(*(np.full((len(ranks), len(numbers)), NO_DATA) for _ in Times._fields))
    for i, rank in enumerate(ranks):
        row = rows[rank]
        place = np.searchsorted(numbers, row.number)
        inside = place < len(numbers)
        inside[inside] = numbers[place[inside]] == row.number[inside]
        cells.total[i, place[inside]] = row.total_ns[inside]
        if row.exposed_ns is not None:
            seen = inside & ~row.counted if row.on_device else inside
            cells.exposed[i, place[seen]] = row.exposed_ns[seen]
        if row.compute_ns is not None:
            seen = inside & ~row.hidden
            cells.compute[i, place[seen]] = row.compute_ns[seen]
    return cells


def aggregated(laid: Layout, rows: Sequence[slice], columns: Sequence[slice]) -> Times:
    """Average over the steps of a block, then take the rank of it that waits least."""
    chosen, across = [], np.arange(len(columns))
    for row in rows:
        means = Times(*(mean_of(cells, columns) for cells in laid.times(laid.ranks[row])))
        busiest = np.argmax(means.total - np.maximum(means.exposed, 0), axis=0)
        chosen.append([cells[busiest, across] for cells in means])
    return Times(*map(np.array, zip(*chosen, strict=True)))


def mean_of(cells: Cells, columns: Sequence[slice]) -> Cells:
    """Return the mean of each block of neighbouring columns, of what is known of it."""
    known, starts = cells >= 0, [one.start for one in columns]
    sums = np.add.reduceat(np.where(known, cells, 0), starts, axis=1)
    counts = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
    return np.where(counts > 0, sums // np.maximum(counts, 1), NO_DATA)


def _late(findings: Sequence[Finding]) -> set[int]:
    """Return the ranks that a finding calls stragglers."""
    failed = (one for one in findings if (one.rule, one.status) == (_LATE, Status.FAIL))
    return {rank for one in failed for rank in one.ranks}


def _stragglers(
    summary: RunSummary, blocks: Sequence[Sequence[int]], known: Set[int]
) -> Iterator[_Found]:
    """Find the rank that others waited for longest in each block of steps, if that costs much."""
    late, parts = causes(summary[Arrivals].matched), summary[Steps].parts
    for numbers in blocks:
        caused_ns = late.by_rank(numbers)
        if not caused_ns.any():
            continue
        place = int(np.argmax(caused_ns))
        cost_ns = int(caused_ns[place])
        step_ns = sum(parts[number].total_ns for number in numbers) // len(numbers)
        rank = late.ranks[place]
        share = _LATE_SHARE if rank in known else _LONG_SHARE
        if cost_ns and cost_ns >= share * step_ns:
            text = f"The others wait {duration(cost_ns)} for rank {rank} in step {numbers[0]}"
            if len(numbers) > 1:
                steps = f"steps {numbers[0]} to {numbers[-1]}"
                text = f"The others wait {duration(cost_ns)} per step for rank {rank} in {steps}"
            yield _Found("straggler", late.worst_step(place, numbers), text, rank)


def _delayed(
    findings: Sequence[Finding], blocks: Sequence[Sequence[int]], marked: Set[int]
) -> Iterator[_Found]:
    """Find the steps that a finding says one rank delays, the first of each unmarked block."""
    starts = [block[0] for block in blocks]
    done = set(marked)
    for one in findings:
        steps = one.steps if one.rule == _SLOW and len(one.ranks) == 1 else ()
        for step in steps:
            start = starts[max(bisect_right(starts, step) - 1, 0)]
            if start not in done:
                done.add(start)
                yield _Found("straggler", step, one.problem, one.ranks[0])


def _outliers(steps: Steps, blocks: Sequence[Sequence[int]]) -> Iterator[_Found]:
    """Find the steps that take far longer than their neighbours, the slowest of each block."""
    parts = steps.throughout.parts
    numbers = [number for block in blocks for number in block if number in parts]
    lengths = np.array([parts[number].total_ns for number in numbers], np.float64)
    usual = steps.throughout.fair or numbers
    usual_ns = float(np.median([parts[number].total_ns for number in usual])) if usual else 0.0
    if usual_ns <= 0:  # a clock that counts in milliseconds: no step is some times as long
        return
    is_slow = dict(zip(numbers, slow_places(lengths, _SLOW_SHARE).tolist(), strict=True))
    for block in blocks:
        if slow := [number for number in block if is_slow.get(number)]:
            worst = max(slow, key=lambda number: parts[number].total_ns)
            times = parts[worst].total_ns / usual_ns
            yield _Found("outlier", worst, f"Step {worst} takes {times:.1f} times the median")


def _changes(findings: Sequence[Finding], settled_from: int | None) -> Iterator[_Found]:
    """Find where the pace changes."""
    changed = [one for one in findings if one.rule == _CHANGE and one.steps]
    if settled_from is not None and not any(one.steps[0] == settled_from for one in changed):
        yield _Found("change", settled_from, f"Settled from step {settled_from} on")
    yield from (_Found("change", step, one.problem) for one in changed for step in one.steps)
