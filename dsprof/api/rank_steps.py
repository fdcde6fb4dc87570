"""Sums of each step of each rank: with `mode: always` they outlive the details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.rank.intervals import without_size
from dsprof.analysis.rank.record_columns import int_column
from dsprof.analysis.summarise import align_run
from dsprof.analysis.summary import RankClock
from dsprof.api.rows import Columns
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import step_totals
from dsprof.trace.rolling.step_sums import count_op, sums_of
from dsprof.trace.run import RunFiles, rank_files, read_rank
from dsprof.trace.schema import SCOPES, StepTotals


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank; None: not recorded."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    forward_ns: int | None  # time in the phase
    backward_ns: int | None  # time in the phase
    step_ns: int | None  # time in the optimizer's phase
    blocked_ns: int | None  # how long collectives blocked the host
    calls: int  # number of collectives
    size_bytes: int | None  # sum over these collectives; None if one has no size
    rss_bytes: int | None  # memory of the process
    allocated_bytes: int | None  # on the device


def rank_steps(run: RunFiles) -> Iterator[Columns]:
    """Yield the steps of each rank."""
    clocks, wanted = align_run(run).clocks, run.selection.steps
    for files in rank_files(run):
        trace = on_device_clock(read_rank(files))
        found = _of_details(trace)
        if not trace.is_foreign:
            found |= {one.step: one for one in step_totals(files.path, trace.header, wanted)}
        steps = [found[step] for step in sorted(found) if wanted is None or step in wanted]
        yield _columns(trace, clocks[trace.rank], steps)


def knows_blocked(trace: RankTrace) -> bool:
    """Say whether a trace tells how long collectives blocked; of other tools only plugins may."""
    return not trace.is_foreign or bool(trace.collectives.blocked_ns.any())


def _columns(trace: RankTrace, clock: RankClock, steps: Sequence[StepTotals]) -> Columns:
    rows, is_blocked = trace.collectives, knows_blocked(trace)
    unsized = set(rows.step[without_size(rows)].tolist())
    ops = [one.ops.values() for one in steps]
    sizes = [sum(op.nbytes for op in of_step) for of_step in ops]
    phases = {f"{name}_ns": [one.phase_ns.get(name) for one in steps] for name in SCOPES}
    return phases | {
        "rank": [trace.rank] * len(steps),
        "step": [one.step for one in steps],
        "start_ns": clock.on_run(int_column(steps, "start_ns")).tolist(),
        "end_ns": clock.on_run(int_column(steps, "end_ns")).tolist(),
        "blocked_ns": [
            sum(op.blocked_ns for op in of_step) if is_blocked else None for of_step in ops
        ],
        "calls": [sum(op.calls for op in of_step) for of_step in ops],
        "size_bytes": [
            None if one.step in unsized else size for one, size in zip(steps, sizes, strict=True)
        ],
        "rss_bytes": [one.rss_bytes if one.rss_bytes >= 0 else None for one in steps],
        "allocated_bytes": [one.device_bytes if one.device_bytes >= 0 else None for one in steps],
    }


def _of_details(trace: RankTrace) -> dict[int, StepTotals]:
    """Sum up the steps of which a trace holds the details, with what is in flight or counted."""
    found, rows = sums_of(trace, 0), trace.collectives
    blocked_ns = np.where(rows.is_background, 0, rows.blocked_ns)
    columns = (rows.step, rows.nbytes, blocked_ns)
    opened = zip(*(column[rows.is_open].tolist() for column in columns), strict=True)
    beside = [(step, 1, nbytes, held_ns) for step, nbytes, held_ns in opened]
    for counters in trace.counters:
        beside += ((counters.step, r.calls, r.nbytes, r.blocked_ns) for r in counters.rows)
    for step, *sums in beside:
        if step in found:
            count_op(found[step], "", *sums)
    return found
