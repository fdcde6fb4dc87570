"""From the files of a run to its summary, one rank in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.alignment.clocks import (
    Alignment,
    align,
    shared_clock,
    unread_samples,
)
from dsprof.analysis.engine import HERE, Engine, Job, Progress, fold, unshown
from dsprof.analysis.hang.flight_recorders import of_earlier_starts
from dsprof.analysis.pool import collect, collect_ranks, sample_ranks
from dsprof.analysis.rank.bars import StepDetail
from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.rank.drawing import draw
from dsprof.analysis.summary import Aggregate, RankClock, RunSummary
from dsprof.errors import TraceError
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import rank_in_name
from dsprof.trace.run import RankFiles, RunFiles, rank_files, read_rank

Details = dict[int, dict[int, StepDetail]]
"""Drawn steps, by step and rank."""


def summarise(
    run: RunFiles,
    kinds: Sequence[type[Aggregate]] = AGGREGATES,
    *,
    engine: Engine = HERE,
    progress: Progress = unshown,
) -> RunSummary:
    """Read a run and collect its aggregates, wherever `engine` does it.

    Ranks of one host share a clock, and each file is read once; ranks of several hosts are aligned
    in a pass of its own, where their files can tell.

    A file that turns out to be unreadable is skipped, and named in `Run.strangers`.

    Raises:
        TraceError: no file can be read.
    """
    alignment = align_run(run, engine)
    ranks = collect_ranks(run, alignment, kinds, engine, progress)
    unread = sorted(ranks.unread, key=attrgetter("path"))
    if ranks.summary is None:
        raise TraceError(f"{unread[0].path}: {unread[0].reason}")
    summary = _with_clock(ranks.summary, alignment)
    stale = of_earlier_starts(summary[FlightRecorders]) if FlightRecorders in summary else {}
    if stale:
        flights = summary[FlightRecorders].ranks
        kept = {rank: dump for rank, dump in flights.items() if rank not in stale}
        summary = summary.with_part(FlightRecorders(kept))
    if Run not in summary:
        return summary
    skipped = (*unread, *run.strangers)
    strangers = tuple(f"{one.path}: {one.reason}" for one in skipped)
    strangers += tuple(
        f"the dump of rank {rank}: from an earlier start of the job than the dump of rank {later}"
        for rank, later in sorted(stale.items())
    )
    facts = replace(
        summary[Run],
        strangers=strangers,
        unread={
            rank_in_name(one.path): f"{one.path}: {one.reason}" for one in skipped if one.is_unread
        },
        selection=run.selection,
        epoch=run.epoch,
        epochs=len(run.epochs) or 1,
    )
    return summary.with_part(facts)


def align_run(run: RunFiles, engine: Engine = HERE) -> Alignment:
    """Put all ranks on one clock; where hosts differ, each file is read once for it."""
    return shared_clock(run.headers) or align(
        unread_samples(run.headers) or sample_ranks(run, engine)
    )


def summarise_traces(
    traces: Iterable[RankTrace],
    alignment: Alignment,
    kinds: Sequence[type[Aggregate]] = AGGREGATES,
) -> RunSummary:
    """Collect the aggregates of at least one trace."""
    collected = (collect(trace, alignment.clocks[trace.rank], kinds) for trace in traces)
    return _with_clock(fold(collected, RunSummary.merge), alignment)


def draw_steps(
    run: RunFiles,
    clocks: Mapping[int, RankClock],
    wanted: Mapping[int, Set[int]],
    engine: Engine = HERE,
) -> Details:
    """Read the ranks in `wanted`, and draw these steps of each.

    Raises:
        TraceError: a file has become unreadable.
    """
    tasks = [
        _Drawing(files, clocks[files.header.rank], wanted[files.header.rank])
        for files in rank_files(run.of_ranks(wanted))
    ]
    return engine.merged(_DRAW, tasks, unshown) if tasks else {}


def _with_clock(summary: RunSummary, alignment: Alignment) -> RunSummary:
    if Run not in summary:
        return summary
    method, bound_ns = alignment.method, alignment.bound_ns
    return summary.with_part(replace(summary[Run], clock_method=method, clock_bound_ns=bound_ns))


class _Drawing(NamedTuple):
    files: RankFiles
    clock: RankClock
    steps: Set[int]


def _draw(task: _Drawing) -> Details:
    trace = on_device_clock(read_rank(task.files))
    drawn = draw(trace, task.clock, task.steps)
    return {number: {trace.rank: detail} for number, detail in drawn.items()}


def _nothing(task: _Drawing) -> Details:
    return {}


def _side_by_side(one: Details, other: Details) -> Details:
    return {step: one.get(step, {}) | other.get(step, {}) for step in one.keys() | other.keys()}


_DRAW = Job(_draw, _side_by_side, _nothing, attrgetter("files"))
