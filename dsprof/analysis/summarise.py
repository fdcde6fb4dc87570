"""From the files of a run to its summary, one rank in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce
from typing import TypeVar

from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.timelines import StepDetail, Timelines, draw
from dsprof.analysis.alignment.clocks import (
    Alignment,
    ClockSamples,
    align,
    shared_clock,
    unread_samples,
)
from dsprof.analysis.pool import Progress, collect, collect_ranks, sample_ranks
from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.summary import Aggregate, RunSummary
from dsprof.errors import TraceError
from dsprof.trace.joining import Stranger
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import RunFiles, read_run

T = TypeVar("T")


def summarise(
    run: RunFiles,
    kinds: Sequence[type[Aggregate]] = AGGREGATES,
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> RunSummary:
    """Read a run and collect its aggregates, several ranks at once where `processes` allows.

    Each process imports the program's main module, so more than one are for programs that guard it.

    Ranks of one host share a clock, and each file is read once; ranks of several hosts are aligned
    in a pass of its own, where their files can tell. A few files may be read once more for the
    timelines.

    A file that turns out to be unreadable is skipped, and named in `Run.strangers`.

    Raises:
        TraceError: no file can be read.
    """
    alignment = align_run(run, processes)
    ranks = collect_ranks(run, alignment, kinds, processes)
    unread: list[Stranger] = []
    summary = _merged(_read(_shown(ranks, len(run.files), progress), unread), alignment)
    if Timelines in summary:
        summary = summary.with_part(_redrawn(summary[Timelines], run, alignment))
    if Run not in summary:
        return summary
    strangers = tuple(f"{one.path}: {one.reason}" for one in (*unread, *run.strangers))
    return summary.with_part(replace(summary[Run], strangers=strangers))


def align_run(run: RunFiles, processes: int = 1) -> Alignment:
    """Put all ranks on one clock; where hosts differ, each file is read once for it."""
    return shared_clock(run.headers) or align(_samples(run, processes))


def summarise_traces(
    traces: Iterable[RankTrace],
    alignment: Alignment,
    kinds: Sequence[type[Aggregate]] = AGGREGATES,
) -> RunSummary:
    """Collect the aggregates of at least one trace."""
    collected = (collect(trace, alignment.clocks[trace.rank], kinds) for trace in traces)
    return _merged(collected, alignment)


def _samples(run: RunFiles, processes: int) -> Iterable[ClockSamples]:
    unread = unread_samples(run.headers)
    return sample_ranks(run, processes) if unread is None else unread


def _read(ranks: Iterable[RunSummary | Stranger], unread: list[Stranger]) -> Iterator[RunSummary]:
    """Yield the ranks that were read, and keep the files that were not.

    Raises:
        TraceError: no rank was read.
    """
    count = 0
    for rank in ranks:
        if isinstance(rank, Stranger):
            unread.append(rank)
        else:
            count += 1
            yield rank
    if not count:
        raise TraceError(f"{unread[0].path}: {unread[0].reason}")


def _shown(ranks: Iterable[T], count: int, progress: Progress | None) -> Iterator[T]:
    """Pass the ranks on, and say how many there were."""
    for done, rank in enumerate(ranks, 1):
        if progress is not None:
            progress(done, count)
        yield rank


def _merged(ranks: Iterable[RunSummary], alignment: Alignment) -> RunSummary:
    summary = _fold(ranks)
    if Run not in summary:
        return summary
    method, bound_ns = alignment.method, alignment.bound_ns
    return summary.with_part(replace(summary[Run], clock_method=method, clock_bound_ns=bound_ns))


def _fold(ranks: Iterable[RunSummary]) -> RunSummary:
    """Merge neighbours of as many ranks: merged in sequence, each would copy all before it."""
    held: list[tuple[int, RunSummary]] = []
    for rank in ranks:
        count, summary = 1, rank
        while held and held[-1][0] == count:
            before, earlier = held.pop()
            count, summary = before + count, earlier.merge(summary)
        held.append((count, summary))
    return reduce(lambda later, earlier: earlier.merge(later), [one for _, one in reversed(held)])


def _redrawn(timelines: Timelines, run: RunFiles, alignment: Alignment) -> Timelines:
    """Read ranks again that did not foresee which steps all of them would choose."""
    if not (missing := timelines.missing()):
        return timelines
    for details in draw_steps(run, alignment, missing):
        timelines = timelines.with_details(details, timelines.ranks)
    return timelines


def draw_steps(
    run: RunFiles, alignment: Alignment, wanted: Mapping[int, Set[int]]
) -> Iterator[dict[int, dict[int, StepDetail]]]:
    """Read the ranks in `wanted`, and draw these steps of each."""
    chosen = [i for i, header in enumerate(run.headers) if header.rank in wanted]
    files = tuple(run.files[i] for i in chosen)
    headers = tuple(run.headers[i] for i in chosen)
    beside = {rank: paths for rank, paths in run.beside.items() if rank in wanted}
    for trace in read_run(RunFiles(files, headers, beside=beside)):
        yield draw(on_device_clock(trace), alignment.clocks[trace.rank], wanted[trace.rank])
