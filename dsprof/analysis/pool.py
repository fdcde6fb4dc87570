"""Reads many ranks, one after the other or in several processes, and keeps what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from dsprof.analysis.alignment.clocks import Alignment, ClockSamples, clock_samples
from dsprof.analysis.rank.ddp_buckets import attach_buckets
from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.summary import Aggregate, RankClock, RunSummary, collected
from dsprof.errors import TraceError
from dsprof.plugins.entry_points import reason
from dsprof.trace.joining import Stranger
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import RankFiles, RunFiles, bounded_memory, rank_files, read_rank, stranger

Progress = Callable[[int, int], None]
"""Told how many ranks are read, and of how many."""


class _Task(NamedTuple):
    files: RankFiles
    clock: RankClock
    kinds: Sequence[type[Aggregate]]


def collect(trace: RankTrace, clock: RankClock, kinds: Sequence[type[Aggregate]]) -> RunSummary:
    """Collect the aggregates of one rank."""
    attach_buckets(trace)
    trace = on_device_clock(trace)
    return collected(trace, clock, kinds)


def collect_ranks(
    run: RunFiles, alignment: Alignment, kinds: Sequence[type[Aggregate]], processes: int
) -> Iterator[RunSummary | Stranger]:
    """Yield the aggregates of each rank, or why it cannot be read, in the order of the files.

    Raises:
        TraceError: a process died reading a file.
    """
    tasks = [_Task(files, alignment.clocks[files.header.rank], kinds) for files in rank_files(run)]
    yield from _each(_collect_file, tasks, processes)


def sample_ranks(run: RunFiles, processes: int) -> Iterator[ClockSamples]:
    """Yield what each rank knows of the clocks, in the order of the files.

    Raises:
        TraceError: a process died reading a file.
    """
    yield from _each(_sample_file, list(rank_files(run)), processes)


T = TypeVar("T")
R = TypeVar("R")


def _each(work: Callable[[T], R], tasks: Sequence[T], processes: int) -> Iterator[R]:
    if min(processes, len(tasks)) < 2:
        yield from map(work, tasks)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # A fork would copy the threads' locks of whoever calls; a fresh process has none.
    with ProcessPoolExecutor(min(processes, len(tasks)), get_context("spawn")) as pool:
        try:
            yield from pool.map(work, tasks)
        except BrokenProcessPool:
            raise TraceError(
                "a process that read a trace was killed, probably because memory ran out; "
                "give fewer files, or use a machine with more memory"
            ) from None


def _collect_file(task: _Task) -> RunSummary | Stranger:
    try:
        with bounded_memory(task.files.path):
            return _collected(read_rank(*task.files), task)
    except TraceError as error:
        return stranger(task.files.path, error)


def _collected(trace: RankTrace, task: _Task) -> RunSummary:
    """Collect the aggregates of a rank; a plugin's reader may have filled its trace with anything.

    Raises:
        TraceError: it has.
    """
    try:
        return collect(trace, task.clock, task.kinds)
    except Exception as error:
        if not trace.plugin or isinstance(error, MemoryError):
            raise
        raise TraceError(
            f"{task.files.path}: {trace.plugin} gave a trace that cannot be analysed: "
            f"{reason(error)}"
        ) from error


def _sample_file(files: RankFiles) -> ClockSamples:
    try:
        with bounded_memory(files.path):
            return clock_samples(read_rank(*files))
    except TraceError:  # which `_collect_file` meets again, and says
        return ClockSamples(files.header, {})
