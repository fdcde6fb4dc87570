"""Reads the ranks of a run by an engine, and keeps what is wanted of each."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from dsprof.analysis.alignment.clocks import Alignment, ClockSamples, clock_samples, merged_samples
from dsprof.analysis.engine import Engine, Job, Progress, unshown
from dsprof.analysis.freed_memory import keep_large_arrays
from dsprof.analysis.rank.ddp_buckets import attach_buckets
from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.rank.remembered import unchanging
from dsprof.analysis.summary import Aggregate, RankClock, RunSummary, collected
from dsprof.errors import TraceError
from dsprof.plugins.entry_points import reason
from dsprof.trace.candidates import Stranger
from dsprof.trace.packed import OnDemand
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import RankFiles, RunFiles, rank_files, read_rank
from dsprof.trace.trace_files import bounded_memory, stranger

_KILLED = TraceError(
    "reading it killed the process, probably because memory ran out; use a machine with more memory"
)


class Ranks(NamedTuple):
    """A part of the ranks as read, and the files that cannot be read."""

    summary: RunSummary | None = None
    unread: tuple[Stranger, ...] = ()

    def merge(self, other: Ranks) -> Ranks:
        """Join what was read of two disjoint sets of ranks."""
        if self.summary is None or other.summary is None:
            summary = self.summary or other.summary
        else:
            summary = self.summary.merge(other.summary)
        return Ranks(summary, self.unread + other.unread)


class _Task(NamedTuple):
    files: RankFiles
    clock: RankClock
    kinds: Sequence[type[Aggregate]]


def collect(trace: RankTrace, clock: RankClock, kinds: Sequence[type[Aggregate]]) -> RunSummary:
    """Collect the aggregates of one rank."""
    attach_buckets(trace)
    trace = on_device_clock(trace)
    with unchanging(trace):
        return collected(trace, clock, kinds)


def collect_ranks(
    run: RunFiles,
    alignment: Alignment,
    kinds: Sequence[type[Aggregate]],
    engine: Engine,
    progress: Progress,
) -> Ranks:
    """Collect the aggregates of all ranks."""
    ranks = rank_files(run)

    def task(place: int) -> _Task:
        files = ranks[place]
        return _Task(files, alignment.clocks[files.header.rank], kinds)

    return engine.merged(_COLLECT, OnDemand(task, range(len(ranks))), progress)


def sample_ranks(run: RunFiles, engine: Engine) -> list[ClockSamples]:
    """Return what each rank knows of the clocks, in the order of the ranks."""
    samples = engine.merged(_SAMPLE, rank_files(run), unshown)
    return sorted(samples, key=lambda one: one.header.rank)


def _collect_file(task: _Task) -> Ranks:
    keep_large_arrays()
    try:
        with bounded_memory(task.files.path):
            return Ranks(_collected(read_rank(task.files), task))
    except TraceError as error:
        return Ranks(unread=(stranger(task.files.path, error),))


def _killed(task: _Task) -> Ranks:
    return Ranks(unread=(stranger(task.files.path, _KILLED),))


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


def _sample_file(files: RankFiles) -> list[ClockSamples]:
    try:
        with bounded_memory(files.path):
            return [clock_samples(read_rank(files))]
    except TraceError:  # which `_collect_file` meets again, and says
        return _without_samples(files)


def _without_samples(files: RankFiles) -> list[ClockSamples]:
    return [ClockSamples(files.header, {})]


def _itself(files: RankFiles) -> RankFiles:
    return files


_COLLECT = Job(_collect_file, Ranks.merge, _killed, attrgetter("files"))
_SAMPLE = Job(_sample_file, merged_samples, _without_samples, _itself)
